#include "tests/unit/service/rpc/caller.h"

#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>

#include "ipc/channel.h"

namespace headrace::support {
namespace {

class Descriptor final : public schema::Descriptor::Server {
 public:
  explicit Descriptor(UniqueFd fd) : fd_(std::move(fd)) {}
  kj::Maybe<int> getFd() override {
    if (!fd_) return nullptr;
    return fd_.get();
  }

 private:
  UniqueFd fd_;
};

}  // namespace

schema::Descriptor::Client Carry(int fd) {
  return kj::heap<Descriptor>(fd < 0 ? UniqueFd() : Duplicate(fd).value());
}

Answered Read(schema::Refusal::Reader refusal) {
  return {.code = static_cast<Code>(refusal.getCode()), .text = refusal.getText().cStr()};
}

void Connect(int socket, const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  const int connected =
      ::connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address);
  HR_CHECK(connected == 0, path, errno);
}

UniqueFd ConnectTo(const std::string& path) {
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  Connect(fd.get(), path);
  return fd;
}

Caller::Caller(CallerLoop& loop, const std::string& path)
    : loop_(loop),
      stream_(loop.io.lowLevelProvider->wrapUnixSocketFd(
          ConnectTo(path).release(), kj::LowLevelAsyncIoProvider::TAKE_OWNERSHIP)),
      client_(*stream_, 1),
      bootstrap_(client_.bootstrap().castAs<schema::Bootstrap>()) {}

Attached Caller::Attach(const AttachCall& fields) {
  ipc::Channel::Created channel = ipc::Channel::Create().value();
  const UniqueFd doorbell(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  auto call = bootstrap_.attachRequest();
  call.getHello().setProtocolVersion(fields.protocol_version);
  call.getHello().setProgram(fields.program);
  auto request = call.getRequest();
  request.setJob(fields.job);
  request.setRank(fields.rank);
  request.setWorldSize(fields.world_size);
  request.setTimeoutMs(fields.timeout_ms);
  request.setRendezvous(fields.rendezvous);
  request.setArchitecture(fields.architecture);
  request.setChannel(Carry(fields.channel.value_or(channel.fd.get())));
  request.setDoorbell(Carry(fields.doorbell.value_or(doorbell.get())));
  auto response = loop_.Wait<capnp::Response<schema::Bootstrap::AttachResults>>(call.send());
  Attached attached;
  static_cast<Answered&>(attached) = Read(response.getRefusal());
  attached.session = response.getSession();
  attached.session_id = response.getGranted().getSessionId();
  attached.job_id = response.getGranted().getJobId();
  attached.timeout_ms = response.getGranted().getTimeoutMs();
  return attached;
}

Numbered Caller::RegisterSegment(schema::Session::Client& session, int fd, std::uint64_t size) {
  auto call = session.registerSegmentRequest();
  call.setMemory(Carry(fd));
  call.setSize(size);
  auto response = loop_.Wait<capnp::Response<schema::Session::RegisterSegmentResults>>(call.send());
  return {Read(response.getRefusal()), response.getSegment()};
}

Numbered Caller::RegisterDeviceSegment(schema::Session::Client& session, const DeviceClaim& claim,
                                       int fd) {
  auto call = session.registerDeviceSegmentRequest();
  auto handle = call.initHandle();
  const auto bytes = [](const std::string& text) {
    return capnp::Data::Reader(reinterpret_cast<const kj::byte*>(text.data()), text.size());
  };
  handle.setKind(claim.kind);
  handle.setExporterPid(claim.exporter_pid);
  handle.setDevice(bytes(claim.device));
  handle.setOffset(claim.offset);
  handle.setSize(claim.size);
  handle.setPieceSize(claim.piece_size);
  handle.setLegacy(bytes(claim.legacy));
  auto pieces = call.initPieces(claim.pieces_count);
  for (std::uint32_t i = 0; i < claim.pieces_count; ++i) pieces.set(i, Carry(fd));
  auto response =
      loop_.Wait<capnp::Response<schema::Session::RegisterDeviceSegmentResults>>(call.send());
  return {Read(response.getRefusal()), response.getSegment()};
}

Answered Caller::ReleaseSegment(schema::Session::Client& session, std::uint32_t segment) {
  auto call = session.releaseSegmentRequest();
  call.setSegment(segment);
  auto response = loop_.Wait<capnp::Response<schema::Session::ReleaseSegmentResults>>(call.send());
  return Read(response.getRefusal());
}

Numbered Caller::RegisterTensors(schema::Session::Client& session,
                                 const std::vector<service::Tensor>& tensors) {
  auto call = session.registerTensorsRequest();
  auto specs = call.initTensors(static_cast<unsigned>(tensors.size()));
  for (unsigned i = 0; i < tensors.size(); ++i) {
    specs[i].setName(tensors[i].name);
    specs[i].setSegment(tensors[i].segment.value);
    specs[i].setOffset(tensors[i].offset);
    specs[i].setCount(tensors[i].count);
    specs[i].setDtype(static_cast<std::uint8_t>(tensors[i].dtype));
    specs[i].setOrder(tensors[i].order);
  }
  auto response = loop_.Wait<capnp::Response<schema::Session::RegisterTensorsResults>>(call.send());
  return {Read(response.getRefusal()), response.getFirst()};
}

Answered Caller::ReleaseTensors(schema::Session::Client& session, std::uint32_t first,
                                std::uint32_t count) {
  auto call = session.releaseTensorsRequest();
  call.setFirst(first);
  call.setCount(count);
  auto response = loop_.Wait<capnp::Response<schema::Session::ReleaseTensorsResults>>(call.send());
  return Read(response.getRefusal());
}

Answered Caller::SetLayout(schema::Session::Client& session, const LayoutCall& fields) {
  auto call = session.setLayoutRequest();
  call.setFirst(fields.first);
  call.setCount(fields.count);
  call.setReduction(static_cast<std::uint8_t>(fields.reduction));
  call.setPolicy(fields.policy);
  call.setCodec(fields.codec);
  auto codecs = call.initCodecs(static_cast<unsigned>(fields.codecs.size()));
  for (unsigned i = 0; i < codecs.size(); ++i) codecs.set(i, fields.codecs[i]);
  call.setResiduals(fields.residuals);
  call.setFactorsRank(fields.factors_rank);
  call.setIterationsBefore(fields.iterations_before);
  call.setAdaptive(fields.adaptive);
  auto rows = call.initRows(static_cast<unsigned>(fields.rows.size()));
  for (unsigned i = 0; i < rows.size(); ++i) rows.set(i, fields.rows[i]);
  auto response = loop_.Wait<capnp::Response<schema::Session::SetLayoutResults>>(call.send());
  return Read(response.getRefusal());
}

schema::Admin::Client Caller::Admin() {
  auto hello = bootstrap_.adminRequest();
  hello.getHello().setProtocolVersion(schema::PROTOCOL_VERSION);
  return loop_.Wait<capnp::Response<schema::Bootstrap::AdminResults>>(hello.send()).getAdmin();
}

Answered Caller::Steer(const std::string& job, SteeringKind kind, std::uint64_t value,
                       bool forced) {
  auto call = Admin().steerRequest();
  call.setJob(job);
  call.getSteering().setKind(static_cast<std::uint8_t>(kind));
  call.getSteering().setValue(value);
  call.getSteering().setForced(forced);
  auto response = loop_.Wait<capnp::Response<schema::Admin::SteerResults>>(call.send());
  return {static_cast<Code>(response.getCode()), response.getText().cStr()};
}

Answered Caller::SetPolicy(const std::string& job, const std::string& policy) {
  auto call = Admin().setPolicyRequest();
  call.setJob(job);
  call.setPolicy(policy);
  auto response = loop_.Wait<capnp::Response<schema::Admin::SetPolicyResults>>(call.send());
  return {static_cast<Code>(response.getCode()), response.getText().cStr()};
}

Answered Caller::Leave(schema::Session::Client& session) {
  auto response =
      loop_.Wait<capnp::Response<schema::Session::LeaveResults>>(session.leaveRequest().send());
  return Read(response.getRefusal());
}

}  // namespace headrace::support

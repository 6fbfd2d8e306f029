#include "client/lib/connection.h"

#include <fmt/format.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <optional>
#include <thread>
#include <utility>

#include "client/lib/connection_loop.h"
#include "client/lib/socket.h"
#include "ipc/schema/client.capnp.h"

namespace headrace::client {
namespace {

// For how long, and how often, a rank that may go on tries to attach beside what remains of its
// job's last epoch.
constexpr TimeNs kOldLifeMax = 5 * kSecond;
constexpr TimeNs kOldLifePause = 5 * kMillisecond;

// Carries a descriptor beside a message; closes its copy when the service lets go of it.
class DescriptorServer final : public schema::Descriptor::Server {
 public:
  explicit DescriptorServer(UniqueFd fd) : fd_(std::move(fd)) {}
  kj::Maybe<int> getFd() override { return fd_.get(); }

 private:
  UniqueFd fd_;
};

Result<schema::Descriptor::Client> Describe(int fd) {
  Result<UniqueFd> copy = Duplicate(fd);
  if (!copy) return copy.error();
  return schema::Descriptor::Client(kj::heap<DescriptorServer>(std::move(copy).value()));
}

Status StatusOf(schema::Refusal::Reader refusal) {
  if (refusal.getCode() == 0) return {};
  const bool known = refusal.getCode() < kCodesCount;
  return Error(known ? static_cast<Code>(refusal.getCode()) : Code::kInternal,
               std::string(refusal.getText().cStr()));
}

void Fill(const DeviceHandle& handle, schema::DeviceHandle::Builder fields) {
  fields.setKind(static_cast<std::uint32_t>(handle.kind));
  fields.setExporterPid(handle.exporter_pid);
  fields.setDevice({handle.device.data(), handle.device.size()});
  fields.setOffset(handle.offset);
  fields.setSize(handle.size);
  fields.setPieceSize(handle.piece_size);
  if (handle.kind != DeviceHandleKind::kLegacyIpc) return;
  fields.setLegacy({handle.legacy.data(), handle.legacy.size()});
}

// Both references live until the answer is there.
template <typename Call>
kj::Promise<void> SendRegistration(Call& call, std::uint32_t& segment, Status& status) {
  return call.send().then([&segment, &status](auto&& answer) {
    segment = answer.getSegment();
    status = StatusOf(answer.getRefusal());
  });
}

// Ends a call before anything is sent.
kj::Promise<void> Refuse(Status& status, const Error& error) {
  status = error;
  return kj::READY_NOW;
}

// The service has not seen yet that the job's last epoch is over, or has to catch up.
bool OldLifeRemains(Code code) {
  return code == Code::kPeerLost || code == Code::kAlreadyExists || code == Code::kBusy;
}

void SetMembers(auto& fields, const std::vector<std::uint32_t>& members) {
  auto list = fields.initMembers(static_cast<unsigned>(members.size()));
  for (unsigned i = 0; i < list.size(); ++i) list.set(i, members[i]);
}

}  // namespace

Connection::Connection(std::unique_ptr<ConnectionLoop> loop, std::int32_t service_pid)
    : loop_(std::move(loop)), service_pid_(service_pid) {}

Connection::~Connection() = default;

Result<std::unique_ptr<Connection>> Connection::Attach(const AttachRequest& request, int channel_fd,
                                                       int doorbell_fd, LossListener& listener) {
  Result<ServiceSocket> socket = ConnectToService(request.socket_path, request.call_timeout_ns);
  if (!socket) return socket.error();
  UniqueFd bell(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!bell) return SystemError("create an eventfd", errno);
  const std::int32_t pid = socket->pid;
  auto loop = std::make_unique<ConnectionLoop>(
      std::move(socket).value(), std::move(bell),
      fmt::format("the service at {} (pid {})", request.socket_path, pid), request.call_timeout_ns,
      request.deadline_ns, listener);
  std::unique_ptr<Connection> connection(new Connection(std::move(loop), pid));
  AttachRequest wanted = request;
  Status status = request.quorum ? connection->JoinQuorum(wanted) : Status();
  if (status) status = connection->SendHello(wanted, channel_fd, doorbell_fd);
  // What is left of the rank's life before, or of others', goes soon; the place among those that go
  // on is this connection's.
  const TimeNs give_up = MonotonicNow() + kOldLifeMax;
  while (!status && request.quorum && OldLifeRemains(status.code()) && MonotonicNow() < give_up) {
    std::this_thread::sleep_for(std::chrono::nanoseconds(kOldLifePause));
    status = connection->SendHello(wanted, channel_fd, doorbell_fd);
  }
  if (!status) {
    connection->loop_->ExpectEnd();
    return status.error();
  }
  return connection;
}

Status Connection::AskQuorum(const AttachRequest& request, std::string& waits) {
  const std::string doing =
      fmt::format("ask at {} who is left of job {}", request.socket_path, request.job);
  return loop_->Call(doing, [&](ConnectionLoop::Wire& wire, Status& status) -> kj::Promise<void> {
    auto call = wire.client.bootstrap().castAs<schema::Bootstrap>().joinQuorumRequest();
    call.getHello().setProtocolVersion(schema::PROTOCOL_VERSION);
    call.getHello().setProgram(request.program.c_str());
    auto fields = call.getRequest();
    fields.setJob(request.job.c_str());
    fields.setRendezvous(request.rendezvous.c_str());
    fields.setRole(request.quorum->role);
    fields.setMember(request.quorum->member);
    auto membership = fields.initMembership();
    membership.setGeneration(request.quorum->membership.generation);
    SetMembers(membership, request.quorum->membership.members);
    fields.setAfterEpoch(request.after_epoch);
    fields.setMinWorld(request.quorum->rules.min_world);
    fields.setGraceMs(request.quorum->rules.grace_ms);
    fields.setPlaces(request.quorum->places.c_str());
    fields.setPid(::getpid());
    const std::uint32_t asked = request.quorum->member;
    const bool is_member = request.quorum->role == 0;
    return call.send().then([this, &status, &waits, asked, is_member](auto&& answer) {
      status = StatusOf(answer.getRefusal());
      waits = answer.getWaits().cStr();
      if (!status || !waits.empty()) return;
      const auto quorum = answer.getQuorum();
      quorum_.emplace();
      quorum_->epoch = quorum.getEpoch();
      quorum_->own = is_member ? asked : quorum.getOwn();
      quorum_->rendezvous = quorum.getRendezvous().cStr();
      quorum_->membership.generation = quorum.getMembership().getGeneration();
      for (const std::uint32_t member : quorum.getMembership().getMembers()) {
        quorum_->membership.members.push_back(member);
      }
    });
  });
}

Status Connection::JoinQuorum(AttachRequest& request) {
  while (!quorum_) {
    std::string waits;
    if (Status status = AskQuorum(request, waits); !status) return status;
    if (quorum_) break;
    if (request.deadline_ns != kNever && MonotonicNow() >= request.deadline_ns) {
      return Error(Code::kTimeout, waits);
    }
  }
  const std::vector<std::uint32_t>& members = quorum_->membership.members;
  const auto own = std::ranges::find(members, quorum_->own);
  if (own == members.end()) {
    return Error(Code::kInternal, fmt::format("{} answered without member {}, who asked",
                                              request.socket_path, quorum_->own));
  }
  request.rank = static_cast<std::uint32_t>(own - members.begin());
  request.world_size = static_cast<std::uint32_t>(members.size());
  request.after_epoch = quorum_->epoch;
  request.members = members;
  if (!quorum_->rendezvous.empty()) {
    request.rendezvous = quorum_->rendezvous;
    request.rendezvous_from = "the services of the job's nodes";
  }
  return {};
}

Status Connection::SendHello(const AttachRequest& request, int channel_fd, int doorbell_fd) {
  const std::string doing =
      fmt::format("attach rank {} of job {} at {}", request.rank, request.job, request.socket_path);
  return loop_->Call(doing, [&](ConnectionLoop::Wire& wire, Status& status) -> kj::Promise<void> {
    Result<schema::Descriptor::Client> channel = Describe(channel_fd);
    Result<schema::Descriptor::Client> doorbell = Describe(doorbell_fd);
    if (!channel) return Refuse(status, channel.error());
    if (!doorbell) return Refuse(status, doorbell.error());
    auto call = wire.client.bootstrap().castAs<schema::Bootstrap>().attachRequest();
    call.getHello().setProtocolVersion(schema::PROTOCOL_VERSION);
    call.getHello().setProgram(request.program.c_str());
    auto fields = call.getRequest();
    fields.setJob(request.job.c_str());
    fields.setRank(request.rank);
    fields.setWorldSize(request.world_size);
    fields.setChannel(std::move(channel).value());
    fields.setDoorbell(std::move(doorbell).value());
    fields.setPid(::getpid());
    fields.setTimeoutMs(request.timeout_ms);
    fields.setRendezvous(request.rendezvous.c_str());
    fields.setArchitecture(request.architecture.c_str());
    fields.setSendsClass(request.sends_class.c_str());
    fields.setSlowS(request.slow_s);
    fields.setSlowLeastWorld(request.slow_least_world);
    fields.setMinWorld(request.min_world);
    fields.setAfterEpoch(request.after_epoch);
    fields.setRendezvousFrom(request.rendezvous_from.c_str());
    fields.setCanReconnect(request.can_reconnect);
    SetMembers(fields, request.members);
    std::string who = fmt::format("rank {}", request.rank);
    return call.send().then([this, &wire, &status, who = std::move(who)](auto&& answer) {
      status = StatusOf(answer.getRefusal());
      if (!status) return;
      const auto granted = answer.getGranted();
      grant_ = {granted.getJobId(), granted.getEpoch(), granted.getTimeoutMs()};
      wire.session = answer.getSession();
      if (grant_.timeout_ms != 0) {
        loop_->WatchOperations(wire, grant_.timeout_ms * kMillisecond);
      }
      loop_->AwaitStop(wire, who);
      loop_->AwaitNotices(wire);
      // A service that does not know the question says nothing.
      wire.tasks->add(wire.session->latenessRequest().send().then(
          [who](auto&& late) { PrintFrom(who, late.getText().cStr()); }, [](kj::Exception&&) {}));
    });
  });
}

Result<std::uint32_t> Connection::RegisterSegment(int fd, std::size_t size) {
  std::lock_guard lock(registering_);
  std::uint32_t segment = 0;
  const Status called = loop_->Call(
      "register a segment",
      [&](ConnectionLoop::Wire& wire, Status& status) -> kj::Promise<void> {
        Result<schema::Descriptor::Client> memory = Describe(fd);
        if (!memory) return Refuse(status, memory.error());
        auto call = wire.session->registerSegmentRequest();
        call.setMemory(std::move(memory).value());
        call.setSize(size);
        return SendRegistration(call, segment, status);
      },
      ConnectionLoop::Patience::kWhileMapping);
  if (!called) return called.error();
  return segment;
}

Result<std::uint32_t> Connection::RegisterDeviceSegment(const DeviceHandle& handle,
                                                        std::span<const UniqueFd> pieces) {
  std::lock_guard lock(registering_);
  std::uint32_t segment = 0;
  const Status called = loop_->Call(
      "register GPU memory",
      [&](ConnectionLoop::Wire& wire, Status& status) -> kj::Promise<void> {
        auto call = wire.session->registerDeviceSegmentRequest();
        Fill(handle, call.initHandle());
        auto list = call.initPieces(static_cast<unsigned>(pieces.size()));
        for (unsigned i = 0; i < list.size(); ++i) {
          Result<schema::Descriptor::Client> piece = Describe(pieces[i].get());
          if (!piece) return Refuse(status, piece.error());
          list.set(i, std::move(piece).value());
        }
        return SendRegistration(call, segment, status);
      },
      ConnectionLoop::Patience::kWhileMapping);
  if (!called) return called.error();
  return segment;
}

Status Connection::ReleaseSegment(std::uint32_t segment) {
  std::lock_guard lock(registering_);
  return loop_->Call("release a segment", [segment](ConnectionLoop::Wire& wire, Status& status) {
    auto call = wire.session->releaseSegmentRequest();
    call.setSegment(segment);
    return call.send().then([&status](auto&& answer) { status = StatusOf(answer.getRefusal()); });
  });
}

Result<std::uint32_t> Connection::RegisterTensors(std::span<const TensorSpec> tensors) {
  std::lock_guard lock(registering_);
  std::uint32_t first = 0;
  const Status called =
      loop_->Call("register tensors", [&](ConnectionLoop::Wire& wire, Status& status) {
        auto call = wire.session->registerTensorsRequest();
        auto list = call.initTensors(static_cast<unsigned>(tensors.size()));
        for (unsigned i = 0; i < list.size(); ++i) {
          const TensorSpec& tensor = tensors[i];
          list[i].setName(tensor.name.c_str());
          list[i].setSegment(tensor.segment);
          list[i].setOffset(tensor.offset);
          list[i].setCount(tensor.count);
          list[i].setDtype(static_cast<std::uint8_t>(tensor.dtype));
          list[i].setOrder(tensor.order);
        }
        return call.send().then([&first, &status](auto&& answer) {
          first = answer.getFirst();
          status = StatusOf(answer.getRefusal());
        });
      });
  if (!called) return called.error();
  return first;
}

Status Connection::ReleaseTensors(std::uint32_t first, std::uint32_t count) {
  std::lock_guard lock(registering_);
  return loop_->Call("release tensors", [first, count](ConnectionLoop::Wire& wire, Status& status) {
    auto call = wire.session->releaseTensorsRequest();
    call.setFirst(first);
    call.setCount(count);
    return call.send().then([&status](auto&& answer) { status = StatusOf(answer.getRefusal()); });
  });
}

Status Connection::SetLayout(const LayoutNotice& layout) {
  std::lock_guard lock(registering_);
  return loop_->Call("hand in the layout", [&layout](ConnectionLoop::Wire& wire, Status& status) {
    auto call = wire.session->setLayoutRequest();
    call.setFirst(layout.first);
    call.setCount(layout.count);
    call.setReduction(static_cast<std::uint8_t>(layout.reduction));
    call.setPolicy(layout.policy.c_str());
    call.setCodec(layout.codec.c_str());
    auto codecs = call.initCodecs(static_cast<unsigned>(layout.codecs.size()));
    for (unsigned i = 0; i < codecs.size(); ++i) codecs.set(i, layout.codecs[i].c_str());
    call.setCompressAfter(layout.compress_after);
    call.setResiduals(layout.residuals);
    if (layout.residuals_segment) call.setResidualsSegment(*layout.residuals_segment);
    call.setFactorsRank(layout.factors_rank);
    call.setIterationsBefore(layout.iterations_before);
    call.setAdaptive(layout.adaptive);
    auto rows = call.initRows(static_cast<unsigned>(layout.rows.size()));
    for (unsigned i = 0; i < rows.size(); ++i) rows.set(i, layout.rows[i]);
    return call.send().then([&status](auto&& answer) { status = StatusOf(answer.getRefusal()); });
  });
}

Status Connection::Leave() {
  loop_->ExpectEnd();
  return loop_->Call("leave the job", [](ConnectionLoop::Wire& wire, Status& status) {
    auto call = wire.session->leaveRequest();
    return call.send().then([&status](auto&& answer) { status = StatusOf(answer.getRefusal()); });
  });
}

bool Connection::IsThere() const { return loop_->IsThere(); }

void Connection::BoundCalls(TimeNs timeout_ns) { loop_->BoundCalls(timeout_ns); }

void Connection::CloseInChild() { loop_->CloseInChild(); }

}  // namespace headrace::client

#include "tests/unit/service/peers/peer_caller.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>

#include "service/peers/peer_wire.h"
#include "service/peers/tls.h"

namespace headrace::support {
namespace {

kj::Own<kj::AsyncIoStream> Greet(CallerLoop& loop, unsigned port) {
  UniqueFd socket = ConnectTcp(port);
  auto stream = loop.io.lowLevelProvider->wrapSocketFd(socket.release(),
                                                       kj::LowLevelAsyncIoProvider::TAKE_OWNERSHIP);
  std::array<char, service::kGreeting.size()> answer{};
  loop.Wait(stream->write(service::kGreeting.data(), service::kGreeting.size()));
  loop.Wait(stream->read(answer.data(), answer.size()).then([] {}));
  HR_CHECK(std::string_view(answer.data(), answer.size()) == service::kGreeting);
  return stream;
}

}  // namespace

UniqueFd ConnectTcp(unsigned port) {
  UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int connected =
      ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
  HR_CHECK(connected == 0, port, errno);
  return socket;
}

bool WaitForClose(int socket) {
  for (int left = 1000; left > 0; --left) {
    pollfd wait{.fd = socket, .events = POLLIN, .revents = 0};
    if (::poll(&wait, 1, 10'000) != 1) return false;
    std::array<char, 4096> dropped{};
    if (::read(socket, dropped.data(), dropped.size()) <= 0) return true;
  }
  return false;
}

class PeerCaller::Port final : public schema::PeerPort::Server {
 public:
  explicit Port(PeerCaller& caller) : caller_(caller) {}

  kj::Promise<void> send(SendContext context) override {
    for (const schema::PeerMessage::Reader each : context.getParams().getMessages()) {
      caller_.told_.push_back(service::ReadMessage(each).value());
    }
    return kj::READY_NOW;
  }
  kj::Promise<void> ping(PingContext context) override {
    context.getResults().setUnixNs(UnixNow() + caller_.clock_ahead_ns_);
    if (caller_.answering_) return kj::READY_NOW;
    return kj::NEVER_DONE;
  }

 private:
  PeerCaller& caller_;
};

PeerCaller::PeerCaller(CallerLoop& loop, unsigned port)
    : loop_(loop),
      stream_(Greet(loop, port)),
      client_(*stream_),
      bootstrap_(client_.bootstrap().castAs<schema::PeerBootstrap>()) {}

PeerCaller::~PeerCaller() noexcept(false) = default;

Answered PeerCaller::Hello(const PeerHelloCall& fields) {
  auto call = bootstrap_.helloRequest();
  service::WriteHello(call.initHello(), {.protocol_version = fields.protocol_version,
                                         .program = fields.program,
                                         .name = fields.node,
                                         .instance = fields.instance,
                                         .server = fields.server,
                                         .addresses = fields.addresses,
                                         .control = fields.control});
  const service::ChannelHello channel =
      fields.channel.value_or(service::ChannelHello{.id = channel_});
  channel_ = channel.id;
  service::WriteChannel(call.initChannel(), channel);
  call.setPort(kj::heap<Port>(*this));
  auto response = loop_.Wait<capnp::Response<schema::PeerBootstrap::HelloResults>>(call.send());
  const Answered answered = Read(response.getRefusal());
  if (answered.code == Code::kOk) {
    port_ = response.getPort();
    received_ = response.getReceived();
    sent_ = received_;
  }
  return answered;
}

Answered PeerCaller::HelloWithId(const std::string& id) {
  auto call = bootstrap_.helloRequest();
  service::WriteHello(call.initHello(), {.protocol_version = schema::PEER_PROTOCOL_VERSION,
                                         .program = "headraced 9.9.9",
                                         .name = "x",
                                         .addresses = {"X0"}});
  call.initChannel().setId({reinterpret_cast<const kj::byte*>(id.data()), id.size()});
  call.setPort(kj::heap<Port>(*this));
  return Read(
      loop_.Wait<capnp::Response<schema::PeerBootstrap::HelloResults>>(call.send()).getRefusal());
}

bool PeerCaller::SendMessages(const std::vector<service::PeerMessage>& messages,
                              std::uint64_t first) {
  auto call = port_.sendRequest();
  call.setFirst(first == 0 ? sent_ + 1 : first);
  if (first == 0) sent_ += messages.size();
  auto list = call.initMessages(static_cast<unsigned>(messages.size()));
  for (unsigned i = 0; i < messages.size(); ++i) service::WriteMessage(list[i], messages[i]);
  return loop_.Wait(call.send().then([](auto&&) { return true; }, [](auto&&) { return false; }));
}

bool PeerCaller::Ping() {
  return loop_.Wait(
      port_.pingRequest().send().then([](auto&&) { return true; }, [](auto&&) { return false; }));
}

bool PeerCaller::WaitForEnd() {
  return loop_.Wait(
      client_.onDisconnect()
          .then([] { return true; })
          .exclusiveJoin(loop_.io.provider->getTimer().afterDelay(9 * kj::SECONDS).then([] {
            return false;
          })));
}

const std::vector<service::PeerMessage>& PeerCaller::WaitForMessages(std::size_t count) {
  for (int left = 1000; left > 0 && told_.size() < count; --left) {
    loop_.Wait(loop_.io.provider->getTimer().afterDelay(10 * kj::MILLISECONDS));
  }
  return told_;
}

}  // namespace headrace::support

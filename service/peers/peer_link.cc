#include "service/peers/peer_link.h"

#include <capnp/message.h>
#include <fmt/format.h>
#include <kj/debug.h>

#include <algorithm>
#include <utility>

#include "ipc/base/check.h"
#include "ipc/base/foreign_text.h"
#include "service/loop/text.h"
#include "service/peers/peer_wire.h"

namespace headrace::service {
namespace {

constexpr int kPeerNestingMax = 16;
// Bytes of a refusal's text, which goes into the error texts of this node's clients. Ours are
// shorter.
constexpr std::size_t kRefusalTextMax = 512;

capnp::ReaderOptions Bounds() {
  capnp::ReaderOptions options;
  options.traversalLimitInWords = kPeerMessageWordsMax;
  options.nestingLimit = kPeerNestingMax;
  return options;
}

kj::Exception LinkGone() { return KJ_EXCEPTION(DISCONNECTED, "the connection has ended"); }

}  // namespace

// What the capabilities hold instead of the link: Cap'n Proto (0.9.2) does not cancel the calls
// that are under way when a connection ends, so they may outlive the link.
struct PeerLink::Handle final : public kj::Refcounted {
  explicit Handle(PeerLink* its_link) : link(its_link) {}

  PeerLink* link;        // null once the link is destroyed
  bool carries = false;  // what is sent can be received
};

class PeerLink::Port final : public schema::PeerPort::Server {
 public:
  explicit Port(kj::Own<Handle> handle) : handle_(kj::mv(handle)) {}

  kj::Promise<void> send(SendContext context) override {
    if (handle_->link == nullptr) return LinkGone();
    if (handle_->carries) return Receive(context);
    return handle_->link->carries_.addBranch().then(
        [this, context]() mutable { return Receive(context); });
  }

  kj::Promise<void> ping(PingContext context) override {
    context.getResults().setUnixNs(UnixNow());
    return kj::READY_NOW;
  }

 private:
  // A link that has ended delivers nothing more, and must not answer: the other end sends again
  // what was not answered.
  bool HasEnded() const { return handle_->link == nullptr || !handle_->link->end_->isWaiting(); }

  kj::Promise<void> Receive(SendContext& context) {
    if (HasEnded()) return LinkGone();
    const auto messages = context.getParams().getMessages();
    if (messages.size() > kMessagesPerCallMax) {
      handle_->link->End(
          Error(Code::kCorrupt, fmt::format("{} sent {} messages at once",
                                            handle_->link->DescribePeer(), messages.size())));
      return kj::READY_NOW;
    }
    std::uint64_t number = context.getParams().getFirst();
    for (const schema::PeerMessage::Reader each : messages) {
      if (HasEnded()) return LinkGone();
      handle_->link->traffic_->Receive(number++, ReadMessage(each));
    }
    return kj::READY_NOW;
  }

  kj::Own<Handle> handle_;
};

class PeerLink::Bootstrap final : public schema::PeerBootstrap::Server {
 public:
  explicit Bootstrap(kj::Own<Handle> handle) : handle_(kj::mv(handle)) {}

  kj::Promise<void> hello(HelloContext context) override {
    if (handle_->link == nullptr) return LinkGone();
    PeerLink& link = *handle_->link;
    const auto params = context.getParams();
    const Result<NodeFacts> facts = ReadHello(params.getHello());
    const Result<ChannelHello> channel = ReadChannel(params.getChannel());
    Status status = facts ? CheckPeerName(link.peer_, facts->name) : Status(facts.error());
    if (status.ok() && link.greeted_) {
      status = Error(Code::kAlreadyExists, "this connection has said hello already");
    }
    if (status.ok() && !channel) status = channel.error();
    const Result<std::uint64_t> received =
        status.ok() ? link.owner_.Greet(link, *facts, *channel) : status.error();
    if (!received) {
      Refuse(context.getResults().initRefusal(), received.error());
      return kj::READY_NOW;
    }
    WriteHello(context.getResults().initHello(), link.owner_.Self());
    context.getResults().setPort(kj::heap<Port>(kj::addRef(*handle_)));
    context.getResults().setReceived(*received);
    link.Begin(*facts, params.getPort());
    link.owner_.OnGreeted(link);
    return kj::READY_NOW;
  }

  kj::Promise<void> describe(DescribeContext context) override {
    if (handle_->link == nullptr) return LinkGone();
    const NodeFacts& self = handle_->link->owner_.Self();
    auto results = context.getResults();
    results.setProtocolVersion(self.protocol_version);
    results.setProgram(self.program);
    results.setNode(self.name);
    return kj::READY_NOW;
  }

 private:
  kj::Own<Handle> handle_;
};

PeerLink::PeerLink(SecuredPeer peer, Options options, kj::Timer& timer, Owner& owner)
    : peer_(kj::mv(peer)),
      options_(std::move(options)),
      timer_(timer),
      owner_(owner),
      handle_(kj::refcounted<Handle>(this)),
      network_(*peer_.stream, options_.side, Bounds()),
      // Messages of peers count alike: kPeerMessageWordsMax bounds them, and a link has a pace of
      // its own.
      bounded_(
          network_, timer, pace_, [] { return std::uint64_t{0}; },
          [this](const std::string& why) {
            End(Error(Code::kExhausted,
                      fmt::format("cut the connection of {}: {}", DescribePeer(), why)));
          }),
      rpc_(options_.side == capnp::rpc::twoparty::Side::SERVER
               ? capnp::makeRpcServer(bounded_, kj::heap<Bootstrap>(kj::addRef(*handle_)))
               : capnp::makeRpcClient(bounded_)),
      tasks_(*this) {
  rpc_.setFlowLimit(kPeerMessageWordsMax);
  auto pair = kj::newPromiseAndFulfiller<Error>();
  end_ = kj::mv(pair.fulfiller);
  ended_ = pair.promise.fork();
  auto carried = kj::newPromiseAndFulfiller<void>();
  carry_ = kj::mv(carried.fulfiller);
  carries_ = carried.promise.fork();
  tasks_.add(network_.onDisconnect().then(
      [this] { taskFailed(KJ_EXCEPTION(DISCONNECTED, "end of stream")); }));
  if (options_.side == capnp::rpc::twoparty::Side::SERVER) {
    tasks_.add(timer_.afterDelay(kHelloTimeout).then([this] {
      if (!greeted_) {
        End(Error(Code::kTimeout, fmt::format("{} said no hello for {} s", DescribePeer(),
                                              kHelloTimeout / kj::SECONDS)));
      }
    }));
  }
}

PeerLink::~PeerLink() noexcept(false) {
  handle_->link = nullptr;
  End(Error(Code::kUnavailable, "the connection is not used any more"));
}

kj::Promise<Result<PeerLink::Answer>> PeerLink::SendHello(const ChannelHello& channel) {
  HR_CHECK(options_.side == capnp::rpc::twoparty::Side::CLIENT && !greeted_, DescribePeer());
  capnp::MallocMessageBuilder builder(8);
  auto vat = builder.initRoot<capnp::rpc::twoparty::VatId>();
  vat.setSide(capnp::rpc::twoparty::Side::SERVER);
  auto bootstrap = rpc_.bootstrap(vat).castAs<schema::PeerBootstrap>();
  auto call = bootstrap.helloRequest();
  WriteHello(call.initHello(), owner_.Self());
  WriteChannel(call.initChannel(), channel);
  call.setPort(kj::heap<Port>(kj::addRef(*handle_)));
  return call.send().then([this](auto&& answer) -> Result<Answer> {
    Result<Answer> read = Read(answer);
    if (read) Begin(read->facts, answer.getPort());
    return read;
  });
}

Result<PeerLink::Answer> PeerLink::Read(schema::PeerBootstrap::HelloResults::Reader answer) {
  const auto refusal = answer.getRefusal();
  if (refusal.getCode() != 0) {
    const auto text = refusal.getText();
    return Error(static_cast<Code>(std::min<int>(refusal.getCode(), kCodesCount - 1)),
                 Printable({text.begin(), text.size()}, kRefusalTextMax));
  }
  Result<NodeFacts> facts = ReadHello(answer.getHello());
  if (!facts) return facts.error();
  if (facts->protocol_version != schema::PEER_PROTOCOL_VERSION) {
    return Error(
        Code::kVersionMismatch,
        fmt::format("{} on node {} speaks peer protocol {}, this one speaks {}", facts->program,
                    facts->name, facts->protocol_version, schema::PEER_PROTOCOL_VERSION));
  }
  if (const Status status = CheckPeerName(peer_, facts->name); !status) return status.error();
  if (!options_.name.empty() && facts->name != options_.name) {
    return Error(Code::kPermissionDenied,
                 fmt::format("{} is node {} and not node {}, which the list of peers has there",
                             peer_.address, facts->name, options_.name));
  }
  return Answer{.facts = std::move(facts).value(), .received = answer.getReceived()};
}

void PeerLink::Begin(const NodeFacts& facts, schema::PeerPort::Client port) {
  HR_CHECK(!greeted_ && !sending_, name_);
  name_ = facts.name;
  greeted_ = true;
  port_ = kj::mv(port);
}

void PeerLink::Carry(Traffic& traffic) {
  HR_CHECK(greeted_ && traffic_ == nullptr, name_);
  traffic_ = &traffic;
  tasks_.add(PingAgain());
  // After whoever waits for the hello has received it.
  tasks_.add(kj::evalLater([this] {
    handle_->carries = true;
    carry_->fulfill();
  }));
  Flush();
}

std::string PeerLink::DescribePeer() const {
  return name_.empty() ? peer_.address : fmt::format("node {}", name_);
}

void PeerLink::End(const Error& error) { end_->fulfill(kj::cp(error)); }

// As many as go into one call: so many, and no more bytes than leave a ping on the wire its turn.
void PeerLink::Flush() {
  if (sending_ || traffic_ == nullptr || !end_->isWaiting()) return;
  UnsentMessages& unsent = traffic_->unsent();
  if (unsent.empty()) return;
  auto call = port_.sendRequest();
  const std::size_t count = unsent.CountOfCall(kMessagesPerCallMax, kBytesPerCallMax);
  HR_CHECK(count >= 1 && count <= kMessagesPerCallMax, count, unsent.size());
  auto list = call.initMessages(static_cast<unsigned>(count));
  for (unsigned i = 0; i < count; ++i) WriteMessage(list[i], unsent.at(i));
  call.setFirst(unsent.first());
  unsent.MarkSent(count);
  const std::uint64_t last = unsent.first() + count - 1;
  sending_ = true;
  tasks_.add(call.send().ignoreResult().then([this, last] {
    HR_CHECK(sending_, DescribePeer());
    sending_ = false;
    traffic_->OnAcknowledged(last);
    Flush();
  }));
}

kj::Promise<void> PeerLink::PingAgain() {
  const std::int64_t asked_unix_ns = UnixNow();
  const TimeNs asked_ns = MonotonicNow();
  return port_.pingRequest().send().then([this, asked_unix_ns, asked_ns](auto&& answer) {
    OnPong(asked_unix_ns, asked_ns, answer.getUnixNs());
    return timer_.afterDelay(options_.ping_every_ns * kj::NANOSECONDS).then([this] {
      return PingAgain();
    });
  });
}

void PeerLink::OnPong(std::int64_t asked_unix_ns, TimeNs asked_ns, std::int64_t theirs_unix_ns) {
  const TimeNs now = MonotonicNow();
  if (!RoundTrips::IsClock(theirs_unix_ns)) {
    return End(
        Error(Code::kCorrupt, fmt::format("{} answered with an impossible time: {} ns since 1970",
                                          DescribePeer(), theirs_unix_ns)));
  }
  traffic_->OnPong();
  round_trips_.Add(asked_unix_ns, now - asked_ns, theirs_unix_ns);
}

void PeerLink::taskFailed(kj::Exception&& exception) {
  End(Error(Code::kPeerLost,
            fmt::format("the connection to {} broke: {}", DescribePeer(), CauseOf(exception))));
}

}  // namespace headrace::service

#include "service/peers/peers_actor.h"

#include <kj/debug.h>
#include <spdlog/spdlog.h>

#include <utility>
#include <variant>

#include "ipc/base/check.h"
#include "service/loop/text.h"

namespace headrace::service {

PeersActor::PeersActor(const PeerOptions& options, const PeersPorts& ports, kj::AsyncIoContext& io)
    : options_(options),
      ports_(ports),
      outbox_(ports.log, io.provider->getTimer()),
      reader_(ports.inbox, io,
              [this](PeersMessage& message) {
                std::visit([this](const auto& each) { Handle(each); }, message);
              }),
      tasks_(*this) {}

PeersActor::~PeersActor() noexcept(false) = default;

Status PeersActor::Listen(kj::AsyncIoContext& io) {
  Result<kj::Own<Peers>> peers = Peers::Create(options_, ports_, io, outbox_);
  if (!peers) return peers.error();
  peers_ = kj::mv(peers).value();
  settings_ = kj::heap<JobSettings>(ports_, *peers_);
  return {};
}

kj::Promise<void> PeersActor::Serve(kj::Promise<void> stop) {
  HR_CHECK(peers_.get() != nullptr && settings_.get() != nullptr, options_.node_name);
  tasks_.add(reader_.Read());
  return stop;
}

void PeersActor::Handle(const CheckRank& message) {
  Answer(message.token, peers_->follower().CheckAttach(message.job, message.uid, message.rank));
}

void PeersActor::Handle(const CheckCertificate& /*message*/) { peers_->CheckFiles(); }

void PeersActor::Handle(const HandInLayout& message) {
  Answer(message.token, peers_->Handle(message));
}

void PeersActor::Handle(const ChangeSetting& message) {
  Answer(message.token, settings_->Change(message));
}

void PeersActor::Handle(const ListPeers& message) {
  // Whoever asked waits for a bounded time.
  [[maybe_unused]] const bool sent =
      ports_.rpc.Send(PeersListed{.token = message.token, .peers = peers_->View()});
}

void PeersActor::Handle(const TryPeer& message) {
  tasks_.add(peers_->TryToReach(message.address)
                 .then([this, token = message.token](std::vector<PeerStep> steps) {
                   [[maybe_unused]] const bool sent =
                       ports_.rpc.Send(PeerTried{.token = token, .steps = std::move(steps)});
                 }));
}

void PeersActor::Handle(const DrainPeers& /*message*/) { peers_->Drain(); }

void PeersActor::Handle(const StopPeers& message) {
  tasks_.add(peers_->Stop().then([this, token = message.token] { Answer(token, {}); }));
}

void PeersActor::Handle(const Ping& message) {
  [[maybe_unused]] const bool sent =
      ports_.rpc.Send(PartAnswered{.token = message.token, .part = ProbedPart::kPeers});
}

// In one order with what rpc receives of jobs, so that an answer never overtakes what it follows
// from.
void PeersActor::Answer(RequestToken token, Status status) {
  outbox_.Send(ports_.rpc, Answered{.token = token, .status = std::move(status)});
}

// Without its inbox the actor gets no message any more.
void PeersActor::taskFailed(kj::Exception&& exception) {
  outbox_.Send(ports_.rpc, LoopFailed{"peers: " + CauseOf(exception)});
}

}  // namespace headrace::service

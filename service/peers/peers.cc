#include "service/peers/peers.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <variant>
#include <vector>

#include "ipc/base/check.h"
#include "ipc/board.h"
#include "service/loop/listen.h"
#include "service/loop/text.h"
#include "service/peers/peer_trial.h"
#include "service/peers/rail_addresses.h"

namespace headrace::service {
namespace {

constexpr auto kGoodbyeMax = 200 * kj::MILLISECONDS;
// What was sent last has gone by then.
constexpr auto kLeaveAfter = 100 * kj::MILLISECONDS;
constexpr std::size_t kDialersMax = kPeerConnectionsMax;
constexpr std::size_t kDialedMax = 256;  // leaders whose addresses are remembered
constexpr TimeNs kReportWindow = 10 * kSecond;
constexpr int kReportedMax = 8;
constexpr auto kShowPeersEvery = 1 * kj::SECONDS;
constexpr TimeNs kAnnounceRefusedEvery = kSecond;
constexpr auto kRefusedShown = 60 * kj::SECONDS;

// Not 0: that stands for "none".
std::uint64_t RandomNumber() {
  std::uint64_t number = 0;
  while (number == 0) {
    const ssize_t size = ::getrandom(&number, sizeof number, 0);
    HR_CHECK(size == sizeof number || errno == EINTR, size, errno);
  }
  return number;
}

NodeFacts FactsOf(const PeerOptions& options, const PeersPorts& ports) {
  NodeFacts facts{.protocol_version = schema::PEER_PROTOCOL_VERSION,
                  .program = "headraced " + options.version,
                  .name = options.node_name,
                  .instance = RandomNumber(),
                  .server = options.server,
                  .addresses = {},
                  .nccl_lanes = options.nccl_lanes};
  for (const NetworkLane& lane : ports.network_lanes) facts.addresses.push_back(lane.address);
  return facts;
}

LeaderOptions LeaderOptionsOf(const NodeFacts& facts, const PeerOptions& options,
                              std::uint64_t& jobs_numbered) {
  LeaderOptions wanted{.protocol_version = facts.protocol_version,
                       .program = facts.program,
                       .node_name = facts.name,
                       .lanes_count = facts.addresses.size(),
                       .nccl_lanes = facts.nccl_lanes,
                       .block_bytes = options.block_bytes,
                       .verify = options.verify,
                       .algorithm = options.algorithm,
                       .architecture = options.architecture,
                       .policy = options.policy,
                       .peers = {},
                       .random_key = RandomNumber,
                       .next_number = [&jobs_numbered] { return ++jobs_numbered; }};
  for (const auto& [name, address] : options.peers) wanted.peers.insert(name);
  // The list names the others; this service's own ranks come in by the same way.
  if (!wanted.peers.empty()) wanted.peers.insert(facts.name);
  return wanted;
}

FollowerOptions FollowerOptionsOf(const PeersPorts& ports, const PeerOptions& options,
                                  const LeaderNames& names, std::uint64_t& jobs_numbered) {
  FollowerOptions wanted{
      .node_name = options.node_name,
      .lanes = {},
      .server = options.server,
      .nccl_lanes = options.nccl_lanes,
      .forming_ns = options.forming_ns,
      .hash_salt = ports.hash_salt,
      .policy = options.policy,
      .next_number = [&jobs_numbered] { return ++jobs_numbered; },
      .leader_at = [&names](const JobPlace& place) { return names.At(place); },
      .address_of = [&names](const std::string& leader) { return names.AddressOf(leader); }};
  for (const NetworkLane& lane : ports.network_lanes) wanted.lanes.push_back(lane.number);
  return wanted;
}

// Where people and programs hear of this node's certificate.
CertificateReports ReportsOf(const PeersPorts& ports) {
  return {.log = [&log = ports.log](const std::string& text) { log.info("{}", text); },
          .alert =
              [&watch = ports.watch, &log = ports.log](const std::string& text) {
                // Watch logs what it receives.
                if (!watch.Send(Event{.code = Code::kUnavailable, .job = {}, .text = text})) {
                  log.warn("{}", text);
                }
              },
          .show =
              [slot = ports.certificate](const CertificateState& state) {
                if (slot == nullptr) return;
                ipc::CertificateRow row{.in_use = 1,
                                        .reserved0 = 0,
                                        .loaded_unix_s = state.loaded_unix_s,
                                        .until_unix_s = state.until_unix_s,
                                        .authority_until_unix_s = state.authority_until_unix_s,
                                        .warn_from_unix_s = state.warn_from_unix_s,
                                        .refused = {}};
                ipc::SetText(row.refused, state.refused);
                ipc::WriteRow(*slot, row);
              }};
}

// For the ranks of all nodes whose job ends with this service.
std::string StoppingText(const std::string& node) {
  return fmt::format(
      "the service on node {} is stopping: ranks with HEADRACE_RECONNECT wait for it, others start "
      "again when it is back",
      node);
}

}  // namespace

Result<kj::Own<Peers>> Peers::Create(const PeerOptions& options, const PeersPorts& ports,
                                     kj::AsyncIoContext& io, Outbox& outbox) {
  Result<std::unique_ptr<PeerSecurity>> security = PeerSecurity::Create(
      SecurityOptionsOf(options), io.provider->getTimer(),
      [&log = ports.log](const std::string& text) { log.warn("{}", text); }, ReportsOf(ports));
  if (!security) return security.error();
  auto peers = kj::heap<Peers>(options, ports, io, outbox, std::move(security).value());
  if (options.address.empty() && !options.server) return peers;
  if (!options.address.empty()) {
    if (Status status = peers->Listen(io); !status) return status.error();
  }
  ports.log.info("node {}: {}", options.node_name, peers->security_->Describe());
  peers->tasks_.add(peers->security_->RemindOfPlainText());
  peers->tasks_.add(peers->security_->WatchFiles());
  peers->ShowPeers();
  if (!options.server) return peers;
  const Result<std::string> leader = peers->names_.At(options.rendezvous);
  if (!leader) return leader.error();
  peers->Execute(ReachLeader{*leader});
  return peers;
}

Peers::Peers(const PeerOptions& options, const PeersPorts& ports, kj::AsyncIoContext& io,
             Outbox& outbox, std::unique_ptr<PeerSecurity> security)
    : options_(options),
      ports_(ports),
      outbox_(outbox),
      network_(io.provider->getNetwork()),
      timer_(io.provider->getTimer()),
      security_(std::move(security)),
      names_({.node_name = options.node_name,
              .address = options.address,
              .port = 0,
              .peers = options.peers}),
      self_(FactsOf(options, ports)),
      leader_(LeaderOptionsOf(self_, options, jobs_numbered_), directory_),
      follower_(FollowerOptionsOf(ports, options_, names_, jobs_numbered_), directory_),
      served_rows_(ports.served, ports.served_residuals),
      listener_(*this, *security_, network_, timer_, options_.detection_ns),
      tasks_(*this),
      alarm_(timer_, tasks_, [this](TimeNs now) {
        leader_.Expire(now);
        follower_.Expire(now);
        Act();
      }) {}

Peers::~Peers() noexcept(false) = default;

Status Peers::Listen(kj::AsyncIoContext& io) {
  Result<kj::Own<kj::ConnectionReceiver>> receiver = ListenAt(io, "node_address", options_.address);
  if (!receiver) return receiver.error();
  names_.port = (*receiver)->getPort();
  self_.control = names_.ListensAt();
  self_.rail_addresses = RailAddresses(options_.address, names_.port, options_.rails);
  ports_.log.info("node {}: other services reach this one at {} (port {})", options_.node_name,
                  options_.address, names_.port);
  tasks_.add(listener_.Accept(std::move(receiver).value()));
  return {};
}

void Peers::Handle(const RankAttached& message) {
  follower_.OnRankAttached(message.identity);
  Act();
}

void Peers::Handle(const RankEnded& message) {
  const SessionIdentity& identity = message.identity;
  follower_.OnLeaseEnded(identity, message.orderly, message.cause, message.exited);
  if (identity.rendezvous.empty()) {
    follower_.OnRankEnded(identity.job, identity.rank);
  } else if (!message.orderly) {
    follower_.OnRankLost(identity.job, identity.rank, message.cause, message.exited);
  }
  Act();
}

Status Peers::Handle(const HandInLayout& message) {
  HR_CHECK(message.layout != nullptr, message.identity.job_name, message.identity.rank);
  const SessionIdentity& identity = message.identity;
  if (Status status =
          follower_.CheckLayout(identity.job, identity.rank, *message.layout, message.policy);
      !status) {
    if (status.code() == Code::kMismatch) {
      Handle(JobFailed{.job = identity.job, .code = status.code(), .cause = status.error().text()});
    }
    return status;
  }
  // Before what follows from it, and before the client may post by it.
  if (!outbox_.empty() || !ports_.dispatch.Send(SetLayout{.session = identity.id,
                                                          .first = message.first,
                                                          .layout = message.layout,
                                                          .residuals = message.residuals})) {
    return Error(Code::kBusy, "the service is behind with its messages: try again");
  }
  follower_.OnLayoutSet(identity.job, identity.rank, message.layout, message.policy);
  Act();
  return {};
}

void Peers::Handle(const AskForming& message) {
  follower_.Handle(message, MonotonicNow());
  Act();
}

void Peers::Handle(const AskQuorum& message) {
  follower_.Handle(message, MonotonicNow());
  Act();
}

void Peers::SetPolicy(JobId job, plan::Policy policy) {
  follower_.SetPolicy(job, policy);
  Act();
}

void Peers::Steer(JobId job, const Steering& steering) {
  follower_.Steer(job, steering);
  Act();
}

void Peers::Handle(const PlanMade& message) {
  leader_.Handle(message);
  follower_.Handle(message);
  Act();
}

Status Peers::OnNodeConnected(NodeId node, const NodeFacts& facts, const std::string& address) {
  if (draining_) {
    return Error(Code::kUnavailable, StoppingText(options_.node_name));
  }
  if (Status status = leader_.CheckNode(facts, address); !status) {
    OnNodeRefused(facts.name, address, status.error());
    return status;
  }
  refusals_.Forget(facts.name, address);
  leader_.OnNodeUp(node, facts, address);
  Act();
  return {};
}

void Peers::OnNodeMessage(NodeId node, const PeerMessage& message) {
  leader_.Handle(node, message, MonotonicNow());
  Act();
}

void Peers::OnNodeLost(NodeId node, const Error& error) {
  leader_.OnNodeDown(node, error.code(), error.text());
  Act();
}

void Peers::OnNodeResumed(const std::string& happened) {
  Report(Code::kOk, happened);
  ShowPeers();
}

// Those that the node says itself, unless a list of peers says to which addresses this service
// connects; as for the addresses of a leader's rails.
std::vector<std::string> Peers::AddressesOf(const NodeFacts& facts,
                                            const std::string& address) const {
  if (!options_.peers.empty() && options_.tls_certificate.empty()) {
    const auto listed = options_.peers.find(facts.name);
    return listed == options_.peers.end() ? std::vector<std::string>()
                                          : std::vector{listed->second};
  }
  std::vector<std::string> addresses = facts.rail_addresses;
  std::string control = ControlAddress(facts.control, address);
  if (!control.empty() && std::ranges::find(addresses, control) == addresses.end()) {
    addresses.push_back(std::move(control));
  }
  return addresses;
}

// Also reported to the jobs that gather here: they may well wait for that node. Strangers decide
// how often it happens.
void Peers::OnNodeRefused(const std::string& name, const std::string& address, const Error& error) {
  const TimeNs now = MonotonicNow();
  refusals_.Note(name, address, false, error.text(), now);
  if (now - refused_announced_ns_ < kAnnounceRefusedEvery) return;
  refused_announced_ns_ = now;
  leader_.OnNodeRefused(error.text());
  Act();
  refused_forgotten_ = timer_.afterDelay(kRefusedShown)
                           .then([this] {
                             leader_.OnNodeRefused("");
                             Act();
                           })
                           .eagerlyEvaluate(nullptr);
}

void Peers::OnLeaderUp(const std::string& leader) {
  HR_CHECK(dialers_.contains(leader), leader);
  unreachable_.clear();
  refusals_.Forget("", leader);
  if (dialed_.size() == kDialedMax && !dialed_.contains(leader)) dialed_.erase(dialed_.begin());
  dialed_[leader] = dialers_.at(leader)->addresses();
  if (options_.server) ports_.log.info("offers itself to the jobs that meet at {}", leader);
  follower_.OnLeaderUp(leader);
  Act();
}

void Peers::OnLeaderUnreachable(const std::string& leader, const std::string& cause) {
  // Where there are ranks, their job shows it.
  if (options_.server && std::exchange(unreachable_, cause) != cause) {
    ReportError(Error(Code::kUnavailable, cause));
  }
  follower_.OnLeaderUnreachable(leader, cause, MonotonicNow());
  Act();
}

void Peers::OnLeaderRefused(const std::string& leader, const Error& error) {
  ReportError(error);
  refusals_.Note("", leader, true, error.text(), MonotonicNow());
  follower_.OnLeaderRefused(leader, error);
  Act();
}

void Peers::OnLeaderDown(const std::string& leader, const Error& error) {
  if (options_.server) ReportError(error);
  follower_.OnLeaderDown(leader, error);
  Act();
}

void Peers::OnLeaderResumed(const std::string& leader, const std::string& happened) {
  Report(Code::kOk, happened);
  dialed_[leader] = dialers_.at(leader)->addresses();
  ShowPeers();
}

void Peers::OnLeaderMessage(const std::string& leader, const PeerMessage& message) {
  HR_CHECK(dialers_.contains(leader), leader, message.index());
  follower_.Handle(leader, message, MonotonicNow());
  Act();
}

// Strangers decide how often there is something to say; people shall still find the rest.
void Peers::Report(Code code, const std::string& text) {
  const TimeNs now = MonotonicNow();
  if (now - reported_since_ns_ > kReportWindow) {
    if (reported_ > kReportedMax) {
      ShowEvent({.code = Code::kExhausted,
                 .job = {},
                 .text = fmt::format("{} more messages about other services were left out",
                                     reported_ - kReportedMax)});
    }
    reported_since_ns_ = now;
    reported_ = 0;
  }
  if (++reported_ <= kReportedMax) ShowEvent({.code = code, .job = {}, .text = text});
}

void Peers::ShowEvent(Event event) {
  // A watch that is so far behind loses what people would read, nothing else.
  [[maybe_unused]] const bool sent = ports_.watch.Send(std::move(event));
}

std::vector<PeerView> Peers::View() const {
  std::vector<PeerView> views;
  for (const auto& [leader, dialer] : dialers_) views.push_back(dialer->View());
  listener_.View(views);
  // This service leads its own jobs by a connection to itself.
  std::erase_if(views, [this](const PeerView& view) { return view.name == self_.name; });
  for (const auto& [name, address] : options_.peers) {
    const bool known = std::any_of(views.begin(), views.end(),
                                   [&name = name, &address = address](const PeerView& view) {
                                     return view.name == name || view.address == address;
                                   });
    if (!known && name != self_.name) views.push_back({.name = name, .address = address});
  }
  refusals_.AddTo(views, MonotonicNow());
  return views;
}

kj::Promise<std::vector<PeerStep>> Peers::TryToReach(const std::string& address) {
  return service::TryToReach(address, *security_, network_, timer_);
}

kj::Promise<void> Peers::Stop() {
  const std::string cause = StoppingText(options_.node_name);
  auto all = kj::heapArrayBuilder<kj::Promise<void>>(dialers_.size() + 1);
  all.add(listener_.Finish(cause));
  for (auto& [leader, dialer] : dialers_) all.add(dialer->Finish(cause));
  return kj::joinPromises(all.finish())
      .exclusiveJoin(timer_.afterDelay(kGoodbyeMax))
      .catch_([](kj::Exception&&) {});
}

void Peers::Act() {
  for (ToNode& each : leader_.DrainMessages()) listener_.Send(each.node, std::move(each.message));
  for (const ToWatch& each : leader_.DrainOutgoing()) Execute(each);
  for (const RefusedNode& each : leader_.DrainRefused()) {
    refusals_.Note(each.name, each.address, false, each.why, MonotonicNow());
  }
  for (const FollowerAction& action : follower_.DrainActions()) {
    std::visit([this](const auto& each) { Execute(each); }, action);
  }
  alarm_.SetFor(std::min(leader_.NextDeadline(), follower_.NextDeadline()));
  ShowPeers();
}

void Peers::ShowPeers() {
  if (ports_.peers.empty() || shows_peers_) return;
  shows_peers_ = true;
  tasks_.add(ShowPeersAgain());
}

kj::Promise<void> Peers::ShowPeersAgain() {
  HR_CHECK(shows_peers_ && shown_.size() <= ports_.peers.size(), shown_.size());
  WritePeerRows();
  served_rows_.Show(follower_.jobs());
  // An idle service has nothing to wake up for.
  shows_peers_ = !dialers_.empty() || listener_.HasPeers();
  if (!shows_peers_) return kj::READY_NOW;
  return timer_.afterDelay(kShowPeersEvery).then([this] { return ShowPeersAgain(); });
}

void Peers::WritePeerRows() {
  std::vector<ipc::PeerRow> rows;
  for (const PeerView& view : View()) {
    if (rows.size() == ports_.peers.size()) break;
    ipc::PeerRow& row = rows.emplace_back();
    row.in_use = 1;
    row.connected = view.connected ? 1 : 0;
    row.leads = view.leads ? 1 : 0;
    row.needed = view.connected || !view.why.empty() ? 1 : 0;
    row.round_trip_ns = view.round_trip_ns;
    row.clock_offset_ns = view.clock_offset_ns;
    row.resumes = view.resumes;
    row.unlinked_ns = view.unlinked_ns;
    ipc::SetText(row.name, view.name);
    ipc::SetText(row.address, view.address);
  }
  const std::size_t count = std::max(rows.size(), shown_.size());
  HR_CHECK(count <= ports_.peers.size(), count, ports_.peers.size());
  shown_.resize(count);
  const std::size_t in_use = rows.size();
  rows.resize(count);
  for (std::size_t i = 0; i < count; ++i) {
    if (std::memcmp(&rows[i], &shown_[i], sizeof rows[i]) != 0) {
      ipc::WriteRow(ports_.peers[i], rows[i]);
    }
  }
  rows.resize(in_use);
  shown_ = std::move(rows);
}

void Peers::Execute(const ToLeader& action) {
  const auto found = dialers_.find(action.leader);
  // A job that has not failed needs its leader, so there is a dialer.
  HR_CHECK(found != dialers_.end(), action.leader, action.message.index());
  found->second->Send(action.message);
}

// A job that fails takes no rank any more, so rpc is sent it too, before dispatch.
void Peers::Execute(const ToDispatch& action) {
  if (const auto* failed = std::get_if<JobFailed>(&action.message)) {
    outbox_.Send(ports_.rpc, *failed);
  }
  std::visit([this](const auto& each) { outbox_.Send(ports_.dispatch, each); }, action.message);
}

void Peers::Execute(const ToLane& action) {
  HR_CHECK(action.lane < ports_.network_lanes.size() &&
               ports_.network_lanes[action.lane].inbox != nullptr,
           action.lane, ports_.network_lanes.size());
  outbox_.Send(*ports_.network_lanes[action.lane].inbox, action.message);
}

// In one order with what rpc receives of jobs, so that an answer never overtakes what it follows
// from.
void Peers::Execute(const Answered& action) { outbox_.Send(ports_.rpc, action); }

void Peers::Execute(const QuorumAnswered& action) { outbox_.Send(ports_.rpc, action); }

void Peers::Execute(const SessionBroken& action) { outbox_.Send(ports_.rpc, action); }

void Peers::Execute(const MembersWait& action) { outbox_.Send(ports_.rpc, action); }
void Peers::Execute(const JobPlaced& action) { outbox_.Send(ports_.rpc, action); }

void Peers::Execute(const ToWatch& action) {
  std::visit([this](const auto& each) { outbox_.Send(ports_.watch, each); }, action.message);
}

void Peers::Execute(const ReachLeader& action) {
  const auto found = dialers_.find(action.leader);
  if (found != dialers_.end()) {
    found->second->needed = true;
  } else if (dialers_.size() < kDialersMax) {
    Dial(action.leader);
  } else {
    // Those that are not needed any more make room first.
    undialed_.insert(action.leader);
    tasks_.add(timer_.afterDelay(kLeaveAfter).then([this] { SweepDialers(); }));
  }
}

void Peers::Dial(const std::string& leader) {
  const bool pinned = !options_.peers.empty();
  const auto known = dialed_.find(leader);
  PeerDialer::Options dialed{
      .leader = leader,
      .addresses = known == dialed_.end() ? std::vector{names_.AddressOf(leader)} : known->second,
      .name = pinned ? leader : "",
      // A list of peers says to which addresses this service connects, unless certificates say who
      // is there.
      .uses_rails = !pinned || !options_.tls_certificate.empty(),
      .detection_ns = options_.detection_ns};
  dialers_.emplace(leader,
                   kj::heap<PeerDialer>(std::move(dialed), *this, *security_, network_, timer_));
}

void Peers::DialUndialed() {
  for (const std::string& leader : std::exchange(undialed_, {})) {
    if (dialers_.contains(leader)) continue;
    if (dialers_.size() < kDialersMax) {
      Dial(leader);
      continue;
    }
    OnLeaderRefused(leader, Error(Code::kExhausted,
                                  fmt::format("the service at {} is not connected to: {} others "
                                              "are, more are not supported",
                                              leader, dialers_.size())));
  }
}

// Not at once: the dialer may be the one who is speaking.
void Peers::Execute(const LeaveLeader& action) {
  undialed_.erase(action.leader);
  const auto found = dialers_.find(action.leader);
  if (found == dialers_.end()) return;
  found->second->needed = false;
  tasks_.add(timer_.afterDelay(kLeaveAfter).then([this] { SweepDialers(); }));
}

void Peers::Execute(const NoteRefusal& action) {
  // This service knows whom it refused from its own jobs.
  const bool own = action.leader == options_.address || action.leader == self_.name;
  if (!own) refusals_.Note("", action.leader, true, action.why, MonotonicNow());
}

void Peers::SweepDialers() {
  std::vector<std::string> left;
  for (const auto& [leader, dialer] : dialers_) {
    if (!dialer->needed) left.push_back(leader);
  }
  for (const std::string& leader : left) {
    // Its leader would wait for it otherwise.
    auto dialer = std::move(dialers_.at(leader));
    dialers_.erase(leader);
    auto goodbye =
        dialer->Leave(fmt::format("node {} takes part in no job here any more", self_.name))
            .exclusiveJoin(timer_.afterDelay(kGoodbyeMax));
    tasks_.add(goodbye.attach(kj::mv(dialer)));
    follower_.OnLeaderDown(leader, Error(Code::kUnavailable, "left"));
  }
  DialUndialed();
  Act();
}

void Peers::taskFailed(kj::Exception&& exception) {
  ReportError(Error(Code::kInternal, CauseOf(exception)));
}

}  // namespace headrace::service

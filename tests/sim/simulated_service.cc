#include "tests/sim/simulated_service.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <variant>

namespace headrace::sim {
namespace {

constexpr std::uint8_t kFirstRail = 1;  // the number of its lane
constexpr const char* kControlPort = ":7733";
constexpr TimeNs kDelayMin = 50 * kMillisecond;
constexpr TimeNs kDelayMax = kSecond;
constexpr std::uint64_t kPlanningMax = 100 * kMillisecond;

// As the dialer of peers has it.
bool MayPass(Code code) {
  return code == Code::kUnavailable || code == Code::kBusy || code == Code::kExhausted ||
         code == Code::kTimeout || code == Code::kPeerLost;
}

std::vector<std::uint8_t> LanesOf(const SimulatedService::Options& options) {
  std::vector<std::uint8_t> lanes;
  for (std::size_t rail = 0; rail < options.wire_addresses.size(); ++rail) {
    lanes.push_back(static_cast<std::uint8_t>(kFirstRail + rail));
  }
  return lanes;
}

service::LeaderOptions LeaderOptionsOf(const SimulatedService::Options& options, Dice& dice,
                                       std::uint64_t& jobs_numbered) {
  return {.protocol_version = 1,
          .program = "headraced",
          .node_name = options.name,
          .lanes_count = options.wire_addresses.size(),
          .block_bytes = options.block_bytes,
          .algorithm = options.algorithm,
          .policy = options.policy,
          .peers = {},
          .random_key = [&dice] { return dice.Between(1, UINT64_MAX - 1); },
          .next_number = [&jobs_numbered] { return ++jobs_numbered; }};
}

// How this service reaches that of a job's node, whose name is its host's.
Result<std::string> LeaderAt(const SimulatedService::Options& options,
                             const service::JobPlace& place) {
  if (options.can_lead_next && place.node == options.name) return options.name + kControlPort;
  if (!place.address.empty()) return place.address;
  return Error(Code::kUnavailable, "its address is not known");
}

}  // namespace

transport::MessageHeader HeaderAmong(const transport::GroupOptions& links) {
  return {.key = links.key,
          .epoch = links.epoch,
          .plan_version = links.plan_version,
          .position = std::uint64_t{1} << 32,
          .count = 8,
          .kind = static_cast<std::uint8_t>(Collective::kAllReduce),
          .dtype = static_cast<std::uint8_t>(DType::kFloat32),
          .reduction = static_cast<std::uint8_t>(Reduction::kSum),
          .sender = static_cast<std::uint16_t>(links.self == 0 ? 1 : 0)};
}

SimulatedService::SimulatedService(const Options& options, support::HandDrivenNode& node,
                                   const World& world)
    : options_(options),
      node_(node),
      world_(world),
      facts_{.protocol_version = 1,
             .program = "headraced",
             .name = options.name,
             .instance = options.instance,
             .server = !options.serves.empty(),
             .addresses = options.wire_addresses,
             .control = options.can_lead_next ? std::string("*") + kControlPort : ""},
      leader_(LeaderOptionsOf(options, world.dice, jobs_numbered_), directory_),
      follower_({.node_name = options.name,
                 .lanes = LanesOf(options),
                 .server = !options.serves.empty(),
                 .hash_salt = options.hash_salt,
                 .policy = options.policy,
                 .next_number = [this] { return ++jobs_numbered_; },
                 .leader_at =
                     [this](const service::JobPlace& place) { return LeaderAt(options_, place); }},
                directory_) {}

template <typename What>
void SimulatedService::After(TimeNs delay_ns, What what) {
  world_.timeline.After(delay_ns, [&lines = world_.lines, instance = instance(), what] {
    lines.WhenAwake(instance, [&lines, instance, what] {
      if (SimulatedService* self = lines.Find(instance)) what(*self);
    });
  });
}

void SimulatedService::Start() {
  if (!options_.serves.empty()) Execute(service::ReachLeader{options_.serves});
}

Status SimulatedService::CheckAttach(const support::JobSpec& job, std::uint32_t rank) const {
  return follower_.CheckAttach(job.name, job.uid, rank);
}

void SimulatedService::OnRankAttached(const service::SessionIdentity& identity) {
  follower_.OnRankAttached(identity);
  Act();
}

void SimulatedService::OnRankEnded(const service::SessionIdentity& identity, bool orderly,
                                   const std::string& cause, bool exited) {
  follower_.OnLeaseEnded(identity, orderly, cause, exited);
  if (identity.rendezvous.empty()) {
    follower_.OnRankEnded(identity.job, identity.rank);
  } else if (!orderly) {
    follower_.OnRankLost(identity.job, identity.rank, cause, exited);
  }
  Act();
}

Status SimulatedService::CheckLayout(const service::SessionIdentity& identity,
                                     const service::Layout& layout,
                                     std::optional<plan::Policy> policy) const {
  return follower_.CheckLayout(identity.job, identity.rank, layout, policy);
}

void SimulatedService::OnLayoutSet(const service::SessionIdentity& identity,
                                   std::shared_ptr<const service::Layout> layout,
                                   std::optional<plan::Policy> policy) {
  follower_.OnLayoutSet(identity.job, identity.rank, std::move(layout), policy);
  Act();
}

bool SimulatedService::SetPolicy(const std::string& job, plan::Policy policy) {
  const std::optional<service::KnownJob> found = follower_.FindJob(job);
  if (found) follower_.SetPolicy(found->id, policy);
  Act();
  return found.has_value();
}

bool SimulatedService::Steer(const std::string& job, const service::Steering& steering) {
  const std::optional<service::KnownJob> found = follower_.FindJob(job);
  if (found) follower_.Steer(found->id, steering);
  Act();
  return found.has_value();
}

void SimulatedService::Ask(const service::AskQuorum& question) {
  follower_.Handle(question, world_.timeline.now());
  Act();
}

std::optional<service::QuorumAnswered> SimulatedService::PopAnswer(service::RequestToken token) {
  const auto found = answers_.extract(token);
  return found.empty() ? std::nullopt : std::optional(found.mapped());
}

void SimulatedService::OnQuestionLeft(const service::QuorumClientLost& lost) {
  follower_.Handle(lost);
  Act();
}

const service::JobNodes* SimulatedService::NodesOf(JobId job) const {
  const auto found = formed_.find(job);
  return found == formed_.end() ? nullptr : &found->second;
}

std::optional<std::uint64_t> SimulatedService::KeyOf(JobId job) const {
  const auto found = keys_.find(job.value);
  return found == keys_.end() ? std::nullopt : std::optional(found->second);
}

Status SimulatedService::Greet(LineId line, const service::NodeFacts& facts) {
  if (Status status = leader_.CheckNode(facts, facts.name + ":4711"); !status) return status;
  leader_.OnNodeUp(line, facts, facts.name + ":4711");
  Act();
  return {};
}

void SimulatedService::OnNodeMessage(LineId line, const service::PeerMessage& message) {
  leader_.Handle(line, message, world_.timeline.now());
  Act();
}

void SimulatedService::OnNodeLost(LineId line, const Error& error) {
  leader_.OnNodeDown(line, error.code(), error.text());
  Act();
}

void SimulatedService::Connected(const std::string& leader, std::uint64_t attempt, LineId line) {
  Dialer* const dialer = FindAttempt(leader, attempt);
  if (dialer == nullptr) return world_.lines.Close(line, Side::kDialer);
  *dialer = {.needed = dialer->needed, .line = line, .delay_ns = kDelayMin};
  follower_.OnLeaderUp(leader);
  Act();
}

SimulatedService::Dialer* SimulatedService::FindAttempt(const std::string& leader,
                                                        std::uint64_t attempt) {
  const auto found = dialers_.find(leader);
  return found != dialers_.end() && found->second.attempt == attempt ? &found->second : nullptr;
}

bool SimulatedService::IsDialing(const std::string& leader, std::uint64_t attempt) const {
  const auto found = dialers_.find(leader);
  return found != dialers_.end() && found->second.attempt == attempt;
}

void SimulatedService::Silent(const std::string& leader, std::uint64_t attempt,
                              const std::string& why) {
  if (FindAttempt(leader, attempt) == nullptr) return;
  follower_.OnLeaderUnreachable(leader,
                                fmt::format("the service at {} does not answer: {}", leader, why),
                                world_.timeline.now());
  TryAgainLater(leader);
  Act();
}

void SimulatedService::Refused(const std::string& leader, std::uint64_t attempt,
                               const Error& error) {
  Dialer* const dialer = FindAttempt(leader, attempt);
  if (dialer == nullptr) return;
  const TimeNs now = world_.timeline.now();
  const std::string text =
      fmt::format("the service at {} refuses this one: {}", leader, error.text());
  bool passes = MayPass(error.code());
  if (error.code() == Code::kAlreadyExists) {
    dialer->name_taken_since_ns = std::min(dialer->name_taken_since_ns, now);
    passes = now - dialer->name_taken_since_ns < 2 * world_.lines.detection_ns();
  }
  if (passes) {
    follower_.OnLeaderUnreachable(leader, text, now);
  } else {
    follower_.OnLeaderRefused(leader, Error(error.code(), text));
  }
  TryAgainLater(leader);
  Act();
}

void SimulatedService::OnLeaderMessage(const std::string& leader, LineId line,
                                       const service::PeerMessage& message) {
  const auto found = dialers_.find(leader);
  if (found == dialers_.end() || found->second.line != line) return;
  follower_.Handle(leader, message, world_.timeline.now());
  Act();
}

void SimulatedService::LeaderGone(const std::string& leader, LineId line, const Error& error) {
  const auto found = dialers_.find(leader);
  if (found == dialers_.end() || found->second.line != line) return;
  found->second.line = 0;
  follower_.OnLeaderDown(leader, error);
  TryAgainLater(leader);
  Act();
}

void SimulatedService::NoticeMessages() {
  if (reading_ || read_ == node_.peers().messages.size()) return;
  reading_ = true;
  After(static_cast<TimeNs>(world_.dice.Below(50'000)),
        [](SimulatedService& self) { self.ReadMessages(); });
}

void SimulatedService::ReadMessages() {
  reading_ = false;
  // Taking one may bring more.
  for (; read_ < node_.peers().messages.size(); ++read_) {
    static_assert(std::is_copy_constructible_v<service::PlanMade>);
    const service::PeersMessage message = std::visit(
        [](const auto& each) -> service::PeersMessage {
          if constexpr (std::is_copy_constructible_v<std::decay_t<decltype(each)>>) {
            return each;
          } else {
            return service::Ping{};
          }
        },
        node_.peers().messages[read_]);
    std::visit(
        [this](const auto& each) {
          if constexpr (requires { leader_.Handle(each); }) leader_.Handle(each);
          if constexpr (requires { follower_.Handle(each); }) follower_.Handle(each);
        },
        message);
    Act();
  }
}

void SimulatedService::Act() {
  for (service::ToNode& each : leader_.DrainMessages()) {
    world_.lines.Tell(each.node, Side::kListener, std::move(each.message));
  }
  for (const service::ToWatch& errand : leader_.DrainOutgoing()) Execute(errand);
  for (const service::FollowerAction& action : follower_.DrainActions()) {
    std::visit([this](const auto& each) { Execute(each); }, action);
  }
  SetAlarm();
}

void SimulatedService::SetAlarm() {
  const TimeNs due_ns = std::min(leader_.NextDeadline(), follower_.NextDeadline());
  if (due_ns >= due_ns_) return;
  due_ns_ = due_ns;
  After(std::max<TimeNs>(0, due_ns - world_.timeline.now()), [due_ns](SimulatedService& self) {
    if (due_ns != self.due_ns_) return;  // an earlier one came between
    self.due_ns_ = kNever;
    self.leader_.Expire(self.world_.timeline.now());
    self.follower_.Expire(self.world_.timeline.now());
    self.Act();
  });
}

void SimulatedService::Execute(const service::ToLeader& action) {
  const auto* started = std::get_if<service::JobStarted>(&action.message);
  // A server's number for a job is not the number of its group.
  if (started != nullptr && options_.serves.empty()) {
    const auto links = links_.find(started->job);
    if (links != links_.end()) {
      world_.agreements.Started(links->second.key, started->hash, options_.hash_salt != 0);
    }
  }
  const auto found = dialers_.find(action.leader);
  if (found == dialers_.end() || found->second.line == 0) return;
  world_.lines.Tell(found->second.line, Side::kDialer, action.message);
}

void SimulatedService::Execute(const service::ToDispatch& action) {
  if (const auto* failed = std::get_if<service::JobFailed>(&action.message)) {
    failed_.insert(failed->job);
    failures_.push_back(*failed);
  }
  if (const auto* formed = std::get_if<service::JobFormed>(&action.message)) {
    formed_.insert_or_assign(formed->job, formed->nodes);
    world_.agreements.Formed(links_.at(formed->job.value).key, formed->nodes);
  }
  if (const auto* offer = std::get_if<service::PlanOffer>(&action.message)) {
    if (const auto links = LinksOf(offer->job)) world_.agreements.Offered(links->key, *offer);
  }
  if (const auto* change = std::get_if<service::PlanSwitch>(&action.message)) {
    if (const auto links = LinksOf(change->job)) world_.agreements.Switched(links->key, *change);
  }
  std::visit([this](const auto& each) { node_.Send(each); }, action.message);
}

void SimulatedService::Execute(const service::ToLane& action) {
  if (const auto* open = std::get_if<service::OpenGroup>(&action.message)) {
    links_[open->options.group] = open->options;
    keys_[open->options.group] = open->options.key;
  }
  if (const auto* close = std::get_if<service::CloseGroup>(&action.message)) {
    links_.erase(close->group);
  }
  if (const auto* measure = std::get_if<service::MeasureGroup>(&action.message)) {
    if (!options_.measures) return MakeUpCost(action.lane, measure->group);
  }
  node_.SendToNetworkLane(action.lane, action.message);
}

void SimulatedService::Execute(const service::ToWatch& action) {
  // The watch has other things to do, and plans take their time.
  const auto* make = std::get_if<service::MakePlan>(&action.message);
  const TimeNs delay_ns =
      make == nullptr ? 0 : static_cast<TimeNs>(world_.dice.Below(kPlanningMax));
  After(delay_ns, [message = action.message](SimulatedService& self) {
    std::visit(
        [&self](const auto& each) {
          [[maybe_unused]] const bool taken = self.node_.watch_tap().Send(each);
        },
        message);
  });
}

// For people only.
void SimulatedService::Execute(const service::NoteRefusal& /*action*/) {}

// No rank here asks what its job waits for.
void SimulatedService::Execute(const service::Answered& /*action*/) {}

void SimulatedService::Execute(const service::QuorumAnswered& action) {
  answers_.insert_or_assign(action.token, action);
}
void SimulatedService::Execute(const service::MembersWait& action) { calls_.push_back(action.job); }
void SimulatedService::Execute(const service::JobPlaced& action) {
  places_.insert_or_assign(action.job, action.places);
}
void SimulatedService::Execute(const service::SessionBroken& action) {
  [[maybe_unused]] const bool sent = node_.rpc().Send(service::RpcMessage(action));
}

void SimulatedService::MakeUpCost(std::size_t rail, std::uint32_t group) {
  const transport::CostLine cost{static_cast<double>(world_.dice.Between(1, 100)) * 1e-6,
                                 static_cast<double>(world_.dice.Between(1, 100)) * 1e-9};
  const auto lane = static_cast<std::uint8_t>(kFirstRail + rail);
  const auto delay_ns = static_cast<TimeNs>(world_.dice.Below(1'000'000));
  After(delay_ns, [lane, group, cost](SimulatedService& self) {
    self.follower_.Handle(service::GroupMeasured{lane, group, cost});
    self.Act();
  });
}

void SimulatedService::Execute(const service::ReachLeader& action) {
  const auto [found, is_new] = dialers_.try_emplace(action.leader);
  found->second.needed = true;
  if (!is_new) return;
  found->second.delay_ns = kDelayMin;
  Try(action.leader);
}

// Not at once: the dialer may be the one who is speaking.
void SimulatedService::Execute(const service::LeaveLeader& action) {
  const auto found = dialers_.find(action.leader);
  if (found == dialers_.end()) return;
  found->second.needed = false;
  After(0, [](SimulatedService& self) { self.SweepDialers(); });
}

void SimulatedService::SweepDialers() {
  std::vector<std::string> left;
  for (const auto& [leader, dialer] : dialers_) {
    if (!dialer.needed) left.push_back(leader);
  }
  for (const std::string& leader : left) {
    if (const LineId line = dialers_.at(leader).line; line != 0) {
      world_.lines.Close(line, Side::kDialer);
    }
    dialers_.erase(leader);
    follower_.OnLeaderDown(leader, Error(Code::kUnavailable, "left"));
  }
  Act();
}

void SimulatedService::Try(const std::string& leader) {
  Dialer& dialer = dialers_.at(leader);
  dialer.attempt = ++attempts_;
  world_.lines.Dial(*this, leader, dialer.attempt);
}

void SimulatedService::TryAgainLater(const std::string& leader) {
  Dialer& dialer = dialers_.at(leader);
  const std::uint64_t waiting = ++attempts_;
  dialer.attempt = waiting;
  const TimeNs delay_ns = dialer.delay_ns;
  dialer.delay_ns = std::min(2 * delay_ns, kDelayMax);
  After(delay_ns, [leader, waiting](SimulatedService& self) {
    if (self.FindAttempt(leader, waiting) != nullptr) self.Try(leader);
  });
}

std::optional<transport::GroupOptions> SimulatedService::LinksOf(JobId job) const {
  const auto found = links_.find(job.value);
  if (found == links_.end()) return std::nullopt;
  return found->second;
}

}  // namespace headrace::sim

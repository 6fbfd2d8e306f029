#include "tests/sim/elastic_process.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

namespace headrace::sim {
namespace {

// As client/lib/session_reconnect.cc and service/rpc/bootstrap.cc have them.
constexpr TimeNs kFirstPause = 10 * kMillisecond;
constexpr TimeNs kPauseMax = 500 * kMillisecond;
constexpr TimeNs kSettle = 10 * kSecond;
constexpr TimeNs kQuorumAnswerMax = 2 * kSecond;

}  // namespace

ElasticProcess::ElasticProcess(ElasticWorld& world, Start start)
    : world_(world),
      start_(std::move(start)),
      training_(world, start_.index, start_.role != service::MemberRole::kMember),
      member_(start_.index),
      membership_(start_.membership),
      rendezvous_(start_.rendezvous) {}

std::string ElasticProcess::Describe() const {
  return fmt::format(
      "process {} (member {} of generation {}) on node {}: phase {}{}{}, {}; {}", index(), member_,
      membership_.generation, support::HandDrivenCluster::NameOf(node()), static_cast<int>(phase_),
      still_ ? ", stands still" : "", evicted_ ? ", evicted" : "", training_.Describe(), waits_);
}

void ElasticProcess::RefreshKey() {
  if (session_ == nullptr || session_->key != 0 || Service() == nullptr) return;
  if (Service()->instance() != instance_) return;
  const service::SessionIdentity& identity = session_->who().identity;
  if (!identity.rendezvous.empty()) {
    session_->key = Service()->KeyOf(identity.job).value_or(0);
    return;
  }
  // A job of one node agrees with nobody.
  session_->key = std::uint64_t{1} << 63 | instance_ << 32 | identity.job.value;
}

std::optional<std::string> ElasticProcess::Step() {
  if (IsOver() || still_) return std::nullopt;
  const bool lost = Service() == nullptr || Service()->instance() != instance_;
  if (lost && (session_ != nullptr || client_ != 0)) return Lose();
  if (Service() == nullptr || now() < again_ns_) return std::nullopt;
  if (phase_ == Phase::kOut) {
    const bool begins = membership_.generation == 0 && epoch_ == 0 && !training_.is_newcomer();
    return begins ? Attach(membership_, 0) : Ask();
  }
  if (phase_ == Phase::kAsking) return OnAnswer();
  RefreshKey();
  if (auto wrong = HandleEnds()) return wrong;
  if (failed_ || session_->closed) return Lose();
  if (phase_ == Phase::kMeeting) {
    if (now() >= gives_up_ns_) return Lose();
    if (!handed_in_ && !training_.is_newcomer() && world_.dice.Chance(60)) HandIn();
    return std::nullopt;
  }
  if (!handed_in_ && (!training_.is_newcomer() || training_.has_compared())) HandIn();
  if (failed_) return Lose();
  if (auto wrong = training_.Step()) return wrong;
  if (training_.has_lost_all()) {
    const bool any = std::ranges::any_of(world_.books.last_met(), [this](std::uint32_t process) {
      return world_.may_hand_over(process);
    });
    if (any) return "only newcomers meet, although others are left";
    CloseSession(true, "left the job", true);
    phase_ = Phase::kOver;
    return std::nullopt;
  }
  return training_.WantsToMeet() && training_.IsBetween() ? Lose() : std::nullopt;
}

// ---- who is left --------------------------------------------------------------------------------

std::optional<std::string> ElasticProcess::Ask() {
  instance_ = Service()->instance();
  if (client_ == 0) client_ = ++world_.numbers;
  token_ = ++world_.numbers;
  service::AskQuorum ask{.token = token_,
                         .client = client_,
                         .job = world_.job,
                         .uid = kElasticUid,
                         .pid = static_cast<std::int32_t>(1000 + index()),
                         .leader = rendezvous_,
                         .role = IsMember() ? service::MemberRole::kMember : start_.role,
                         .member = IsMember() ? member_ : 0,
                         .membership = membership_,
                         .epoch = epoch_,
                         .places = service::ParsePlaces(places_).value(),
                         .rules = world_.rules,
                         .until_ns = now() + kQuorumAnswerMax};
  world_.books.OnAsked(index(), ask);
  phase_ = Phase::kAsking;
  Service()->Ask(ask);
  return std::nullopt;
}

std::optional<std::string> ElasticProcess::OnAnswer() {
  const auto answer = Service()->PopAnswer(token_);
  if (!answer) return std::nullopt;
  phase_ = Phase::kOut;
  waits_ = answer->waits;
  if (!answer->waits.empty()) return Ask();
  if (!answer->quorum) return OnRefused(answer->quorum.error());
  service::Quorum quorum = *answer->quorum;
  if (IsMember()) quorum.own = member_;
  return OnQuorum(quorum);
}

std::optional<std::string> ElasticProcess::OnRefused(const Error& error) {
  waits_ = error.text();
  LeaveQuestion(false);
  if (error.code() == Code::kMismatch) {
    phase_ = Phase::kOver;
    if (IsMember()) world_.books.OnRefused(member_);
    return world_.on_refused(*this, error.text());
  }
  WaitForNextAttempt();
  return std::nullopt;
}

std::optional<std::string> ElasticProcess::OnQuorum(const service::Quorum& quorum) {
  const auto role = IsMember() ? service::MemberRole::kMember : start_.role;
  if (auto wrong = world_.books.OnDecided(index(), role, membership_, quorum, now())) return wrong;
  if (!IsMember()) {
    // From here on it is a member, for others too, whether or not they meet.
    member_ = quorum.own;
    membership_ = quorum.membership;
  }
  told_ = quorum;
  if (!quorum.rendezvous.empty()) told_->rendezvous = quorum.rendezvous;
  return Attach(quorum.membership, quorum.epoch);
}

std::optional<std::string> ElasticProcess::Attach(const service::Membership& told,
                                                  std::uint32_t after_epoch) {
  ElasticNode& home = Home();
  instance_ = Service()->instance();
  const std::string meets = told_ && !told_->rendezvous.empty() ? told_->rendezvous : rendezvous_;
  support::JobSpec spec{.name = world_.job,
                        .world_size = static_cast<std::uint32_t>(told.members.size()),
                        .timeout_ms = world_.timeout_ms,
                        .rendezvous = meets};
  const std::uint32_t rank = told.RankOf(member_).value();
  const std::uint64_t hash = told_ ? service::HashOfMembers(told.members) : 0;
  const SessionId next{home.attached + 1};
  const Status status = Service()->CheckAttach(spec, rank);
  const Result<service::RankSlot> slot =
      !status ? Result<service::RankSlot>(status.error())
              : home.ranks.Join({.job = world_.job,
                                 .rank = rank,
                                 .world_size = spec.world_size,
                                 .rendezvous = meets,
                                 .uid = kElasticUid,
                                 .pid = static_cast<std::int32_t>(1000 + index()),
                                 .session = next,
                                 .after_epoch = after_epoch,
                                 .members_hash = hash});
  if (!slot) {
    waits_ = slot.error().text();
    if (slot.error().code() == Code::kMismatch) return "may not attach: " + waits_;
    return Lose();
  }
  spec.id = slot->job;
  spec.epoch = slot->epoch;
  ElasticSession::Who who{.node = node(),
                          .instance = instance_,
                          .process = index(),
                          .identity = IdentityOf(told, after_epoch, spec),
                          .members = told.members};
  who.identity.id = next;
  if (!meets.empty()) {
    who.algorithm = world_.nodes[static_cast<std::size_t>(meets.front() - 'a')].algorithm;
  }
  ++home.attached;
  session_ =
      &world_.checker.Add(world_.cluster.node(node()), spec, std::move(who), world_.books.layout());
  if (session_->client().id() != next) return "a session has another number than it was given";
  epoch_ = std::max(epoch_, slot->epoch);
  Service()->OnRankAttached(session_->who().identity);
  failed_ = handed_in_ = false;
  // Newcomers learn from the others what they train.
  if (!training_.is_newcomer() && world_.dice.Chance(60)) HandIn();
  barrier_ = session_->PostBarrier(false);
  gives_up_ns_ = after_epoch == 0 ? kNever : now() + kSettle;
  phase_ = Phase::kMeeting;
  return std::nullopt;
}

service::SessionIdentity ElasticProcess::IdentityOf(const service::Membership& told,
                                                    std::uint32_t after_epoch,
                                                    const support::JobSpec& spec) const {
  return {.id = {},
          .job = spec.id,
          .job_name = spec.name,
          .epoch = spec.epoch,
          .after_epoch = after_epoch,
          .rank = told.RankOf(member_).value(),
          .member = member_,
          .members_hash = told_ ? service::HashOfMembers(told.members) : 0,
          .world_size = spec.world_size,
          .uid = kElasticUid,
          .pid = static_cast<std::int32_t>(1000 + index()),
          .timeout_ms = spec.timeout_ms,
          .rendezvous = spec.rendezvous,
          .can_reconnect = true,
          .slow_bound = world_.slow_bound,
          .min_world = world_.rules.min_world,
          .attached_ns = now()};
}

void ElasticProcess::HandIn() {
  service::Layout layout = world_.books.layout();
  layout.iterations_before = training_.applied();
  const auto handed = std::make_shared<const service::Layout>(std::move(layout));
  const auto policy = world_.books.model().policy;
  const service::SessionIdentity& identity = session_->who().identity;
  if (const Status status = Service()->CheckLayout(identity, *handed, policy); !status) {
    waits_ = status.error().text();
    failed_ = true;
    return;
  }
  handed_in_ = true;
  world_.cluster.node(node()).Send(
      service::SetLayout{identity.id, ElasticSession::kFirstTensor, handed, {}});
  Service()->OnLayoutSet(identity, handed, policy);
}

// ---- its session --------------------------------------------------------------------------------

std::optional<std::string> ElasticProcess::HandleEnds() {
  std::vector<ElasticSession::End> ends;
  if (auto wrong = session_->ReadEnds(world_.checker, ends)) return wrong;
  bool met = false;
  for (const ElasticSession::End& end : ends) {
    if (!end.ok) waits_ = end.text;
    failed_ = failed_ || !end.ok;
    if (phase_ == Phase::kMeeting) {
      // Then the client library would not try again.
      if (!end.ok && told_ && end.code == Code::kMismatch) return "may not meet: " + end.text;
      met = met || (end.ok && end.number == barrier_);
    } else {
      training_.OnEnd(end);
    }
  }
  return met && !failed_ ? OnMet() : std::nullopt;
}

std::optional<std::string> ElasticProcess::OnMet() {
  const service::SessionIdentity& identity = session_->who().identity;
  if (told_) {
    membership_ = told_->membership;
    if (!told_->rendezvous.empty()) rendezvous_ = told_->rendezvous;
    told_.reset();
  }
  harmed_ = evicted_;
  pause_ns_ = 0;
  session_->met_ns = now();
  phase_ = Phase::kMet;
  const service::JobNodes* nodes = Service()->NodesOf(identity.job);
  if (!identity.rendezvous.empty() && (nodes == nullptr || session_->key == 0)) {
    return "its job has begun, and its service does not know it";
  }
  if (auto wrong = world_.books.OnMet({.process = index(),
                                       .member = member_,
                                       .rank = identity.rank,
                                       .membership = membership_,
                                       .key = session_->key,
                                       .epoch = nodes == nullptr ? identity.epoch : nodes->epoch,
                                       .leader = identity.rendezvous,
                                       .node = support::HandDrivenCluster::NameOf(node()),
                                       .nodes = nodes})) {
    return wrong;
  }
  if (nodes != nullptr) epoch_ = std::max(epoch_, nodes->epoch);
  if (std::string places = Service()->PlacesOf(identity.job); !places.empty()) {
    places_ = std::move(places);
  }
  training_.Enter(*session_);
  return std::nullopt;
}

std::optional<std::string> ElasticProcess::Lose() {
  if (phase_ == Phase::kMet) {
    if (auto wrong = HandleEnds()) return wrong;
  }
  CloseSession(false, "closed its connection", false);
  LeaveQuestion(false);
  told_.reset();
  phase_ = Phase::kOut;
  WaitForNextAttempt();
  return std::nullopt;
}

void ElasticProcess::WaitForNextAttempt() {
  pause_ns_ = std::clamp(2 * pause_ns_, kFirstPause, kPauseMax);
  again_ns_ = now() + pause_ns_;
}

void ElasticProcess::CloseSession(bool orderly, const std::string& cause, bool exited) {
  training_.Leave();
  if (session_ == nullptr) return;
  RefreshKey();
  ElasticSession& session = *std::exchange(session_, nullptr);
  const bool there = Service() != nullptr && Service()->instance() == session.who().instance;
  if (session.closed || !there) {
    session.closed = true;
    return;
  }
  session.closed = true;
  world_.disturb(session, orderly);
  const service::SessionIdentity identity = session.who().identity;
  world_.cluster.node(node()).Close(session.client(), orderly, cause);
  Home().ranks.Depart(identity.id, orderly, cause, exited);
  Service()->OnRankEnded(identity, orderly, cause, exited);
}

void ElasticProcess::LeaveQuestion(bool exited) {
  token_ = 0;
  const std::uint64_t client = std::exchange(client_, 0);
  if (client == 0 || Service() == nullptr || Service()->instance() != instance_) return;
  Service()->OnQuestionLeft({.client = client, .exited = exited});
}

void ElasticProcess::End(bool orderly) {
  CloseSession(orderly, orderly ? "left the job" : "exited or was killed", !orderly);
  LeaveQuestion(true);
  phase_ = Phase::kDead;
}

void ElasticProcess::OnSessionBroken(const Error& error, bool evicted) {
  evicted_ = evicted_ || evicted;
  harmed_ = true;
  world_.disturb(*session_, false);
  session_->closed = true;
  const service::SessionIdentity identity = session_->who().identity;
  world_.cluster.node(node()).Close(session_->client(), false, error.text());
  Home().ranks.Depart(identity.id, false, error.text(), evicted);
  Service()->OnRankEnded(identity, false, error.text(), evicted);
}

}  // namespace headrace::sim

#include "service/dispatch/dispatch.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <optional>
#include <utility>

#include "ipc/base/check.h"
#include "service/dispatch/blocks/flow.h"
#include "service/dispatch/commands.h"
#include "service/dispatch/intake/intake.h"
#include "service/dispatch/intake/left_messages.h"
#include "service/dispatch/intake/remote_pairs.h"
#include "service/dispatch/interleaving.h"
#include "service/dispatch/job/job.h"
#include "service/dispatch/job/pair_notices.h"
#include "service/dispatch/observe/straggler_monitor.h"

namespace headrace::service {
namespace {

// Records read from one ring before the next ring has its turn.
constexpr int kRecordsPerTurn = 32;
// People hear of dropped messages that often at most.
constexpr TimeNs kDropsEvery = kSecond;
// While something is open there is a turn that often at least, so that a standstill of the service
// is distinguished from the time that it had nothing to do.
constexpr TimeNs kTurnEvery = kSecond;
// Turns after a standstill in which nothing expires while rings still have records from before.
constexpr std::uint32_t kCatchUpTurnsMax = ipc::kOperationsMax / kRecordsPerTurn;

}  // namespace

// In the order of what they use: each knows those before it only.
struct Dispatch::Parts {
  Parts(std::vector<LanePort> lanes, Dispatch& dispatch)
      : flow(std::move(lanes), dispatch.board_, dispatch.peers_, dispatch.rpc_, dispatch.watch_,
             dispatch.mapping_),
        intake(flow, dispatch.board_),
        remote_pairs(flow, intake),
        left_messages(dispatch.watch_),
        commands(flow, dispatch.board_, dispatch.peers_, dispatch.rpc_),
        stragglers(flow.lanes(), dispatch.board_, dispatch.peers_, flow.events()) {}

  Flow flow;
  Intake intake;
  RemotePairs remote_pairs;
  LeftMessages left_messages;
  JobCommands commands;
  StragglerMonitor stragglers;
  std::optional<Interleaving> interleaving;  // nothing: jobs are not shifted against each other
};

Dispatch::Dispatch(Wakeable& thread, Doorbells& doorbells, InboxWriter<RpcMessage>& rpc,
                   InboxWriter<PeersMessage>& peers, InboxWriter<WatchMessage>& watch,
                   InboxWriter<MappingMessage>& mapping, ipc::BoardLayout& board)
    : doorbells_(doorbells),
      rpc_(rpc),
      peers_(peers),
      watch_(watch),
      mapping_(mapping),
      inbox_(thread),
      board_(board) {}

Dispatch::~Dispatch() = default;

void Dispatch::ConnectLanes(std::vector<LanePort> lanes) {
  HR_CHECK(parts_ == nullptr && !lanes.empty(), lanes.size());
  parts_ = std::make_unique<Parts>(std::move(lanes), *this);
}

void Dispatch::ReportLate(TimeNs after_ns) {
  HR_CHECK(parts_ != nullptr);
  parts_->stragglers.SetBound(after_ns);
}

void Dispatch::Interleave() {
  HR_CHECK(parts_ != nullptr);
  parts_->interleaving.emplace(parts_->flow);
}

void Dispatch::LimitPosts(std::uint64_t per_uid) {
  HR_CHECK(parts_ != nullptr);
  parts_->intake.LimitPosts(per_uid);
}

void Dispatch::SetCodecCosts(std::vector<CodecCost> costs, std::span<const CodecCost> of_gpus) {
  HR_CHECK(parts_ != nullptr);
  parts_->flow.lanes().SetCodecCosts(std::move(costs), of_gpus);
}

void Dispatch::Verify(std::uint32_t every) {
  HR_CHECK(parts_ != nullptr);
  parts_->flow.Verify(every);
}

bool Dispatch::DoWork(TimeNs now) {
  if (const TimeNs lost_ns = standstill_.BeginTurn(now); lost_ns > 0) Postpone(lost_ns, now);
  const bool worked = Turn(now);
  standstill_.EndTurn(now);
  standstill_.Await(worked ? now : NextDeadline());
  return worked;
}

// Before anything new is read, whose time begins now.
void Dispatch::Postpone(TimeNs lost_ns, TimeNs now) {
  parts_->flow.Postpone(jobs_, lost_ns);
  StragglerMonitor::Postpone(jobs_, now);
  SlowRanks::Postpone(jobs_, lost_ns);
  if (drain_deadline_ != kNever) drain_deadline_ += lost_ns;
  catch_up_turns_ = kCatchUpTurnsMax;
  if (lost_ns < kSecond) return;
  watch_.TrySend(
      Event{Code::kTimeout,
            {},
            fmt::format("the service stood still for {}.{} s (it was stopped, or its machine was "
                        "suspended or far too busy): what is open has as much longer",
                        lost_ns / kSecond, lost_ns % kSecond / (100 * kMillisecond))});
}

bool Dispatch::Turn(TimeNs now) {
  bool worked = Flush(now);
  worked |= HandleInbox(now);
  const bool read = ReadRings(now);
  worked |= read;
  worked |= parts_->intake.CheckReadyWords(jobs_, now);
  catch_up_turns_ = read && catch_up_turns_ > 0 ? catch_up_turns_ - 1 : 0;
  if (now >= parts_->flow.next_deadline() && catch_up_turns_ == 0) {
    parts_->flow.Expire(jobs_, now);
    parts_->commands.FinishDrains(jobs_, now);
    worked = true;
  }
  worked |= parts_->stragglers.Check(jobs_, now);
  worked |= catch_up_turns_ == 0 && parts_->commands.CheckRanks(jobs_, now);
  if (!worked && !draining_) return false;
  parts_->flow.blocks().Schedule(jobs_, now);
  if (parts_->interleaving) parts_->interleaving->Check(jobs_, now);
  parts_->stragglers.Follow(jobs_, now);
  // While there is no room, notices wait where there are as many as pairs.
  for (const auto& job : jobs_) {
    if (parts_->flow.lanes().MayNotify()) parts_->flow.lanes().SendNoticesOf(*job);
  }
  FinishDrain(now);
  DiscardGone(now);
  PublishRows();
  return worked;
}

bool Dispatch::Flush(TimeNs now) {
  bool sent = rpc_.Flush(now);
  sent |= peers_.Flush(now);
  sent |= watch_.Flush(now);
  sent |= mapping_.Flush(now);
  sent |= parts_->flow.lanes().Flush(jobs_, now);
  const std::uint64_t drops = rpc_.dropped() + peers_.dropped() + watch_.dropped();
  if (drops != drops_reported_ && now - drops_tried_ns_ >= kDropsEvery) ReportDrops(drops, now);
  return sent;
}

// When watch has room again.
void Dispatch::ReportDrops(std::uint64_t drops, TimeNs now) {
  drops_tried_ns_ = now;
  Event event{
      Code::kExhausted,
      {},
      fmt::format("{} events and reports of dispatch were dropped, because rpc, peers or watch "
                  "was {} messages behind",
                  drops - drops_reported_, kInboxMax)};
  if (watch_.TrySend(std::move(event))) {
    drops_reported_ = drops;
  } else {
    ++drops_reported_;  // itself
  }
}

bool Dispatch::PrepareToSleep() {
  bool idle = inbox_.Empty();
  for (const Reading& reading : readings_) idle &= reading.session->reader().PrepareToSleep();
  slept_ = idle;
  return idle;
}

void Dispatch::Awake() {
  for (const Reading& reading : readings_) {
    if (reading.session->reader().Awake() && slept_) ++board_.counters.doorbells;
  }
  if (slept_) ++board_.counters.sleeps;
  slept_ = false;
}

TimeNs Dispatch::NextDeadline() const {
  // What has ended leaves deadlines behind, so those do not say whether anything is open.
  // Those of a paused job stand still.
  const bool open = std::ranges::any_of(
      jobs_, [](const auto& job) { return job->busy() && job->steering.frozen_since_ns == 0; });
  const TimeNs next_turn = open ? standstill_.turned_ns() + kTurnEvery : kNever;
  return std::min({next_turn, parts_->flow.next_deadline(), parts_->intake.next_look_at_words(),
                   parts_->stragglers.next_check(), parts_->commands.next_check(),
                   parts_->flow.lanes().NextFlush(), rpc_.NextDeadline(), peers_.NextDeadline(),
                   watch_.NextDeadline(), mapping_.NextDeadline(), drain_deadline_,
                   draining_ && !drained_ ? parts_->left_messages.NextDeadline() : kNever});
}

bool Dispatch::HandleInbox(TimeNs now) {
  if (inbox_.Empty()) return false;
  inbox_.PopAll(messages_);
  for (DispatchMessage& message : messages_) {
    std::visit([this, now](auto& alternative) { Handle(std::move(alternative), now); }, message);
  }
  messages_.clear();
  return true;
}

bool Dispatch::ReadRings(TimeNs now) {
  bool worked = false;
  const std::uint64_t version = readings_version_;
  for (std::size_t i = 0; i < readings_.size(); ++i) {
    worked |= ReadRing(i, now);
    // A message opened or closed a session: start over in the next turn.
    if (version != readings_version_) return true;
  }
  return worked;
}

bool Dispatch::ReadRing(std::size_t index, TimeNs now) {
  HR_CHECK(index < readings_.size() && readings_[index].session != nullptr, index);
  const Reading reading = readings_[index];
  const std::uint64_t version = readings_version_;
  for (int i = 0; i < kRecordsPerTurn; ++i) {
    if (!reading.session->reader().HasRecord()) return i > 0;
    // After the record was seen: whatever was registered before it was posted is in the inbox.
    HandleInbox(now);
    if (version != readings_version_) return true;
    ReadRecord(reading, now);
    if (version != readings_version_) return true;
  }
  return true;
}

void Dispatch::ReadRest(SessionId id, TimeNs now) {
  const Reading* found = FindReading(id);
  if (found == nullptr) return;
  const Reading reading = *found;
  const std::uint64_t version = readings_version_;
  for (std::uint64_t i = 0; i < ipc::kOperationsMax && version == readings_version_; ++i) {
    if (!reading.session->reader().HasRecord()) return;
    ReadRecord(reading, now);
  }
}

void Dispatch::ReadRecord(const Reading& reading, TimeNs now) {
  Result<std::optional<ipc::Record>> record = reading.session->reader().Read();
  const SessionIdentity& identity = reading.session->identity();
  if (!record) {
    Answer(SessionBroken{identity.id, record.error()});
    return Close(identity.id, false, Code::kCorrupt,
                 fmt::format("wrote garbage ({})", record.error().text()), now);
  }
  HR_CHECK(record->has_value(), identity.rank);
  parts_->intake.Post(*reading.job, identity.rank, **record, now);
  parts_->commands.OnRecord(*reading.job, identity.rank, now);
}

void Dispatch::Handle(OpenSession message, TimeNs now) {
  Session& session = *message.session;
  const SessionIdentity& identity = session.identity();
  Job& job = FindOrOpenJob(identity, now);
  JobRank& entry = job.rank_entry(identity.rank);
  // Leases gives each rank of a job once.
  HR_CHECK(entry.session == nullptr && !entry.gone, identity.rank);
  if (Status status = doorbells_.Watch(session.doorbell()); !status) {
    Answer(SessionBroken{identity.id, status.error().Within("listen to the doorbell")});
    return Answer(SessionDiscarded{identity.id});
  }
  job.RaiseEpoch(identity.epoch);
  entry.session = std::move(message.session);
  entry.open.Reserve(kOperationsMax);
  parts_->flow.recorder().RankAttached(job, identity.rank);
  HR_CHECK(FindReading(identity.id) == nullptr, identity.id.value);
  readings_.push_back({&session, &job});
  ++readings_version_;
  ++board_.counters.sessions_opened;
  job.Changed();
  parts_->flow.wait_reasons().ShowGatheringAgain(job);
}

void Dispatch::Handle(AddSegment message, TimeNs) {
  Reading* reading = FindReading(message.session);
  if (reading == nullptr) {  // the lease ended meanwhile
    mapping_.Send(DiscardMemory{std::move(message.memory), message.uid});
    return;
  }
  reading->session->AddSegment(message.segment, std::move(message.memory));
  reading->job->Changed();
}

void Dispatch::Handle(const RemoveSegment& message, TimeNs) {
  Reading* reading = FindReading(message.session);
  if (reading == nullptr) return;  // rpc has forgotten the request with the lease
  Status status = reading->job->CheckRemovable(reading->session->identity().rank, message.segment);
  if (status) {
    mapping_.Send(DiscardMemory{reading->session->RemoveSegment(message.segment),
                                reading->session->identity().uid});
    reading->job->Changed();
  }
  Answer(SegmentRemoved{message.token, std::move(status)});
}

void Dispatch::Handle(AddTensors message, TimeNs) {
  Reading* reading = FindReading(message.session);
  if (reading == nullptr) return;
  reading->session->AddTensors(message.first, std::move(message.tensors));
  reading->job->Changed();
}

void Dispatch::Handle(const RemoveTensors& message, TimeNs) {
  Reading* reading = FindReading(message.session);
  if (reading == nullptr) return;
  reading->session->RemoveTensors(message.first, message.count);
  reading->job->Changed();
}

void Dispatch::Handle(const CloseSession& message, TimeNs now) {
  if (message.orderly) ReadRest(message.session, now);
  Close(message.session, message.orderly, Code::kPeerLost, message.cause, now);
}

void Dispatch::Handle(const Ping& message, TimeNs) {
  // Anybody may ask, and as often as they like: what rpc has no room for is not answered, and
  // rpc does not wait for it for long.
  rpc_.TrySend(Pong{message.token, parts_->flow.lanes().count()});
  for (std::uint64_t full = parts_->flow.lanes().Probe(message.token); full != 0;
       full &= full - 1) {
    const auto lane = static_cast<std::uint8_t>(std::countr_zero(full));
    rpc_.TrySend(LaneAnswered{
        lane, message.token,
        Error(Code::kBusy, fmt::format("lane {} is {} messages behind: it moves nothing, or is "
                                       "asked too often",
                                       parts_->flow.lanes().Name(lane), kInboxMax))});
  }
}

void Dispatch::Handle(const Drain& message, TimeNs) {
  draining_ = true;
  if (!drained_) drain_deadline_ = message.deadline_ns;
  parts_->intake.RefuseNew();
}

void Dispatch::Handle(const StageEnded& message, TimeNs now) {
  Job* job = FindJob(Flow::JobOf(message.completion.token));
  // A job outlives its stages: it is removed when nothing is open.
  HR_CHECK(job != nullptr, message.completion.token);
  parts_->flow.lanes().OnFlow(message.lane, message.flowed_ns);
  parts_->flow.StageEnded(*job, message.completion, now);
  parts_->commands.FinishDrain(*job, now);
}

void Dispatch::Handle(const LaneFacts& message, TimeNs) { parts_->flow.lanes().OnFacts(message); }

void Dispatch::Handle(const LaneMoved& m, TimeNs) { parts_->flow.OnMoved(FindJob(m.job), m); }

// Messages about a job that was forgotten meanwhile come too late to matter.
void Dispatch::Handle(const JobForming& message, TimeNs) {
  Job* job = FindJob(message.job);
  if (job == nullptr || job->formed()) return;
  job->waits_for = message.waits_for;
  job->Changed();
}

void Dispatch::Handle(JobFormed message, TimeNs now) {
  Job* job = FindJob(message.job);
  if (job == nullptr || job->formed()) return;
  parts_->flow.Form(*job, std::move(message.nodes), now);
  parts_->remote_pairs.HandleEarly(*job, now);
}

void Dispatch::Handle(const JobFailed& message, TimeNs now) {
  Job* job = FindJob(message.job);
  if (job == nullptr) return;
  parts_->flow.FailJob(*job, {message.code, message.cause}, Flow::Found::kElsewhere, now);
}

void Dispatch::Handle(const RankLeft& message, TimeNs now) {
  Job* job = FindJob(message.job);
  if (job == nullptr) return;
  // Its node itself reports the end of its sends and receives, after the last of them.
  parts_->flow.LimitTo(*job, message.posted, message.iterations, message.cause, now);
}

void Dispatch::Handle(const SetLayout& message, TimeNs now) {
  Reading* reading = FindReading(message.session);
  if (reading == nullptr) return;  // the lease ended meanwhile
  parts_->flow.SetLayout(*reading->job, *reading->session, message, now);
}

void Dispatch::Handle(const PlanOffer& message, TimeNs now) {
  Job* job = FindJob(message.job);
  if (job != nullptr) parts_->flow.plans().Offer(*job, message, now);
}

void Dispatch::Handle(const PlanSwitch& message, TimeNs now) {
  Job* job = FindJob(message.job);
  if (job != nullptr) parts_->flow.AcceptSwitch(*job, message, now);
}

void Dispatch::Handle(const ResidualsRefused& message, TimeNs now) {
  if (const Reading* const from = FindReading(message.session); from != nullptr)
    parts_->flow.FailGradients(*from->job, {message.code, message.cause}, now);
}

void Dispatch::Handle(const SteerJob& message, TimeNs now) {
  Job* job = FindJob(message.job);
  if (job != nullptr) parts_->commands.Steer(*job, message.steering, now);
}

void Dispatch::Handle(const StageWaits& message, TimeNs) {
  parts_->flow.lanes().OnFlow(message.lane, message.flowed_ns);
  Job* job = FindJob(Flow::JobOf(message.token));
  if (job != nullptr) parts_->flow.wait_reasons().OnStageWaits(*job, message);
}

void Dispatch::Handle(const ScratchBooked& message, TimeNs now) {
  const JobId job = std::visit([](const auto& request) { return request.job; }, message.request);
  parts_->flow.ScratchBooked(FindJob(job), message, now);
}

void Dispatch::Handle(const StagingWanted& message, TimeNs) {
  parts_->flow.blocks().scratch().OnStagingWanted(FindJob(message.job), message);
}

// One a request, of which a lane has one open for each group.
void Dispatch::Handle(const StagingPinned& m, TimeNs) { parts_->flow.lanes().out(m.lane).Send(m); }

void Dispatch::Handle(ScratchMade message, TimeNs now) {
  Job* job = FindJob(message.job);
  if (job != nullptr) return parts_->flow.ScratchMade(*job, std::move(message), now);
  if (!message.memory) return;
  DiscardScratch discarded{.memory = {}, .uid = message.uid};
  discarded.memory.push_back(std::move(*message.memory));
  mapping_.Send(std::move(discarded));
}

void Dispatch::Handle(ResidualsPinned message, TimeNs) {
  Job* const job = FindJob(message.job);
  HR_CHECK(job != nullptr, message.job.value);  // DiscardGone waits for it
  parts_->flow.plans().ResidualsPinned(*job, std::move(message));
}

void Dispatch::Handle(SendNotices message, TimeNs now) {
  if (Job* job = FindJob(message.job); job != nullptr) {
    parts_->remote_pairs.Handle(*job, std::move(message), now);
    return parts_->commands.FinishDrain(*job, now);
  }
  parts_->left_messages.Handle(message);
  SendNotices refusals = RemotePairs::Refusals(message);
  // As many as came, and no more come than this node has taken (transport/exchange/notices.h).
  if (!refusals.notices.empty()) parts_->flow.lanes().Notify(std::move(refusals));
}

void Dispatch::Handle(const ReceivePosted& message, TimeNs) {
  Job* job = FindJob(Flow::JobOf(message.token));
  if (job != nullptr) parts_->flow.blocks().OnReceivePosted(*job, message);
}

Job& Dispatch::FindOrOpenJob(const SessionIdentity& identity, TimeNs now) {
  if (Job* job = FindJob(identity.job)) return *job;
  jobs_.push_back(std::make_unique<Job>(identity, now));
  Job& job = *jobs_.back();
  parts_->flow.AddJob(job, now);
  return job;
}

Job* Dispatch::FindJob(JobId id) {
  const auto found =
      std::find_if(jobs_.begin(), jobs_.end(), [id](const auto& job) { return job->id() == id; });
  return found != jobs_.end() ? found->get() : nullptr;
}

Dispatch::Reading* Dispatch::FindReading(SessionId id) {
  const auto found = std::find_if(readings_.begin(), readings_.end(), [id](const Reading& reading) {
    return reading.session->identity().id == id;
  });
  return found != readings_.end() ? &*found : nullptr;
}

void Dispatch::Close(SessionId id, bool orderly, Code code, const std::string& cause, TimeNs now) {
  const Reading* found = FindReading(id);
  if (found == nullptr) return;  // already closed, from the other side
  const Reading reading = *found;
  Job& job = *reading.job;
  const std::uint32_t rank = reading.session->identity().rank;
  JobRank& entry = job.rank_entry(rank);
  readings_.erase(readings_.begin() + (found - readings_.data()));
  ++readings_version_;
  ++board_.counters.sessions_closed;
  doorbells_.Unwatch(reading.session->doorbell());
  HR_CHECK(!entry.gone && entry.session.get() == reading.session, rank);
  entry.gone = true;
  job.Changed();
  const Failure failure{code, fmt::format("{} {} after {}", job.DescribeRank(rank), cause,
                                          job.DescribeProgress(rank))};
  if (job.spans_nodes()) return CloseSpanning(job, rank, orderly, failure, now);
  if (!orderly && !job.failed) parts_->flow.events().Report(job, code, failure.text);
  const bool first = !job.failure.has_value();
  if (first) job.failure = failure;
  if (!orderly) job.SetFailed(now);
  if (orderly) {
    parts_->flow.LimitGradients(job, job.IterationsOf(rank), failure, now);
    // Nobody asks for the plan that they wait for, or for what they come to.
    const bool plan_is_due = job.gradients && job.gradients->plan() == nullptr;
    if (plan_is_due && std::ranges::all_of(job.ranks(), &JobRank::gone))
      parts_->flow.FailGradientsHere(job, failure, now);
  } else {
    parts_->flow.FailGradientsHere(job, failure, now);
  }
  parts_->flow.FailOpenOperations(job, orderly ? Flow::Which::kNotPostedBy : Flow::Which::kAll,
                                  rank, failure, now);
  // A rank that is lost says more than one that left before it.
  if (!orderly && !first && job.failure->code == Code::kPeerLost) job.failure = failure;
}

void Dispatch::CloseSpanning(Job& job, std::uint32_t rank, bool orderly, const Failure& failure,
                             TimeNs now) {
  if (!orderly) return parts_->flow.FailJob(job, failure, Flow::Found::kHere, now);
  const std::uint64_t posted = job.rank_entry(rank).operations;
  const std::uint64_t iterations = job.IterationsOf(rank);
  if (job.nodes() != nullptr) SendLeft(job, rank, failure);
  Report(RankLeft{job.id(), rank, posted, iterations});
  parts_->flow.LimitTo(job, posted, iterations, job.DescribeRank(rank) + " left the job", now);
  parts_->flow.FailPairsOf(job, rank, failure, now);
}

// Where a rank of this node has left, there is no iteration to pin residuals for.
void Dispatch::CancelPinning(Job& job) {
  if (job.residuals.pinning != Residuals::Pinning::kUnderWay) return;
  if (std::ranges::none_of(job.ranks(), &JobRank::gone)) return;
  job.residuals.pinning = Residuals::Pinning::kCancelled;
  mapping_.Send(service::CancelPinning{job.id()});
}

void Dispatch::DiscardGone(TimeNs now) {
  for (std::size_t i = 0; i < jobs_.size();) {
    Job& job = *jobs_[i];
    if (job.residuals.IsBeingPinned()) {
      CancelPinning(job);
      ++i;
      continue;
    }
    for (JobRank& entry : job.ranks()) {
      if (!entry.gone || entry.session == nullptr || entry.posted != entry.ended) continue;
      const SessionId id = entry.session->identity().id;
      const std::uint32_t rank = entry.session->identity().rank;
      parts_->flow.recorder().RankDiscarded(job, rank);
      DiscardSession discarded{.session = std::move(entry.session)};
      if (job.residuals.of_rank == rank) discarded.pinned = job.residuals.PopPinned();
      mapping_.Send(std::move(discarded));
      if (job.booked_on != id) rpc_.Send(SessionDiscarded{id});
      job.Changed();
    }
    if (job.HasSessions()) {
      ++i;
      continue;
    }
    parts_->flow.lanes().SendNoticesOf(job);
    if (job.booked_on) rpc_.Send(SessionDiscarded{*job.booked_on});
    if (job.spans_nodes()) Report(JobEnded{job.id()});
    parts_->left_messages.Add(job);
    parts_->intake.RemoveJob(job);
    parts_->flow.RemoveJob(job, now);
    jobs_.erase(jobs_.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

void Dispatch::FinishDrain(TimeNs now) {
  if (!draining_ || drained_) return;
  if (now >= drain_deadline_) {
    drain_deadline_ = kNever;
    parts_->commands.EndAll(jobs_, now);
    parts_->left_messages.Clear();
  }
  const bool open = std::ranges::any_of(jobs_, [](const auto& job) { return job->HoldsUp(); });
  if (open || parts_->left_messages.Any(now)) return;
  drained_ = true;
  drain_deadline_ = kNever;
  Answer(Drained{});
}

void Dispatch::PublishRows() {
  for (const std::unique_ptr<Job>& job : jobs_) parts_->flow.recorder().Publish(*job);
  board_.PublishCounters();
}

// One of these a session, rank or job, or an answer to a request of which each session has one open
// at a time: that bounds how many can wait.
void Dispatch::Answer(RpcMessage message) { rpc_.Send(std::move(message)); }
void Dispatch::Report(PeersMessage message) { peers_.Send(std::move(message)); }

}  // namespace headrace::service

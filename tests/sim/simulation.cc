#include "tests/sim/simulation.h"

#include <fmt/format.h>

#include <algorithm>

#include "service/dispatch/job/block.h"
#include "service/dispatch/standstill.h"

namespace headrace::sim {
namespace {

constexpr int kStepsMax = 250;
constexpr std::uint32_t kTimeoutMsMax = 200;
constexpr std::uint32_t kCalmTimeoutMs = 600'000;

support::MakeTransport AnyTransport(bool shared_memory, Mood mood, Dice& dice) {
  if (shared_memory) return support::SharedMemory(1);
  transport::LoopbackOptions options;
  options.transfers_max = static_cast<std::uint32_t>(dice.Between(1, 8));
  options.piece_size = std::size_t{8} << dice.Below(8);
  options.startup_ns = static_cast<TimeNs>(dice.Below(3) * dice.Below(50'000));
  options.ns_per_byte = static_cast<double>(dice.Below(20));
  options.seed = dice.Below(UINT64_MAX);
  options.busy_share = dice.Chance(30) ? 0.2 : 0;
  options.jitter_share = dice.Chance(50) ? 1.0 : 0;
  if (mood >= Mood::kLoss && dice.Chance(30)) options.failure_share = 0.05;
  return support::Loopback(options);
}

}  // namespace

Simulation::Simulation(std::uint64_t seed, Mood mood, const transport::Gpus* gpus)
    : seed_(seed),
      mood_(mood),
      dice_(seed * 4 + static_cast<std::uint64_t>(mood)),
      gpus_(gpus),
      shared_memory_(gpus == nullptr && dice_.Chance(25)),
      // The arithmetic under test is checked by the one that it shares no code with.
      checker_(shared_memory_ ? CompletionChecker::Arithmetic::kReference
                              : CompletionChecker::Arithmetic::kKernels),
      node_(AnyTransport(shared_memory_, mood, dice_), std::uint64_t{1} << dice_.Between(6, 20), {},
            gpus) {
  for (std::uint32_t id = 1; id <= dice_.Between(1, 3); ++id) {
    Job job;
    job.spec = {.id = {id},
                .name = fmt::format("job{}", id),
                .world_size = static_cast<std::uint32_t>(dice_.Between(1, 5)),
                .timeout_ms = Timeout()};
    job.on_gpus = gpus_ != nullptr && dice_.Chance(75);
    job.ranks.resize(job.spec.world_size);
    checker_.AddJob(job.spec.id, job.spec.world_size);
    jobs_.push_back(std::move(job));
  }
}

std::optional<std::string> Simulation::Run() {
  const std::uint64_t steps = dice_.Between(20, kStepsMax);
  for (std::uint64_t step = 0; step < steps; ++step) {
    Act();
    if (auto wrong = Check()) return wrong;
  }
  return Finish();
}

void Simulation::Act() {
  if (dice_.Chance(8)) return Attach();
  if (dice_.Chance(45)) return dice_.Chance(30) ? PostMessages() : PostSome();
  if (mood_ >= Mood::kLoss && dice_.Chance(4)) return ActBadly();
  ActOnNode();
}

void Simulation::ActOnNode() {
  switch (dice_.Below(7)) {
    case 0:
    case 1:
      TurnDispatch();
      return;
    case 2:
    case 3:
      Trace("lanes turn");
      if (gpus_ == nullptr || dice_.Chance(70)) node_.TurnLane();
      if (gpus_ != nullptr && dice_.Chance(70)) node_.TurnGpuLane();
      return;
    case 4:
      Trace("watch turns");
      node_.TurnWatch();
      return;
    case 5:
      Pass(static_cast<TimeNs>(dice_.Below(dice_.Chance(80) ? 100'000 : 100'000'000)));
      Trace(fmt::format("it is {} ns", node_.now));
      return;
    default:
      return gpus_ != nullptr && dice_.Chance(60) ? ReachWords() : SettleAndMark();
  }
}

void Simulation::ReachWords() {
  Rank* rank = AnyRank();
  if (rank == nullptr) return;
  Trace(rank->Name() + ": its GPU goes on");
  rank->ReachWords(dice_);
}

void Simulation::ActBadly() {
  const std::uint64_t what = dice_.Below(100);
  if (what < 35) return Close(false);
  if (what < 60) return Close(true);
  if (what < 80) return ReleaseSegment();
  if (what < 83) return StartDrain();
  if (mood_ >= Mood::kHostile) Garble();
}

void Simulation::Attach() {
  Job& job = jobs_[dice_.Below(jobs_.size())];
  const auto rank = static_cast<std::uint32_t>(dice_.Below(job.spec.world_size));
  if (job.ranks[rank] != nullptr) return;
  // As control does: a job whose last rank has gone is over.
  const bool over = std::ranges::any_of(job.ranks, [](auto& r) { return r && r->closed; });
  if (over) return;
  MakeRank(job, rank);
  Trace(job.ranks[rank]->Name() + " attaches");
}

void Simulation::MakeRank(Job& job, std::uint32_t rank) {
  const auto gpu = [&] { return static_cast<int>(dice_.Below(gpus_->count())); };
  job.ranks[rank] = std::make_unique<Rank>(node_, checker_, job.spec, rank, seed_, JobId{},
                                           job.on_gpus ? gpu() : transport::kHost);
  ++sessions_;
}

void Simulation::ReachAllWords() {
  ForEachRank([this](Rank& rank) { rank.ReachAllWords(dice_); });
}

void Simulation::PostSome() {
  Rank* rank = AnyRank();
  if (rank == nullptr) return;
  for (std::uint64_t left = dice_.Between(1, 6); left > 0; --left) {
    auto manner = Rank::Manner::kHonest;
    // One rank only, so that no two disagree with the others in the same way.
    const bool may_disagree = rank->client().rank() == 0 && rank->world_size() > 1;
    if (mood_ >= Mood::kQuarrel && may_disagree && dice_.Chance(5)) {
      manner = Rank::Manner::kDisagrees;
    }
    if (mood_ >= Mood::kQuarrel && dice_.Chance(2)) manner = Rank::Manner::kBadRecord;
    if (!rank->Post(manner, Timeout(), dice_)) return;
    Trace(fmt::format("{} posts operation {}{}", rank->Name(), rank->client().posted(),
                      manner == Rank::Manner::kHonest      ? ""
                      : manner == Rank::Manner::kDisagrees ? ", and disagrees"
                                                           : " with a bad record"));
  }
}

void Simulation::PostMessages() {
  Rank* rank = AnyRank();
  if (rank == nullptr) return;
  for (std::uint64_t left = dice_.Between(1, 6); left > 0; --left) {
    const bool spoiled = mood_ >= Mood::kQuarrel && dice_.Chance(4);
    rank->PostMessage(messages_, spoiled, Timeout(), dice_);
    Trace(fmt::format("{} sends or receives by record {}{}", rank->Name(), rank->client().posted(),
                      spoiled ? ", and spoils it" : ""));
  }
}

std::optional<std::string> Simulation::AnswerMessages() {
  for (int patience = 0; patience < 10'000; ++patience) {
    bool any = false;
    for (Job& job : jobs_) {
      for (const std::unique_ptr<Rank>& rank : job.ranks) {
        const std::optional<Rank::OtherSide> side = rank->FirstOtherSide();
        if (!side) continue;
        any = true;
        job.ranks[side->rank]->Answer(messages_, *side, Timeout(), dice_);
        // Before the next: an answer too many would wait for one itself.
        for (int i = 0; i < 50 && rank->IsOpen(side->record); ++i) {
          node_.Advance(kMillisecond);
          if (auto wrong = Check()) return wrong;
        }
      }
    }
    if (!any) return std::nullopt;
    ReachAllWords();
  }
  return "a send or receive never ends although its other side is posted again and again";
}

void Simulation::Close(bool orderly) {
  Rank* rank = AnyRank();
  if (rank == nullptr) return;
  Trace(rank->Name() + (orderly ? " leaves" : " is killed"));
  node_.Close(rank->client(), orderly, orderly ? "left the job" : "exited or was killed");
  rank->closed = true;
  rank->orderly = orderly;
}

void Simulation::Garble() {
  Rank* rank = AnyRank();
  if (rank == nullptr) return;
  if (dice_.Chance(50)) {
    Trace(rank->Name() + " writes garbage into its ring");
    rank->garbled = true;
    // Whatever no honest writer stores there: not the number that is due.
    rank->client().PostGarbage(rank->client().posted() + 2 + dice_.Below(1 << 20));
    return;
  }
  Trace(rank->Name() + " overruns its ring");
  for (std::uint64_t burst = dice_.Between(1, 80); burst > 0; --burst) {
    rank->PostRudely(32);
    if (dice_.Chance(95)) node_.TurnDispatch();
    if (dice_.Chance(20)) node_.TurnLane();
    if (dice_.Chance(20)) node_.TurnGpuLane();
  }
}

void Simulation::ReleaseSegment() {
  Rank* rank = AnyRank();
  if (rank == nullptr || !rank->has_second) return;
  Trace(rank->Name() + " releases its second segment");
  rank->has_second = false;
  node_.Send(service::RemoveSegment{rank->client().id(), SegmentId{1}, rank->client().id().value});
}

void Simulation::StartDrain() {
  if (drain_deadline_) return;
  drain_deadline_ = node_.now + static_cast<TimeNs>(dice_.Below(100)) * kMillisecond;
  Trace("the service drains");
  node_.Send(service::Drain{*drain_deadline_});
}

void Simulation::SettleAndMark() {
  Trace("all turn until nothing is left to do");
  node_.Settle();
  ForEachRank([this](Rank& rank) {
    // The last records of a killed rank may never be read.
    if (!rank.closed || rank.orderly) rank.MarkRead(node_.now);
  });
}

std::optional<std::string> Simulation::AnswerControl() {
  std::optional<std::string> wrong;
  for (; answered_ < node_.rpc().messages.size(); ++answered_) {
    const service::RpcMessage& message = node_.rpc().messages[answered_];
    ForEachRank([&](Rank& rank) {
      if (const auto* broken = std::get_if<service::SessionBroken>(&message)) {
        if (broken->session != rank.client().id()) return;
        if (!rank.garbled) wrong = rank.Name() + ": was called broken: " + broken->error.text();
        if (!rank.closed) node_.Close(rank.client(), false, "exited or was killed");
        rank.closed = true;
      } else if (const auto* removed = std::get_if<service::SegmentRemoved>(&message)) {
        if (removed->token == rank.client().id().value) rank.has_second = !removed->status.ok();
      }
    });
  }
  return wrong;
}

std::optional<std::string> Simulation::Check() {
  std::optional<std::string> wrong = AnswerControl();
  if (!wrong) wrong = CheckOrder();
  ForEachRank([&](Rank& rank) {
    if (!wrong && !rank.garbled) wrong = rank.CheckEnded();
  });
  if (!wrong && node_.discarded_in_use() != 0) wrong = "memory was discarded while a lane used it";
  return wrong;
}

std::optional<std::string> Simulation::CheckOrder() {
  const std::vector<std::uint64_t>& accepted = node_.transport().accepted;
  for (; ordered_ < accepted.size(); ++ordered_) {
    const std::uint64_t job = service::StageToken::Unpack(accepted[ordered_]).job.value;
    const std::uint64_t position = node_.transport().positions[ordered_];
    const std::uint64_t sequence = service::SequenceOf(position);
    // Pairs have an order of their own, in which each goes when both of its sides are there.
    if (service::TrafficClassOf(sequence) == schedule::TrafficClass::kPaired) continue;
    const bool is_fixed = mood_ != Mood::kHostile && !jobs_.at(job - 1).on_gpus;
    std::uint64_t& last = last_started_[{job, node_.transport().copying[ordered_]}];
    if (is_fixed && position <= last) {
      return fmt::format("job {}: operation {}, block {} went after operation {}", job, sequence,
                         position & 0xffff, service::SequenceOf(last));
    }
    last = position;
  }
  return std::nullopt;
}

void Simulation::TurnDispatch() {
  Trace("dispatch turns");
  node_.TurnDispatch();
  dispatched_ns_ = node_.now;
}

// A thread that does not run for longer has stood still, and gives what is open its time again.
void Simulation::Pass(TimeNs time_ns) {
  if (node_.now + time_ns - dispatched_ns_ >= service::Standstill::kLeast) TurnDispatch();
  node_.now += time_ns;
}

std::optional<std::string> Simulation::CheckTimes() {
  std::optional<std::string> wrong;
  ForEachRank([&](Rank& rank) {
    if (!wrong && !rank.garbled) wrong = rank.Overdue(node_.now);
  });
  return wrong;
}

std::optional<std::string> Simulation::Finish() {
  if (mood_ == Mood::kCalm) {
    if (auto wrong = FinishCalmly()) return wrong;
  }
  SettleAndMark();
  if (auto wrong = Check()) return wrong;
  for (TimeNs waited = 0; waited <= kTimeoutMsMax * kMillisecond; waited += 5 * kMillisecond) {
    node_.Advance(5 * kMillisecond);
    if (auto wrong = Check()) return wrong;
    if (auto wrong = CheckTimes()) return wrong;
  }
  if (auto wrong = CheckAllEnded()) return wrong;
  ForEachRank([this](Rank& rank) {
    if (!rank.closed) node_.Close(rank.client(), dice_.Chance(50), "left at the end");
  });
  node_.Settle();
  return CheckAllReturned();
}

std::optional<std::string> Simulation::FinishCalmly() {
  for (Job& job : jobs_) {
    std::uint64_t most = 0;
    for (std::uint32_t rank = 0; rank < job.spec.world_size; ++rank) {
      if (!job.ranks[rank]) MakeRank(job, rank);
      most = std::max(most, job.ranks[rank]->posted());
    }
    // In turns: there is room again when operations end, which needs the ranks that are behind.
    for (int patience = 0; patience < 10'000; ++patience) {
      bool behind = false;
      for (const std::unique_ptr<Rank>& rank : job.ranks) {
        if (rank->posted() == most) continue;
        behind = true;
        rank->Post(Rank::Manner::kHonest, Timeout(), dice_);
      }
      if (!behind) break;
      ReachAllWords();
      node_.Advance(kMillisecond);
      if (auto wrong = Check()) return wrong;
    }
    for (const std::unique_ptr<Rank>& rank : job.ranks) {
      if (rank->posted() < most) return rank->Name() + ": never gets room in its ring";
    }
  }
  if (auto wrong = AnswerMessages()) return wrong;
  ReachAllWords();
  for (int i = 0; i < 2000; ++i) {
    bool open = false;
    ForEachRank([&open](Rank& rank) { open |= rank.open() != 0; });
    if (!open) break;
    node_.Advance(100 * kMicrosecond);
    if (auto wrong = Check()) return wrong;
  }
  if (messages_.failed() != 0) return "a message failed although nothing went wrong";
  if (checker_.ended_failed() != 0) return "an operation failed although nothing went wrong";
  return std::nullopt;
}

std::optional<std::string> Simulation::CheckAllEnded() {
  std::optional<std::string> wrong;
  ForEachRank([&](Rank& rank) {
    if (wrong || rank.garbled) return;
    const std::size_t open = rank.closed && !rank.orderly ? rank.OpenAndRead() : rank.open();
    if (open != 0) wrong = fmt::format("{}: {} operations never ended", rank.Name(), open);
    if (!wrong) wrong = rank.CheckAtEnd();
  });
  if (wrong) return wrong;
  // Who wrote garbage says nothing of what it received.
  if (mood_ != Mood::kHostile) {
    if (auto lost = messages_.Lost()) return lost;
  }
  if (auto busy = CheckLaneIsEmpty(0)) return busy;
  if (gpus_ != nullptr) {
    if (auto busy = CheckLaneIsEmpty(1)) return busy;
  }
  const std::size_t drained = node_.rpc().Of<service::Drained>().size();
  if (drained != (drain_deadline_ ? 1U : 0U)) return fmt::format("was drained {} times", drained);
  return std::nullopt;
}

std::optional<std::string> Simulation::CheckLaneIsEmpty(std::size_t number) const {
  const ipc::LaneRow lane = node_.LaneRow(number);
  if (lane.in_flight_bytes != 0 || lane.in_flight_stages != 0 || lane.queued_stages != 0) {
    return fmt::format("lane {} still shows {} bytes, {} stages in flight, {} queued", number,
                       lane.in_flight_bytes, lane.in_flight_stages, lane.queued_stages);
  }
  return std::nullopt;
}

std::optional<std::string> Simulation::CheckAllReturned() {
  if (node_.RowsInUse() != 0)
    return fmt::format("{} board rows never came back", node_.RowsInUse());
  if (!node_.doorbells().watched.empty()) return "a doorbell is still listened to";
  if (node_.discarded_in_use() != 0) return "memory was discarded while a lane used it";
  if (!node_.transport().open().empty()) return "the lane still moves something";
  if (gpus_ != nullptr && !node_.observed_gpu_transport().open().empty()) {
    return "the lane between GPUs still moves something";
  }
  if (node_.watch_tap().discarded.size() != sessions_) {
    return fmt::format("{} of {} sessions were discarded", node_.watch_tap().discarded.size(),
                       sessions_);
  }
  return std::nullopt;
}

Rank* Simulation::AnyRank() {
  Job& job = jobs_[dice_.Below(jobs_.size())];
  Rank* rank = job.ranks[dice_.Below(job.ranks.size())].get();
  return rank != nullptr && !rank->closed && !rank->garbled ? rank : nullptr;
}

template <typename Visit>
void Simulation::ForEachRank(Visit visit) {
  for (Job& job : jobs_) {
    for (const std::unique_ptr<Rank>& rank : job.ranks) {
      if (rank) visit(*rank);
    }
  }
}

std::uint32_t Simulation::Timeout() {
  if (mood_ == Mood::kCalm) return kCalmTimeoutMs;
  return static_cast<std::uint32_t>(dice_.Between(10, kTimeoutMsMax));
}

}  // namespace headrace::sim

#include "service/schedule/queue.h"

#include <algorithm>
#include <utility>

#include "ipc/base/check.h"

namespace headrace::schedule {
namespace {

// What a stage costs besides its bytes, so that a job of many small stages pays for them.
constexpr double kStageCostBytes = 4096;

void CheckShare(JobId job, const JobShare& share) {
  HR_CHECK(share.weight >= 1, job.value);
  HR_CHECK(share.priority <= kPriorityMax, job.value, share.priority);
}

}  // namespace

UnifiedQueue::UnifiedQueue(const std::vector<LaneTerms>& lanes) {
  for (const LaneTerms& terms : lanes) lanes_.push_back({.terms = terms, .waiting = {}});
}

void UnifiedQueue::AddJob(JobId job, const JobShare& share) {
  CheckShare(job, share);
  auto added = std::make_unique<Job>();
  added->id = job;
  added->entries.resize(lanes_.size());
  for (Entry& entry : added->entries) {
    entry.job = job;
    entry.weight = share.weight;
    entry.priority = share.priority;
    entry.limit.Set(share.limit_bytes_per_s, 0);
    entry.by_urgency = share.by_urgency;
    for (Line& line : entry.lines) line.waiting.set_capacity(kStagesMax);
  }
  const auto place =
      std::ranges::lower_bound(jobs_, job, {}, [](const auto& other) { return other->id; });
  HR_CHECK(place == jobs_.end() || (*place)->id != job, job.value);
  jobs_.insert(place, std::move(added));
  for (Lane& lane : lanes_) lane.waiting.reserve(jobs_.size());
  explained_.reserve(kTrafficClassesCount * jobs_.size());
  SetPlannedInFlightMax(job, 1);
}

void UnifiedQueue::RemoveJob(JobId job) {
  const Job* const found = FindJob(job);
  HR_CHECK(found != nullptr, job.value);
  for (const Entry& entry : found->entries) HR_CHECK(!entry.active(), job.value);
  std::erase_if(jobs_, [job](const auto& other) { return other->id == job; });
  if (!jobs_.empty()) return;
  for (const Lane& lane : lanes_) {
    HR_CHECK(lane.waiting.empty() && lane.waiting_stages == 0, job.value, lane.waiting_stages);
    HR_CHECK(lane.in_flight_stages == 0 && lane.in_flight_bytes == 0, job.value,
             lane.in_flight_stages, lane.in_flight_bytes);
  }
}

void UnifiedQueue::SetShare(JobId job, const JobShare& share, TimeNs now) {
  CheckShare(job, share);
  Job* const found = FindJob(job);
  HR_CHECK(found != nullptr, job.value);
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    Entry& entry = found->entries[i];
    entry.weight = share.weight;
    entry.limit.Set(share.limit_bytes_per_s, now);
    entry.by_urgency = share.by_urgency;
    const std::uint32_t before = std::exchange(entry.priority, share.priority);
    if (before == share.priority) continue;
    // What it has had in one class says nothing in another.
    entry.served = 0;
    if (!entry.active()) continue;
    Deactivate(lanes_[i], before);
    Activate(lanes_[i], entry);
  }
}

void UnifiedQueue::SetPlannedInFlightMax(JobId job, std::uint64_t stages_max) {
  HR_CHECK(stages_max >= 1, job.value);
  Job* const found = FindJob(job);
  HR_CHECK(found != nullptr, job.value);
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    const std::uint64_t least = lanes_[i].terms.own_pace ? kOwnPaceStagesMax : 1;
    found->entries[i].lines[static_cast<std::size_t>(TrafficClass::kPlanned)].in_flight_max =
        std::clamp(stages_max, least, kInFlightStagesMax);
  }
}

Wait UnifiedQueue::Push(const QueuedStage& stage) {
  HR_CHECK(stage.lane < lanes_.size(), stage.token, static_cast<int>(stage.lane));
  Lane& lane = lanes_[stage.lane];
  Entry& entry = EntryOf(stage);
  Line& line = entry.lines[static_cast<std::size_t>(stage.traffic_class)];
  HR_CHECK(!line.waiting.full(), stage.job.value, stage.token);
  if (!entry.active()) Activate(lane, entry);
  if (!entry.waits()) {
    entry.waiting_place = lane.waiting.size();
    entry.passed_over_ns = kNever;
    lane.waiting.push_back(&entry);
  }
  ++lane.waiting_stages;
  if (line.waiting.empty()) {
    NumberHead(line);
    line.waiting.push_back(stage);
    return {};
  }
  // Nearly always the end: stages become ready in order.
  if (const std::uint64_t last = line.waiting.back().position; last <= stage.position) {
    line.waiting.push_back(stage);
    return {Wait::Reason::kBehindStage, last};
  }
  auto place = line.waiting.end() - 1;
  while (place != line.waiting.begin() && (place - 1)->position > stage.position) --place;
  if (place == line.waiting.begin()) {
    NumberHead(line);
    line.waiting.insert(place, stage);
    return {};
  }
  const std::uint64_t before = (place - 1)->position;
  line.waiting.insert(place, stage);
  return {Wait::Reason::kBehindStage, before};
}

// A job that was idle has not saved up turns: it starts beside the others of its class. After a
// time in which all of them were idle nobody is ahead.
void UnifiedQueue::Activate(Lane& lane, Entry& entry) {
  Clock& clock = lane.clocks[entry.priority];
  if (clock.active++ == 0) clock.now = clock.latest;
  entry.served = std::max(entry.served, clock.now);
  clock.latest = std::max(clock.latest, entry.served);
}

void UnifiedQueue::Deactivate(Lane& lane, std::uint32_t priority) {
  HR_CHECK(lane.clocks[priority].active > 0, priority);
  --lane.clocks[priority].active;
}

std::optional<QueuedStage> UnifiedQueue::Pick(std::uint8_t lane_index, TimeNs now) {
  HR_CHECK(lane_index < lanes_.size(), static_cast<int>(lane_index), lanes_.size());
  Lane& lane = lanes_[lane_index];
  lane.next_time = kNever;
  if (lane.waiting.empty()) return std::nullopt;
  const Turn turn = Next(lane, now);
  if (turn.entry == nullptr) return std::nullopt;
  Entry& entry = *turn.entry;
  Line& line = *turn.line;
  const QueuedStage stage = line.waiting.front();
  // Not a smaller one of another job instead: large ones would never have their turn.
  if (!HasRoom(lane, stage)) return std::nullopt;
  NotePassedOver(lane, entry, line, now);
  line.waiting.pop_front();
  TookOut(lane, entry, line);
  line.in_flight_bytes += stage.bytes;
  ++line.in_flight_stages;
  HR_CHECK(line.in_flight_stages <= line.in_flight_max, stage.token, line.in_flight_stages,
           line.in_flight_max);
  lane.in_flight_bytes += stage.bytes;
  ++lane.in_flight_stages;
  entry.passed_over_ns = kNever;
  entry.limit.Consume(stage.wire_bytes, now);
  Clock& clock = lane.clocks[entry.priority];
  if (!turn.overdue) clock.now = std::max(clock.now, entry.served);
  entry.served += (static_cast<double>(stage.bytes) + kStageCostBytes) / entry.weight;
  clock.latest = std::max(clock.latest, entry.served);
  return stage;
}

void UnifiedQueue::Return(const QueuedStage& stage) {
  Lane& lane = lanes_[stage.lane];
  Entry& entry = EntryOf(stage);
  Line& line = entry.lines[static_cast<std::size_t>(stage.traffic_class)];
  HR_CHECK(line.in_flight_stages > 0 && line.in_flight_bytes >= stage.bytes, stage.job.value,
           stage.token);
  HR_CHECK(lane.in_flight_stages > 0 && lane.in_flight_bytes >= stage.bytes, stage.token,
           lane.in_flight_stages, lane.in_flight_bytes);
  line.in_flight_bytes -= stage.bytes;
  --line.in_flight_stages;
  lane.in_flight_bytes -= stage.bytes;
  --lane.in_flight_stages;
  if (!entry.active()) Deactivate(lane, entry.priority);
}

bool UnifiedQueue::Remove(const QueuedStage& stage) {
  Job* const job = FindJob(stage.job);
  if (job == nullptr) return false;
  Lane& lane = lanes_[stage.lane];
  Entry& entry = job->entries[stage.lane];
  Line& line = entry.lines[static_cast<std::size_t>(stage.traffic_class)];
  const auto found =
      std::find_if(line.waiting.begin(), line.waiting.end(),
                   [&stage](const QueuedStage& other) { return other.token == stage.token; });
  if (found == line.waiting.end()) return false;
  line.waiting.erase(found);
  TookOut(lane, entry, line);
  if (!entry.active()) Deactivate(lane, entry.priority);
  return true;
}

void UnifiedQueue::TookOut(Lane& lane, Entry& entry, Line& line) {
  HR_CHECK(lane.waiting_stages > 0 && lane.waiting[entry.waiting_place] == &entry, entry.job.value,
           lane.waiting_stages, entry.waiting_place);
  --lane.waiting_stages;
  if (!line.waiting.empty()) NumberHead(line);
  if (entry.waits()) return;
  Entry* const last = lane.waiting.back();
  last->waiting_place = entry.waiting_place;
  lane.waiting[entry.waiting_place] = last;
  lane.waiting.pop_back();
}

std::optional<QueuedStage> UnifiedQueue::Head(JobId job, TrafficClass traffic_class,
                                              std::uint8_t lane) const {
  const Job* const found = FindJob(job);
  if (found == nullptr) return std::nullopt;
  const Line& line = found->entries[lane].lines[static_cast<std::size_t>(traffic_class)];
  if (line.waiting.empty()) return std::nullopt;
  return line.waiting.front();
}

std::span<const UnifiedQueue::HeadWaits> UnifiedQueue::ExplainHeads(std::uint8_t lane_index,
                                                                    TimeNs now) {
  explained_.clear();
  Lane& lane = lanes_[lane_index];
  if (lane.waiting.empty()) return {};
  const Entry* const next = Next(lane, now).entry;
  for (const Entry* const entry : lane.waiting) {
    for (const Line& line : entry->lines) {
      if (line.waiting.empty()) continue;
      explained_.push_back({line.waiting.front(), WhyWaits(lane, *entry, line, next, now)});
    }
  }
  return explained_;
}

Wait UnifiedQueue::WhyWaits(const Lane& lane, const Entry& entry, const Line& line,
                            const Entry* next, TimeNs now) {
  if (!HasCredit(lane, line)) {
    return line.in_flight_stages < line.in_flight_max
               ? Wait{Wait::Reason::kNoCredit, 0}
               : Wait{Wait::Reason::kInFlight, line.in_flight_max};
  }
  const TimeNs ready = entry.limit.ReadyAt();
  if (ready > now) return {Wait::Reason::kRateLimit, static_cast<std::uint64_t>(ready - now)};
  if (next != &entry) return {Wait::Reason::kBehindJob, next->job.value};
  return HasRoom(lane, line.waiting.front()) ? Wait{} : Wait{Wait::Reason::kLaneFull, 0};
}

UnifiedQueue::Job* UnifiedQueue::FindJob(JobId job) const {
  const auto found =
      std::ranges::lower_bound(jobs_, job, {}, [](const auto& other) { return other->id; });
  return found != jobs_.end() && (*found)->id == job ? found->get() : nullptr;
}

UnifiedQueue::Entry& UnifiedQueue::EntryOf(const QueuedStage& stage) {
  Job* const job = FindJob(stage.job);
  HR_CHECK(job != nullptr, stage.job.value, stage.token);
  return job->entries[stage.lane];
}

bool UnifiedQueue::HasCredit(const Lane& lane, const Line& line) {
  return line.in_flight_stages == 0 ||
         (line.in_flight_stages < line.in_flight_max &&
          line.in_flight_bytes + line.waiting.front().bytes <= lane.terms.credit_bytes);
}

bool UnifiedQueue::HasRoom(const Lane& lane, const QueuedStage& stage) {
  return !lane.terms.own_pace || lane.in_flight_stages < kOwnPaceStagesMax ||
         lane.in_flight_bytes + stage.bytes <= kOwnPaceBytesMax;
}

bool UnifiedQueue::Precedes(const Entry& a, const Entry& b) {
  if (a.priority != b.priority) return a.priority > b.priority;
  return a.served != b.served ? a.served < b.served : a.job < b.job;
}

UnifiedQueue::Line* UnifiedQueue::TurnOf(const Lane& lane, Entry& entry, TimeNs now) {
  Line* turn = nullptr;
  for (Line& line : entry.lines) {
    if (line.waiting.empty() || !HasCredit(lane, line)) {
      line.passed_over_ns = kNever;
    } else if (turn == nullptr || Precedes(entry, line, *turn, now)) {
      turn = &line;
    }
  }
  return turn;
}

bool UnifiedQueue::Precedes(const Entry& entry, const Line& a, const Line& b, TimeNs now) {
  const bool overdue = now - a.passed_over_ns >= kWaitMaxNs;
  if (overdue != (now - b.passed_over_ns >= kWaitMaxNs)) return overdue;
  const int urgency = entry.UrgencyOf(a);
  if (!overdue && urgency != entry.UrgencyOf(b)) return urgency > entry.UrgencyOf(b);
  return a.head_number < b.head_number;
}

void UnifiedQueue::NotePassedOver(const Lane& lane, Entry& entry, Line& line, TimeNs now) {
  for (Line& other : entry.lines) {
    if (&other == &line) {
      other.passed_over_ns = kNever;
    } else if (!other.waiting.empty() && HasCredit(lane, other)) {
      other.passed_over_ns = std::min(other.passed_over_ns, now);
    }
  }
}

UnifiedQueue::Turn UnifiedQueue::Next(Lane& lane, TimeNs now) {
  Turn next;
  Turn overdue{.overdue = true};
  for (Entry* const entry : lane.waiting) {
    Line* const line = TurnOf(lane, *entry, now);
    const TimeNs ready = line == nullptr ? kNever : entry->limit.ReadyAt();
    if (ready > now) {
      entry->passed_over_ns = kNever;
      if (line == nullptr) continue;
      entry->held_back = true;
      lane.next_time = std::min(lane.next_time, ready);
      continue;
    }
    if (std::exchange(entry->held_back, false)) {
      entry->served = std::max(entry->served, lane.clocks[entry->priority].now);
    }
    entry->passed_over_ns = std::min(entry->passed_over_ns, now);
    if (next.entry == nullptr || Precedes(*entry, *next.entry)) {
      next.entry = entry;
      next.line = line;
    }
    if (now - entry->passed_over_ns < kWaitMaxNs) continue;
    if (overdue.entry != nullptr && overdue.entry->passed_over_ns <= entry->passed_over_ns)
      continue;
    overdue.entry = entry;
    overdue.line = line;
  }
  return overdue.entry == nullptr || overdue.entry == next.entry ? next : overdue;
}

}  // namespace headrace::schedule

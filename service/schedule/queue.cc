#include "service/schedule/queue.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "ipc/base/check.h"

namespace headrace::schedule {
namespace {

// What a stage costs besides its bytes, so that a job of many small stages pays for them.
constexpr double kStageCostBytes = 4096;

}  // namespace

UnifiedQueue::UnifiedQueue(std::vector<std::uint64_t> credit_bytes_by_lane) {
  for (const std::uint64_t credit : credit_bytes_by_lane) {
    lanes_.push_back({.credit_bytes = credit, .lines = {}});
  }
}

void UnifiedQueue::AddJob(JobId job, JobShare share) {
  HR_CHECK(share.weight >= 1, job.value);
  for (Lane& lane : lanes_) {
    for (const Order order : {Order::kPosted, Order::kPlanned}) {
      lane.lines.push_back({.job = job,
                            .order = order,
                            .in_flight_max = order == Order::kPlanned ? 1 : kInFlightStagesMax,
                            .share = share,
                            .waiting = boost::circular_buffer<Stage>(kStagesMax)});
    }
  }
}

void UnifiedQueue::RemoveJob(JobId job) {
  for (Lane& lane : lanes_) {
    const auto removed = std::erase_if(lane.lines, [job](const Line& line) {
      HR_CHECK(line.job != job || !line.active(), job.value);
      return line.job == job;
    });
    HR_CHECK(removed == 2, job.value, removed);
  }
}

void UnifiedQueue::SetPlannedInFlightMax(JobId job, std::uint64_t stages_max) {
  HR_CHECK(stages_max >= 1, job.value);
  for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
    Line* line = FindLine(job, Order::kPlanned, static_cast<std::uint8_t>(lane));
    HR_CHECK(line != nullptr, job.value);
    line->in_flight_max = std::min(stages_max, kInFlightStagesMax);
  }
}

Wait UnifiedQueue::Push(const Stage& stage) {
  Line* line = FindLine(stage.job, stage.order, stage.lane);
  HR_CHECK(line != nullptr && !line->waiting.full(), stage.job.value, stage.token);
  // A job that was idle has not saved up turns.
  if (!line->active()) line->served = StartOf(lanes_[stage.lane], *line);
  // Nearly always the end: stages become ready in order.
  auto place = line->waiting.end();
  while (place != line->waiting.begin() && (place - 1)->position > stage.position) --place;
  const Wait wait = place == line->waiting.begin()
                        ? Wait{}
                        : Wait{Wait::Reason::kBehindStage, (place - 1)->position};
  line->waiting.insert(place, stage);
  return wait;
}

std::optional<Stage> UnifiedQueue::Pick(std::uint8_t lane_index) {
  Lane& lane = lanes_[lane_index];
  const Line* next = NextLine(lane);
  if (next == nullptr) return std::nullopt;
  Line& line = lane.lines[static_cast<std::size_t>(next - lane.lines.data())];
  const Stage stage = line.waiting.front();
  line.waiting.pop_front();
  line.in_flight_bytes += stage.bytes;
  ++line.in_flight_stages;
  line.served += (static_cast<double>(stage.bytes) + kStageCostBytes) / line.share.weight;
  return stage;
}

void UnifiedQueue::Return(const Stage& stage) {
  Line* line = FindLine(stage.job, stage.order, stage.lane);
  HR_CHECK(line != nullptr && line->in_flight_stages > 0 && line->in_flight_bytes >= stage.bytes,
           stage.job.value, stage.token);
  line->in_flight_bytes -= stage.bytes;
  --line->in_flight_stages;
}

bool UnifiedQueue::Remove(const Stage& stage) {
  Line* line = FindLine(stage.job, stage.order, stage.lane);
  if (line == nullptr) return false;
  const auto found =
      std::find_if(line->waiting.begin(), line->waiting.end(),
                   [&stage](const Stage& entry) { return entry.token == stage.token; });
  if (found == line->waiting.end()) return false;
  line->waiting.erase(found);
  return true;
}

std::optional<Stage> UnifiedQueue::Head(JobId job, Order order, std::uint8_t lane) const {
  const Line* line = FindLine(job, order, lane);
  if (line == nullptr || line->waiting.empty()) return std::nullopt;
  return line->waiting.front();
}

Wait UnifiedQueue::WhyHeadWaits(JobId job, Order order, std::uint8_t lane) const {
  const Line* line = FindLine(job, order, lane);
  if (line == nullptr || line->waiting.empty()) return {};
  if (!HasCredit(lanes_[lane], *line)) return {Wait::Reason::kNoCredit, 0};
  const Line* next = NextLine(lanes_[lane]);
  if (next == line) return {};
  return {Wait::Reason::kBehindJob, next->job.value};
}

std::size_t UnifiedQueue::Waiting(std::uint8_t lane) const {
  std::size_t count = 0;
  for (const Line& line : lanes_[lane].lines) count += line.waiting.size();
  return count;
}

std::uint64_t UnifiedQueue::InFlightBytes(std::uint8_t lane) const {
  std::uint64_t bytes = 0;
  for (const Line& line : lanes_[lane].lines) bytes += line.in_flight_bytes;
  return bytes;
}

UnifiedQueue::Line* UnifiedQueue::FindLine(JobId job, Order order, std::uint8_t lane) {
  return const_cast<Line*>(std::as_const(*this).FindLine(job, order, lane));
}

const UnifiedQueue::Line* UnifiedQueue::FindLine(JobId job, Order order, std::uint8_t lane) const {
  for (const Line& line : lanes_[lane].lines) {
    if (line.job == job && line.order == order) return &line;
  }
  return nullptr;
}

bool UnifiedQueue::HasCredit(const Lane& lane, const Line& line) {
  return line.in_flight_stages == 0 ||
         (line.in_flight_stages < line.in_flight_max &&
          line.in_flight_bytes + line.waiting.front().bytes <= lane.credit_bytes);
}

double UnifiedQueue::StartOf(const Lane& lane, const Line& idle) {
  double latest = idle.served;
  double earliest_active = std::numeric_limits<double>::infinity();
  for (const Line& line : lane.lines) {
    if (line.share.priority != idle.share.priority) continue;
    latest = std::max(latest, line.served);
    if (line.active()) earliest_active = std::min(earliest_active, line.served);
  }
  // After a time in which all were idle nobody is ahead.
  return std::max(idle.served, std::min(latest, earliest_active));
}

bool UnifiedQueue::GoesBefore(const Line& a, const Line& b) {
  if (a.share.priority != b.share.priority) return a.share.priority > b.share.priority;
  if (a.served != b.served) return a.served < b.served;
  return a.job != b.job ? a.job < b.job : a.order < b.order;
}

const UnifiedQueue::Line* UnifiedQueue::NextLine(const Lane& lane) {
  const Line* next = nullptr;
  for (const Line& line : lane.lines) {
    if (line.waiting.empty() || !HasCredit(lane, line)) continue;
    if (next == nullptr || GoesBefore(line, *next)) next = &line;
  }
  return next;
}

}  // namespace headrace::schedule

#include "client/cli/ctl/top/model.h"

#include <algorithm>
#include <cctype>
#include <span>
#include <tuple>

#include "client/cli/ctl/job_text.h"
#include "client/cli/ctl/queue_view.h"
#include "client/cli/ctl/table.h"
#include "ipc/base/foreign_text.h"

namespace headrace::ctl {
namespace {

// Two snapshots of one service, or the second alone.
struct Interval {
  const Snapshot& now;
  const Snapshot* before;
  double seconds = 0;

  std::uint64_t Grown(std::uint64_t from, std::uint64_t to) const {
    return to >= from ? to - from : 0;
  }
};

std::string Lower(std::string_view text) {
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char byte) { return static_cast<char>(std::tolower(byte)); });
  return lower;
}

bool Contains(const std::string& filter, std::initializer_list<std::string_view> texts) {
  if (filter.empty()) return true;
  const std::string wanted = Lower(filter);
  return std::any_of(texts.begin(), texts.end(), [&wanted](std::string_view text) {
    return Lower(text).find(wanted) != std::string::npos;
  });
}

std::string Text(std::span<const char> field) { return Printable(ipc::GetText(field)); }

const ipc::RankRow* FindRank(const Snapshot& snapshot, const ipc::RankRow& like) {
  for (const ipc::RankRow& row : snapshot.ranks) {
    const bool same = row.job_id == like.job_id && row.rank == like.rank && row.pid == like.pid;
    if (same) return &row;
  }
  return nullptr;
}

const ipc::ShareRow* FindShare(const Snapshot& snapshot, const ipc::ShareRow& like) {
  for (const ipc::ShareRow& row : snapshot.shares) {
    if (row.job_id == like.job_id && row.lane == like.lane) return &row;
  }
  return nullptr;
}

// What the job's stages moved, on all lanes: operations would count only when they have ended.
std::uint64_t MovedBy(const Snapshot& snapshot, std::uint32_t job_id) {
  std::uint64_t moved = 0;
  for (const ipc::ShareRow& share : snapshot.shares) {
    if (share.job_id == job_id) moved += share.bytes_moved;
  }
  return moved;
}

// The iterations since the screen before; where none has ended, the medians of the last ones.
void AddIterations(const ipc::PlanRow& plan, const ipc::PlanRow* earlier, JobLine& line) {
  line.iteration = plan.iteration;
  line.policy = Text(plan.policy);
  const bool has_earlier = earlier != nullptr && plan.iterations_count > earlier->iterations_count;
  if (plan.measured_ns > 0) line.iteration_ns = plan.measured_ns;
  TimeNs waited_ns = plan.waited_ns;
  TimeNs moving_ns = plan.moving_ns;
  if (has_earlier) {
    const auto count = static_cast<TimeNs>(plan.iterations_count - earlier->iterations_count);
    const TimeNs grown_ns = plan.iterations_ns - earlier->iterations_ns;
    if (grown_ns > 0) line.iteration_ns = grown_ns / count;
    waited_ns = plan.iterations_waited_ns - earlier->iterations_waited_ns;
    moving_ns = plan.iterations_moving_ns - earlier->iterations_moving_ns;
  }
  if (moving_ns > 0) {
    line.hidden =
        std::clamp(1 - static_cast<double>(waited_ns) / static_cast<double>(moving_ns), 0.0, 1.0);
  }
}

JobLine MakeJobLine(const ipc::JobRow& job, const Interval& span) {
  JobLine line{.id = job.id,
               .owner = job.owner_uid,
               .name = Text(job.name),
               .state = FormatJobState(job),
               .is_paused = job.paused != 0,
               .is_failed = job.state == static_cast<std::uint32_t>(ipc::JobState::kFailed),
               .ranks_attached = job.ranks_attached,
               .world_size = job.world_size,
               .iteration = 0,
               .iteration_ns = {},
               .hidden = {},
               .bytes_per_s = {},
               .operations_open = job.operations_open,
               .age_ns = span.now.now_ns - job.opened_ns,
               .weight = job.weight,
               .priority = job.priority,
               .limit_bytes_per_s = job.limit_bytes_per_s,
               .policy = "",
               .failure = Text(job.failure)};
  const ipc::JobRow* earlier = span.before != nullptr ? span.before->FindJob(job.id) : nullptr;
  if (earlier != nullptr && span.seconds > 0) {
    const std::uint64_t from = MovedBy(*span.before, job.id);
    line.bytes_per_s =
        static_cast<double>(span.Grown(from, MovedBy(span.now, job.id))) / span.seconds;
  }
  if (const ipc::PlanRow* plan = span.now.FindPlan(job.id); plan != nullptr && plan->version != 0) {
    AddIterations(*plan, span.before != nullptr ? span.before->FindPlan(job.id) : nullptr, line);
  }
  return line;
}

// Larger first, and what nobody measured last, but for names.
void SortJobs(const ViewOptions& view_options, std::vector<JobLine>& jobs) {
  const auto key = [sort = view_options.sort](const JobLine& job) -> double {
    switch (sort) {
      case JobSort::kName:
        return 0;
      case JobSort::kRate:
        return -job.bytes_per_s.value_or(-1);
      case JobSort::kTime:
        return -static_cast<double>(job.iteration_ns.value_or(-1));
      case JobSort::kHidden:
        return -job.hidden.value_or(-1);
      case JobSort::kOpen:
        return -static_cast<double>(job.operations_open);
      case JobSort::kAge:
        return -static_cast<double>(job.age_ns);
    }
    return 0;
  };
  std::stable_sort(jobs.begin(), jobs.end(), [&key](const JobLine& left, const JobLine& right) {
    return std::tuple(key(left), left.name, left.id) < std::tuple(key(right), right.name, right.id);
  });
  if (view_options.reversed) std::reverse(jobs.begin(), jobs.end());
}

// Who used the lane since the screen before, and before the second screen since the start.
std::vector<LaneUser> MakeUsers(std::size_t lane, const Interval& span) {
  std::vector<LaneUser> users;
  double all = 0;
  for (const ipc::ShareRow& share : span.now.shares) {
    if (share.lane != lane) continue;
    const ipc::ShareRow* earlier =
        span.before != nullptr ? FindShare(*span.before, share) : nullptr;
    const auto moved = static_cast<double>(
        span.Grown(earlier != nullptr ? earlier->bytes_moved : 0, share.bytes_moved));
    if (moved > 0) users.push_back({Printable(JobName(share.job_id, span.now)), moved});
    all += moved;
  }
  for (LaneUser& user : users) user.share /= all;
  std::stable_sort(users.begin(), users.end(), [](const LaneUser& left, const LaneUser& right) {
    return left.share > right.share;
  });
  return users;
}

bool WaitsForPeer(std::size_t lane, const Snapshot& now) {
  return std::ranges::any_of(now.queue, [lane](const ipc::QueueRow& row) {
    return row.lane == lane && ipc::WaitsForPeer(row);
  });
}

LaneLine MakeLaneLine(const Lane& lane, const Interval& span) {
  LaneLine line{.name = Text(lane.row.name),
                .transport = Text(lane.row.transport),
                .busy = {},
                .bytes_per_s = static_cast<double>(RateNow(lane.row, span.now.now_ns)),
                .queued_stages = lane.row.queued_stages,
                .in_flight_stages = lane.row.in_flight_stages,
                .users = MakeUsers(lane.index, span)};
  const ipc::LaneRow* earlier =
      span.before != nullptr ? span.before->FindLane(lane.index) : nullptr;
  if (earlier != nullptr && span.seconds > 0) {
    // The service adds up when a stage ends: a lane of which none did was busy all the time, unless
    // its stages wait for a peer's bytes.
    const TimeNs busy_ns = lane.row.busy_ns - earlier->busy_ns;
    const bool never_idle = busy_ns == 0 && earlier->in_flight_stages > 0 &&
                            lane.row.in_flight_stages > 0 && !WaitsForPeer(lane.index, span.now);
    const double busy_s = static_cast<double>(busy_ns) / kSecond;
    if (lane.row.busy_ns != ipc::kTimeUnknown) {
      line.busy = never_idle ? 1.0 : std::clamp(busy_s / span.seconds, 0.0, 1.0);
    }
    line.bytes_per_s =
        static_cast<double>(span.Grown(earlier->bytes_moved, lane.row.bytes_moved)) / span.seconds;
  }
  return line;
}

std::vector<RankLine> MakeRankLines(const Interval& span, const std::string& filter) {
  std::vector<RankLine> lines;
  for (const ipc::RankRow& row : span.now.ranks) {
    const ipc::RankRow* earlier = span.before != nullptr ? FindRank(*span.before, row) : nullptr;
    const ipc::RankRow from = earlier != nullptr ? *earlier : ipc::RankRow{};
    RankLine line{.job = Printable(JobName(row.job_id, span.now)),
                  .rank = row.rank,
                  .pid = row.pid,
                  .last_posts = span.Grown(from.last_posts, row.last_posts),
                  .late_ns = row.late_ns - from.late_ns,
                  .waited_ns = row.waited_ns > 0 ? row.waited_ns - from.waited_ns : -1};
    if (line.late_ns > 0 && Contains(filter, {line.job})) lines.push_back(std::move(line));
  }
  std::stable_sort(lines.begin(), lines.end(), [](const RankLine& left, const RankLine& right) {
    return left.late_ns > right.late_ns;
  });
  return lines;
}

std::vector<WaitLine> MakeWaitLines(const Snapshot& now, const std::string& filter) {
  std::vector<WaitLine> lines;
  for (const ipc::QueueRow& row : SelectQueue(now, {.sort = "age"})) {
    WaitLine line{.job = Printable(JobName(row.job_id, now)),
                  .block = BlockName(row),
                  .tensor = Printable(TensorNames(row)),
                  .age_ns = now.now_ns - row.posted_ns,
                  .why = Printable(WhyItWaits(row, now))};
    const bool is_wanted = !line.why.empty() && Contains(filter, {line.job, line.tensor, line.why});
    if (is_wanted) lines.push_back(std::move(line));
  }
  return lines;
}

}  // namespace

const char* JobSortName(JobSort sort) {
  switch (sort) {
    case JobSort::kName:
      return "name";
    case JobSort::kRate:
      return "rate";
    case JobSort::kTime:
      return "iteration time";
    case JobSort::kHidden:
      return "share hidden";
    case JobSort::kOpen:
      return "open operations";
    case JobSort::kAge:
      return "age";
  }
  return "";
}

Picture MakePicture(const Snapshot& now, const Snapshot* before, Liveness liveness,
                    const ViewOptions& view_options) {
  const bool same_service = before != nullptr &&
                            before->service.started_ns == now.service.started_ns &&
                            before->now_ns < now.now_ns;
  const Interval span{
      now, same_service ? before : nullptr,
      same_service ? static_cast<double>(now.now_ns - before->now_ns) / kSecond : 0};
  Picture picture;
  picture.liveness = liveness;
  picture.version = Text(now.service.version);
  picture.pid = now.service.pid;
  picture.uptime_ns = now.now_ns - now.service.started_ns;
  if (same_service) picture.interval_ns = now.now_ns - before->now_ns;
  picture.jobs_count = now.jobs.size();
  picture.sessions = span.Grown(now.counters.sessions_closed, now.counters.sessions_opened);
  for (const ipc::JobRow& job : now.jobs) {
    JobLine line = MakeJobLine(job, span);
    if (Contains(view_options.filter, {line.name, line.state, line.policy})) {
      picture.jobs.push_back(std::move(line));
    }
  }
  SortJobs(view_options, picture.jobs);
  for (const Lane& lane : now.lanes) {
    picture.lanes.push_back(MakeLaneLine(lane, span));
    picture.bytes_per_s += picture.lanes.back().bytes_per_s;
  }
  picture.ranks = MakeRankLines(span, view_options.filter);
  picture.waits = MakeWaitLines(now, view_options.filter);
  return picture;
}

}  // namespace headrace::ctl

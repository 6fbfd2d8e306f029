// Metrics of jobs and of their ranks on this node.
#include <algorithm>
#include <array>

#include "ipc/board_text.h"
#include "service/watch/metrics_parts.h"

namespace headrace::service {
namespace {

using enum MetricType;
using ipc::JobRow;
using ipc::RankRow;

constexpr std::array kJobMetrics = {
    RowMetric<JobRow>{"headrace_job_world_size", kGauge, "Ranks of the job, on all nodes.",
                      FieldOf<&JobRow::world_size>},
    RowMetric<JobRow>{"headrace_job_ranks_attached", kGauge,
                      "Ranks of the job that are attached to this service.",
                      FieldOf<&JobRow::ranks_attached>},
    RowMetric<JobRow>{"headrace_job_weight", kGauge,
                      "Share of a lane among jobs of the same priority.", FieldOf<&JobRow::weight>},
    RowMetric<JobRow>{"headrace_job_priority", kGauge, "Class of the job; larger ones go first.",
                      FieldOf<&JobRow::priority>},
    RowMetric<JobRow>{"headrace_job_limit_bytes_per_second", kGauge,
                      "Rate limit of the job on each lane; 0: none.",
                      FieldOf<&JobRow::limit_bytes_per_s>},
    RowMetric<JobRow>{"headrace_job_paused", kGauge, "1 while nothing of the job begins.",
                      FieldOf<&JobRow::paused>},
    RowMetric<JobRow>{"headrace_job_draining", kGauge, "1 when the job ends after what is posted.",
                      FieldOf<&JobRow::draining>},
    RowMetric<JobRow>{"headrace_job_restarts_total", kCounter,
                      "Times that the job's ranks came back after a loss, since they began.",
                      FieldOf<&JobRow::restarts>},
    RowMetric<JobRow>{"headrace_job_recoveries_total", kCounter,
                      "Epochs of the job that followed one that failed while this service ran.",
                      FieldOf<&JobRow::recoveries>},
    RowMetric<JobRow>{"headrace_job_recovery_seconds_total", kCounter,
                      "Time from such a failure to the first operation that ended well, summed.",
                      FieldOf<&JobRow::recovered_ns>},
    RowMetric<JobRow>{"headrace_job_joiners_waiting", kGauge,
                      "Processes that wait to join the job, on all nodes.",
                      FieldOf<&JobRow::joiners_waiting>},
    RowMetric<JobRow>{"headrace_job_spares_waiting", kGauge,
                      "Processes that wait for a lost rank's place, on all nodes.",
                      FieldOf<&JobRow::spares_waiting>},
    RowMetric<JobRow>{"headrace_job_evictions_total", kCounter,
                      "Ranks of the job, of all nodes, evicted while this service ran.",
                      FieldOf<&JobRow::evictions>},
    RowMetric<JobRow>{"headrace_job_operations_open", kGauge,
                      "Operations and gradients that were posted and have not ended.",
                      FieldOf<&JobRow::operations_open>},
    RowMetric<JobRow>{"headrace_job_operations_total", kCounter,
                      "Operations that have ended, well or not.",
                      FieldOf<&JobRow::operations_ended>},
    RowMetric<JobRow>{"headrace_job_blocks_total", kCounter, "Blocks that have ended.",
                      FieldOf<&JobRow::blocks_ended>},
    RowMetric<JobRow>{"headrace_job_bytes_total", kCounter,
                      "Bytes of one rank's memory, summed over operations that have ended.",
                      FieldOf<&JobRow::bytes_moved>},
    RowMetric<JobRow>{"headrace_job_sends_total", kCounter,
                      "Sends of the job's ranks on this node that have ended well.",
                      FieldOf<&JobRow::sends_ended>},
    RowMetric<JobRow>{"headrace_job_receives_total", kCounter,
                      "Receives of the job's ranks on this node that have ended well.",
                      FieldOf<&JobRow::receives_ended>},
    RowMetric<JobRow>{"headrace_job_sends_bytes_total", kCounter,
                      "Bytes of these; those of a send and its receive on this node count once.",
                      FieldOf<&JobRow::sends_bytes>},
    RowMetric<JobRow>{"headrace_job_sends_waiting", kGauge,
                      "Sends and receives that wait for their other side.",
                      FieldOf<&JobRow::sends_waiting>},
    RowMetric<JobRow>{"headrace_job_encoded_bytes_total", kCounter,
                      "Bytes of gradients' messages to other nodes, had they not been encoded.",
                      FieldOf<&JobRow::encoded_bytes>},
    RowMetric<JobRow>{"headrace_job_encoded_sent_bytes_total", kCounter,
                      "Bytes that these messages have taken.",
                      FieldOf<&JobRow::encoded_sent_bytes>},
    RowMetric<JobRow>{"headrace_job_encoded_gpu_bytes_total", kCounter,
                      "Of headrace_job_encoded_bytes_total, those that GPUs have encoded.",
                      FieldOf<&JobRow::encoded_gpu_bytes>},
    RowMetric<JobRow>{"headrace_job_encode_seconds_total", kCounter,
                      "Time that this node encoded for.", FieldOf<&JobRow::encode_ns>},
    RowMetric<JobRow>{"headrace_job_decode_seconds_total", kCounter,
                      "Time that this node decoded for, and summed what it decoded.",
                      FieldOf<&JobRow::decode_ns>},
    RowMetric<JobRow>{"headrace_job_residual_millionths", kGauge,
                      "Norm of what encodings left out over that of the sums, lately.",
                      FieldOf<&JobRow::residual_millionths>},
    RowMetric<JobRow>{"headrace_job_gathering_seconds_total", kCounter,
                      "Time between an operation's first and last post, summed over operations.",
                      FieldOf<&JobRow::gathering_ns>},
    RowMetric<JobRow>{"headrace_job_queued_seconds_total", kCounter,
                      "Time that block stages stood in the queue, summed over stages.",
                      FieldOf<&JobRow::waiting_ns>},
    RowMetric<JobRow>{"headrace_job_moving_seconds_total", kCounter,
                      "Time that block stages were on a lane, summed over stages.",
                      FieldOf<&JobRow::moving_ns>},
    RowMetric<JobRow>{"headrace_job_held_seconds_total", kCounter,
                      "Time that iterations were held back for another job's.",
                      FieldOf<&JobRow::held_ns>},
};

constexpr std::array kRankMetrics = {
    RowMetric<RankRow>{"headrace_rank_segment_bytes", kGauge,
                       "Memory that the rank has handed over.", FieldOf<&RankRow::segment_bytes>},
    RowMetric<RankRow>{"headrace_rank_posts_total", kCounter,
                       "Operations that the rank has posted.",
                       FieldOf<&RankRow::operations_posted>},
    RowMetric<RankRow>{"headrace_rank_ended_total", kCounter,
                       "Operations of the rank that have ended.",
                       FieldOf<&RankRow::operations_ended>},
    RowMetric<RankRow>{"headrace_rank_posted_bytes_total", kCounter,
                       "Bytes of the rank's memory that it has posted.",
                       FieldOf<&RankRow::bytes_posted>},
    RowMetric<RankRow>{"headrace_rank_last_posts_total", kCounter,
                       "Operations and blocks that the node's other ranks had posted before it.",
                       FieldOf<&RankRow::last_posts>},
    RowMetric<RankRow>{"headrace_rank_late_seconds_total", kCounter,
                       "Time by which it came after the node's first rank, when it came last.",
                       FieldOf<&RankRow::late_ns>},
    RowMetric<RankRow>{"headrace_rank_waited_seconds_total", kCounter,
                       "Time that its forward passes stood still for gradients, as it says.",
                       FieldOf<&RankRow::waited_ns>},
};

void WriteWhatJobsAre(const std::vector<JobRow>& jobs, MetricsText& text) {
  text.Family("headrace_job_info", kGauge, "Always 1; the labels say whose job it is.");
  for (const JobRow& job : jobs) {
    text.Sample({{"job", ipc::GetText(job.name)},
                 {"uid", std::to_string(job.owner_uid)},
                 {"job_id", std::to_string(job.id)}},
                MetricValue::Count(1));
  }
  text.Family("headrace_job_state", kGauge,
              "1 for the state that the job is in, 0 for the others.");
  using State = ipc::JobState;
  for (const JobRow& job : jobs) {
    for (const State state : {State::kGathering, State::kRunning, State::kFailed}) {
      const auto number = static_cast<std::uint32_t>(state);
      text.Sample({{"job", ipc::GetText(job.name)},
                   {"uid", std::to_string(job.owner_uid)},
                   {"state", ipc::JobStateName(number)}},
                  MetricValue::Count(job.state == number ? 1 : 0));
    }
  }
}

void WriteFailures(const std::vector<JobRow>& jobs, MetricsText& text) {
  text.Family("headrace_job_failures_total", kCounter,
              "Operations that ended with an error, by its code.");
  for (const JobRow& job : jobs) {
    for (int number = 1; number < kCodesCount; ++number) {
      text.Sample({{"job", ipc::GetText(job.name)},
                   {"uid", std::to_string(job.owner_uid)},
                   {"code", CodeName(static_cast<Code>(number))}},
                  MetricValue::Count(job.failed_by_code[static_cast<std::size_t>(number)]));
    }
  }
}

// What stands on the board right now: the queue by reasons, and how old its oldest stage is.
void WriteQueue(const ipc::BoardReading& reading, const std::vector<JobRow>& jobs,
                MetricsText& text) {
  text.Family("headrace_job_waiting_stages", kGauge,
              "Block stages on the board, by why they wait; none: they move.");
  constexpr std::uint32_t kReasons = static_cast<std::uint32_t>(ipc::WaitReason::kNoSend) + 1;
  for (const JobRow& job : jobs) {
    std::array<std::uint64_t, kReasons> counts{};
    for (const ipc::QueueRow& row : reading.queue) {
      if (row.job_id == job.id && row.reason < kReasons) ++counts[row.reason];
    }
    for (std::uint32_t reason = 0; reason < kReasons; ++reason) {
      if (counts[reason] == 0) continue;
      text.Sample({{"job", ipc::GetText(job.name)},
                   {"uid", std::to_string(job.owner_uid)},
                   {"reason", reason == 0 ? "none" : ipc::WaitReasonName(reason)}},
                  MetricValue::Count(counts[reason]));
    }
  }
  text.Family("headrace_job_oldest_wait_seconds", kGauge,
              "Age of the oldest operation or block that has not ended; 0: there is none.");
  for (const JobRow& job : jobs) {
    TimeNs oldest = 0;
    for (const ipc::QueueRow& row : reading.queue) {
      if (row.job_id == job.id) oldest = std::max(oldest, reading.now_ns - row.posted_ns);
    }
    text.Sample({{"job", ipc::GetText(job.name)}, {"uid", std::to_string(job.owner_uid)}},
                MetricValue::Seconds(oldest));
  }
}

void WriteRecorder(const ipc::BoardReading& reading, const std::vector<JobRow>& jobs,
                   MetricsText& text) {
  struct Ring {
    std::string_view name;
    std::string_view help;
    std::uint64_t ipc::FlightJobRow::*written;
    std::uint64_t kept;  // at once; 0: all are counted
  };
  constexpr std::array kRings = {
      Ring{"headrace_job_recorded_blocks_total", "Blocks that the flight recorder has seen.",
           &ipc::FlightJobRow::blocks, 0},
      Ring{"headrace_job_recorded_blocks_overwritten_total",
           "Blocks in the flight recorder that later ones took the place of.",
           &ipc::FlightJobRow::blocks, ipc::kFlightRowsMax},
      Ring{"headrace_job_recorded_passes_overwritten_total",
           "Iterations of ranks in the flight recorder that later ones took the place of.",
           &ipc::FlightJobRow::passes, ipc::kPassRowsMax}};
  for (const Ring& ring : kRings) {
    text.Family(ring.name, kCounter, ring.help);
    for (const JobRow& job : jobs) {
      const auto* const flight = reading.FindFlight(job.id);
      if (flight == nullptr) continue;
      const std::uint64_t written = flight->row.*ring.written;
      text.Sample({{"job", ipc::GetText(job.name)}, {"uid", std::to_string(job.owner_uid)}},
                  MetricValue::Count(written - std::min(written, ring.kept)));
    }
  }
}

}  // namespace

void WriteJobMetrics(const ipc::BoardReading& reading, MetricsText& text) {
  const std::vector<JobRow> jobs = NamedJobs(reading);
  WriteWhatJobsAre(jobs, text);
  for (const auto& metric : kJobMetrics) {
    text.Family(metric.name, metric.type, metric.help);
    for (const JobRow& job : jobs) {
      text.Sample({{"job", ipc::GetText(job.name)}, {"uid", std::to_string(job.owner_uid)}},
                  *metric.value(job));
    }
  }
  WriteFailures(jobs, text);
  WriteQueue(reading, jobs, text);
  WriteRecorder(reading, jobs, text);
}

void WriteRankMetrics(const ipc::BoardReading& reading, MetricsText& text) {
  const std::vector<JobRow> jobs = NamedJobs(reading);
  for (const auto& metric : kRankMetrics) {
    text.Family(metric.name, metric.type, metric.help);
    for (const RankRow& rank : reading.ranks) {
      const JobRow* const job = FindNamed(rank.job_id, jobs);
      if (job == nullptr) continue;
      text.Sample({{"job", ipc::GetText(job->name)},
                   {"uid", std::to_string(job->owner_uid)},
                   {"rank", std::to_string(rank.rank)}},
                  *metric.value(rank));
    }
  }
}

}  // namespace headrace::service

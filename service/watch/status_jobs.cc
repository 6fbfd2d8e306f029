// Jobs with their ranks and plans, and what of them waits.
#include "ipc/base/collective.h"
#include "ipc/board_text.h"
#include "service/watch/status_parts.h"

namespace headrace::service {
namespace {

Json RanksJson(const ipc::JobRow& job, const ipc::BoardReading& reading) {
  Json ranks = Json::array();
  for (const ipc::RankRow& row : reading.ranks) {
    if (row.job_id != job.id) continue;
    ranks.push_back({{"rank", row.rank},
                     {"pid", row.pid},
                     {"tensors", row.tensors},
                     {"segment_bytes", row.segment_bytes},
                     {"posted", row.operations_posted},
                     {"ended", row.operations_ended},
                     {"last_posts", row.last_posts},
                     {"late_s", JsonSeconds(row.late_ns)},
                     {"waited_s", JsonSeconds(row.waited_ns)}});
  }
  return ranks;
}

Json PlanJson(const ipc::JobRow& job, const ipc::BoardReading& reading) {
  const ipc::PlanRow* const row = reading.FindPlan(job.id);
  if (row == nullptr || row->version == 0) return {};
  return {{"policy", JsonText(ipc::GetText(row->policy))},
          {"version", row->version},
          {"blocks", row->blocks},
          {"bytes", row->bytes},
          {"iteration", row->iteration},
          {"measured_s", JsonSeconds(row->measured_ns)},
          {"predicted_s", JsonSeconds(row->predicted_ns)},
          {"lower_bound_s", JsonSeconds(row->lower_bound_ns)},
          {"backward_s", JsonSeconds(row->backward_ns)},
          {"forward_s", JsonSeconds(row->forward_ns)},
          {"waited_s", JsonSeconds(row->waited_ns)},
          {"moving_s", JsonSeconds(row->moving_ns)},
          {"elsewhere_s", JsonSeconds(row->elsewhere_ns)},
          {"codec", JsonText(ipc::GetText(row->codec))},
          {"judged_codec", JsonText(ipc::GetText(row->judged_codec))},
          {"codec_pays", row->codec_pays != 0},
          {"plain_s", JsonSeconds(row->plain_ns)},
          {"coded_s", JsonSeconds(row->coded_ns)}};
}

}  // namespace

Json JobsJson(const ipc::BoardReading& reading) {
  Json jobs = Json::array();
  for (const ipc::JobRow& row : reading.jobs) {
    jobs.push_back({{"id", row.id},
                    {"name", JsonText(ipc::GetText(row.name))},
                    {"uid", row.owner_uid},
                    {"label", JobLabel(row.id, reading)},
                    {"state", ipc::JobStateName(row.state)},
                    {"says", JsonText(ipc::GetText(row.failure))},
                    {"restarts", row.restarts},
                    {"world_before", row.world_before},
                    {"recoveries", row.recoveries},
                    {"recovery_s", JsonSeconds(row.recovery_ns)},
                    {"recovered_s", JsonSeconds(row.recovered_ns)},
                    {"joiners_waiting", row.joiners_waiting},
                    {"spares_waiting", row.spares_waiting},
                    {"evictions", row.evictions},
                    {"world_size", row.world_size},
                    {"ranks_attached", row.ranks_attached},
                    {"weight", row.weight},
                    {"priority", row.priority},
                    {"paused", row.paused != 0},
                    {"draining", row.draining != 0},
                    {"limit_bytes_per_s", row.limit_bytes_per_s},
                    {"sends_class", ipc::SendsClassName(row.sends_class)},
                    {"sends_ended", row.sends_ended},
                    {"receives_ended", row.receives_ended},
                    {"sends_bytes", row.sends_bytes},
                    {"sends_waiting", row.sends_waiting},
                    {"encoded_bytes", row.encoded_bytes},
                    {"encoded_sent_bytes", row.encoded_sent_bytes},
                    {"encoded_gpu_bytes", row.encoded_gpu_bytes},
                    {"encode_s", JsonSeconds(row.encode_ns)},
                    {"decode_s", JsonSeconds(row.decode_ns)},
                    {"residual_millionths", row.residual_millionths},
                    {"age_s", JsonSeconds(reading.now_ns - row.opened_ns)},
                    {"operations_ended", row.operations_ended},
                    {"operations_failed", row.operations_failed},
                    {"operations_open", row.operations_open},
                    {"bytes", row.bytes_moved},
                    {"plan", PlanJson(row, reading)},
                    {"ranks", RanksJson(row, reading)}});
  }
  return jobs;
}

Json ServedJson(const ipc::BoardReading& reading) {
  Json served = Json::array();
  for (const ipc::ServedRow& row : reading.served) {
    served.push_back({{"job", JsonText(ipc::GetText(row.job))},
                      {"leader", JsonText(ipc::GetText(row.leader))},
                      {"world_size", row.world_size},
                      {"encoded_bytes", row.encoded_bytes},
                      {"kept_bytes", row.kept_bytes},
                      {"residual_millionths", row.residual_millionths}});
  }
  return served;
}

Json QueueJson(const ipc::BoardReading& reading) {
  Json queue = Json::array();
  for (const ipc::QueueRow& row : reading.queue) {
    const bool has_lane = row.state != static_cast<std::uint32_t>(ipc::StageState::kGathering);
    queue.push_back({{"job", JobLabel(row.job_id, reading)},
                     {"iteration", row.iteration},
                     {"block", row.block},
                     {"kind", Name(static_cast<Collective>(row.kind))},
                     {"bytes", row.bytes},
                     {"stage", row.stage},
                     {"lane", has_lane ? JsonText(LaneName(row.lane, reading)) : Json()},
                     {"state", ipc::StageStateName(row.state)},
                     {"age_s", JsonSeconds(reading.now_ns - row.posted_ns)},
                     {"state_age_s", JsonSeconds(reading.now_ns - row.since_ns)},
                     {"tensor", JsonText(ipc::GetText(row.tensor))},
                     {"tensors", row.tensors},
                     {"reason", ipc::WaitReasonName(row.reason)},
                     {"why", JsonText(WhyItWaits(row, reading))}});
  }
  return queue;
}

}  // namespace headrace::service

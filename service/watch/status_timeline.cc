// The last iterations of a job, from the flight recorder: when ranks computed, when blocks moved.
#include <algorithm>

#include "ipc/board_text.h"
#include "service/watch/status_json.h"
#include "service/watch/status_parts.h"

namespace headrace::service {
namespace {

constexpr std::uint32_t kNeverUs = UINT32_MAX;

// Times of a block are microseconds after its first post; of the page, seconds after `origin_ns`.
struct Scale {
  TimeNs origin_ns;
  double At(TimeNs ns) const { return JsonSeconds(ns - origin_ns); }
  Json After(TimeNs first_ns, std::uint32_t us) const {
    return us == kNeverUs ? Json() : Json(At(first_ns + us * kMicrosecond));
  }
};

Json StagesJson(const ipc::FlightRow& row, const ipc::BoardReading& reading, const Scale& scale) {
  Json stages = Json::array();
  const std::size_t count = std::min<std::size_t>(row.stages_count, ipc::kFlightStagesMax);
  for (std::size_t i = 0; i < count; ++i) {
    const ipc::FlightStage& stage = row.stages[i];
    stages.push_back({{"lane", JsonText(LaneName(stage.lane, reading))},
                      {"stage", stage.stage},
                      {"queued", scale.After(row.first_post_ns, stage.queued_us)},
                      {"begin", scale.After(row.first_post_ns, stage.begin_us)},
                      {"end", scale.After(row.first_post_ns, stage.end_us)}});
  }
  return stages;
}

Json BlocksJson(const std::vector<ipc::FlightRow>& rows, const ipc::BoardReading& reading,
                const Scale& scale) {
  Json blocks = Json::array();
  for (const ipc::FlightRow& row : rows) {
    blocks.push_back({{"iteration", row.iteration},
                      {"block", row.operation},
                      {"part", row.block},
                      {"bytes", row.bytes},
                      {"tensor", JsonText(ipc::GetText(row.tensor))},
                      {"tensors", row.tensors},
                      {"last_rank", row.last_rank == kNeverUs ? Json() : Json(row.last_rank)},
                      {"code", CodeName(static_cast<Code>(row.code))},
                      {"posted", scale.At(row.first_post_ns)},
                      {"ready", scale.After(row.first_post_ns, row.ready_us)},
                      {"end", scale.At(row.ended_ns)},
                      {"stages", StagesJson(row, reading, scale)}});
  }
  return blocks;
}

// A forward pass lies before the backward pass whose row it stands in, and its waits inside it.
Json PassesJson(const std::vector<ipc::PassRow>& rows, const Scale& scale) {
  Json passes = Json::array();
  for (const ipc::PassRow& row : rows) {
    passes.push_back({{"iteration", row.iteration},
                      {"rank", row.rank},
                      {"begin", scale.At(row.begin_ns)},
                      {"backward_s", JsonSeconds(row.backward_ns)},
                      {"forward_s", JsonSeconds(row.forward_ns)},
                      {"waited_s", JsonSeconds(row.waited_ns)}});
  }
  return passes;
}

// Where the picture begins: with the first thing that is on it.
TimeNs OriginOf(const std::vector<ipc::FlightRow>& blocks, const std::vector<ipc::PassRow>& passes,
                TimeNs now_ns) {
  TimeNs origin = now_ns;
  for (const ipc::FlightRow& row : blocks) origin = std::min(origin, row.first_post_ns);
  for (const ipc::PassRow& row : passes) {
    origin = std::min(origin, row.begin_ns - row.forward_ns - row.waited_ns);
  }
  return origin;
}

}  // namespace

Json TimelineJson(const ipc::JobRow& job, const ipc::BoardReading& reading,
                  const ipc::BoardLayout& layout) {
  const ipc::Placed<ipc::FlightJobRow>* const place = reading.FindFlight(job.id);
  if (place == nullptr) return {};
  const std::size_t jobs = reading.jobs.size();
  const std::vector<ipc::FlightRow> blocks =
      LastFlights(layout, *place, kTimelineBlocks.OfEach(jobs));
  const std::vector<ipc::PassRow> passes = LastPasses(layout, *place, kTimelinePasses.OfEach(jobs));
  const Scale scale{.origin_ns = OriginOf(blocks, passes, reading.now_ns)};
  return {{"job", JobLabel(job.id, reading)},
          {"now", scale.At(reading.now_ns)},
          {"blocks_overwritten",
           place->row.blocks - std::min<std::uint64_t>(place->row.blocks, ipc::kFlightRowsMax)},
          {"passes", PassesJson(passes, scale)},
          {"blocks", BlocksJson(blocks, reading, scale)}};
}

}  // namespace headrace::service

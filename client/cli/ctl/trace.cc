#include "client/cli/ctl/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>

#include "client/cli/ctl/flight_view.h"
#include "client/cli/ctl/job_text.h"
#include "client/cli/ctl/trace_events.h"
#include "ipc/base/codecs.h"
#include "ipc/base/error.h"

namespace headrace::ctl {
namespace {

using Json = TraceEvents::Json;

constexpr std::uint32_t kNever32 = UINT32_MAX;
constexpr std::uint32_t kService = 1;
constexpr std::uint32_t kFirstRank = 2;  // rank r is process kFirstRank + r
// Tracks of a rank.
constexpr int kBackward = 1;
constexpr int kForward = 2;
constexpr int kWaits = 3;
constexpr int kPosts = 4;
// Tracks of the service: lane l has those from l * kTracksOfLane on, those of its queue first.
constexpr int kTracksOfLane = 4096;
constexpr int kTracksOfQueue = 2048;

// What has a begin and an end on one of a lane's tracks.
struct Piece {
  TimeNs begin_ns = 0;
  TimeNs end_ns = 0;
  std::string name;
  Json args;
};

// A microsecond of a row: the service cuts what is below, at every time alike.
TimeNs At(const ipc::FlightRow& row, std::uint32_t us) {
  return row.first_post_ns / kMicrosecond * kMicrosecond + TimeNs{us} * kMicrosecond;
}

std::string Title(const ipc::FlightRow& row) {
  const std::string_view tensor = ipc::GetText(row.tensor);
  return FlightName(row) + (tensor.empty() ? "" : " ") + std::string(tensor);
}

Json ArgsOf(const FlightJob& job, const ipc::FlightRow& row, const ipc::FlightStage& stage) {
  constexpr std::array<const char*, 4> kStages = {"in the node", "between nodes",
                                                  "to the node's ranks", "comparing results"};
  Json args = {
      {"bytes", row.bytes},
      {"iteration", row.iteration},
      {"operation", row.operation},
      {"block", row.block},
      {"stage", stage.stage < kStages.size() ? kStages[stage.stage] : "?"},
      {"code", row.code < kCodesCount ? CodeName(static_cast<Code>(row.code)) : "unknown"}};
  constexpr std::uint8_t kBetweenNodes = 1;
  if (const auto codec = CodecOfValue(row.codec); stage.stage == kBetweenNodes && row.codec != 0) {
    // All of the block's parts together, where several rails carry one each.
    args["codec"] = codec ? Name(*codec) : "unknown";
    args["coded_on"] = row.coded_on == 0 ? "host" : fmt::format("GPU {}", row.coded_on - 1);
    args["sent_bytes"] = row.sent_bytes;
    args["encode_us"] = row.encode_us;
    args["decode_us"] = row.decode_us;
  }
  if (row.code != 0) args["cause"] = std::string(job.CauseOf(row));
  return args;
}

// When the first thing in the trace happened.
TimeNs ZeroOf(const FlightJob& job) {
  TimeNs zero_ns = kNever;
  for (const ipc::FlightRow& row : job.blocks) zero_ns = std::min(zero_ns, At(row, 0));
  for (const ipc::PassRow& pass : job.passes) {
    zero_ns = std::min(zero_ns, pass.begin_ns - pass.forward_ns - pass.waited_ns);
  }
  return zero_ns == kNever ? 0 : zero_ns;
}

void AddTracks(TraceEvents& trace, int first, const std::string& name, std::vector<Piece>& pieces,
               TimeNs zero_ns) {
  std::ranges::stable_sort(pieces, {}, &Piece::begin_ns);
  TraceRows rows;
  for (Piece& piece : pieces) {
    const int track = first + static_cast<int>(rows.RowFor(piece.begin_ns, piece.end_ns));
    trace.Slice(kService, track, piece.name, piece.begin_ns - zero_ns, piece.end_ns - zero_ns,
                std::move(piece.args));
  }
  for (std::size_t row = 0; row < rows.count(); ++row) {
    trace.NameTrack(kService, first + static_cast<int>(row), name);
  }
}

void AddLanes(TraceEvents& trace, const FlightLog& log, const FlightJob& job, TimeNs zero_ns) {
  std::map<std::uint8_t, std::vector<Piece>> moves;
  std::map<std::uint8_t, std::vector<Piece>> waits;
  for (const ipc::FlightRow& row : job.blocks) {
    const std::size_t kept = std::min<std::size_t>(row.stages_count, ipc::kFlightStagesMax);
    for (std::size_t i = 0; i < kept; ++i) {
      const ipc::FlightStage& stage = row.stages[i];
      const bool begun = stage.begin_us != kNever32;
      const TimeNs queued_ns = At(row, stage.queued_us);
      const TimeNs begin_ns = begun ? At(row, stage.begin_us) : std::max(row.ended_ns, queued_ns);
      waits[stage.lane].push_back({queued_ns, begin_ns, Title(row), ArgsOf(job, row, stage)});
      if (!begun || stage.end_us == kNever32) continue;
      moves[stage.lane].push_back(
          {begin_ns, At(row, stage.end_us), Title(row), ArgsOf(job, row, stage)});
    }
  }
  trace.NameProcess(kService, "headraced: lanes");
  for (auto& [lane, pieces] : waits) {
    const std::string name = LaneName(lane, log.snapshot);
    const int first = 1 + lane * kTracksOfLane;
    AddTracks(trace, first, name + " queue", pieces, zero_ns);
    AddTracks(trace, first + kTracksOfQueue, name, moves[lane], zero_ns);
  }
}

void AddPosts(TraceEvents& trace, const FlightJob& job, std::size_t place, std::uint32_t process,
              TimeNs zero_ns) {
  for (const ipc::FlightRow& row : job.blocks) {
    if (row.posted_us[place] == kNever32) continue;
    trace.Instant(process, kPosts, Title(row), At(row, row.posted_us[place]) - zero_ns);
  }
}

// One rank's passes. A slice never reaches into the one before it on its track.
void AddPasses(TraceEvents& trace, const FlightJob& job, std::uint32_t rank, std::uint32_t process,
               TimeNs zero_ns) {
  TimeNs free_ns = 0;
  for (const ipc::PassRow& pass : job.passes) {
    if (pass.rank != rank) continue;
    const TimeNs forward_ns = std::max(pass.begin_ns - pass.forward_ns - pass.waited_ns, free_ns);
    const TimeNs begin_ns = std::max(pass.begin_ns, free_ns);
    const Json args = {{"iteration", pass.iteration},
                       {"forward_us", pass.forward_ns / kMicrosecond},
                       {"waited_us", pass.waited_ns / kMicrosecond}};
    const std::string number = std::to_string(pass.iteration);
    if (pass.forward_ns > 0 && begin_ns > forward_ns) {
      trace.Slice(process, kForward, "forward " + number, forward_ns - zero_ns, begin_ns - zero_ns,
                  args);
    }
    const TimeNs waited_ns = std::min(pass.waited_ns, begin_ns - forward_ns);
    if (waited_ns > 0) {
      trace.Slice(process, kWaits, "wait " + number, forward_ns - zero_ns,
                  forward_ns + waited_ns - zero_ns, args);
    }
    free_ns = std::max(begin_ns, pass.begin_ns + pass.backward_ns);
    trace.Slice(process, kBackward, "backward " + number, begin_ns - zero_ns, free_ns - zero_ns,
                args);
  }
}

}  // namespace

std::string JobTrace(const FlightLog& log, const FlightJob& job) {
  TraceEvents trace;
  const TimeNs zero_ns = ZeroOf(job);
  AddLanes(trace, log, job, zero_ns);
  const std::size_t ranks = std::min<std::size_t>(job.row.ranks_count, ipc::kFlightRanksMax);
  for (std::size_t place = 0; place < ranks; ++place) {
    const std::uint32_t rank = job.row.ranks[place];
    const std::uint32_t process = kFirstRank + rank;
    trace.NameProcess(process, fmt::format("rank {}", rank));
    trace.NameTrack(process, kBackward, "backward");
    trace.NameTrack(process, kForward, "forward");
    trace.NameTrack(process, kWaits, "waits");
    trace.NameTrack(process, kPosts, "posts");
    AddPasses(trace, job, rank, process, zero_ns);
    AddPosts(trace, job, place, process, zero_ns);
  }
  return trace.Dump({{"job", std::string(job.name())},
                     {"blocks_recorded", job.blocks.empty() ? 0 : job.blocks.back().number},
                     {"blocks_overwritten", job.blocks_overwritten()},
                     {"passes_overwritten", job.passes_overwritten()},
                     {"zero_unix_ns", log.UnixTime(zero_ns)}});
}

}  // namespace headrace::ctl

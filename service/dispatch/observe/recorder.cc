#include "service/dispatch/observe/recorder.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "ipc/base/check.h"
#include "ipc/board.h"
#include "service/dispatch/observe/flight_rows.h"
#include "service/dispatch/observe/rows.h"
#include "service/session/fair_drop.h"
#include "transport/codec/block_size.h"

namespace headrace::service {
namespace {

// The longest pass that is believed of a rank.
constexpr TimeNs kPassMax = 7 * 86400 * kSecond;

std::size_t PostOf(const Job& job, std::uint64_t sequence, std::uint32_t rank) {
  return (sequence % kOperationsMax) * job.world_size() + rank;
}

// A client's clock value, if it can be that of something that has just happened.
TimeNs Believed(std::uint64_t claimed_ns, TimeNs now) {
  const auto claimed = static_cast<TimeNs>(claimed_ns);
  return claimed > now - kPassMax && claimed <= now ? claimed : now;
}

TimeNs QueuedNs(const Job& job, const Block& block, const BlockPart& part) {
  return job.record->blocks[job.PlaceOf(block)].queued_ns[block.PartOf(part)];
}

void SetRanks(const Job& job, FlightRecord& flight) {
  const std::size_t count = std::min(job.local().size(), ipc::kFlightRanksMax);
  flight.row.ranks_count = static_cast<std::uint32_t>(job.local().size());
  std::copy_n(job.local().begin(), count, std::begin(flight.row.ranks));
  flight.dirty = true;
}

}  // namespace

std::uint16_t Recorder::FindPlace() const {
  const auto ended_of = [this](std::uint32_t uid) {
    return std::ranges::count_if(places_, [uid](const Place& place) {
      return place.row.owner_uid == uid && place.row.ended_ns != 0;
    });
  };
  const auto rank = [&ended_of](const Place& place) {
    // A job that recorded nothing and ended well has nothing to keep for anybody.
    const bool tells = place.row.blocks + place.row.passes > 0 || place.failed;
    return std::tuple(-ended_of(place.row.owner_uid), tells, place.row.ended_ns);
  };
  std::uint16_t best = kNoRow;
  for (std::uint16_t index = 0; index < places_.size(); ++index) {
    const Place& place = places_[index];
    if (place.row.job_id == 0) return index;
    if (place.row.ended_ns == 0) continue;
    if (best == kNoRow || rank(place) < rank(places_[best])) best = index;
  }
  return best;
}

JobRecord& Recorder::OpenJob(const Job& job, TimeNs now) {
  HR_CHECK(job.record == nullptr, job.id().value);
  JobRecord& record = *records_.emplace_back(std::make_unique<JobRecord>());
  record.board_row = board_.ClaimJobRow();
  record.ranks.resize(job.world_size());
  record.blocks.resize(kBlocksMax);
  record.operation_rows.fill(kNoRow);
  record.planned_rows.fill(kNoRow);
  Resume(job, record);
  FlightRecord& flight = record.flight;
  flight.place = FindPlace();
  if (flight.place == kNoRow) {
    ++board_.counters.jobs_unrecorded;
    return record;
  }
  board_.ClearFlight(flight.place, places_[flight.place].row);
  flight.row.job_id = job.id().value;
  flight.row.owner_uid = job.owner_uid();
  flight.row.world_size = job.world_size();
  flight.row.opened_ns = now;
  flight.row.opened_unix_ns = board_.UnixTime(now);
  ipc::SetText(flight.row.name, job.name());
  flight.operations.resize(kOperationsMax * job.world_size());
  SetRanks(job, flight);
  places_[flight.place] = {.row = flight.row};  // taken, before anything of it is published
  return record;
}

void Recorder::Resume(const Job& job, JobRecord& record) {
  const auto lost = std::ranges::find_if(lost_, [&job](const Lost& each) {
    return each.name == job.name() && each.uid == job.owner_uid();
  });
  if (lost == lost_.end()) return;
  if (job.restarts() > 0) {
    record.recovery = lost->recovery;
    record.recovery.lost_ns = lost->failed_ns;
    record.recovery.world_before = lost->world_size;
  }
  lost_.erase(lost);
}

void Recorder::Form(const Job& job) { SetRanks(job, job.record->flight); }

void Recorder::SetLayout(const Job& job) {
  FlightRecord& flight = job.record->flight;
  if (flight.place == kNoRow) return;
  flight.gradients.resize(std::size_t{job.gradients->count()} * job.world_size());
}

void Recorder::CloseJob(const Job& job, TimeNs now) {
  HR_CHECK(job.record != nullptr, job.id().value);
  JobRecord& record = *job.record;
  for (const LaneShare& share : record.shares) {
    HR_CHECK(share.row.in_flight_stages == 0 && share.row.queued_stages == 0, job.id().value);
  }
  for (const LaneShare& share : record.shares) board_.FreeShareRow(share.board_row);
  record.shares.clear();
  if (job.failed_ns() != 0) {
    if (lost_.size() == ipc::kJobRowsMax) lost_.erase(OldestOfGreediest(lost_, &Lost::uid));
    record.recovery.evictions += job.steering.EvictionsCount();
    lost_.push_back({.name = job.name(),
                     .uid = job.owner_uid(),
                     .world_size = job.world_size(),
                     .failed_ns = job.failed_ns(),
                     .recovery = record.recovery});
  }
  FlightRecord& flight = record.flight;
  flight.row.ended_ns = std::max<TimeNs>(now, 1);
  if (flight.place != kNoRow && job.failed && job.failure) {
    ipc::FlightEndRow end{.job_id = job.id().value,
                          .code = static_cast<std::uint32_t>(job.failure->code),
                          .cause = {}};
    ipc::SetText(end.cause, job.failure->text);
    board_.WriteFlight(flight.place, end);
    places_[flight.place].failed = true;
  }
  flight.dirty = true;
  PublishFlight(flight);
  board_.FreeJobRow(record.board_row);
  std::erase_if(records_, [&record](const auto& each) { return each.get() == &record; });
}

void Recorder::RankAttached(const Job& job, std::uint32_t rank) {
  HR_CHECK(job.record->ranks[rank].board_row == kNoRow, rank);
  job.record->ranks[rank].board_row = board_.ClaimRankRow();
}

void Recorder::RankDiscarded(const Job& job, std::uint32_t rank) {
  board_.FreeRankRow(std::exchange(job.record->ranks[rank].board_row, kNoRow));
}

void Recorder::Held(const Job& job, TimeNs time_ns) { job.record->sums.held_ns += time_ns; }

void Recorder::Publish(const Job& job) {
  JobRecord& record = *job.record;
  for (LaneShare& share : record.shares) {
    if (std::exchange(share.dirty, false)) board_.Write(share.board_row, share.row);
  }
  PublishFlight(record.flight);
  if (std::exchange(record.changes_shown, job.changes()) == job.changes()) return;
  board_.Write(record.board_row, MakeJobRow(job));
  for (std::uint32_t rank = 0; rank < job.world_size(); ++rank) {
    if (!job.ranks()[rank].session) continue;
    board_.Write(record.ranks[rank].board_row, MakeRankRow(job, rank));
  }
}

void Recorder::PublishFlight(FlightRecord& flight) {
  if (!std::exchange(flight.dirty, false) || flight.place == kNoRow) return;
  HR_CHECK(places_[flight.place].row.job_id == flight.row.job_id, flight.place);
  places_[flight.place].row = flight.row;
  board_.WriteFlight(flight.place, flight.row);
}

// Memory for pairs grows when more of them are open than ever before.
void Recorder::ItemOpened(const Job& job, const Operation& operation) {
  JobRecord& record = *job.record;
  if (operation.paired() && record.pair_rows.size() < job.pairs().capacity()) {
    record.pair_rows.resize(job.pairs().capacity(), kNoRow);
    record.flight.pairs.resize(job.pairs().capacity());
  }
  HR_CHECK(record.RowOf(operation) == kNoRow, operation.spec.sequence);
  record.RowOf(operation) = board_.ClaimQueueRow();
}

void Recorder::Post(const Job& job, std::uint64_t sequence, std::uint32_t rank, TimeNs now) {
  FlightRecord& flight = job.record->flight;
  if (TrafficClassOf(sequence) == schedule::TrafficClass::kPaired) {
    const Pair& pair = job.pairs().pair(PairPlace(sequence));
    HR_CHECK(PairPlace(sequence) < flight.pairs.size(), sequence);
    flight.pairs[PairPlace(sequence)][pair.SideOf(rank)] = now;
    return;
  }
  if (flight.place != kNoRow) flight.operations[PostOf(job, sequence, rank)] = now;
}

void Recorder::OnPosted(const Job& job, const Operation& operation, std::uint32_t rank,
                        std::uint64_t bytes, TimeNs now) {
  job.record->ranks[rank].bytes_posted += bytes;
  // Who receives early, or sends late, keeps nobody from working.
  if (operation.paired()) return;
  if (!job.formed() || operation.posts.ready() != job.local_ranks()) return;
  NoteLast(job, rank, now - operation.posts.opened_ns);
}

// One rank alone is never late.
void Recorder::NoteLast(const Job& job, std::uint32_t rank, TimeNs after_first_ns) {
  if (job.local().size() < 2) return;
  job.record->sums.gathering_ns += after_first_ns;
  RankRecord& record = job.record->ranks[rank];
  ++record.last_posts;
  record.late_ns += after_first_ns;
}

void Recorder::PostGradient(const Job& job, std::uint32_t rank, std::uint32_t tensor,
                            const ipc::GradientRecord& posted, TimeNs now) {
  const Gradients& gradients = *job.gradients;
  RankRecord& record = job.record->ranks[rank];
  record.bytes_posted += gradients.layout().tensors[tensor].Bytes();
  AddTime(record.waited_ns, posted.waited_ns);
  if (job.formed() && gradients.posts(tensor).ready() == job.local_ranks()) {
    NoteLast(job, rank, now - gradients.posts(tensor).opened_ns);
  }
  FlightRecord& flight = job.record->flight;
  if (flight.place == kNoRow) return;
  flight.gradients[std::size_t{tensor} * job.world_size() + rank] = now;
  const std::uint64_t iteration = gradients.IterationOf(tensor);
  PassRecord& pass = record.passes[iteration % 2];
  if (pass.iteration != iteration) pass = {.iteration = iteration, .begin_ns = now};
  // Times that the rank says; what cannot be counts as the time of reading.
  pass.begin_ns = std::min(pass.begin_ns, Believed(posted.backward_ns, now));
  pass.last_ns = std::max(pass.last_ns, Believed(posted.posted_ns, now));
  AddTime(pass.forward_ns, posted.forward_ns);
  AddTime(pass.waited_ns, posted.waited_ns);
  if (++pass.posts == gradients.count()) WritePass(flight, rank, pass);
}

void Recorder::WritePass(FlightRecord& flight, std::uint32_t rank, const PassRecord& pass) {
  ipc::PassRow row{};
  row.number = ++flight.row.passes;
  row.iteration = pass.iteration;
  row.rank = rank;
  row.begin_ns = pass.begin_ns;
  row.backward_ns = std::max<TimeNs>(pass.last_ns - pass.begin_ns, 0);
  row.forward_ns = pass.forward_ns;
  row.waited_ns = pass.waited_ns;
  board_.WriteFlight(flight.place, row);
  flight.dirty = true;
}

void Recorder::ShowItem(const Job& job, const Operation& operation) {
  board_.Write(job.record->RowOf(operation), MakeQueueRow(job, operation));
}

void Recorder::ItemEnded(const Job& job, const Operation& operation, TimeNs now) {
  JobRecord& record = *job.record;
  board_.FreeQueueRow(std::exchange(record.RowOf(operation), kNoRow));
  const bool failed = operation.failure.has_value();
  // A plan's block that fails counts as failed only.
  if (!failed || !operation.planned()) {
    ++record.sums.operations_ended;
    ++board_.counters.operations_ended;
  }
  if (RecoveryRecord& recovery = record.recovery; !failed && recovery.lost_ns != 0) {
    recovery.last_ns = now - std::exchange(recovery.lost_ns, 0);
    recovery.sum_ns += recovery.last_ns;
    ++recovery.count;
  }
  if (failed) {
    const auto code = static_cast<std::size_t>(operation.failure->code);
    HR_CHECK(code < record.sums.failed_by_code.size(), code);
    ++record.sums.operations_failed;
    ++board_.counters.operations_failed;
    ++record.sums.failed_by_code[code];
    ++board_.counters.failed_by_code[code];
  }
  if (operation.blocks_made > 0 || record.flight.place == kNoRow) return;
  ipc::FlightRow row = MakeUncutRow(job, operation, now);
  Write(record.flight, row, failed ? &*operation.failure : nullptr);
}

void Recorder::HeadFailed(const Job& job, const Failure& failure, TimeNs now) {
  if (job.record->flight.place == kNoRow) return;
  std::optional<ipc::FlightRow> row = MakeFailedHeadRow(job, failure, now);
  if (row) Write(job.record->flight, *row, &failure);
}

LaneShare& Recorder::ShareOf(const Job& job, std::uint8_t lane) {
  std::vector<LaneShare>& shares = job.record->shares;
  // Once for each lane that the job comes to use.
  if (lane >= shares.size()) shares.resize(lane + std::size_t{1});
  LaneShare& share = shares[lane];
  if (share.row.job_id == 0) {
    share.board_row = board_.ClaimShareRow();
    share.row.job_id = job.id().value;
    share.row.lane = lane;
  }
  share.dirty = true;
  return share;
}

void Recorder::StageQueued(const Job& job, const Block& block, const BlockPart& part, TimeNs now) {
  job.record->blocks[job.PlaceOf(block)].queued_ns[block.PartOf(part)] = now;
  ++ShareOf(job, part.queued.lane).row.queued_stages;
}

void Recorder::StageBegun(const Job& job, const Block& block, const BlockPart& part, TimeNs now) {
  ipc::ShareRow& share = ShareOf(job, part.queued.lane).row;
  HR_CHECK(share.queued_stages > 0, part.queued.token);
  --share.queued_stages;
  ++share.in_flight_stages;
  share.in_flight_bytes += part.queued.bytes;
  const TimeNs waited_ns = now - QueuedNs(job, block, part);
  share.waiting_ns += waited_ns;
  job.record->sums.waiting_ns += waited_ns;
}

void Recorder::StageDropped(const Job& job, const Block& block, const BlockPart& part, TimeNs now) {
  ipc::ShareRow& share = ShareOf(job, part.queued.lane).row;
  --share.queued_stages;
  const TimeNs waited_ns = now - QueuedNs(job, block, part);
  share.waiting_ns += waited_ns;
  job.record->sums.waiting_ns += waited_ns;
  NoteStage(job, block, part, 0, now);
}

void Recorder::StageEnded(const Job& job, const Block& block, const BlockPart& part, Code code,
                          TimeNs now) {
  ipc::ShareRow& share = ShareOf(job, part.queued.lane).row;
  HR_CHECK(share.in_flight_stages > 0 && share.in_flight_bytes >= part.queued.bytes,
           part.queued.token);
  --share.in_flight_stages;
  share.in_flight_bytes -= part.queued.bytes;
  ++share.stages_ended;
  if (code == Code::kOk) share.bytes_moved += part.queued.bytes;
  share.moving_ns += now - part.begin_ns;
  job.record->sums.moving_ns += now - part.begin_ns;
  NoteStage(job, block, part, part.begin_ns, now);
}

void Recorder::NoteStage(const Job& job, const Block& block, const BlockPart& part, TimeNs begin_ns,
                         TimeNs end_ns) {
  BlockRecord& record = job.record->blocks[job.PlaceOf(block)];
  if (record.count < record.stages.size()) {
    record.stages[record.count] = {.lane = part.queued.lane,
                                   .stage = static_cast<std::uint8_t>(block.stage),
                                   .queued_ns = record.queued_ns[block.PartOf(part)],
                                   .begin_ns = begin_ns,
                                   .end_ns = end_ns};
  }
  ++record.count;
}

std::uint32_t Recorder::WorldBefore(const Job& job) { return job.record->recovery.world_before; }

std::optional<std::string> Recorder::NotFiniteText(const Job& job) {
  NotFiniteRecord& record = job.record->not_finite;
  if (record.blocks == 0) return std::nullopt;
  const NotFiniteRecord now = record;
  record.blocks = 0;
  if (++record.iterations < record.next_told) return std::nullopt;
  record.next_told = 2 * record.iterations;
  return fmt::format(
      "values that are not finite crossed encoded in {} of {} elements, the first in {}: what was "
      "left out of these elements before is lost, and begins at zero again. Of such iterations "
      "this "
      "is number {}",
      now.blocks == 1 ? "one block" : fmt::format("{} blocks", now.blocks), transport::kCodecBlock,
      DescribeBlock(now.first), record.iterations);
}

void Recorder::Encoded(const Job& job, const Operation& operation, const Block& block,
                       const transport::CodecUse& use) {
  if (use.plain_bytes == 0) return;
  if (use.not_finite_blocks > 0 && operation.planned()) {
    NotFiniteRecord& record = job.record->not_finite;
    if (record.blocks == 0) record.first = operation.NameOf(block);
    record.blocks += use.not_finite_blocks;
  }
  transport::CodecUse& of_block = job.record->blocks[job.PlaceOf(block)].codec;
  of_block.encode_ns += use.encode_ns;
  of_block.decode_ns += use.decode_ns;
  of_block.plain_bytes += use.plain_bytes;
  of_block.sent_bytes += use.sent_bytes;
  transport::CodecUse& sums = job.record->sums.codec;
  sums.encode_ns += use.encode_ns;
  sums.decode_ns += use.decode_ns;
  sums.plain_bytes += use.plain_bytes;
  if (block.coded_on() != transport::kHost) {
    job.record->sums.encoded_gpu_bytes += use.plain_bytes;
  }
  sums.sent_bytes += use.sent_bytes;
  // The sums are those of the last hundred blocks or so.
  constexpr double kKept = 0.99;
  sums.sum_squares = kKept * sums.sum_squares + use.sum_squares;
  sums.residual_squares = kKept * sums.residual_squares + use.residual_squares;
}

void Recorder::Moved(const Job& job, std::uint64_t bytes) {
  job.record->sums.bytes_moved += bytes;
  board_.counters.bytes_moved += bytes;
}

void Recorder::PairEnded(const Job& job, std::uint32_t sends, std::uint32_t receives,
                         std::uint64_t bytes) {
  JobSums& sums = job.record->sums;
  sums.sends_ended += sends;
  sums.receives_ended += receives;
  sums.sends_bytes += bytes;
}

void Recorder::BlockEnded(const Job& job, const Operation& operation, const Block& block,
                          const Failure* failure, TimeNs now) {
  JobRecord& record = *job.record;
  HR_CHECK(block.sequence == operation.spec.sequence, block.sequence, operation.spec.sequence);
  ++record.sums.blocks_ended;
  if (record.flight.place != kNoRow) {
    ipc::FlightRow row = MakeFlightRow(job, operation, block, failure, now);
    Write(record.flight, row, failure);
  }
  record.blocks[job.PlaceOf(block)].count = 0;
  record.blocks[job.PlaceOf(block)].codec = {};
}

void Recorder::Write(FlightRecord& flight, ipc::FlightRow& row, const Failure* failure) {
  row.number = ++flight.row.blocks;
  if (failure != nullptr) {
    ipc::FlightCauseRow cause{.number = row.number, .text = {}};
    ipc::SetText(cause.text, failure->text);
    board_.WriteFlight(flight.place, cause);
  }
  board_.WriteFlight(flight.place, row);
  flight.dirty = true;
}

}  // namespace headrace::service

#include "service/dispatch/recorder.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "ipc/base/check.h"
#include "ipc/board.h"

namespace headrace::service {
namespace {

// Of a pass, as its rank says: longer ones are not believed.
constexpr TimeNs kPassMax = 7 * 86400 * kSecond;

std::size_t PostOf(const Job& job, std::uint64_t sequence, std::uint32_t rank) {
  return (sequence % kOperationsMax) * job.world_size() + rank;
}

// A client's clock value, if it can be that of something that has just happened.
TimeNs Believed(std::uint64_t said_ns, TimeNs now) {
  const auto said = static_cast<TimeNs>(said_ns);
  return said > now - kPassMax && said <= now ? said : now;
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

void Recorder::OpenJob(Job& job, TimeNs now) {
  JobNotes& notes = job.notes;
  notes.place = FindPlace();
  if (notes.place == kNoRow) {
    ++board_.counters.jobs_unrecorded;
    return;
  }
  board_.ClearFlight(notes.place, places_[notes.place].row);
  notes.row.job_id = job.id().value;
  notes.row.owner_uid = job.owner_uid();
  notes.row.world_size = job.world_size();
  notes.row.opened_ns = now;
  notes.row.opened_unix_ns = board_.UnixTime(now);
  ipc::SetText(notes.row.name, job.name());
  notes.operations.resize(kOperationsMax * job.world_size());
  notes.passes.resize(job.world_size());
  Form(job);
  places_[notes.place] = {.row = notes.row};  // taken, before anything of it is published
}

void Recorder::Form(Job& job) {
  JobNotes& notes = job.notes;
  const std::size_t count = std::min(job.local().size(), ipc::kFlightRanksMax);
  notes.row.ranks_count = static_cast<std::uint32_t>(job.local().size());
  std::copy_n(job.local().begin(), count, std::begin(notes.row.ranks));
  notes.dirty = true;
}

void Recorder::SetLayout(Job& job) {
  if (job.notes.place == kNoRow) return;
  job.notes.gradients.resize(std::size_t{job.gradients->count()} * job.world_size());
}

void Recorder::CloseJob(Job& job, TimeNs now) {
  for (LaneShare& share : job.notes.shares)
    board_.FreeShareRow(std::exchange(share.board_row, kNoRow));
  job.notes.shares.clear();
  job.notes.row.ended_ns = std::max<TimeNs>(now, 1);
  if (job.notes.place != kNoRow && job.failed && job.failure) {
    ipc::FlightEndRow end{.job_id = job.id().value,
                          .code = static_cast<std::uint32_t>(job.failure->code),
                          .cause = {}};
    ipc::SetText(end.cause, job.failure->text);
    board_.WriteFlight(job.notes.place, end);
    places_[job.notes.place].failed = true;
  }
  job.notes.dirty = true;
  Publish(job);
}

void Recorder::Publish(Job& job) {
  for (LaneShare& share : job.notes.shares) {
    if (std::exchange(share.dirty, false)) board_.Write(share.board_row, share.row);
  }
  if (!std::exchange(job.notes.dirty, false) || job.notes.place == kNoRow) return;
  places_[job.notes.place].row = job.notes.row;
  board_.WriteFlight(job.notes.place, job.notes.row);
}

void Recorder::Post(Job& job, std::uint64_t sequence, std::uint32_t rank, TimeNs now) {
  if (job.notes.place != kNoRow) job.notes.operations[PostOf(job, sequence, rank)] = now;
}

void Recorder::Take(Job& job, const Operation& operation, std::uint32_t rank, std::uint64_t bytes,
                    TimeNs now) {
  job.member(rank).sums.bytes_posted += bytes;
  if (!job.formed() || operation.ready() != job.local_ranks()) return;
  NoteLast(job, rank, now - operation.opened_ns);
}

// One rank alone is never late.
void Recorder::NoteLast(Job& job, std::uint32_t rank, TimeNs after_first_ns) {
  if (job.local().size() < 2) return;
  job.sums.gathering_ns += after_first_ns;
  RankSums& sums = job.member(rank).sums;
  ++sums.last_posts;
  sums.late_ns += after_first_ns;
}

void Recorder::PostGradient(Job& job, std::uint32_t rank, std::uint32_t tensor,
                            const ipc::GradientRecord& record, TimeNs now) {
  const Gradients& gradients = *job.gradients;
  RankSums& sums = job.member(rank).sums;
  sums.bytes_posted += record.count * SizeOf(gradients.layout().dtype);
  AddTime(sums.waited_ns, record.waited_ns);
  if (job.formed() && gradients.ready(tensor) == job.local_ranks()) {
    NoteLast(job, rank, now - gradients.opened_ns(tensor));
  }
  if (job.notes.place == kNoRow) return;
  job.notes.gradients[std::size_t{tensor} * job.world_size() + rank] = now;
  const std::uint64_t iteration = gradients.IterationOf(tensor);
  PassNotes& pass = job.notes.passes[rank][iteration % 2];
  if (pass.iteration != iteration) pass = {.iteration = iteration, .begin_ns = now};
  // Times that the rank says; what cannot be counts as the time of reading.
  pass.begin_ns = std::min(pass.begin_ns, Believed(record.backward_ns, now));
  pass.last_ns = std::max(pass.last_ns, Believed(record.posted_ns, now));
  AddTime(pass.forward_ns, record.forward_ns);
  AddTime(pass.waited_ns, record.waited_ns);
  if (++pass.posts == gradients.count()) WritePass(job, rank, pass);
}

void Recorder::WritePass(Job& job, std::uint32_t rank, const PassNotes& pass) {
  ipc::PassRow row{};
  row.number = ++job.notes.row.passes;
  row.iteration = pass.iteration;
  row.rank = rank;
  row.begin_ns = pass.begin_ns;
  row.backward_ns = std::max<TimeNs>(pass.last_ns - pass.begin_ns, 0);
  row.forward_ns = pass.forward_ns;
  row.waited_ns = pass.waited_ns;
  board_.WriteFlight(job.notes.place, row);
  job.notes.dirty = true;
}

LaneShare& Recorder::ShareOf(Job& job, std::uint8_t lane) {
  std::vector<LaneShare>& shares = job.notes.shares;
  // Once for each lane that the job comes to use.
  if (lane >= shares.size()) shares.resize(lane + std::size_t{1});
  LaneShare& share = shares[lane];
  if (share.row.job_id == 0) {
    share.board_row = board_.TakeShareRow();
    share.row.job_id = job.id().value;
    share.row.lane = lane;
  }
  share.dirty = true;
  return share;
}

void Recorder::StageQueued(Job& job, Part& part, TimeNs now) {
  part.queued_ns = now;
  part.begin_ns = 0;
  ++ShareOf(job, part.stage.lane).row.queued_stages;
}

void Recorder::StageBegun(Job& job, const Part& part, TimeNs now) {
  ipc::ShareRow& share = ShareOf(job, part.stage.lane).row;
  --share.queued_stages;
  ++share.in_flight_stages;
  share.in_flight_bytes += part.stage.bytes;
  share.waiting_ns += now - part.queued_ns;
  job.sums.waiting_ns += now - part.queued_ns;
}

void Recorder::StageDropped(Job& job, Block& block, const Part& part, TimeNs now) {
  ipc::ShareRow& share = ShareOf(job, part.stage.lane).row;
  --share.queued_stages;
  share.waiting_ns += now - part.queued_ns;
  job.sums.waiting_ns += now - part.queued_ns;
  NoteStage(block, part, now);
}

void Recorder::StageEnded(Job& job, Block& block, const Part& part, Code code, TimeNs now) {
  ipc::ShareRow& share = ShareOf(job, part.stage.lane).row;
  --share.in_flight_stages;
  share.in_flight_bytes -= part.stage.bytes;
  ++share.stages_ended;
  if (code == Code::kOk) share.bytes_moved += part.stage.bytes;
  share.moving_ns += now - part.begin_ns;
  job.sums.moving_ns += now - part.begin_ns;
  NoteStage(block, part, now);
}

void Recorder::NoteStage(Block& block, const Part& part, TimeNs end_ns) {
  BlockNotes& notes = block.notes;
  if (notes.count < notes.stages.size()) {
    notes.stages[notes.count] = {.lane = part.stage.lane,
                                 .step = static_cast<std::uint8_t>(block.step),
                                 .queued_ns = part.queued_ns,
                                 .begin_ns = part.begin_ns,
                                 .end_ns = end_ns};
  }
  ++notes.count;
}

}  // namespace headrace::service

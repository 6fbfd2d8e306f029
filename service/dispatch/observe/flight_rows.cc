#include "service/dispatch/observe/flight_rows.h"

#include <algorithm>
#include <array>

#include "ipc/base/check.h"
#include "ipc/board.h"
#include "service/dispatch/observe/record.h"

namespace headrace::service {
namespace {

constexpr std::uint32_t kNever32 = UINT32_MAX;

// Microseconds after the row's first post; 0 nanoseconds: never.
std::uint32_t After(TimeNs time_ns, TimeNs first_ns) {
  if (time_ns == 0) return kNever32;
  // Both are cut to whole microseconds, so that times of different rows compare as they were.
  const TimeNs after_us = std::max<TimeNs>(time_ns / kMicrosecond - first_ns / kMicrosecond, 0);
  return static_cast<std::uint32_t>(std::min<TimeNs>(after_us, kNever32 - 1));
}

void FillStages(const BlockRecord& record, ipc::FlightRow& row) {
  row.stages_count = static_cast<std::uint8_t>(std::min<std::uint32_t>(record.count, UINT8_MAX));
  const std::size_t kept = std::min<std::size_t>(record.count, record.stages.size());
  for (std::size_t i = 0; i < kept; ++i) {
    const BlockRecord::StageTimes& stage = record.stages[i];
    row.stages[i] = {
        .lane = stage.lane,
        .stage = stage.stage,
        .reserved0 = 0,
        .queued_us = After(stage.queued_ns, row.first_post_ns),
        .begin_us = After(stage.begin_ns, row.first_post_ns),
        // What no lane had never ended there.
        .end_us = stage.begin_ns == 0 ? kNever32 : After(stage.end_ns, row.first_post_ns)};
  }
}

void FillCodec(const Job& job, const Operation& operation, const Block& block,
               const transport::CodecUse& use, ipc::FlightRow& row) {
  if (use.plain_bytes == 0) return;
  row.codec = static_cast<std::uint16_t>(SteeringValue(job.CodecOf(operation)));
  static_assert(transport::kHost == -1);
  row.coded_on = static_cast<std::uint16_t>(block.coded_on() + 1);
  row.sent_bytes = use.sent_bytes;
  const auto us = [](TimeNs time_ns) {
    return static_cast<std::uint32_t>(std::min<TimeNs>(time_ns / kMicrosecond, kNever32 - 1));
  };
  row.encode_us = us(use.encode_ns);
  row.decode_us = us(use.decode_ns);
}

void FillEnd(const Failure* failure, TimeNs now, ipc::FlightRow& row) {
  row.ended_ns = now;
  if (failure == nullptr) return;
  row.code = static_cast<std::uint8_t>(failure->code);
}

// When each rank posted a row's memory, and by when the last of them had.
struct PostTimes {
  explicit PostTimes(std::size_t ranks_count) : count(ranks_count) {
    HR_CHECK(count <= by_place.size(), count);
    std::fill_n(by_place.begin(), count, 0);
  }
  std::size_t count;
  RankMask among = ~RankMask{0};                        // who posts it at all
  std::array<TimeNs, transport::kMembersMax> by_place;  // the first `count`; 0: it has not
};

void FillPosts(const Job& job, const PostTimes& posts, ipc::FlightRow& row) {
  std::ranges::fill(row.posted_us, kNever32);
  row.last_rank = kNever32;
  row.ready_us = kNever32;
  TimeNs last_ns = 0;
  bool all = posts.count > 0;
  for (std::size_t place = 0; place < posts.count; ++place) {
    const TimeNs posted_ns = posts.by_place[place];
    all &= posted_ns != 0 || (posts.among & Bit(job.local()[place])) == 0;
    if (place < ipc::kFlightRanksMax) row.posted_us[place] = After(posted_ns, row.first_post_ns);
    if (posted_ns <= last_ns) continue;
    last_ns = posted_ns;
    row.last_rank = job.local()[place];
  }
  if (all) {
    row.ready_us = After(last_ns, row.first_post_ns);
  } else {
    row.last_rank = kNever32;
  }
}

TimeNs PairPosted(const Job& job, const Operation& operation, std::uint32_t rank) {
  const std::size_t place = PairPlace(operation.spec.sequence);
  return job.record->flight.pairs[place][job.pairs().pair(place).SideOf(rank)];
}

void FillOperation(const Job& job, const Operation& operation, ipc::FlightRow& row) {
  row.operation = operation.number();
  row.first_post_ns = operation.posts.opened_ns;
  row.kind = static_cast<std::uint8_t>(operation.spec.kind);
  row.dtype = static_cast<std::uint8_t>(operation.spec.dtype);
  row.blocks = static_cast<std::uint32_t>(operation.blocks_count);
  const std::string_view name = job.TensorName(operation);
  row.tensors = operation.spec.tensor.value != ipc::kNoTensor ? 1 : 0;
  ipc::SetText(row.tensor, name);
  PostTimes posts(job.local().size());
  posts.among = operation.posts.among;
  const std::size_t slot = (operation.spec.sequence % kOperationsMax) * job.world_size();
  for (std::size_t place = 0; place < posts.count; ++place) {
    const std::uint32_t rank = job.local()[place];
    if ((operation.posts.ranks >> rank & 1U) == 0) continue;
    const TimeNs posted_ns = operation.paired() ? PairPosted(job, operation, rank)
                                                : job.record->flight.operations[slot + rank];
    // An older one: this rank was refused, being too far ahead.
    if (posted_ns >= operation.posts.opened_ns) posts.by_place[place] = posted_ns;
  }
  FillPosts(job, posts, row);
}

void FillPlanned(const Job& job, const WireBlock& wire, ipc::FlightRow& row) {
  HR_CHECK(!wire.tensors.empty(), row.operation);
  const Gradients& gradients = *job.gradients;
  row.bytes = wire.Bytes();
  row.kind = static_cast<std::uint8_t>(wire.kind);
  row.dtype = static_cast<std::uint8_t>(wire.dtype);
  row.blocks = 1;
  row.tensors = static_cast<std::uint32_t>(wire.tensors.size());
  ipc::SetText(row.tensor, gradients.layout().tensors[wire.tensors.front()].name);
  PostTimes posts(job.local().size());
  TimeNs first_ns = kNever;
  RankMask missing = 0;
  for (const std::uint32_t tensor : wire.tensors) {
    const bool current = gradients.IterationOf(tensor) == row.iteration;
    const RankMask posted = current ? gradients.posts(tensor).ranks : 0;
    missing |= ~posted;
    const std::size_t at = std::size_t{tensor} * job.world_size();
    for (std::size_t place = 0; place < posts.count; ++place) {
      const std::uint32_t rank = job.local()[place];
      if ((posted >> rank & 1U) == 0) continue;
      const TimeNs posted_ns = job.record->flight.gradients[at + rank];
      first_ns = std::min(first_ns, posted_ns);
      posts.by_place[place] = std::max(posts.by_place[place], posted_ns);
    }
  }
  for (std::size_t place = 0; place < posts.count; ++place) {
    if ((missing >> job.local()[place] & 1U) != 0) posts.by_place[place] = 0;
  }
  row.first_post_ns = first_ns;
  FillPosts(job, posts, row);
}

}  // namespace

ipc::FlightRow MakeFlightRow(const Job& job, const Operation& operation, const Block& block,
                             const Failure* failure, TimeNs now) {
  ipc::FlightRow row{};
  row.block = block.index;
  if (operation.planned()) {
    row.operation = operation.index + 1;
    row.iteration = static_cast<std::uint32_t>(operation.iteration);
    FillPlanned(job, operation.wire(), row);
  } else {
    row.bytes = block.range.count * SizeOf(operation.spec.dtype);
    FillOperation(job, operation, row);
  }
  const BlockRecord& record = job.record->blocks[job.PlaceOf(block)];
  FillStages(record, row);
  FillCodec(job, operation, block, record.codec, row);
  FillEnd(failure, now, row);
  return row;
}

ipc::FlightRow MakeUncutRow(const Job& job, const Operation& operation, TimeNs now) {
  ipc::FlightRow row{};
  row.bytes = operation.spec.Bytes();
  FillOperation(job, operation, row);
  row.blocks = 0;
  FillEnd(operation.failure ? &*operation.failure : nullptr, now, row);
  return row;
}

std::optional<ipc::FlightRow> MakeFailedHeadRow(const Job& job, const Failure& failure,
                                                TimeNs now) {
  const Gradients& gradients = *job.gradients;
  const WireBlock* const head = gradients.AnyOpen() ? gradients.Head() : nullptr;
  if (head == nullptr) return {};
  ipc::FlightRow row{};
  row.operation = gradients.head_index() + 1;
  row.iteration = static_cast<std::uint32_t>(gradients.head_iteration());
  FillPlanned(job, *head, row);
  if (row.first_post_ns == kNever) return {};
  row.blocks = 0;
  FillEnd(&failure, now, row);
  return row;
}

}  // namespace headrace::service

#include "tests/sim/program.h"

#include <cmath>
#include <cstring>

#include "tests/support/loopback/reference.h"

namespace headrace::sim {
namespace {

template <typename Element>
void Put(std::span<std::byte> memory, std::size_t index, Element element) {
  std::memcpy(memory.data() + index * sizeof element, &element, sizeof element);
}

bool IsReal(DType dtype) {
  return dtype == DType::kFloat32 || dtype == DType::kFloat64 || dtype == DType::kFloat16 ||
         dtype == DType::kBFloat16;
}

void PutElement(DType dtype, std::span<std::byte> memory, std::size_t index, double number) {
  const auto value = static_cast<std::int64_t>(number * 8);
  switch (dtype) {
    case DType::kFloat32:
      return Put(memory, index, static_cast<float>(number));
    case DType::kFloat64:
      return Put(memory, index, number);
    case DType::kFloat16:
      return Put(memory, index, transport::EncodeFloat16(number));
    case DType::kBFloat16:
      return Put(memory, index, transport::EncodeBFloat16(number));
    case DType::kInt32:
      return Put(memory, index, static_cast<std::int32_t>(value));
    case DType::kInt64:
      return Put(memory, index, value);
    case DType::kUInt8:
      return Put(memory, index, static_cast<std::uint8_t>(value));
  }
}

}  // namespace

Planned PlanOf(std::uint64_t seed, JobId job, std::uint32_t world_size, std::uint64_t sequence) {
  Dice dice(seed * 1'000'003 + job.value * 7919 + sequence);
  Planned planned;
  planned.kind = static_cast<Collective>(dice.Between(1, 5));
  planned.dtype = static_cast<DType>(dice.Between(1, 7));
  planned.reduction = static_cast<Reduction>(dice.Between(1, 5));
  planned.root = static_cast<std::uint32_t>(dice.Below(world_size));
  if (dice.Chance(25)) {
    constexpr Collective kRarer[] = {Collective::kReduce, kGather, kScatter, kAllToAll, kAllToAll};
    planned.kind = kRarer[dice.Below(std::size(kRarer))];
  }
  if (planned.kind == Collective::kBarrier) return planned;
  // Room is left for a rank that disagrees about the count.
  const bool parted =
      planned.kind == Collective::kAllGather || planned.kind == Collective::kReduceScatter;
  planned.uneven = parted && dice.Chance(30);
  const std::size_t largest = planned.HasParts() ? kTableOffset : kSlotSize;
  const std::size_t size = dice.Chance(15) ? largest : kSmallSize;
  const std::uint64_t limit = size / SizeOf(planned.dtype) / world_size - 1;
  planned.count = world_size * (dice.Chance(5) ? 0 : dice.Between(1, dice.Chance(50) ? 8 : limit));
  return planned;
}

std::vector<ipc::PartRow> PartsOf(const Planned& planned, std::uint32_t world_size,
                                  std::uint32_t rank) {
  const std::uint64_t half = planned.count / 2;
  const auto count_of = [&](std::uint32_t source, std::uint32_t target) -> std::uint64_t {
    if (source == target || (planned.kind == kGather && target != planned.root) ||
        (planned.kind == kScatter && source != planned.root)) {
      return 0;
    }
    return (planned.count + 7 * source + 3 * target) % (half / world_size + 1);
  };
  std::vector<ipc::PartRow> rows(world_size);
  std::uint64_t end = 0;
  for (std::uint32_t part = 0; planned.uneven && part < world_size; ++part) {
    rows[part].sent_offset = end;
    // The last has what is left.
    const std::uint64_t some = (planned.count + 5 * part) % (planned.count / world_size + 1);
    rows[part].sent_count = part + 1 == world_size ? planned.count - end : some;
    end += rows[part].sent_count;
  }
  if (planned.uneven) return rows;
  std::uint64_t sent = 0;
  std::uint64_t received = half;
  for (std::uint32_t other = 0; other < world_size; ++other) {
    ipc::PartRow& row = rows[other];
    row.sent_count = count_of(rank, other);
    row.received_count = count_of(other, rank);
    row.sent_offset = row.sent_count == 0 ? 0 : sent;
    row.received_offset = row.received_count == 0 ? 0 : received;
    sent += row.sent_count;
    received += row.received_count;
  }
  return rows;
}

Planned PlanBetweenNodes(std::uint64_t seed, JobId job, std::uint32_t world_size,
                         std::uint64_t sequence) {
  Planned planned = PlanOf(seed, job, world_size, sequence);
  const bool real = IsReal(planned.dtype);
  if (!real && planned.reduction == Reduction::kAverage) planned.reduction = Reduction::kSum;
  return planned;
}

ipc::Record RecordOf(const Planned& planned) {
  ipc::Record record;
  record.kind = static_cast<std::uint8_t>(planned.kind);
  record.dtype = static_cast<std::uint8_t>(planned.dtype);
  record.reduction = static_cast<std::uint8_t>(planned.reduction);
  record.root = planned.root;
  record.count = planned.count;
  return record;
}

void Disagree(ipc::Record& record, std::uint32_t world_size, Dice& dice) {
  const auto kind = static_cast<Collective>(record.kind);
  if (record.flags != 0) {  // it has a parts table
    record.kind = static_cast<std::uint8_t>(Collective::kBarrier);
    record.count = record.tag = record.parts = record.root = record.flags = 0;
  } else if (Reduces(kind) && dice.Chance(30)) {
    record.reduction = static_cast<std::uint8_t>(record.reduction % 5 + 1);
  } else if (kind == Collective::kBroadcast && world_size > 1 && dice.Chance(50)) {
    record.root = (record.root + 1) % world_size;
  } else if (kind != Collective::kBarrier && dice.Chance(50)) {
    record.count += world_size;
  } else if (kind == Collective::kBarrier) {
    record.kind = static_cast<std::uint8_t>(Collective::kAllReduce);
    record.count = world_size;
  } else {
    record.kind = static_cast<std::uint8_t>(Collective::kBarrier);
    record.count = 0;
  }
}

void Spoil(ipc::Record& record, std::uint32_t world_size, Dice& dice) {
  const bool barrier = record.kind == static_cast<std::uint8_t>(Collective::kBarrier);
  switch (dice.Below(barrier ? 7 : 10)) {
    case 0:
      record.kind = dice.Chance(50) ? 0 : 77;
      return;
    case 1:
      record.dtype = dice.Chance(50) ? 0 : 8;
      return;
    case 2:
      record.reduction = 6;
      return;
    case 3:
      // Without the bit that makes it a gradient, which is counted apart.
      record.flags = static_cast<std::uint8_t>(2 * dice.Between(1, 127) | 8);
      return;
    case 4:
      record.tag = dice.Between(1, 99) | 1;  // where no table can be
      return;
    case 5:
      record.root = ipc::HasResult(record) ? 1'000'000 : world_size;  // a segment, or a rank
      return;
    case 6:
      record.timeout_ms = UINT32_MAX;
      return;
    case 7:
      record.tensor = 1'000'000;
      return;
    case 8:
      record.count =
          dice.Chance(50) ? UINT64_MAX / world_size * world_size : std::uint64_t{1} << 40;
      record.count -= record.count % world_size;
      return;
    default:
      record.offset = UINT64_MAX - dice.Below(4096);
      return;
  }
}

void FillElements(const Planned& planned, Values values, std::span<std::byte> memory, Dice& dice) {
  const std::size_t count = memory.size() / SizeOf(planned.dtype);
  const bool rough = values == Values::kRough && IsReal(planned.dtype);
  // 6 factors or 6 terms of the largest size stay within a float16.
  const int exponent_max = planned.reduction == Reduction::kProduct ? 1 : 6;
  for (std::size_t i = 0; i < count; ++i) {
    if (!rough) {
      PutElement(planned.dtype, memory, i, (static_cast<double>(dice.Below(65)) - 32) / 8);
      continue;
    }
    const double digits = 1 + static_cast<double>(dice.Below(std::uint64_t{1} << 52)) * 0x1p-52;
    const int exponent =
        static_cast<int>(dice.Below(2 * static_cast<unsigned>(exponent_max))) - exponent_max;
    PutElement(planned.dtype, memory, i, std::ldexp(dice.Chance(50) ? digits : -digits, exponent));
  }
}

}  // namespace headrace::sim

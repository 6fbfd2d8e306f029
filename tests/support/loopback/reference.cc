#include "tests/support/loopback/reference.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

namespace headrace::transport {
namespace {

template <class T>
T Read(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

template <class T>
T Combine(Reduction reduction, T accumulator, T next) {
  switch (reduction) {
    case Reduction::kMin:
    case Reduction::kMax:
      if constexpr (std::is_floating_point_v<T>) {
        if (std::isnan(accumulator)) return accumulator;
        if (std::isnan(next)) return next;
      }
      if (reduction == Reduction::kMin) return next < accumulator ? next : accumulator;
      return accumulator < next ? next : accumulator;
    case Reduction::kProduct:
      if constexpr (std::is_integral_v<T>) {
        return static_cast<T>(static_cast<std::uint64_t>(accumulator) *
                              static_cast<std::uint64_t>(next));
      } else {
        return accumulator * next;
      }
    case Reduction::kSum:
    case Reduction::kAverage:
      break;
  }
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(static_cast<std::uint64_t>(accumulator) +
                          static_cast<std::uint64_t>(next));
  } else {
    return accumulator + next;
  }
}

// How one element type is read, computed with, and written.
template <class T>
struct Plain {
  using Value = T;
  static Value Decode(const std::byte* from) { return Read<T>(from); }
  static T Encode(Value value) {
    if constexpr (std::is_floating_point_v<T>) {
      if (std::isnan(value)) return std::numeric_limits<T>::quiet_NaN();
    }
    return value;
  }
};

struct Float16 {
  using Value = float;
  static float Decode(const std::byte* from) {
    return static_cast<float>(DecodeFloat16(Read<std::uint16_t>(from)));
  }
  static std::uint16_t Encode(float value) { return EncodeFloat16(value); }
};

struct BFloat16 {
  using Value = float;
  static float Decode(const std::byte* from) {
    return static_cast<float>(DecodeBFloat16(Read<std::uint16_t>(from)));
  }
  static std::uint16_t Encode(float value) { return EncodeBFloat16(value); }
};

__extension__ using Int128 = __int128;

// The sum divided by n, without ever holding the sum: quotients and remainders are added apart. The
// quotient wraps to T only at the end: where n is less than the number of inputs it may not fit.
template <class T>
T IntegerAverage(std::span<const std::byte* const> inputs, std::size_t at, std::uint32_t divisor) {
  const auto n = static_cast<std::int64_t>(divisor);
  Int128 quotient = 0;
  std::int64_t remainder = 0;
  for (const std::byte* input : inputs) {
    const std::int64_t value = Read<T>(input + at);
    quotient += value / n;
    remainder += value % n;
  }
  quotient += remainder / n;
  remainder %= n;
  // Toward zero: a rest of the other sign takes one step back.
  if (quotient > 0 && remainder < 0) --quotient;
  if (quotient < 0 && remainder > 0) ++quotient;
  return static_cast<T>(quotient);
}

template <class Element>
auto ReduceOne(Reduction reduction, std::span<const std::byte* const> inputs, std::size_t at,
               std::uint32_t divisor) {
  using Value = typename Element::Value;
  if constexpr (std::is_integral_v<Value>) {
    if (reduction == Reduction::kAverage) return IntegerAverage<Value>(inputs, at, divisor);
  }
  Value accumulator = Element::Decode(inputs[0] + at);
  for (const std::byte* input : inputs.subspan(1)) {
    accumulator = Combine<Value>(reduction, accumulator, Element::Decode(input + at));
  }
  if constexpr (std::is_floating_point_v<Value>) {
    if (reduction == Reduction::kAverage) accumulator /= static_cast<Value>(divisor);
  }
  return Element::Encode(accumulator);
}

template <class Element>
void ReduceAll(Reduction reduction, std::span<const std::byte* const> inputs,
               std::span<std::byte* const> outputs, std::size_t offset, std::size_t count,
               std::uint32_t divisor) {
  for (std::size_t i = 0; i < count; ++i) {
    using Stored = decltype(ReduceOne<Element>(reduction, inputs, 0, divisor));
    const std::size_t at = offset + i * sizeof(Stored);
    const Stored result = ReduceOne<Element>(reduction, inputs, at, divisor);
    for (std::byte* output : outputs) std::memcpy(output + at, &result, sizeof(result));
  }
}

void CopyToOthers(const Transfer& transfer, std::uint32_t source, std::size_t at,
                  std::size_t size) {
  for (std::uint32_t member = 0; member < transfer.members_count; ++member) {
    if (member == source) continue;
    std::memcpy(transfer.members[member] + at, transfer.members[source] + at, size);
  }
}

// One element of the part of member `owner`, `at` bytes behind the members' pointers.
void ReducePart(const Transfer& transfer, std::uint32_t owner, std::size_t at) {
  const auto members = transfer.Members();
  std::byte* const elsewhere = transfer.outputs[owner];
  std::byte* const part = members[owner] + owner * (transfer.Bytes() / transfer.members_count);
  std::byte* const output =
      elsewhere != nullptr ? elsewhere + (members[owner] + at - part) : members[owner] + at;
  std::vector<const std::byte*> inputs;
  for (const std::byte* member : members) inputs.push_back(member + at);
  ReferenceReduce(transfer.dtype, transfer.reduction, inputs, {&output, 1}, 0, 1, transfer.divisor);
}

// Each run is a transfer of its own, whose memory begins where the run does.
void MoveRuns(const Transfer& transfer, std::uint64_t begin, std::uint64_t end) {
  std::uint64_t before = 0;  // elements of the runs before this one
  for (const Run& run : transfer.runs) {
    const std::uint64_t first = std::max(before, transfer.skip + begin);
    const std::uint64_t last = std::min(before + run.count, transfer.skip + end);
    if (first < last) {
      Transfer part = transfer;
      part.runs = {};
      for (std::byte*& member : part.members) {
        if (member != nullptr) member += run.offset;
      }
      if (part.output != nullptr) part.output += run.offset;
      ReferenceMove(part, first - before, last - before);
    }
    before += run.count;
  }
}

}  // namespace

void ReferenceReduce(DType dtype, Reduction reduction, std::span<const std::byte* const> inputs,
                     std::span<std::byte* const> outputs, std::size_t offset, std::size_t count,
                     std::uint32_t divisor) {
  if (divisor == 0) divisor = static_cast<std::uint32_t>(inputs.size());
  const bool divides = reduction == Reduction::kAverage && divisor != 1;
  if (inputs.size() == 1 && !divides) {  // nothing to compute with: a copy, bits and all
    const std::size_t size = count * SizeOf(dtype);
    for (std::byte* output : outputs) std::memmove(output + offset, inputs[0] + offset, size);
    return;
  }
  switch (dtype) {
    case DType::kFloat32:
      return ReduceAll<Plain<float>>(reduction, inputs, outputs, offset, count, divisor);
    case DType::kFloat64:
      return ReduceAll<Plain<double>>(reduction, inputs, outputs, offset, count, divisor);
    case DType::kFloat16:
      return ReduceAll<Float16>(reduction, inputs, outputs, offset, count, divisor);
    case DType::kBFloat16:
      return ReduceAll<BFloat16>(reduction, inputs, outputs, offset, count, divisor);
    case DType::kInt32:
      return ReduceAll<Plain<std::int32_t>>(reduction, inputs, outputs, offset, count, divisor);
    case DType::kInt64:
      return ReduceAll<Plain<std::int64_t>>(reduction, inputs, outputs, offset, count, divisor);
    case DType::kUInt8:
      return ReduceAll<Plain<std::uint8_t>>(reduction, inputs, outputs, offset, count, divisor);
  }
}

void ReferenceMove(const Transfer& transfer, std::uint64_t begin, std::uint64_t end) {
  if (!transfer.runs.empty()) return MoveRuns(transfer, begin, end);
  const auto members = transfer.Members();
  const std::size_t size = SizeOf(transfer.dtype);
  if (transfer.kind == Collective::kAllReduce) {
    ReferenceReduce(transfer.dtype, transfer.reduction, members, members, begin * size, end - begin,
                    transfer.divisor);
    return;
  }
  if (transfer.kind == Collective::kReduce) {
    ReferenceReduce(transfer.dtype, transfer.reduction, members, {&transfer.output, 1},
                    begin * size, end - begin, transfer.divisor);
    return;
  }
  for (std::uint64_t i = begin; i < end; ++i) {
    const std::size_t at = i * size;
    if (transfer.kind == Collective::kBroadcast) {
      CopyToOthers(transfer, transfer.root, at, size);
      continue;
    }
    // The member whose part of the elements this one is in.
    const auto owner = static_cast<std::uint32_t>(i / (transfer.count / transfer.members_count));
    if (transfer.kind == Collective::kReduceScatter) {
      ReducePart(transfer, owner, at);
      continue;
    }
    CopyToOthers(transfer, owner, at, size);
  }
}

}  // namespace headrace::transport

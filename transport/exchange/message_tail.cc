#include "transport/exchange/message_tail.h"

#include <cstring>

#include "ipc/base/check.h"
#include "transport/exchange/collective_spec.h"

namespace headrace::transport {
namespace {

template <typename Number>
void Put(Number number, std::byte*& out) {
  std::memcpy(out, &number, sizeof number);
  out += sizeof number;
}

template <typename Number>
Number NumberAt(std::span<const std::byte> bytes, std::size_t offset) {
  Number number = 0;
  std::memcpy(&number, bytes.data() + offset, sizeof number);
  return number;
}

// Whether it is of whole float32, in memory that no transfer is larger than.
bool IsRun(const Run& run) {
  return run.count > 0 && run.offset % sizeof(float) == 0 && run.offset <= kTransferBytesMax &&
         run.count <= (kTransferBytesMax - run.offset) / sizeof(float);
}

}  // namespace

std::size_t WriteTail(std::uint64_t seed, const RunWalk& walk, const Partition::Range& range,
                      bool keeps, std::byte* out) {
  std::byte* next = out;
  std::uint32_t runs_count = 0;
  if (keeps) {
    ForEachStretch(walk, range.begin, range.begin + range.count,
                   [&](std::uint64_t /*element*/, std::uint64_t offset, std::uint64_t count) {
                     HR_CHECK(runs_count < kServedRunsMax, range.begin, range.count);
                     Put(offset, next);
                     Put(count, next);
                     ++runs_count;
                   });
  }
  Put(seed, next);
  Put(runs_count, next);
  Put(std::uint32_t{0}, next);
  return static_cast<std::size_t>(next - out);
}

std::optional<MessageTail> ReadTail(std::span<const std::byte> message, std::uint64_t count) {
  if (message.size() < kTailSizeMin) return std::nullopt;
  const std::size_t foot = message.size() - kTailSizeMin;
  MessageTail tail{.seed = NumberAt<std::uint64_t>(message, foot),
                   .runs_count = NumberAt<std::uint32_t>(message, foot + 8)};
  if (NumberAt<std::uint32_t>(message, foot + 12) != 0) return std::nullopt;
  if (tail.runs_count > kServedRunsMax || tail.Size() > message.size()) return std::nullopt;
  std::size_t offset = message.size() - tail.Size();
  std::uint64_t left = count;
  for (std::uint32_t i = 0; i < tail.runs_count; ++i, offset += kTailRunSize) {
    const Run run{.offset = NumberAt<std::uint64_t>(message, offset),
                  .count = NumberAt<std::uint64_t>(message, offset + 8)};
    if (!IsRun(run) || run.count > left) return std::nullopt;
    left -= run.count;
    tail.runs[i] = run;
  }
  if (tail.runs_count > 0 && left > 0) return std::nullopt;
  return tail;
}

}  // namespace headrace::transport

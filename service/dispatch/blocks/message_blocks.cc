#include "service/dispatch/blocks/message_blocks.h"

#include <fmt/format.h>

#include <algorithm>

#include "ipc/base/check.h"

namespace headrace::service {
namespace {

// A message between two ranks of this node has at most so many blocks.
constexpr std::uint32_t kBlocksPerMessage = 16;
static_assert(std::uint64_t{transport::kMembersMax} * transport::kMembersMax * kBlocksPerMessage <=
              kBlocksPerOperationMax);

struct Message {
  std::uint32_t source = 0;
  std::uint32_t target = 0;
};

std::uint32_t MessagesCount(const Job& job) { return job.world_size() * (job.world_size() - 1); }

Message MessageAt(const Job& job, std::uint32_t number) {
  const std::uint32_t world_size = job.world_size();
  const std::uint32_t source = number % world_size;
  return {.source = source, .target = (source + number / world_size + 1) % world_size};
}

bool IsOf(const OperationSpec& spec, const Message& message) {
  if (spec.kind == kGather) return message.target == spec.root;
  return spec.kind != kScatter || message.source == spec.root;
}

// Elements of it, as this node's ranks have it.
std::uint64_t CountOf(const Job& job, const OperationSpec& spec, const Message& message) {
  const bool sent_here = job.IsHere(message.source);
  const auto rows =
      job.part_tables().Find(spec.sequence, sent_here ? message.source : message.target);
  HR_CHECK(!rows.empty(), spec.sequence, message.source, message.target);
  return sent_here ? rows[message.target].sent_count : rows[message.source].received_count;
}

std::string DescribeParts(const Job& job, std::uint32_t source, std::uint32_t target,
                          std::uint64_t sent, std::uint64_t expected, const Operation& operation) {
  return fmt::format("{} has {} elements for {}, which expects {}, in {}", job.DescribeRank(source),
                     sent, job.DescribeRank(target), expected, job.DescribeOperation(operation));
}

}  // namespace

std::optional<MessageBlock> NextMessageBlock(const Job& job, const OperationSpec& spec,
                                             std::uint64_t block_bytes, std::uint32_t index) {
  for (std::uint32_t number = index / kBlocksPerMessage; number < MessagesCount(job); ++number) {
    const Message message = MessageAt(job, number);
    const std::uint32_t first = number * kBlocksPerMessage;
    const std::uint32_t nth = std::max(index, first) - first;
    const bool crosses = !job.IsHere(message.source) || !job.IsHere(message.target);
    const bool is_ours = job.IsHere(message.source) || job.IsHere(message.target);
    if (!is_ours || !IsOf(spec, message)) continue;
    const std::uint64_t count = CountOf(job, spec, message);
    const std::uint64_t least = (count + kBlocksPerMessage - 1) / kBlocksPerMessage;
    const bool whole = crosses || block_bytes == 0;
    const std::uint64_t width = whole ? count : std::max(least, block_bytes / SizeOf(spec.dtype));
    const std::uint64_t begin = nth * width;
    if (nth > 0 ? begin >= count || width == 0 : count == 0 && !crosses) continue;
    return MessageBlock{.index = first + nth,
                        .source = message.source,
                        .target = message.target,
                        .range = {.begin = begin, .count = std::min(width, count - begin)}};
  }
  return std::nullopt;
}

std::uint64_t MessageBlocksCount(const Job& job, const OperationSpec& spec,
                                 std::uint64_t block_bytes) {
  std::uint64_t count = 0;
  for (auto block = NextMessageBlock(job, spec, block_bytes, 0); block;
       block = NextMessageBlock(job, spec, block_bytes, block->index + 1)) {
    ++count;
  }
  return count;
}

std::span<const ipc::PartRow> PartsOf(const Job& job, const OperationSpec& spec) {
  return job.part_tables().Find(spec.sequence, job.local().front());
}

std::uint64_t LargestMessage(const Job& job, const OperationSpec& spec) {
  std::uint64_t largest = 0;
  for (auto block = NextMessageBlock(job, spec, 0, 0); block;
       block = NextMessageBlock(job, spec, 0, block->index + 1)) {
    largest = std::max(largest, block->range.count);
  }
  return largest * SizeOf(spec.dtype);
}

std::optional<Failure> FindPartsMismatch(const Job& job, const Operation& operation,
                                         std::uint32_t rank) {
  const std::uint64_t sequence = operation.spec.sequence;
  const auto own = job.part_tables().Find(sequence, rank);
  for (std::uint32_t other = 0; other < job.world_size(); ++other) {
    const auto rows = job.part_tables().Find(sequence, other);
    if (other == rank || rows.empty()) continue;
    if (operation.spec.uneven) {
      // Where a result goes is each rank's own affair.
      const auto differs =
          std::ranges::mismatch(own, rows, {}, &ipc::PartRow::sent_count, &ipc::PartRow::sent_count)
              .in1;
      if (differs == own.end()) return std::nullopt;
      const auto part = static_cast<std::size_t>(differs - own.begin());
      return Failure{
          Code::kMismatch,
          fmt::format("part {} has {} elements for {}, and {} for {}, in {}", part,
                      own[part].sent_count, job.DescribeRank(rank), rows[part].sent_count,
                      job.DescribeRank(other), job.DescribeOperation(operation))};
    }
    if (own[other].sent_count != rows[rank].received_count) {
      return Failure{Code::kMismatch, DescribeParts(job, rank, other, own[other].sent_count,
                                                    rows[rank].received_count, operation)};
    }
    if (rows[rank].sent_count != own[other].received_count) {
      return Failure{Code::kMismatch, DescribeParts(job, other, rank, rows[rank].sent_count,
                                                    own[other].received_count, operation)};
    }
  }
  return std::nullopt;
}

}  // namespace headrace::service

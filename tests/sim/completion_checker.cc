#include "tests/sim/completion_checker.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "tests/support/loopback/reference.h"
#include "transport/shm/move.h"

namespace headrace::sim {
namespace {

// An error that helps nobody: a bare code, or nothing about who or what.
bool NamesACause(const ipc::Outcome& outcome) {
  if (outcome.text == CodeName(outcome.code)) return false;
  for (const char* word : {"rank ", "ranks ", "lane ", "node ", "uid ", "the service"}) {
    if (outcome.text.find(word) != std::string::npos) return true;
  }
  return false;
}

// The last byte first, as numbers are written.
std::string Hex(const std::byte* bytes, std::ptrdiff_t size) {
  std::string text;
  for (std::ptrdiff_t i = size; i > 0; --i) {
    text += fmt::format("{:02x}", static_cast<unsigned>(bytes[i - 1]));
  }
  return text;
}

bool IsGradient(std::uint64_t number) { return number >> 63 != 0; }

std::string Describe(std::uint64_t number) {
  if (!IsGradient(number)) return fmt::format("operation {}", number);
  return fmt::format("iteration {} gradient {}", IterationOf(number), TensorOf(number));
}

}  // namespace

void CompletionChecker::Post(JobId job, std::uint64_t sequence, std::uint32_t rank,
                             const Planned& planned, bool honest, std::vector<std::byte> input) {
  Operation& operation = operations_[{job, sequence}];
  operation.planned = planned;
  if (!honest) operation.dishonest |= std::uint64_t{1} << rank;
  operation.posted |= std::uint64_t{1} << rank;
  operation.inputs.resize(world_sizes_.at(job));
  operation.inputs[rank] = std::move(input);
}

std::optional<std::string> CompletionChecker::End(JobId job, std::uint64_t sequence,
                                                  std::uint32_t rank, const ipc::Outcome& outcome,
                                                  const std::vector<std::byte>& result) {
  Operation& operation = operations_[{job, sequence}];
  const std::string what = fmt::format(
      "job {} {} ({} of {} {}) rank {}", job.value, Describe(sequence),
      Name(operation.planned.kind), operation.planned.count, Name(operation.planned.dtype), rank);
  const bool ok = outcome.code == Code::kOk;
  ++(ok ? ended_ok_ : ended_failed_);
  ++ended_[job];
  const bool agrees = !IsBlamed(job) || drained_.contains(job);
  if (operation.ok.has_value() && *operation.ok != ok && agrees) {
    return fmt::format("{}: ended {} here and not so elsewhere: {}", what,
                       ok ? "well" : "with an error", outcome.text);
  }
  if (ok && !operation.ok && IsGradient(sequence)) ++iterations_ok_;
  operation.ok = ok;
  if (!ok) {
    first_errors_.try_emplace(job, outcome.text);
    if (auto wrong = CheckCause(job, outcome)) return what + ": " + *wrong;
    return std::nullopt;
  }
  if (auto wrong = CheckPosted(job, operation, rank)) return what + ": " + *wrong;
  if (operation.planned.count == 0) return std::nullopt;
  if (operation.planned.encoded && of_nodes_.contains(job)) {
    if (auto wrong = CheckEncoded(job, sequence, operation, result)) return what + ": " + *wrong;
    return std::nullopt;
  }
  // What moves in messages may end here before others have posted it.
  const bool anew = MovesInMessages(operation.planned.kind);
  if (operation.expected.empty() || anew) Expect(job, operation, IsGradient(sequence));
  std::vector<std::byte> expected = operation.expected[rank];
  if (!operation.sums.empty()) {
    if (auto wrong = CheckSums(job, operation, rank, result)) return what + ": " + *wrong;
    // The rest of the memory is as before.
    const auto [begin, end] = SummedBytes(operation.planned, world_sizes_.at(job), rank);
    std::copy(result.begin() + begin, result.begin() + end, expected.begin() + begin);
  }
  if (result != expected) return what + ": other bytes than the reference";
  return std::nullopt;
}

std::uint64_t CompletionChecker::EndedOf(JobId job) const {
  const auto found = ended_.find(job);
  return found == ended_.end() ? 0 : found->second;
}

// The same on every rank, and near the sum.
std::optional<std::string> CompletionChecker::CheckEncoded(JobId job, std::uint64_t sequence,
                                                           Operation& operation,
                                                           const std::vector<std::byte>& result) {
  if (operation.chosen == result) return std::nullopt;
  if (!operation.chosen.empty()) return "other bits of an encoded sum than on another rank";
  operation.chosen = result;
  Planned planned = operation.planned;
  const NodeSums& nodes = of_nodes_.at(job);
  if (nodes.ranks.size() == 1) planned.error_bound = 0;  // nothing is encoded
  return encoded_[{job, TensorOf(sequence)}].Check(IterationOf(sequence), planned, operation.inputs,
                                                   result);
}

// Each element is that of one of the orders that are possible, and of the same one on every rank.
std::optional<std::string> CompletionChecker::CheckSums(
    JobId job, Operation& operation, std::uint32_t rank,
    const std::vector<std::byte>& result) const {
  const auto [begin, end] = SummedBytes(operation.planned, world_sizes_.at(job), rank);
  const auto size = static_cast<std::ptrdiff_t>(SizeOf(operation.planned.dtype));
  for (std::ptrdiff_t at = begin; at < end; at += size) {
    const auto element = result.begin() + at;
    const auto is_it = [&](const std::vector<std::byte>& sum) {
      return std::equal(element, element + size, sum.begin() + at);
    };
    if (std::ranges::none_of(operation.sums, is_it)) {
      std::string sums;
      for (const auto& sum : operation.sums) sums += ' ' + Hex(sum.data() + at, size);
      return fmt::format("element {} is {}, which is no {} of {} in an order that it could have:{}",
                         at / size, Hex(&*element, size), Name(operation.planned.reduction),
                         Name(operation.planned.dtype), sums);
    }
  }
  if (operation.planned.kind != Collective::kAllReduce) return std::nullopt;
  if (operation.chosen.empty()) operation.chosen = result;
  if (operation.chosen != result) return "other bits of a sum than on another rank";
  return std::nullopt;
}

std::optional<std::string> CompletionChecker::CheckCause(JobId job,
                                                         const ipc::Outcome& outcome) const {
  if (!NamesACause(outcome)) return "error without a cause: " + outcome.text;
  const auto blamed = blamed_.find(job);
  if (blamed == blamed_.end()) return std::nullopt;
  for (const std::string& name : blamed->second) {
    if (outcome.text.find(name) != std::string::npos) return std::nullopt;
  }
  return fmt::format("error that does not name {}: {}", fmt::join(blamed->second, " or "),
                     outcome.text);
}

std::string CompletionChecker::FirstError(JobId job) const {
  const auto found = first_errors_.find(job);
  return found == first_errors_.end() ? std::string() : found->second;
}

std::optional<std::string> CompletionChecker::CheckPosted(JobId job, const Operation& operation,
                                                          std::uint32_t rank) const {
  const std::uint32_t world_size = world_sizes_.at(job);
  std::uint64_t needed =
      world_size == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << world_size) - 1;
  std::uint64_t honest = needed;
  const Planned& planned = operation.planned;
  const bool broadcast = planned.kind == Collective::kBroadcast;
  const bool empty = planned.count == 0 && planned.kind != Collective::kBarrier;
  const bool in_messages = MovesInMessages(planned.kind);
  if (of_nodes_.contains(job) && in_messages) {
    // Nodes end it when all that concerns them is there.
    honest = std::uint64_t{1} << rank;
    if (planned.kind != kAllToAll) needed = honest | std::uint64_t{1} << planned.root;
  } else if (of_nodes_.contains(job) && (broadcast || empty)) {
    honest = std::uint64_t{1} << rank;
    needed = honest | (broadcast && !empty ? std::uint64_t{1} << planned.root : 0);
  }
  if ((operation.posted & needed) != needed) return "ended well before every rank had posted it";
  if ((operation.dishonest & honest) != 0) return "ended well although the ranks disagreed";
  return std::nullopt;
}

// Among the ranks that have posted it.
void CompletionChecker::ExpectMessages(Operation& operation, std::uint32_t world_size) {
  const std::size_t size = SizeOf(operation.planned.dtype);
  for (std::uint32_t target = 0; target < world_size; ++target) {
    const auto rows = PartsOf(operation.planned, world_size, target);
    for (std::uint32_t source = 0; source < world_size; ++source) {
      const std::vector<std::byte>& input = operation.inputs[source];
      const auto sent = PartsOf(operation.planned, world_size, source)[target];
      if (sent.sent_count == 0 || input.empty()) continue;
      std::memcpy(operation.expected[target].data() + rows[source].received_offset * size,
                  input.data() + sent.sent_offset * size, sent.sent_count * size);
    }
  }
}

void CompletionChecker::Expect(JobId job, Operation& operation, bool of_plan) const {
  const std::uint32_t world_size = world_sizes_.at(job);
  const auto nodes = of_nodes_.find(job);
  if (nodes != of_nodes_.end() && Reduces(operation.planned.kind)) {
    NodeSums by = nodes->second;
    operation.sums = SumsOf(operation.planned, by, operation.inputs);
    // A plan may take all-reduces apart, whose halves go to owners and back by any algorithm.
    if (of_plan && !by.served && by.algorithm != transport::Algorithm::kAuto) {
      by.algorithm = transport::Algorithm::kDirectScatter;
      for (auto& sum : SumsOf(operation.planned, by, operation.inputs)) {
        operation.sums.push_back(std::move(sum));
      }
    }
  }
  operation.expected = operation.inputs;
  // Who has not posted a broadcast yet receives it all the same.
  for (std::vector<std::byte>& bytes : operation.expected) bytes.resize(operation.planned.Bytes());
  const Planned& planned = operation.planned;
  if (MovesInMessages(planned.kind)) return ExpectMessages(operation, world_size);
  transport::Transfer transfer{.kind = planned.kind,
                               .dtype = planned.dtype,
                               .reduction = planned.reduction,
                               .root = planned.root,
                               .count = planned.count,
                               .divisor = planned.contributors,
                               .members_count = world_size};
  for (std::uint32_t rank = 0; rank < world_size; ++rank) {
    transfer.members[rank] = operation.expected[rank].data();
  }
  if (planned.kind == Collective::kReduce) transfer.output = transfer.members[planned.root];
  if (planned.uneven) return ExpectParts(planned, transfer);
  Move(transfer);
}

// Each part is gathered or reduced alone.
void CompletionChecker::ExpectParts(const Planned& planned,
                                    const transport::Transfer& whole) const {
  const auto parts = PartsOf(planned, whole.members_count, 0);
  for (std::uint32_t root = 0; root < whole.members_count; ++root) {
    transport::Transfer part = whole;
    part.kind = Reduces(planned.kind) ? Collective::kReduce : Collective::kBroadcast;
    part.root = root;
    part.count = parts[root].sent_count;
    for (std::uint32_t rank = 0; rank < whole.members_count; ++rank) {
      part.members[rank] += parts[root].sent_offset * SizeOf(planned.dtype);
    }
    part.output = part.members[root];
    Move(part);
  }
}

void CompletionChecker::Move(const transport::Transfer& transfer) const {
  if (arithmetic_ == Arithmetic::kReference) {
    transport::ReferenceMove(transfer, 0, transfer.count);
  } else {
    transport::MoveRange(transfer, 0, transfer.count);
  }
}

}  // namespace headrace::sim

#include "tests/sim/ledger.h"

#include <fmt/format.h>

#include "transport/loopback/reference.h"
#include "transport/shm/move.h"

namespace headrace::sim {
namespace {

// An error that helps nobody: a bare code, or nothing about who or what.
bool NamesACause(const ipc::Outcome& outcome) {
  if (outcome.text == CodeName(outcome.code)) return false;
  for (const char* word : {"rank ", "lane ", "the service"}) {
    if (outcome.text.find(word) != std::string::npos) return true;
  }
  return false;
}

}  // namespace

void Ledger::Post(JobId job, std::uint64_t sequence, std::uint32_t rank, const Planned& planned,
                  bool honest, std::vector<std::byte> input) {
  Operation& operation = operations_[{job, sequence}];
  operation.planned = planned;
  operation.honest &= honest;
  operation.posted |= std::uint64_t{1} << rank;
  operation.inputs.resize(world_sizes_.at(job));
  operation.inputs[rank] = std::move(input);
}

std::optional<std::string> Ledger::End(JobId job, std::uint64_t sequence, std::uint32_t rank,
                                       const ipc::Outcome& outcome,
                                       const std::vector<std::byte>& result) {
  Operation& operation = operations_[{job, sequence}];
  const std::string what = fmt::format("job {} operation {} rank {}", job.value, sequence, rank);
  const bool ok = outcome.code == Code::kOk;
  ++(ok ? ended_ok_ : ended_failed_);
  if (operation.ok.has_value() && *operation.ok != ok) {
    return fmt::format("{}: ended {} here and not so elsewhere: {}", what,
                       ok ? "well" : "with an error", outcome.text);
  }
  operation.ok = ok;
  if (!ok) {
    if (!NamesACause(outcome))
      return fmt::format("{}: error without a cause: {}", what, outcome.text);
    return std::nullopt;
  }
  const std::uint32_t world_size = world_sizes_.at(job);
  const std::uint64_t all =
      world_size == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << world_size) - 1;
  if (operation.posted != all) return what + ": ended well before every rank had posted it";
  if (!operation.honest) return what + ": ended well although the ranks disagreed";
  if (operation.planned.count == 0) return std::nullopt;
  if (operation.expected.empty()) Expect(operation, world_size);
  if (result != operation.expected[rank]) return what + ": other bytes than the reference";
  return std::nullopt;
}

void Ledger::Expect(Operation& operation, std::uint32_t world_size) const {
  operation.expected = operation.inputs;
  const Planned& planned = operation.planned;
  transport::Transfer transfer{.kind = planned.kind,
                               .dtype = planned.dtype,
                               .reduction = planned.reduction,
                               .root = planned.root,
                               .count = planned.count,
                               .members_count = world_size};
  for (std::uint32_t rank = 0; rank < world_size; ++rank) {
    transfer.members[rank] = operation.expected[rank].data();
  }
  if (arithmetic_ == Arithmetic::kReference) {
    transport::ReferenceMove(transfer, 0, planned.count);
  } else {
    transport::MoveRange(transfer, 0, planned.count);
  }
}

}  // namespace headrace::sim

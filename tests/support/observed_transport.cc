#include "tests/support/observed_transport.h"

#include <algorithm>

#include "transport/runs.h"

namespace headrace::support {

transport::PostResult ObservedTransport::Post(const transport::Transfer& transfer, TimeNs now) {
  const transport::PostResult result = inner_->Post(transfer, now);
  if (result == transport::PostResult::kAccepted) {
    open_.push_back(transfer);
    accepted.push_back(transfer.token);
    positions.push_back(transfer.position);
    copying.push_back(!transfer.digest && !Reduces(transfer.kind) &&
                      transfer.kind != Collective::kBarrier);
  }
  return result;
}

void ObservedTransport::Cancel(std::uint64_t token) {
  cancelled.push_back(token);
  inner_->Cancel(token);
}

bool ObservedTransport::DoWork(TimeNs now, std::vector<transport::Completion>& completions) {
  const std::size_t before = completions.size();
  const bool more = inner_->DoWork(now, completions);
  for (std::size_t i = before; i < completions.size(); ++i) {
    std::erase_if(open_, [&](const transport::Transfer& transfer) {
      return transfer.token == completions[i].token;
    });
  }
  return more;
}

bool ObservedTransport::Uses(std::span<const std::byte> memory) const {
  return std::ranges::any_of(open_, [memory](const transport::Transfer& transfer) {
    const auto holds = [memory](const std::byte* begin, std::size_t size) {
      return begin != nullptr && begin < memory.data() + memory.size() &&
             memory.data() < begin + size;
    };
    const std::size_t part = transfer.Bytes() / std::max(transfer.members_count, 1U);
    const auto is_output = [&](const std::byte* output) { return holds(output, part); };
    if (std::ranges::any_of(transfer.outputs, is_output)) return true;
    const bool elsewhere =
        transfer.kind == Collective::kReduce && transfer.output != transfer.members[transfer.root];
    if (elsewhere && holds(transfer.output, transfer.Bytes())) return true;
    return std::ranges::any_of(transfer.Members(), [&](const std::byte* member) {
      for (transport::RunWalk walk(transfer); !walk.over(); walk.Next()) {
        const std::byte* const begin = member + walk.stretch().offset;
        const std::byte* const end = member + walk.OffsetOf(walk.stretch().end);
        if (begin < memory.data() + memory.size() && memory.data() < end) return true;
      }
      return false;
    });
  });
}

}  // namespace headrace::support

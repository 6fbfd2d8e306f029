#include "client/lib/failures.h"

#include <fmt/format.h>

#include <utility>

namespace headrace::client {

void UnclaimedFailures::Keep(std::uint64_t sequence, ipc::Outcome outcome) {
  outcomes_.insert_or_assign(sequence, std::move(outcome));
  if (outcomes_.size() <= kFailuresMax) return;
  forgotten_ = outcomes_.begin()->first;
  outcomes_.erase(outcomes_.begin());
}

ipc::Outcome UnclaimedFailures::Find(std::uint64_t sequence) const {
  const auto found = outcomes_.find(sequence);
  if (found != outcomes_.end()) return found->second;
  if (sequence > forgotten_) return {};
  return {Code::kExhausted,
          fmt::format("how operation {} ended is no longer known: {} operations failed after it "
                      "and were not waited for",
                      sequence, kFailuresMax)};
}

}  // namespace headrace::client

// Errors of failed operations, kept after their slots in the channel are reused.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>

#include "ipc/completion.h"

namespace headrace::client {

// Not thread-safe; Operations holds its lock. Allocates on failures only.
class UnclaimedFailures {
 public:
  static constexpr std::size_t kFailuresMax = 1024;

  // Keeps how `sequence` failed. When full, the oldest goes.
  void Keep(std::uint64_t sequence, ipc::Outcome outcome);

  // How an operation whose slot is used again ended. An operation that may have failed but is
  // older than all that is kept gets kExhausted, with a text that says so: never a false success.
  ipc::Outcome Find(std::uint64_t sequence) const;

  std::size_t count() const { return outcomes_.size(); }

 private:
  std::map<std::uint64_t, ipc::Outcome> outcomes_;
  std::uint64_t forgotten_ = 0;  // the newest failure that had to go
};

}  // namespace headrace::client

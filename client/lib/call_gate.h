// Counts the threads in a session's calls, and keeps calls out during a reconnect, which changes
// what all of them use.
#pragma once

#include <atomic>
#include <cstdint>

namespace headrace::client {

// Thread-safe; Close and Open by one thread at a time.
class CallGate {
 public:
  // False while it is closed; else Leave must follow.
  bool Enter();
  // Waits while it is closed; Leave must follow.
  void EnterWhenOpen();
  void Leave();

  // Nobody comes in from here on; returns when all who were inside have left.
  void Close();
  void Open();

 private:
  static constexpr std::uint32_t kClosed = std::uint32_t{1} << 31;
  // How many are inside, and kClosed. Who finds it closed counts for a moment, too. All orders are
  // seq_cst: what Close's caller changed is seen by whoever comes in afterwards.
  std::atomic<std::uint32_t> state_ = 0;
};

// Inside, if the gate was open, until the end of the scope.
class CallScope {
 public:
  explicit CallScope(CallGate& gate) : gate_(gate), entered_(gate.Enter()) {}
  ~CallScope() {
    if (entered_) gate_.Leave();
  }
  CallScope(const CallScope&) = delete;
  CallScope& operator=(const CallScope&) = delete;
  explicit operator bool() const { return entered_; }

 private:
  CallGate& gate_;
  const bool entered_;
};

}  // namespace headrace::client

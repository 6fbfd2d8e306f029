// Who is inside a session's calls, and whether anybody may come in: a reconnect changes what all of
// them use.
#pragma once

#include <atomic>
#include <cstdint>

namespace headrace::client {

// Thread-safe; Close and Open by one thread at a time.
class Door {
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

// Inside, if the door was open, until the end of the scope.
class Inside {
 public:
  explicit Inside(Door& door) : door_(door), entered_(door.Enter()) {}
  ~Inside() {
    if (entered_) door_.Leave();
  }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;
  explicit operator bool() const { return entered_; }

 private:
  Door& door_;
  const bool entered_;
};

}  // namespace headrace::client

// The terminal in full-screen mode, through ncurses: the only file that knows it. While it lives,
// SIGINT, SIGTERM and SIGHUP are keys, so that every way out restores the terminal.
#pragma once

#include <memory>

#include "client/cli/ctl/top/screen.h"
#include "ipc/base/clock.h"
#include "ipc/base/fd.h"
#include "ipc/base/result.h"

namespace headrace::ctl {

class Terminal {
 public:
  // Errors: no terminal at both ends, or one of an unknown kind (TERM).
  static Result<std::unique_ptr<Terminal>> Open();
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;
  ~Terminal();

  int width() const;
  int height() const;

  void Show(const Screen& screen);

  // The next key (keys.h), or one of these.
  static constexpr int kNone = -1;  // the time is over
  static constexpr int kGone = -2;  // nobody is at the other end
  int WaitForKey(TimeNs timeout_ns);
  // The signal that made WaitForKey return kGone; 0: none.
  int signal() const { return signal_; }

 private:
  struct Curses;
  Terminal(UniqueFd signals, std::unique_ptr<Curses> curses);
  int ReadKey();

  UniqueFd signals_;
  std::unique_ptr<Curses> curses_;
  int signal_ = 0;
};

}  // namespace headrace::ctl

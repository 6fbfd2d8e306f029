#include "client/cli/ctl/top/terminal.h"

#define NCURSES_NOMACROS 1
#include <ncurses.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>

#include "client/cli/ctl/top/keys.h"

namespace headrace::ctl {
namespace {

constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP};
// How long a lone Escape may take to be the begin of a key's code; over ssh too.
constexpr int kEscapeMs = 50;

enum Pair : short { kGreen = 1, kYellow, kRed };

void StartColours() {
  if (!::has_colors()) return;
  ::start_color();
  ::use_default_colors();
  ::init_pair(kGreen, COLOR_GREEN, -1);
  ::init_pair(kYellow, COLOR_YELLOW, -1);
  ::init_pair(kRed, COLOR_RED, -1);
}

// What has no colour gets by with brightness and reverse, as on a vt100.
attr_t AttributesOf(Style style) {
  const bool colours = ::has_colors();
  const auto pair = [colours](Pair number) {
    return colours ? static_cast<attr_t>(COLOR_PAIR(number)) : attr_t{A_NORMAL};
  };
  switch (style) {
    case Style::kPlain:
      return A_NORMAL;
    case Style::kTitle:
      return A_REVERSE | A_BOLD;
    case Style::kHead:
      return A_BOLD | A_UNDERLINE;
    case Style::kFaint:
      return A_DIM;
    case Style::kGood:
      return pair(kGreen);
    case Style::kWarning:
      return pair(kYellow) | A_BOLD;
    case Style::kBad:
      return pair(kRed) | A_BOLD | A_REVERSE;
    case Style::kSelected:
      return A_REVERSE;
  }
  return A_NORMAL;
}

}  // namespace

// ncurses' screen, ended whatever happens.
struct Terminal::Curses {
  explicit Curses(SCREEN* opened) : screen(opened) {}
  Curses(const Curses&) = delete;
  Curses& operator=(const Curses&) = delete;
  ~Curses() {
    ::endwin();
    ::delscreen(screen);
  }
  SCREEN* screen;
};

Result<std::unique_ptr<Terminal>> Terminal::Open() {
  if (::isatty(STDIN_FILENO) != 1 || ::isatty(STDOUT_FILENO) != 1) {
    return Error(Code::kUnavailable,
                 "top needs a terminal; headracectl status --watch 1 and headracectl queue do not");
  }
  sigset_t signals;
  sigemptyset(&signals);
  for (const int number : kSignals) sigaddset(&signals, number);
  // Blocked before ncurses looks at them: what is pending is read from the descriptor.
  ::sigprocmask(SIG_BLOCK, &signals, nullptr);
  UniqueFd fd(::signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd) return SystemError("signalfd", errno);
  SCREEN* screen = ::newterm(nullptr, stdout, stdin);
  if (screen == nullptr) {
    return Error(Code::kUnavailable,
                 "this kind of terminal is unknown here: set TERM, for example to vt100");
  }
  return std::unique_ptr<Terminal>(new Terminal(std::move(fd), std::make_unique<Curses>(screen)));
}

Terminal::Terminal(UniqueFd signals, std::unique_ptr<Curses> curses)
    : signals_(std::move(signals)), curses_(std::move(curses)) {
  ::cbreak();
  ::noecho();
  ::curs_set(0);
  ::keypad(stdscr, TRUE);
  ::nodelay(stdscr, TRUE);
  ::set_escdelay(kEscapeMs);
  StartColours();
}

Terminal::~Terminal() = default;

int Terminal::width() const { return ::getmaxx(stdscr); }
int Terminal::height() const { return ::getmaxy(stdscr); }

void Terminal::Show(const Screen& screen) {
  ::werase(stdscr);
  const int lines = std::min(static_cast<int>(screen.lines.size()), height());
  for (int y = 0; y < lines; ++y) {
    ::wmove(stdscr, y, 0);
    for (const StyledText& span : screen.lines[static_cast<std::size_t>(y)].spans) {
      ::wattrset(stdscr, static_cast<int>(AttributesOf(span.style)));
      ::waddnstr(stdscr, span.text.data(), static_cast<int>(span.text.size()));
    }
  }
  ::wattrset(stdscr, A_NORMAL);
  ::wrefresh(stdscr);
}

int Terminal::ReadKey() {
  switch (const int key = ::wgetch(stdscr)) {
    case ERR:
      return kNone;
    case KEY_UP:
      return kKeyUp;
    case KEY_DOWN:
      return kKeyDown;
    case KEY_RESIZE:
      return kKeyResize;
    case KEY_BACKSPACE:
    case 127:
    case 8:
      return kKeyBackspace;
    case KEY_ENTER:
    case '\r':
      return kKeyEnter;
    default:
      return key;
  }
}

int Terminal::WaitForKey(TimeNs timeout_ns) {
  if (const int key = ReadKey(); key != kNone) return key;
  pollfd ends[] = {{STDIN_FILENO, POLLIN, 0}, {signals_.get(), POLLIN, 0}};
  const auto timeout_ms = static_cast<int>(timeout_ns / kMillisecond);
  // SIGWINCH ends the wait early; ncurses then gives KEY_RESIZE.
  const int ready = ::poll(ends, 2, std::max(timeout_ms, 0));
  signalfd_siginfo caught{};
  if (ready > 0 && (ends[1].revents & POLLIN) != 0 &&
      ::read(signals_.get(), &caught, sizeof caught) == sizeof caught) {
    signal_ = static_cast<int>(caught.ssi_signo);
    return kGone;
  }
  if (ready > 0 && (ends[0].revents & (POLLHUP | POLLERR | POLLNVAL)) != 0) return kGone;
  return ReadKey();
}

}  // namespace headrace::ctl

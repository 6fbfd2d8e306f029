// `headracectl top`: reads the board, shows it, does what keys say.
#include <fmt/format.h>

#include <csignal>
#include <ctime>
#include <memory>
#include <optional>

#include "client/cli/ctl/commands.h"
#include "client/cli/ctl/control.h"
#include "client/cli/ctl/top/draw.h"
#include "client/cli/ctl/top/keys.h"
#include "client/cli/ctl/top/terminal.h"

namespace headrace::ctl {
namespace {

// The service answers in a fraction of this, and the screen stands still meanwhile.
constexpr TimeNs kAnswerTimeout = kSecond;

std::string ClockText() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::localtime_r(&now, &parts);
  return fmt::format("{:02}:{:02}:{:02}", parts.tm_hour, parts.tm_min, parts.tm_sec);
}

class Top {
 public:
  Top(const Globals& globals, TimeNs interval_ns) : globals_(globals), interval_ns_(interval_ns) {}

  // Until q or a signal.
  void Run(Terminal& terminal) {
    TimeNs next_ns = 0;
    for (;;) {
      if (MonotonicNow() >= next_ns) {
        Refresh();
        next_ns = MonotonicNow() + interval_ns_;
      }
      const Picture picture = Compose();
      terminal.Show(Compose(picture, terminal));
      const int key = terminal.WaitForKey(next_ns - MonotonicNow());
      if (key == Terminal::kGone) return;
      if (key == Terminal::kNone) continue;
      const Action action = keys_.Press(key, picture);
      if (action.kind == Action::Kind::kQuit) return;
      if (action.kind != Action::Kind::kNothing) next_ns = 0;
      Perform(action);
    }
  }

 private:
  // A board that cannot be read leaves what was read last.
  void Refresh() {
    Liveness liveness = Liveness::kGone;
    Result<Snapshot> snapshot = ReadNow(globals_, liveness);
    trouble_.clear();
    liveness_ = liveness;
    if (!snapshot) {
      trouble_ = now_ ? "the service is gone: this is what it wrote last" : snapshot.error().text();
      return;
    }
    // A service that is gone writes nothing: rates would sink to nothing as if it idled.
    if (liveness == Liveness::kGone && now_) return;
    before_ = std::move(now_);
    now_ = std::move(*snapshot);
  }

  Picture Compose() {
    const Snapshot empty;
    const auto picture = [this, &empty] {
      return MakePicture(now_ ? *now_ : empty, before_ ? &*before_ : nullptr,
                         now_ ? liveness_ : Liveness::kGone, keys_.view_options());
    };
    keys_.Follow(picture());
    return picture();
  }

  Screen Compose(const Picture& picture, const Terminal& terminal) const {
    const Frame frame{.width = terminal.width(),
                      .height = terminal.height(),
                      .utf8 = globals_.utf8,
                      .clock = ClockText(),
                      .message = keys_.Message(),
                      .asks = keys_.asks(),
                      .trouble = trouble_};
    return keys_.shows_help() ? DrawHelp(frame) : Draw(picture, keys_.view_options(), frame);
  }

  void Perform(const Action& action) {
    switch (action.kind) {
      case Action::Kind::kPause:
        Ask(action, SteeringKind::kPause, 0,
            fmt::format("Job {} pauses where its next iteration begins.", action.job));
        return;
      case Action::Kind::kResume:
        Ask(action, SteeringKind::kResume, 0, fmt::format("Job {} is resumed.", action.job));
        return;
      case Action::Kind::kWeight:
        Ask(action, SteeringKind::kWeight, action.weight,
            fmt::format("Job {} has weight {} from its next iteration on.", action.job,
                        action.weight));
        return;
      case Action::Kind::kNothing:
      case Action::Kind::kQuit:
      case Action::Kind::kReadNow:
        return;
    }
  }

  void Ask(const Action& action, SteeringKind kind, std::uint64_t value, const std::string& said) {
    const Status asked =
        Steer(globals_.socket_path, {action.job, action.owner}, kind, value, kAnswerTimeout);
    keys_.ShowMessage(asked.ok() ? said : asked.error().text());
  }

  const Globals& globals_;
  TimeNs interval_ns_;
  Keys keys_;
  std::optional<Snapshot> before_;
  std::optional<Snapshot> now_;
  Liveness liveness_ = Liveness::kGone;
  std::string trouble_;
};

int Run(const Globals& globals, double seconds) {
  if (globals.json) {
    Complain("top is for people; headracectl status --json --watch 1 is for programs");
    return kExitUsage;
  }
  int signal = 0;
  {
    Result<std::unique_ptr<Terminal>> terminal = Terminal::Open();
    if (!terminal) {
      Complain(terminal.error().text());
      return kExitProblem;
    }
    Top(globals, static_cast<TimeNs>(seconds * kSecond)).Run(**terminal);
    signal = (*terminal)->signal();
  }
  if (signal == 0) return kExitOk;
  // The terminal is as it was: whoever sent the signal sees what it does to any program.
  sigset_t caught;
  sigemptyset(&caught);
  sigaddset(&caught, signal);
  std::signal(signal, SIG_DFL);
  ::sigprocmask(SIG_UNBLOCK, &caught, nullptr);
  std::raise(signal);
  return kExitProblem;
}

}  // namespace

void AddTopCommand(const Program& program) {
  const auto seconds = std::make_shared<double>(1);
  CLI::App* command =
      AddCommand(program, "top", "a live screen of jobs, lanes, slowest ranks and oldest waits",
                 {"top", "top --interval 0.5"},
                 [&globals = program.globals, seconds] { return Run(globals, *seconds); });
  CheckRange(command->add_option("-i,--interval", *seconds, "seconds between two updates")
                 ->capture_default_str(),
             0.1, 3600.0);
}

}  // namespace headrace::ctl

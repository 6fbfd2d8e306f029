#include "tests/sim/seeds.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string_view>

// Present when a sanitizer is linked in.
extern "C" void __sanitizer_set_death_callback(void (*callback)()) __attribute__((weak));

namespace headrace::sim {
namespace {

constexpr std::size_t kActionsShown = 60;

// How long new seeds are tried, where nobody says otherwise.
constexpr TimeNs kExplorationNs = 2 * kSecond;

struct Wanted {
  std::uint64_t one = 0;                   // only this seed; 0: none in particular
  std::uint64_t fixed = 1;                 // seeds from 1
  TimeNs exploration_ns = kExplorationNs;  // of each walk
  TimeNs minutes_ns = 0;                   // of all walks, in the place of the last
};
Wanted wanted;
// What is running, for a crash to tell.
char running[96] = "no seed has begun\n";

void SayWhatIsRunning() {
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, running, std::strlen(running));
}

struct sigaction segv_before;
struct sigaction abort_before;

// Tells the seed, then lets whoever was there before do the rest.
void OnCrash(int signal) {
  SayWhatIsRunning();
  ::sigaction(SIGSEGV, &segv_before, nullptr);
  ::sigaction(SIGABRT, &abort_before, nullptr);
  if (signal == SIGABRT) ::raise(SIGABRT);
}

}  // namespace

bool ReadSeeds(int count, char** arguments, std::uint64_t usual) {
  std::uint64_t minutes = 0;
  const auto read = [](std::string_view text, std::string_view name, std::uint64_t& value) {
    if (text.substr(0, name.size()) != name) return false;
    char* end = nullptr;
    value = std::strtoull(text.data() + name.size(), &end, 10);
    return value != 0 && *end == '\0';
  };
  wanted.fixed = usual;
  if (const char* text = std::getenv("HEADRACE_SIM_SEED")) {
    wanted.one = std::strtoull(text, nullptr, 10);
  }
  for (int i = 1; i < count; ++i) {
    if (read(arguments[i], "--seeds=", wanted.fixed)) {
      wanted.exploration_ns = 0;
    } else if (!read(arguments[i], "--seed=", wanted.one) &&
               !read(arguments[i], "--minutes=", minutes)) {
      std::fprintf(stderr, "usage: %s [--seed=SEED | --seeds=COUNT | --minutes=MINUTES]\n",
                   arguments[0]);
      return false;
    }
  }
  if (minutes != 0) {
    wanted.minutes_ns = static_cast<TimeNs>(minutes) * 60 * kSecond;
  }
  return true;
}

SeedWalk::SeedWalk(const char* mood, int walks_count, std::uint64_t new_least)
    : mood_(mood),
      began_ns_(MonotonicNow()),
      exploration_ns_(wanted.minutes_ns != 0 ? wanted.minutes_ns / std::max(walks_count, 1)
                                             : wanted.exploration_ns),
      new_least_(wanted.minutes_ns == 0 && wanted.exploration_ns != 0 ? new_least : 0) {}

SeedWalk::~SeedWalk() {
  std::printf("%s: ran %" PRIu64 " seeds, %" PRIu64 " of them new, in %.1f s\n", mood_, count(),
              new_, static_cast<double>(MonotonicNow() - began_ns_) / kSecond);
}

bool SeedWalk::IsOne() const { return wanted.one != 0; }

std::optional<std::uint64_t> SeedWalk::Next() {
  std::uint64_t seed = 0;
  if (wanted.one != 0) {
    if (fixed_ != 0) return std::nullopt;
    ++fixed_;
    seed = wanted.one;
  } else if (fixed_ < wanted.fixed) {
    seed = ++fixed_;
  } else {
    if (new_ == 0) exploring_since_ns_ = MonotonicNow();
    const bool is_over = MonotonicNow() - exploring_since_ns_ >= exploration_ns_;
    if (is_over && new_ >= new_least_) return std::nullopt;
    if (new_ == 0) {
      std::random_device random;
      // Beyond all fixed ones, and short enough to be typed.
      first_new_ = 1'000'000'000 + random();
      std::printf("%s: first new seed %" PRIu64 "\n", mood_, first_new_);
      std::fflush(stdout);
    }
    seed = first_new_ + new_++;
  }
  std::snprintf(running, sizeof running, "\nsimulation: seed %" PRIu64 ", mood %s\n", seed, mood_);
  return seed;
}

void TellTheSeedOfACrash() {
  struct sigaction action {};
  action.sa_handler = OnCrash;
  ::sigaction(SIGSEGV, &action, &segv_before);
  ::sigaction(SIGABRT, &action, &abort_before);
  if (__sanitizer_set_death_callback != nullptr) __sanitizer_set_death_callback(SayWhatIsRunning);
}

std::string HowToReplay(std::uint64_t seed, const char* mood,
                        const std::vector<std::string>& trace) {
  std::string text = fmt::format(
      "with seed {}, mood {}\nreplay with --seed={} --gtest_filter='*/{}'", seed, mood, seed, mood);
  if (wanted.one == 0) return text;
  const std::size_t first = trace.size() > kActionsShown ? trace.size() - kActionsShown : 0;
  for (std::size_t i = first; i < trace.size(); ++i) text += "\n  " + trace[i];
  return text;
}

}  // namespace headrace::sim

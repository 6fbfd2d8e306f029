#include "tests/sim/seeds.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>

// Present when a sanitizer is linked in.
extern "C" void __sanitizer_set_death_callback(void (*callback)()) __attribute__((weak));

namespace headrace::sim {
namespace {

constexpr std::size_t kActionsShown = 60;

Seeds wanted;
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
  const auto read = [](std::string_view text, std::string_view name, std::uint64_t& value) {
    if (text.substr(0, name.size()) != name) return false;
    value = std::strtoull(text.data() + name.size(), nullptr, 10);
    return true;
  };
  wanted = {.first = 1, .last = usual};
  std::uint64_t seed = 0;
  if (const char* text = std::getenv("HEADRACE_SIM_SEED")) seed = std::strtoull(text, nullptr, 10);
  for (int i = 1; i < count; ++i) {
    if (!read(arguments[i], "--seed=", seed) && !read(arguments[i], "--seeds=", wanted.last)) {
      std::fprintf(stderr, "usage: %s [--seed=SEED | --seeds=COUNT]\n", arguments[0]);
      return false;
    }
  }
  if (seed != 0) wanted = {.first = seed, .last = seed};
  return true;
}

Seeds Wanted() { return wanted; }

void TellTheSeedOfACrash() {
  struct sigaction action {};
  action.sa_handler = OnCrash;
  ::sigaction(SIGSEGV, &action, &segv_before);
  ::sigaction(SIGABRT, &action, &abort_before);
  if (__sanitizer_set_death_callback != nullptr) __sanitizer_set_death_callback(SayWhatIsRunning);
}

void NowRuns(std::uint64_t seed, const char* mood) {
  std::snprintf(running, sizeof running, "\nsimulation: seed %llu, mood %s\n",
                static_cast<unsigned long long>(seed), mood);
}

std::string HowToReplay(std::uint64_t seed, const char* mood,
                        const std::vector<std::string>& trace) {
  std::string text = fmt::format(
      "with seed {}, mood {}\nreplay with --seed={} --gtest_filter='*/{}'", seed, mood, seed, mood);
  if (!wanted.IsOne()) return text;
  const std::size_t first = trace.size() > kActionsShown ? trace.size() - kActionsShown : 0;
  for (std::size_t i = first; i < trace.size(); ++i) text += "\n  " + trace[i];
  return text;
}

}  // namespace headrace::sim

// The small parts of headracectl: units, columns, /proc.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "client/cli/ctl/machine.h"
#include "client/cli/ctl/process.h"
#include "client/cli/ctl/table.h"
#include "client/cli/ctl/units.h"
#include "ipc/base/age.h"
#include "ipc/base/fd.h"
#include "ipc/base/foreign_text.h"
#include "ipc/base/lock_file.h"

namespace headrace::ctl {
namespace {

TEST(Units, BytesHaveThreeDigitsAndBinaryUnits) {
  EXPECT_EQ(FormatBytes(0), "0 B");
  EXPECT_EQ(FormatBytes(1023), "1023 B");
  EXPECT_EQ(FormatBytes(1024), "1.0 KiB");
  EXPECT_EQ(FormatBytes(1536), "1.5 KiB");
  EXPECT_EQ(FormatBytes(10 * 1024), "10 KiB");
  EXPECT_EQ(FormatBytes((std::uint64_t{1} << 20) - 1), "1.0 MiB");
  EXPECT_EQ(FormatBytes(std::uint64_t{64} << 20), "64 MiB");
  EXPECT_EQ(FormatBytes(~std::uint64_t{0}), "16 EiB");
}

TEST(Units, AgesUseTheUnitThatFits) {
  EXPECT_EQ(FormatAge(-5), "0.0 ms");
  EXPECT_EQ(FormatAge(240'000), "0.2 ms");
  EXPECT_EQ(FormatAge(35 * kMillisecond), "35 ms");
  EXPECT_EQ(FormatAge(4'199 * kMillisecond), "4.1 s");
  EXPECT_EQ(FormatAge(59'999 * kMillisecond), "59.9 s");
  EXPECT_EQ(FormatAge(192 * kSecond), "3m 12s");
  EXPECT_EQ(FormatAge(5 * 3600 * kSecond + 120 * kSecond), "5h 02m");
  EXPECT_EQ(FormatAge(12 * 86400 * kSecond + 4 * 3600 * kSecond), "12d 04h");
}

TEST(Units, RatesAndSharesOfNothingAreADash) {
  EXPECT_EQ(FormatRate(1000, 0), "-");
  EXPECT_EQ(FormatRate(12'800, 1000), "12.8 GB/s");
  EXPECT_EQ(FormatRate(85'000'000, kSecond), "85.0 MB/s");
  EXPECT_EQ(FormatRate(1'250'000, kSecond), "1.25 MB/s");
  EXPECT_EQ(FormatRate(999'499, kSecond), "999 kB/s");
  EXPECT_EQ(FormatRate(999'500, kSecond), "1.00 MB/s");
  EXPECT_EQ(FormatRate(512, kSecond), "512 B/s");
  EXPECT_EQ(FormatRate(0, kSecond), "0 B/s");
  EXPECT_EQ(FormatShare(1, 0), "-");
  EXPECT_EQ(FormatShare(1, 8), "12 %");
  EXPECT_EQ(FormatShare(1, 1000), "0.1 %");
  EXPECT_EQ(FormatUtc(1'700'000'000'042'999'999), "2023-11-14 22:13:20.042Z");
}

TEST(Units, TakesRatesAsPeopleWriteThem) {
  const auto parse = [](const char* text) { return ParseRateLimit(text).value(); };
  EXPECT_EQ(parse("2Gbit"), 250'000'000U);
  EXPECT_EQ(parse("2Gbit/s"), 250'000'000U);
  EXPECT_EQ(parse("500Mbit"), 62'500'000U);
  EXPECT_EQ(parse("0.5Gbit"), 62'500'000U);
  EXPECT_EQ(parse("8kbit"), 1000U);
  EXPECT_EQ(parse("100MB/s"), 100'000'000U);
  EXPECT_EQ(parse("1.5GiB/s"), 1'610'612'736U);
  EXPECT_EQ(parse("none"), 0U);
}

TEST(Units, RefusesRatesThatCouldMeanSeveralThings) {
  for (const char* text :
       {"",        "2",      "2G",      "2gbit",  "2mbit",        "2GBit", "100MB",
        "100mb/s", "-1Gbit", "0Gbit",   "1e9bit", "2 Gbit",       "inf",   "nan",
        "Gbit",    "2Gbits", "2Gbit/h", "None",   "99999999TB/s", "1bit"}) {
    const Result<std::uint64_t> parsed = ParseRateLimit(text);
    EXPECT_FALSE(parsed.ok()) << text;
    if (parsed.ok()) continue;
    EXPECT_NE(parsed.error().text().find("100MB/s"), std::string::npos);
  }
}

TEST(Units, LimitsReadAsTheyAreGiven) {
  EXPECT_EQ(FormatRateLimit(0), "none");
  EXPECT_EQ(FormatRateLimit(250'000'000), "2 Gbit/s");
  EXPECT_EQ(FormatRateLimit(62'500'000), "500 Mbit/s");
  EXPECT_EQ(FormatRateLimit(1), "8 bit/s");
}

TEST(Table, AlignsColumnsByWhatIsSeenAndEndsNoLineInBlanks) {
  Table table({{"NAME"}, {"COUNT", Align::kRight}, {"NOTE"}});
  table.Add({"é", "7", ""});
  table.Add({"longer", "1234567", "x"});
  EXPECT_EQ(table.Render(true),
            "NAME      COUNT  NOTE\n"
            "é             7  -\n"
            "longer  1234567  x\n");
  EXPECT_EQ(table.Render(false),
            "é             7  -\n"
            "longer  1234567  x\n");
}

TEST(Table, LetsNoControlCharacterThrough) {
  EXPECT_EQ(Printable("a\x1b[2J\nb\x7f"), "a?[2J?b?");
  EXPECT_EQ(Printable("grün"), "grün");
}

TEST(Process, ParsesAStatLineWhateverTheProgramIsCalled) {
  const auto stat = ParseStat(
      "42 (a) T (b) S 1 42 42 0 -1 4194560 100 0 0 0 1 2 0 0 20 0 5 0 987654 1000000 300\n");
  ASSERT_TRUE(stat.has_value());
  EXPECT_EQ(stat->state, 'S');
  EXPECT_EQ(stat->start_ticks, 987654U);
  EXPECT_FALSE(ParseStat("").has_value());
  EXPECT_FALSE(ParseStat("42 (a) S 1 2 3").has_value());
}

TEST(Process, TellsRunningStoppedAndGoneApart) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    for (;;) ::pause();
  }
  const TimeNs now = MonotonicNow();
  EXPECT_EQ(LivenessOfProcess(child, now), Liveness::kRunning);
  EXPECT_EQ(LivenessOfProcess(child, now - 60 * kSecond), Liveness::kGone)
      << "began after the service: it only has its number";
  ASSERT_EQ(::kill(child, SIGSTOP), 0);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, WUNTRACED), child);
  EXPECT_EQ(LivenessOfProcess(child, now), Liveness::kStopped);
  ASSERT_EQ(::kill(child, SIGKILL), 0);
  siginfo_t zombie{};
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(child), &zombie, WEXITED | WNOWAIT), 0);
  EXPECT_EQ(LivenessOfProcess(child, now), Liveness::kGone) << "a zombie holds nothing";
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(LivenessOfProcess(child, now), Liveness::kGone);
  EXPECT_EQ(LivenessOfProcess(0, now), Liveness::kGone);
  EXPECT_EQ(LivenessOfProcess(-1, now), Liveness::kGone);
}

// A service in a container of its own has pid 1 there.
TEST(Process, AServiceLivesWhileItHoldsItsBoardWhateverItsPidIsHere) {
  std::string directory = ::testing::TempDir() + "ctl-lock-XXXXXX";
  ASSERT_NE(::mkdtemp(directory.data()), nullptr);
  const std::string board = directory + "/board";
  constexpr std::int32_t kNobody = -1;
  const TimeNs now = MonotonicNow();
  EXPECT_EQ(LivenessOfService(board, kNobody, now), Liveness::kGone) << "there is no lock";
  EXPECT_EQ(LivenessOfService(board, ::getpid(), now), Liveness::kRunning) << "a copy of a board";
  {
    const UniqueFd lock(::open(LockFileOf(board).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
    ASSERT_EQ(::flock(lock.get(), LOCK_EX), 0);
    EXPECT_EQ(LivenessOfService(board, kNobody, now), Liveness::kUnseen);
    EXPECT_EQ(LivenessOfService(board, ::getpid(), now), Liveness::kRunning);
    EXPECT_TRUE(IsRunning(Liveness::kUnseen));
  }
  EXPECT_EQ(LivenessOfService(board, ::getpid(), now), Liveness::kGone)
      << "it was killed, and another process has its pid";
  std::filesystem::remove_all(directory);
}

TEST(Machine, ParsesLimitsAndChosenWords) {
  const std::string limits =
      "Limit                     Soft Limit           Hard Limit           Units     \n"
      "Max open files            1024                 524288               files     \n"
      "Max locked memory         unlimited            unlimited            bytes     \n";
  EXPECT_EQ(ParseLimit(limits, "Max open files"), 1024U);
  EXPECT_EQ(ParseLimit(limits, "Max locked memory"), kUnlimited);
  EXPECT_FALSE(ParseLimit(limits, "Max nonsense").has_value());
  EXPECT_EQ(ChosenWord("always within_size advise [never] deny force"), "never");
  EXPECT_EQ(ChosenWord(""), "");
}

TEST(Machine, ParsesQuotas) {
  EXPECT_EQ(ParseCpuMax("200000 100000\n"), 2.0);
  EXPECT_EQ(ParseCpuMax("50000 100000"), 0.5);
  EXPECT_FALSE(ParseCpuMax("max 100000").has_value());
  EXPECT_FALSE(ParseCpuMax("100000 0").has_value());
  EXPECT_FALSE(ParseCpuMax("").has_value());
}

TEST(Machine, LooksAtThisMachineWithoutChangingIt) {
  const Machine machine = InspectMachine("/none/board", "/none/socket", 0, "/none/mps");
  EXPECT_FALSE(machine.board.exists);
  EXPECT_FALSE(machine.socket.exists);
  EXPECT_TRUE(machine.memfd.ok());
  EXPECT_GT(machine.cores, 0U);
  EXPECT_GT(machine.limits.open_files, 0U);
  EXPECT_TRUE(machine.libraries.cuda_driver_version.has_value() ||
              !machine.libraries.cuda_error.empty());
}

}  // namespace
}  // namespace headrace::ctl

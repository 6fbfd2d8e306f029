// The program itself: exit codes, options, environment, and a service that does not answer.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>

#include "client/cli/ctl/control.h"
#include "ipc/base/fd.h"
#include "tests/golden/ctl/board_fixture.h"
#include "tests/golden/ctl/run_program.h"
#include "tests/support/expect_text.h"

namespace headrace::ctl {
namespace {

class Program : public BoardTest {
 protected:
  // As if this test were the service.
  void BeTheService(std::int32_t pid = ::getpid()) {
    FillAll();
    FillService(pid, MonotonicNow());
  }
  std::string Board() const { return "--board " + path() + " "; }
};

// A socket that listens and never answers, as that of a service stopped by a signal.
class SilentSocket {
 public:
  explicit SilentSocket(const std::string& path)
      : fd_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    HR_CHECK(path.size() < sizeof address.sun_path, path);
    std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
    const auto* generic = reinterpret_cast<const sockaddr*>(&address);
    HR_CHECK(::bind(fd_.get(), generic, sizeof address) == 0, path);
    HR_CHECK(::listen(fd_.get(), 4) == 0, path);
  }

 private:
  UniqueFd fd_;
};

TEST_F(Program, ExitsWithTwoWhenItIsUsedWrongly) {
  for (const char* arguments :
       {"", "nonsense", "status --nonsense", "queue --job", "--watch 1", "status --watch 0",
        "status -w x", "jobs one two", "plan", "policy vision", "policy vision fastest"}) {
    EXPECT_EQ(RunProgram(arguments).exit_code, 2) << arguments;
  }
  EXPECT_EQ(RunProgram("--help").exit_code, 0);
  EXPECT_EQ(RunProgram("queue --help").exit_code, 0);
}

TEST_F(Program, ExitsWithOneAndSaysWhatToDoWhenThereIsNoBoard) {
  for (const char* command :
       {"status", "jobs", "queue", "lanes", "events", "jobs vision", "plan vision"}) {
    const Ran ran = RunProgram("--board /none/board " + std::string(command));
    EXPECT_EQ(ran.exit_code, 1) << command;
    EXPECT_TEXT(ran.output, "/none/board", "headraced");
  }
}

TEST_F(Program, ExitsWithOneWhenTheServiceIsGoneButStillShowsItsBoard) {
  FillAll();
  FillService(0x3fffffff, kStarted);  // beyond pid_max
  const Ran ran = RunProgram(Board() + "queue");
  EXPECT_EQ(ran.exit_code, 1);
  EXPECT_NE(ran.output.find("shm0"), std::string::npos) << ran.output;
}

TEST_F(Program, ExitsWithZeroWhileTheServiceRunsAndNothingFailed) {
  BeTheService();
  for (const char* command : {"queue", "lanes", "events", "jobs vision", "plan vision"}) {
    EXPECT_EQ(RunProgram(Board() + command).exit_code, 0) << command;
  }
}

TEST_F(Program, ExitsWithOneWhenAJobFailedOrIsUnknown) {
  BeTheService();
  EXPECT_EQ(RunProgram(Board() + "jobs").exit_code, 1);
  EXPECT_EQ(RunProgram(Board() + "status").exit_code, 1);
  EXPECT_EQ(RunProgram(Board() + "jobs broken").exit_code, 1);
  EXPECT_EQ(RunProgram(Board() + "jobs nobody").exit_code, 1);
  EXPECT_EQ(RunProgram(Board() + "plan broken").exit_code, 1);
  const Ran unknown = RunProgram(Board() + "plan nobody");
  EXPECT_EQ(unknown.exit_code, 1);
  EXPECT_TEXT(unknown.output, "nobody");
  ipc::WriteRow(layout().jobs[63], ipc::JobRow{});
  EXPECT_EQ(RunProgram(Board() + "jobs").exit_code, 0);
  EXPECT_EQ(RunProgram(Board() + "status").exit_code, 0);
}

TEST_F(Program, AsksWhoseJobIsMeantWhereSeveralUsersHaveOneOfThatName) {
  BeTheService();
  ipc::JobRow other = *ipc::ReadRow(layout().jobs[3]);
  other.id = 4711;
  other.owner_uid = 65534;
  ipc::WriteRow(layout().jobs[40], other);
  for (const char* command : {"jobs vision", "plan vision", "queue --job vision"}) {
    const Ran both = RunProgram(Board() + command);
    EXPECT_EQ(both.exit_code, 1) << command;
    EXPECT_NE(both.output.find("--uid"), std::string::npos) << both.output;
    EXPECT_EQ(RunProgram(Board() + command + " --uid 1000").exit_code, 0) << command;
    EXPECT_EQ(RunProgram(Board() + command + " --uid 1234").exit_code, 1) << command;
  }
  EXPECT_VARYING_TEXT(RunProgram(Board() + "plan nobody --uid 65534").output, "vision");
  const auto jobs = nlohmann::json::parse(RunProgram(Board() + "jobs --json --uid 65534").output);
  ASSERT_EQ(jobs["jobs"].size(), 1U);
  EXPECT_EQ(jobs["jobs"][0]["id"], 4711);
  EXPECT_EQ(RunProgram("jobs --uid somebody").exit_code, 2);
}

TEST_F(Program, TakesTheBoardFromTheEnvironmentUnlessTheCommandLineNamesOne) {
  BeTheService();
  EXPECT_EQ(RunProgram("lanes", "HEADRACE_BOARD=" + path()).exit_code, 0);
  EXPECT_EQ(RunProgram(Board() + "lanes", "HEADRACE_BOARD=/none").exit_code, 0);
  EXPECT_EQ(RunProgram("--board /none lanes", "HEADRACE_BOARD=" + path()).exit_code, 1);
}

TEST_F(Program, TakesGlobalOptionsBeforeAndAfterTheCommand) {
  BeTheService();
  const Ran before = RunProgram(Board() + "-H --json lanes");
  const Ran after = RunProgram("lanes --json -H " + Board());
  EXPECT_EQ(before.exit_code, 0);
  EXPECT_EQ(after.exit_code, 0);
  EXPECT_EQ(nlohmann::json::parse(after.output)["lanes"][0]["lane"], "shm0");
  EXPECT_EQ(RunProgram(Board() + "-H lanes").output.find("TRANSPORT"), std::string::npos);
}

TEST_F(Program, NamesWhatWasMeantOnAWrongLine) {
  const Ran command = RunProgram("stauts");
  EXPECT_EQ(command.exit_code, 2);
  EXPECT_TEXT(command.output, "\"stauts\"", "status");
  EXPECT_TEXT(RunProgram("foo").output, "\"foo\"", "headracectl --help");
  const Ran option = RunProgram("queue --sotr age");
  EXPECT_EQ(option.exit_code, 2);
  EXPECT_TEXT(option.output, "--sotr", "--sort");
  const Ran above = RunProgram("queue --jsno");
  EXPECT_TEXT(above.output, "--jsno", "--json");
  EXPECT_EQ(RunProgram("").exit_code, 2);
  const Ran nested = RunProgram("certs node");
  EXPECT_EQ(nested.exit_code, 2);
  EXPECT_TEXT(nested.output, "headracectl certs node --help");
  EXPECT_EQ(RunProgram("plan").exit_code, 2);
  EXPECT_EQ(RunProgram("jobs one two").exit_code, 2);
}

TEST_F(Program, RefusesNumbersOutOfRangeAndShowsTheRange) {
  for (const char* line :
       {"weight vision 0", "weight vision 1001", "weight vision x", "priority vision 16",
        "status --watch 0", "doctor --timeout 601", "certs authority --out x --days 0",
        "certs authority --out x --days 99999999999"}) {
    EXPECT_EQ(RunProgram(Board() + line).exit_code, 2) << line;
  }
  EXPECT_NE(RunProgram("weight --help").output.find("1 to 1000"), std::string::npos);
  EXPECT_NE(RunProgram("priority --help").output.find("0 to 15"), std::string::npos);
  EXPECT_EQ(RunProgram("status --help").output.find("e+308"), std::string::npos);
}

TEST_F(Program, HelpAndVersionAreCommandsToo) {
  EXPECT_EQ(RunProgram("help queue").output, RunProgram("queue --help").output);
  EXPECT_EQ(RunProgram("help").output, RunProgram("-h").output);
  EXPECT_EQ(RunProgram("queue -h").output, RunProgram("queue --help").output);
  EXPECT_EQ(RunProgram("version").output, RunProgram("--version").output);
  EXPECT_EQ(RunProgram("help certs node").exit_code, 0);
  EXPECT_EQ(RunProgram("help queu").exit_code, 2);
}

TEST_F(Program, WatchesEveryTwoSecondsUnlessToldOtherwise) {
  BeTheService();
  for (const char* command : {"jobs vision", "plan vision", "lanes", "queue"}) {
    const Ran ran = RunProgram(Board() + command + " --json --count 1 --watch");
    EXPECT_EQ(ran.exit_code, 0) << command << ran.output;
    EXPECT_EQ(std::count(ran.output.begin(), ran.output.end(), '\n'), 1) << command;
  }
}

TEST_F(Program, WatchesAsOftenAsItIsTold) {
  BeTheService();
  const Ran ran = RunProgram(Board() + "status --json --watch 0.05 --count 3");
  EXPECT_EQ(std::count(ran.output.begin(), ran.output.end(), '\n'), 3);
  const auto last =
      nlohmann::json::parse(ran.output.substr(ran.output.rfind('\n', ran.output.size() - 2) + 1));
  EXPECT_GE(last["interval_ns"], 50 * kMillisecond);
  EXPECT_EQ(last["rates_per_second"]["records_read"], 0.0);
}

TEST_F(Program, FollowsEventsUntilItHasShownEnough) {
  BeTheService();
  const Ran table = RunProgram(Board() + "events --follow --count 3");
  EXPECT_EQ(table.exit_code, 0) << table.output;
  EXPECT_EQ(std::count(table.output.begin(), table.output.end(), '\n'), 3) << table.output;
  const Ran json = RunProgram(Board() + "events --job broken --follow --count 2 --json");
  const std::string first = json.output.substr(0, json.output.find('\n'));
  EXPECT_EQ(nlohmann::json::parse(first)["code"], "peer lost") << json.output;
  EXPECT_EQ(RunProgram("--board /none/board events --follow").exit_code, 1);
  EXPECT_EQ(RunProgram(Board() + "events --count 2").exit_code, 2) << "counts what --follow shows";
  const Ran newest = RunProgram(Board() + "events -n 2 -H");
  EXPECT_EQ(std::count(newest.output.begin(), newest.output.end(), '\n'), 2) << newest.output;
}

TEST_F(Program, AnswersWhileTheServiceIsStopped) {
  const pid_t service = ::fork();
  ASSERT_GE(service, 0);
  if (service == 0) {
    for (;;) ::pause();
  }
  ASSERT_EQ(::kill(service, SIGSTOP), 0);
  ASSERT_EQ(::waitpid(service, nullptr, WUNTRACED), service);
  BeTheService(service);
  const SilentSocket socket(folder() + "/sock");
  for (const char* command : {"status", "jobs", "queue", "lanes"}) {
    const Ran ran = RunProgram(Board() + command);
    EXPECT_EQ(ran.exit_code, 1) << command;
  }
  const TimeNs start = MonotonicNow();
  const Ran ran = RunProgram(Board() + "--socket " + folder() + "/sock doctor --timeout 0.2");
  EXPECT_LT(MonotonicNow() - start, 20 * kSecond);
  EXPECT_EQ(ran.exit_code, 1);
  EXPECT_NE(ran.output.find("200 ms"), std::string::npos) << ran.output;
  EXPECT_NE(ran.output.find("kill -CONT"), std::string::npos) << ran.output;
  ASSERT_EQ(::kill(service, SIGKILL), 0);
  ASSERT_EQ(::waitpid(service, nullptr, 0), service);
}

TEST_F(Program, PolicyNamesWhyItCouldNotBeAskedFor) {
  const Ran absent = RunProgram("--socket " + folder() + "/none policy vision exact");
  EXPECT_EQ(absent.exit_code, 1);
  EXPECT_VARYING_TEXT(absent.output, folder() + "/none");
  const SilentSocket socket(folder() + "/sock");
  const Ran late = RunProgram("--socket " + folder() + "/sock policy vision bsp --timeout 0.1");
  EXPECT_EQ(late.exit_code, 1);
  EXPECT_VARYING_TEXT(late.output, folder() + "/sock", "100 ms");
}

TEST_F(Program, PingNamesWhyThereIsNoAnswer) {
  Result<PingAnswer> absent = Ping(folder() + "/none", kSecond);
  ASSERT_FALSE(absent.ok());
  EXPECT_VARYING_TEXT(absent.error().text(), folder() + "/none", "HEADRACE_SOCKET");
  const SilentSocket socket(folder() + "/sock");
  Result<PingAnswer> late = Ping(folder() + "/sock", 50 * kMillisecond);
  ASSERT_FALSE(late.ok());
  EXPECT_EQ(late.error().code(), Code::kTimeout) << late.error().text();
  EXPECT_EQ(late.error().text().find("running there?"), std::string::npos) << "somebody listens";
}

}  // namespace
}  // namespace headrace::ctl

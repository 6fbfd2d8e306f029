// What doctor makes of what it saw.
#include "client/cli/ctl/doctor.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/golden/ctl/board_fixture.h"

namespace headrace::ctl {
namespace {

class Doctor : public BoardTest {
 protected:
  // A service in good health on a machine that lacks nothing.
  Patient Healthy() {
    FillAll();
    Snapshot board = Read();
    std::erase_if(board.jobs, [](const ipc::JobRow& job) { return job.id == 8; });
    Patient patient{
        .board_path = "/run/headrace/board",
        .socket_path = "/run/headrace/headrace.sock",
        .board = std::move(board),
        .liveness = Liveness::kRunning,
        .ping = PingAnswer{.control_ns = 40'000, .dispatch_ns = 130'000, .round_trip_ns = 410'000},
        .protocol_version = 1,
        .machine = {}};
    patient.machine.board = {.exists = true, .mode = 0644};
    patient.machine.socket = {.exists = true, .is_socket = true, .mode = 0666, .may_write = true};
    patient.machine.limits = {.of = "the service", .locked_bytes = 8U << 20U, .open_files = 1024};
    patient.machine.cores = 4;
    patient.machine.shmem_huge_pages = "never";
    patient.machine.cuda_driver_version = 12040;
    patient.machine.has_ucx = true;
    return patient;
  }

  static Finding Find(const Findings& findings, const std::string& check) {
    const auto found = std::find_if(findings.begin(), findings.end(),
                                    [&](const Finding& finding) { return finding.check == check; });
    HR_CHECK(found != findings.end(), check);
    return *found;
  }
};

TEST_F(Doctor, FindsNothingWrongWithAHealthyService) {
  const Findings findings = Examine(Healthy());
  EXPECT_FALSE(HasProblem(findings));
  ExpectGolden("doctor_healthy.txt", FindingsTable(findings, true));
  ExpectGolden("doctor_healthy.json", FindingsJson(findings).dump(2) + "\n");
}

TEST_F(Doctor, SaysWhatToDoWhenThereIsNoService) {
  Patient patient = Healthy();
  patient.board = Error(Code::kUnavailable, "open board /run/headrace/board: No such file");
  patient.liveness = Liveness::kGone;
  patient.ping = Error(Code::kUnavailable, "connect: No such file");
  patient.machine.board = {};
  patient.machine.socket = {};
  patient.machine.cuda_driver_version.reset();
  patient.machine.cuda_error = "libcuda.so.1 is not installed";
  const Findings findings = Examine(patient);
  EXPECT_TRUE(HasProblem(findings));
  ExpectGolden("doctor_absent.txt", FindingsTable(findings, true));
}

TEST_F(Doctor, NamesAStoppedServiceAndTheWayToGoOn) {
  Patient patient = Healthy();
  patient.liveness = Liveness::kStopped;
  patient.ping = Error(Code::kTimeout, "no answer within 1000 ms");
  const Findings findings = Examine(patient);
  EXPECT_EQ(Find(findings, "service").level, Level::kProblem);
  EXPECT_EQ(Find(findings, "service").remedy, "kill -CONT 4242");
  EXPECT_EQ(Find(findings, "answer").level, Level::kProblem);
}

TEST_F(Doctor, FindsAStuckServiceThatLooksAlive) {
  Patient patient = Healthy();
  patient.ping = Error(Code::kTimeout, "no answer within 1000 ms");
  const Findings findings = Examine(patient);
  EXPECT_EQ(Find(findings, "service").level, Level::kOk);
  EXPECT_EQ(Find(findings, "answer").level, Level::kProblem);
  EXPECT_NE(Find(findings, "answer").remedy.find("headracectl queue"), std::string::npos);
}

TEST_F(Doctor, FindsEachFaultByItself) {
  const auto level_of = [this](const std::string& check, auto spoil) {
    Patient patient = Healthy();
    spoil(patient);
    const Findings findings = Examine(patient);
    for (const Finding& finding : findings) {
      const bool expected = finding.check == check;
      EXPECT_TRUE(expected || finding.level <= Level::kNote) << check << " " << finding.check;
    }
    return Find(findings, check).level;
  };
  EXPECT_EQ(level_of("service", [](Patient& p) { p.liveness = Liveness::kGone; }), Level::kProblem);
  EXPECT_EQ(level_of("service", [](Patient& p) { p.board->service.state = 3; }), Level::kWarning);
  EXPECT_EQ(level_of("protocol", [](Patient& p) { p.protocol_version = 2; }), Level::kProblem);
  EXPECT_EQ(level_of("board", [](Patient& p) { p.board->rows_unread = 1; }), Level::kWarning);
  EXPECT_EQ(level_of("board", [](Patient& p) { p.machine.board.mode = 0666; }), Level::kWarning);
  EXPECT_EQ(level_of("socket", [](Patient& p) { p.machine.socket.may_write = false; }),
            Level::kProblem);
  EXPECT_EQ(level_of("socket", [](Patient& p) { p.machine.socket.is_socket = false; }),
            Level::kProblem);
  EXPECT_EQ(level_of("jobs", [](Patient& p) { p.board->jobs[0].state = 3; }), Level::kProblem);
  EXPECT_EQ(level_of("cores", [](Patient& p) { p.machine.cores = 2; }), Level::kWarning);
  EXPECT_EQ(level_of("reductions",
                     [](Patient& p) { ipc::SetText(p.board->service.reduce_target, "SCALAR"); }),
            Level::kWarning);
  EXPECT_EQ(level_of("memfd", [](Patient& p) { p.machine.memfd = Error(Code::kInternal, "no"); }),
            Level::kProblem);
  EXPECT_EQ(level_of("open files", [](Patient& p) { p.machine.limits.open_files = 128; }),
            Level::kWarning);
}

TEST_F(Doctor, TakesAnUnlimitedLimitForNoLimit) {
  Patient patient = Healthy();
  patient.machine.limits.open_files = kUnlimited;
  patient.machine.limits.locked_bytes = kUnlimited;
  const Findings findings = Examine(patient);
  EXPECT_EQ(Find(findings, "open files").text, "the service may open any number of files");
  EXPECT_EQ(Find(findings, "locked memory").text,
            "the service may lock any amount of memory; shared memory lanes lock none");
}

}  // namespace
}  // namespace headrace::ctl

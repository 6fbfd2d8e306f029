// What doctor makes of what it saw.
#include "client/cli/ctl/doctor.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "client/cli/ctl/probe_verdict.h"
#include "tests/golden/ctl/board_fixture.h"
#include "tests/support/expect_text.h"

namespace headrace::ctl {
namespace {

class Doctor : public BoardTest {
 protected:
  // A service in good health on a machine that lacks nothing.
  DiagnosticInput Healthy() {
    FillAll();
    Snapshot board = Read();
    std::erase_if(board.jobs, [](const ipc::JobRow& job) { return job.id == 8; });
    DiagnosticInput input{
        .board_path = "/run/headrace/board",
        .socket_path = "/run/headrace/headrace.sock",
        .board = std::move(board),
        .liveness = Liveness::kRunning,
        .ping = PingAnswer{.dispatch_ns = 130'000, .round_trip_ns = 410'000},
        .probe =
            ProbeAnswer{
                .dispatch_ns = 120'000,
                .lanes = {{.name = "shm0", .answered = true, .ns = 90'000, .status = {}},
                          {.name = "ucx0", .answered = true, .ns = 1'400'000, .status = {}}}},
        .peers = std::vector{PeerProbe{.name = "node-b",
                                       .address = "10.0.0.2:7777",
                                       .leads = false,
                                       .connected = true,
                                       .why = "",
                                       .round_trip_ns = 210'000,
                                       .clock_offset_ns = -4'300'000}},
        .configuration = std::string("http_address = \"127.0.0.1:9564\"\nlate_ms = 5000\n"),
        .protocol_version = 1,
        .machine = {}};
    input.machine.board = {.exists = true, .mode = 0644};
    input.machine.socket = {.exists = true, .is_socket = true, .mode = 0666, .may_write = true};
    input.machine.limits = {.of = "the service", .locked_bytes = 8U << 20U, .open_files = 1024};
    input.machine.cores = 4;
    input.machine.shmem_huge_pages = "never";
    input.machine.shell_limits = {
        .of = "this shell", .locked_bytes = kUnlimited, .open_files = 1024};
    input.machine.threads = {.count = 6, .stopped = 0, .uninterruptible = 0};
    input.machine.cpu_quota = 3.5;
    input.machine.quota_is_of_service = true;
    input.machine.shm_bytes = std::uint64_t{8} << 30;
    input.machine.shm_free_bytes = std::uint64_t{7} << 30;
    input.machine.libraries.cuda_driver_version = 12040;
    input.machine.libraries.gpus = {"NVIDIA H200", "NVIDIA H200"};
    input.machine.mps_directory = "/tmp/nvidia-mps";
    input.machine.has_mps = true;
    input.machine.libraries.ucx = {.is_found = true, .version = "1.13.1", .error = ""};
    input.machine.libraries.nccl = {
        .is_found = false, .version = "", .error = "libnccl.so.2: not there"};
    return input;
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

// A certificate of a year, `left_days` before its end.
ipc::CertificateRow CertificateRowOf(const Snapshot& board, std::int64_t left_days) {
  constexpr std::int64_t kDayInSeconds = 24 * 3600;
  const std::int64_t now_s =
      (board.service.started_unix_ns + board.now_ns - board.service.started_ns) / kSecond;
  const std::int64_t until_s = now_s + left_days * kDayInSeconds + 60;
  return {.in_use = 1,
          .reserved0 = 0,
          .loaded_unix_s = until_s - 365 * kDayInSeconds,
          .until_unix_s = until_s,
          .authority_until_unix_s = until_s + 1000 * kDayInSeconds,
          .warn_from_unix_s = until_s - 30 * kDayInSeconds,
          .refused = {}};
}

TEST_F(Doctor, WarnsOfACertificateAMonthBeforeItsEnd) {
  DiagnosticInput input = Healthy();
  input.board->certificate = CertificateRowOf(*input.board, 200);
  EXPECT_EQ(Find(Examine(input), "certificate").level, Level::kOk);
  input.board->certificate = CertificateRowOf(*input.board, 29);
  const Finding near = Find(Examine(input), "certificate");
  EXPECT_EQ(near.level, Level::kWarning);
  EXPECT_NE(near.text.find("29 days"), std::string::npos) << near.text;
  // Also of one that was made for so few days that the log does not tell of its end yet.
  input.board->certificate.warn_from_unix_s += 25 * 24 * 3600;
  EXPECT_EQ(Find(Examine(input), "certificate").level, Level::kWarning);
  input.board->certificate = CertificateRowOf(*input.board, -2);
  EXPECT_EQ(Find(Examine(input), "certificate").level, Level::kProblem);
}

TEST_F(Doctor, SaysWhyAReplacedCertificateIsNotUsed) {
  DiagnosticInput input = Healthy();
  input.board->certificate = CertificateRowOf(*input.board, 200);
  ipc::SetText(input.board->certificate.refused, "node.key holds no key");
  const Finding found = Find(Examine(input), "certificate");
  EXPECT_EQ(found.level, Level::kWarning);
  EXPECT_TEXT(found.text, "node.key holds no key");
}

TEST_F(Doctor, SaysWhatToDoWhenThereIsNoService) {
  DiagnosticInput input = Healthy();
  input.board = Error(Code::kUnavailable, "open board /run/headrace/board: No such file");
  input.liveness = Liveness::kGone;
  input.ping = Error(Code::kUnavailable, "connect: No such file");
  input.machine.board = {};
  input.machine.socket = {};
  input.machine.libraries.cuda_driver_version.reset();
  input.machine.libraries.gpus.clear();
  input.machine.has_mps = false;
  input.machine.threads = {};
  input.machine.libraries.cuda_error = "libcuda.so.1 is not installed";
  const Findings findings = Examine(input);
  EXPECT_TRUE(HasProblem(findings));
  ExpectGolden("doctor_absent.txt", FindingsTable(findings, true));
}

TEST_F(Doctor, NamesAStoppedServiceAndTheWayToGoOn) {
  DiagnosticInput input = Healthy();
  input.liveness = Liveness::kStopped;
  input.ping = Error(Code::kTimeout, "no answer within 1000 ms");
  const Findings findings = Examine(input);
  EXPECT_EQ(Find(findings, "service").level, Level::kProblem);
  EXPECT_EQ(Find(findings, "service").remedy, "kill -CONT 4242");
  EXPECT_EQ(Find(findings, "answer").level, Level::kNote) << "it follows from the other";
}

TEST_F(Doctor, FindsAStuckServiceThatLooksAlive) {
  DiagnosticInput input = Healthy();
  input.ping = Error(Code::kTimeout, "no answer within 1000 ms");
  const Findings findings = Examine(input);
  EXPECT_EQ(Find(findings, "service").level, Level::kOk);
  EXPECT_EQ(Find(findings, "answer").level, Level::kProblem);
  EXPECT_NE(Find(findings, "answer").remedy.find("headracectl queue"), std::string::npos);
}

TEST_F(Doctor, FindsEachFaultByItself) {
  const auto level_of = [this](const std::string& check, auto spoil) {
    DiagnosticInput input = Healthy();
    spoil(input);
    const Findings findings = Examine(input);
    for (const Finding& finding : findings) {
      const bool expected = finding.check == check;
      EXPECT_TRUE(expected || finding.level <= Level::kNote) << check << " " << finding.check;
    }
    return Find(findings, check).level;
  };
  EXPECT_EQ(level_of("service", [](DiagnosticInput& p) { p.liveness = Liveness::kGone; }),
            Level::kProblem);
  EXPECT_EQ(level_of("service", [](DiagnosticInput& p) { p.board->service.state = 3; }),
            Level::kWarning);
  EXPECT_EQ(level_of("protocol", [](DiagnosticInput& p) { p.protocol_version = 2; }),
            Level::kProblem);
  EXPECT_EQ(level_of("board", [](DiagnosticInput& p) { p.board->rows_unread = 1; }),
            Level::kWarning);
  EXPECT_EQ(level_of("log", [](DiagnosticInput& p) { p.board->log.lines_dropped = 1; }),
            Level::kWarning);
  EXPECT_EQ(level_of("board", [](DiagnosticInput& p) { p.machine.board.mode = 0666; }),
            Level::kWarning);
  EXPECT_EQ(level_of("socket", [](DiagnosticInput& p) { p.machine.socket.may_write = false; }),
            Level::kProblem);
  EXPECT_EQ(level_of("socket", [](DiagnosticInput& p) { p.machine.socket.is_socket = false; }),
            Level::kProblem);
  EXPECT_EQ(level_of("jobs", [](DiagnosticInput& p) { p.board->jobs[0].state = 3; }),
            Level::kProblem);
  EXPECT_EQ(level_of("cores", [](DiagnosticInput& p) { p.machine.cores = 1; }), Level::kWarning);
  EXPECT_EQ(
      level_of("reductions",
               [](DiagnosticInput& p) { ipc::SetText(p.board->service.reduce_target, "SCALAR"); }),
      Level::kWarning);
  EXPECT_EQ(
      level_of("memfd", [](DiagnosticInput& p) { p.machine.memfd = Error(Code::kInternal, "no"); }),
      Level::kProblem);
  EXPECT_EQ(level_of("threads", [](DiagnosticInput& p) { p.machine.threads.stopped = 1; }),
            Level::kProblem);
  EXPECT_EQ(level_of("threads", [](DiagnosticInput& p) { p.machine.threads.uninterruptible = 1; }),
            Level::kWarning);
  EXPECT_EQ(level_of("cpu quota", [](DiagnosticInput& p) { p.machine.cpu_quota = 0.5; }),
            Level::kWarning);
  EXPECT_EQ(level_of("/dev/shm", [](DiagnosticInput& p) { p.machine.shm_free_bytes = 64U << 20U; }),
            Level::kWarning);
  EXPECT_EQ(level_of("/dev/shm", [](DiagnosticInput& p) { p.machine.shm_bytes = 0; }),
            Level::kWarning);
  EXPECT_EQ(
      level_of("locked memory", [](DiagnosticInput& p) { p.machine.rdma_devices = {"mlx5_0"}; }),
      Level::kWarning);
  EXPECT_EQ(level_of("cuda", [](DiagnosticInput& p) { p.machine.libraries.gpus.clear(); }),
            Level::kWarning);
  EXPECT_EQ(level_of("gpus", [](DiagnosticInput& p) { p.board->gpus.clear(); }), Level::kWarning);
  EXPECT_EQ(level_of("gpus", [](DiagnosticInput& p) { p.board->gpus[1].row.stream_words = 0; }),
            Level::kWarning);
  EXPECT_EQ(level_of("gpu lane", [](DiagnosticInput& p) { p.board->lanes.pop_back(); }),
            Level::kWarning);
  EXPECT_EQ(level_of("open files", [](DiagnosticInput& p) { p.machine.limits.open_files = 128; }),
            Level::kWarning);
}

TEST_F(Doctor, SaysWhatAUserMayHandOverAndWhy) {
  DiagnosticInput input = Healthy();
  ipc::ServiceRow& service = input.board->service;
  const auto found = [&input] { return Find(Examine(input), "memory per uid").text; };
  EXPECT_TEXT(found());
  ipc::SetText(service.memory_limited_by, "");
  EXPECT_TEXT(found());
  service.memory_found = 0;
  EXPECT_TEXT(found());
  service.memory_per_uid = 0;
  EXPECT_TEXT(found());
}

TEST_F(Doctor, NamesTheLaneThatDoesNotAnswer) {
  DiagnosticInput input = Healthy();
  input.probe->lanes[1].answered = false;
  input.probe->lanes[0].status = Error(Code::kInternal, "a sum was wrong");
  const Findings findings = Examine(input);
  EXPECT_EQ(Find(findings, "lane ucx0").level, Level::kProblem);
  EXPECT_NE(Find(findings, "lane ucx0").remedy.find("queue --lane ucx0"), std::string::npos);
  EXPECT_EQ(Find(findings, "lane shm0").text, "a sum was wrong");
  EXPECT_EQ(Find(findings, "data path").level, Level::kOk);
  input.probe->dispatch_ns = -1;
  EXPECT_EQ(Find(Examine(input), "data path").level, Level::kProblem);
}

TEST_F(Doctor, WarnsOfClocksThatAreMoreThanASecondApart) {
  DiagnosticInput input = Healthy();
  input.peers->front().clock_offset_ns = -1'500 * kMillisecond;
  const Finding apart = Find(Examine(input), "peer node-b");
  EXPECT_EQ(apart.level, Level::kWarning);
  EXPECT_TEXT(apart.text);
  input.peers->front().connected = false;
  input.peers->front().why = "connection refused";
  EXPECT_EQ(Find(Examine(input), "peer node-b").level, Level::kProblem);
  input.peers->front().why.clear();
  EXPECT_EQ(Find(Examine(input), "peer node-b").level, Level::kNote);
}

TEST_F(Doctor, WarnsWhenAFasterNetworkIsNotUsed) {
  DiagnosticInput input = Healthy();
  ipc::SetText(input.board->lanes[1].row.name, "ucx0");
  ipc::SetText(input.board->lanes[1].row.transport, "ucx tcp/eth0");
  input.machine.limits.locked_bytes = kUnlimited;
  EXPECT_EQ(Find(Examine(input), "links").level, Level::kOk);
  input.machine.rdma_devices = {"mlx5_0"};
  EXPECT_EQ(Find(Examine(input), "links").level, Level::kWarning);
  ipc::SetText(input.board->lanes[1].row.transport, "ucx rc_mlx5/mlx5_0:1");
  EXPECT_EQ(Find(Examine(input), "links").level, Level::kOk);
}

TEST_F(Doctor, SaysHowGpuMemoryReachesOtherNodes) {
  DiagnosticInput input = Healthy();
  EXPECT_TEXT(Find(Examine(input), "gpu lane").text);
  ipc::SetText(input.board->lanes[1].row.name, "ucx0");
  ipc::SetText(input.board->lanes[1].row.transport, "tcp");
  EXPECT_TEXT(Find(Examine(input), "gpu lane").text);
  ipc::SetText(input.board->lanes[1].row.transport, "NCCL 2.23.4 on GPU 0; tcp");
  EXPECT_TEXT(Find(Examine(input), "gpu lane").text);
}

TEST_F(Doctor, SaysWhomThePersonMaySteer) {
  DiagnosticInput input = Healthy();
  EXPECT_TEXT(Find(Examine(input), "steering").text);
  input.machine.uid = 1000;
  EXPECT_TEXT(Find(Examine(input), "steering").text);
}

TEST_F(Doctor, SaysWhereMetricsAre) {
  DiagnosticInput input = Healthy();
  EXPECT_TEXT(Find(Examine(input), "http").text);
  input.configuration = std::string("http_address = \"\"\n");
  EXPECT_EQ(Find(Examine(input), "http").level, Level::kNote);
  input.configuration = std::string();
  EXPECT_EQ(Find(Examine(input), "http").level, Level::kNote);
}

TEST(DoctorPeer, SaysHowFarTheServiceGotAndWhatHelpsWhereItDidNot) {
  const std::vector<PeerStep> all = {
      {.name = "name", .found = "is 10.0.0.2:7733"},
      {.name = "port", .found = "takes connections"},
      {.name = "handshake", .found = "both certificates are believed"},
      {.name = "version", .found = "both speak peer protocol 4"}};
  const Findings good = ExaminePeer("b:7733", all);
  EXPECT_EQ(good.size(), 4U);
  EXPECT_FALSE(HasProblem(good));
  const Findings refused = ExaminePeer(
      "b:7733",
      std::vector<PeerStep>{
          all[0],
          PeerStep{.name = "port", .found = "", .status = Error(Code::kUnavailable, "refused")}});
  ASSERT_EQ(refused.size(), 2U);
  EXPECT_EQ(refused[1].check, "peer port");
  EXPECT_EQ(refused[1].level, Level::kProblem);
  EXPECT_FALSE(refused[1].remedy.empty());
  const Findings none = ExaminePeer("b:7733", Error(Code::kPermissionDenied, "only root may"));
  ASSERT_EQ(none.size(), 1U);
  EXPECT_TRUE(HasProblem(none));
}

TEST(ProbeOnly, IsWellOnlyWhenDispatchAndEveryLaneAnswer) {
  ProbeAnswer answer{.dispatch_ns = 120'000,
                     .lanes = {{.name = "shm0", .answered = true, .ns = 90'000, .status = {}}}};
  EXPECT_TRUE(JudgeProbe(answer).is_well);
  EXPECT_TEXT(JudgeProbe(answer).text);
  answer.lanes[0].status = Error(Code::kInternal, "two\nlines");
  EXPECT_TEXT(JudgeProbe(answer).text);
  answer.lanes[0].answered = false;
  EXPECT_TEXT(JudgeProbe(answer).text);
  answer.dispatch_ns = -1;
  EXPECT_FALSE(JudgeProbe(answer).is_well);
  EXPECT_FALSE(JudgeProbe(Error(Code::kTimeout, "late")).is_well);
}

TEST_F(Doctor, TakesAnUnlimitedLimitForNoLimit) {
  DiagnosticInput input = Healthy();
  input.machine.limits.open_files = kUnlimited;
  input.machine.limits.locked_bytes = kUnlimited;
  const Findings findings = Examine(input);
  EXPECT_TEXT(Find(findings, "open files").text);
  EXPECT_TEXT(Find(findings, "locked memory").text);
}

}  // namespace
}  // namespace headrace::ctl

// Signals, the drain and its bounds, and what an admin is told.
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <optional>
#include <string>

#include "ipc/board.h"
#include "ipc/schema/admin.capnp.h"
#include "service/rpc/control_options.h"
#include "tests/support/expect_text.h"
#include "tests/unit/service/rpc/caller.h"
#include "tests/unit/service/rpc/stand.h"

namespace headrace::support {
namespace {

schema::Admin::Client AdminOf(Caller& caller) {
  auto call = caller.bootstrap().adminRequest();
  call.getHello().setProtocolVersion(schema::PROTOCOL_VERSION);
  return caller.loop()
      .Wait<capnp::Response<schema::Bootstrap::AdminResults>>(call.send())
      .getAdmin();
}

TEST(Stop, DrainsOnSigtermAndExitsWithZero) {
  CallerLoop loop;
  ControlStand stand;
  Caller caller(loop, stand.socket_path());
  const Attached attached = caller.Attach({});
  ASSERT_EQ(attached.code, Code::kOk);
  EXPECT_EQ(stand.BoardRow().state, static_cast<std::uint32_t>(ipc::ServiceState::kRunning));
  const TimeNs now = MonotonicNow();
  stand.Signal(SIGTERM);
  EXPECT_EQ(stand.WaitForExit(), 0);
  EXPECT_EQ(stand.BoardRow().state, static_cast<std::uint32_t>(ipc::ServiceState::kStopped));
  stand.dispatch().Visit<service::Drain>(0, [now](const service::Drain& drain) {
    EXPECT_GE(drain.deadline_ns, now + kSecond);
    EXPECT_LT(drain.deadline_ns, now + 11 * kSecond);
  });
  ASSERT_EQ(stand.dispatch().Count<service::CloseSession>(), 1U);
  stand.dispatch().Visit<service::CloseSession>(0, [](const service::CloseSession& closed) {
    EXPECT_TRUE(closed.orderly);
    EXPECT_TEXT(closed.cause);
  });
}

TEST(Stop, RefusesNewSessionsWhileDraining) {
  CallerLoop loop;
  ControlStand stand({.drains = false, .drain_timeout_ns = 10 * kSecond});
  stand.Signal(SIGINT);
  ASSERT_TRUE(stand.dispatch().WaitFor<service::Drain>(1));
  EXPECT_EQ(stand.BoardRow().state, static_cast<std::uint32_t>(ipc::ServiceState::kDraining));
  Caller caller(loop, stand.socket_path());
  const Attached refused = caller.Attach({});
  EXPECT_EQ(refused.code, Code::kUnavailable);
  EXPECT_VARYING_TEXT(refused.text);
  for (int i = 0; i < 3; ++i) {
    Caller again(loop, stand.socket_path());
    EXPECT_EQ(again.Attach({}).code, Code::kUnavailable);
  }
  int refusals = 0;
  stand.watch().Visit<service::Event>(0, [&refusals](const service::Event& event) {
    refusals += event.code == Code::kUnavailable ? 1 : 0;
  });
  EXPECT_EQ(refusals, 1) << "ranks that wait for the next service ask again and again";
  stand.Signal(SIGTERM);
  EXPECT_EQ(stand.WaitForExit(), 1) << "the second signal ends it at once";
}

TEST(Stop, ADrainClosesWhatCanReconnectAndWaitsForTheRest) {
  CallerLoop loop;
  ControlStand stand;
  std::optional<Caller> caller(std::in_place, loop, stand.socket_path());
  std::optional<Attached> attached = caller->Attach({});
  ASSERT_EQ(attached->code, Code::kOk);
  Caller person(loop, stand.socket_path());
  auto ask = AdminOf(person).drainRequest();
  ask.setDeadlineMs(60'000);
  {
    const auto begun = loop.Wait<capnp::Response<schema::Admin::DrainResults>>(ask.send());
    ASSERT_EQ(begun.getCode(), 0) << begun.getText().cStr();
    EXPECT_EQ(begun.getSessions(), 1U);
    ASSERT_EQ(begun.getWaits().size(), 1U) << "it has not said that it can reconnect";
  }
  Caller late(loop, stand.socket_path());
  EXPECT_EQ(late.Attach({}).code, Code::kUnavailable);
  EXPECT_EQ(stand.dispatch().Count<service::Drain>(), 0U) << "the job has time";
  attached.reset();
  caller.reset();
  EXPECT_EQ(stand.WaitForExit(), 0) << "with the last session the service ends";
}

TEST(Stop, IsBoundedWhateverDispatchDoes) {
  ControlStand stand({.drains = false, .drain_timeout_ns = 0});
  const TimeNs begin = MonotonicNow();
  stand.Signal(SIGTERM);
  EXPECT_EQ(stand.WaitForExit(), 1);
  EXPECT_GE(MonotonicNow() - begin, kSecond);
  EXPECT_LT(MonotonicNow() - begin, 5 * kSecond);
}

TEST(Stop, DrainsAndEndsWithACodeOfItsOwnWhenAGpuBreaks) {
  CallerLoop loop;
  ControlStand stand;
  Caller caller(loop, stand.socket_path());
  ASSERT_EQ(caller.Attach({}).code, Code::kOk);
  ASSERT_TRUE(stand.rpc().Send(service::GpuBroken{"GPU 0: sum or move: CUDA_ERROR_ASSERT"}));
  ASSERT_TRUE(stand.rpc().Send(service::GpuBroken{"GPU 1: sum or move: CUDA_ERROR_ASSERT"}));
  EXPECT_EQ(stand.WaitForExit(), service::kExitGpuBroken);
  EXPECT_EQ(service::kExitGpuBroken, 3) << "documented, and told apart by supervisors";
  EXPECT_EQ(stand.dispatch().Count<service::Drain>(), 1U) << "one drain for both";
  EXPECT_EQ(stand.dispatch().Count<service::CloseSession>(), 1U);
}

TEST(Stop, OfABrokenGpuKeepsItsCodeWhenTheDrainIsCutShort) {
  ControlStand stand({.drains = false, .drain_timeout_ns = 0});
  ASSERT_TRUE(stand.rpc().Send(service::GpuBroken{"GPU 0: sum or move: CUDA_ERROR_ASSERT"}));
  EXPECT_EQ(stand.WaitForExit(), service::kExitGpuBroken);
}

TEST(Stop, TellsDispatchToDrainAsSoonAsItListens) {
  ControlStand stand;
  stand.dispatch().SetFull(true);
  stand.Signal(SIGTERM);
  EXPECT_EQ(stand.WaitForExit(50 * kMillisecond), -1);
  stand.dispatch().SetFull(false);
  EXPECT_EQ(stand.WaitForExit(), 0);
}

TEST(Board, ShowsTheServiceAndWhereItListens) {
  ControlStand stand;
  const ipc::ServiceRow row = stand.BoardRow();
  EXPECT_EQ(row.pid, ::getpid());
  EXPECT_EQ(row.uid, ::getuid());
  EXPECT_EQ(row.protocol_version, schema::PROTOCOL_VERSION);
  EXPECT_EQ(ipc::GetText(row.version), "0.1.0");
  EXPECT_EQ(ipc::GetText(row.socket_path), stand.socket_path());
  EXPECT_EQ(ipc::GetText(row.reduce_target), "AVX2");
  EXPECT_GT(row.started_ns, 0);
  EXPECT_GT(row.started_unix_ns, 1'600'000'000 * kSecond);
}

TEST(Admin, DescribesTheService) {
  CallerLoop loop;
  ControlStand stand;
  Caller caller(loop, stand.socket_path());
  auto admin = AdminOf(caller);
  auto response =
      loop.Wait<capnp::Response<schema::Admin::DescribeResults>>(admin.describeRequest().send());
  const auto description = response.getDescription();
  EXPECT_STREQ(description.getVersion().cStr(), "0.1.0");
  EXPECT_EQ(description.getProtocolVersion(), schema::PROTOCOL_VERSION);
  EXPECT_EQ(description.getPid(), ::getpid());
  EXPECT_STREQ(description.getConfig().cStr(), "spin_us = 0\n");
}

TEST(Admin, RefusesAnotherVersion) {
  CallerLoop loop;
  ControlStand stand;
  Caller caller(loop, stand.socket_path());
  auto call = caller.bootstrap().adminRequest();
  call.getHello().setProtocolVersion(9);
  call.getHello().setProgram("headracectl 3.0");
  auto response = loop.Wait<capnp::Response<schema::Bootstrap::AdminResults>>(call.send());
  const Answered refused = Read(response.getRefusal());
  EXPECT_EQ(refused.code, Code::kVersionMismatch);
  EXPECT_VARYING_TEXT(refused.text, "headracectl 3.0", "protocol 9");
}

TEST(Admin, MeasuresARoundTripThroughDispatch) {
  CallerLoop loop;
  ControlStand stand;
  Caller caller(loop, stand.socket_path());
  auto admin = AdminOf(caller);
  auto response =
      loop.Wait<capnp::Response<schema::Admin::PingResults>>(admin.pingRequest().send());
  EXPECT_EQ(stand.dispatch().Count<service::Ping>(), 1U);
  EXPECT_GT(response.getControlNs(), 0);
  EXPECT_GT(response.getDispatchNs(), 0);
  EXPECT_LT(response.getDispatchNs(), 10 * kSecond);
}

TEST(Admin, SaysWhenDispatchDoesNotAnswer) {
  CallerLoop loop;
  ControlStand stand({.pong = false});
  Caller caller(loop, stand.socket_path());
  auto admin = AdminOf(caller);
  const TimeNs begin = MonotonicNow();
  EXPECT_ANY_THROW(
      loop.Wait<capnp::Response<schema::Admin::PingResults>>(admin.pingRequest().send()));
  EXPECT_LT(MonotonicNow() - begin, 5 * kSecond);
}

}  // namespace
}  // namespace headrace::support

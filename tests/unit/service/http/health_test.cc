// Whether the data path answers, and what is said when it does not.
#include "service/http/health.h"

#include <kj/debug.h>

#include <nlohmann/json.hpp>

#include "tests/support/expect_text.h"
#include "tests/unit/service/http/visit.h"

namespace headrace::service {
namespace {

using nlohmann::json;
using State = ipc::ServiceState;

constexpr std::int64_t kUnix = 1'795'230'000 * kSecond;

json BodyOf(const HttpPage& page) { return json::parse(*page.body); }

TEST(Health, IsWellWhenAllHaveAnswered) {
  Health health;
  health.Update(AllWell(), kUnix);
  EXPECT_EQ(health.Healthz().status, 200U);
  EXPECT_EQ(health.Readyz(State::kRunning).status, 200U);
  const json says = BodyOf(health.Readyz(State::kRunning));
  EXPECT_EQ(says["status"], "ok");
  EXPECT_EQ(says["answered_s"]["lane shm0"], 9e-5);
}

TEST(Health, IsBadBeforeAnybodyWasAsked) {
  const Health health;
  EXPECT_EQ(health.Healthz().status, 503U);
  EXPECT_EQ(health.Readyz(State::kRunning).status, 503U);
}

TEST(Health, IsNotReadyInAnyStateButRunning) {
  Health health;
  health.Update(AllWell(), kUnix);
  for (const State state : {State::kStarting, State::kDraining, State::kStopped}) {
    EXPECT_EQ(health.Readyz(state).status, 503U);
  }
  EXPECT_EQ(BodyOf(health.Readyz(State::kDraining))["state"], "draining");
  EXPECT_EQ(health.Healthz().status, 200U) << "a service that drains is not to be killed";
}

TEST(Health, NamesTheLaneThatIsSilentAndSinceWhen) {
  Health health;
  health.Update(AllWell(), kUnix);
  ProbeAnswer answer = AllWell();
  answer.lanes[1] = {.name = "ucx0"};
  health.Update(answer, kUnix + 10 * kSecond);
  health.Update(answer, kUnix + 20 * kSecond);
  const json says = BodyOf(health.Readyz(State::kRunning));
  ASSERT_EQ(says["silent"].size(), 1U);
  EXPECT_EQ(says["silent"][0]["name"], "lane ucx0");
  EXPECT_TEXT(says["silent"][0]["says"].get<std::string>());
  EXPECT_EQ(says["silent"][0]["since_unix_s"], 1'795'230'010.0);
  EXPECT_EQ(says["silent"][0]["last_answered_unix_s"], 1'795'230'000.0);
  EXPECT_EQ(health.Readyz(State::kRunning).status, 503U);
  EXPECT_EQ(health.Healthz().status, 200U) << "dispatch has answered";
}

TEST(Health, SaysWhatALaneHasAnsweredThatIsNotWell) {
  Health health;
  ProbeAnswer answer = AllWell();
  answer.lanes[0].status = Error(Code::kInternal, "the sum is wrong \xff");
  health.Update(answer, kUnix);
  const json says = BodyOf(health.Readyz(State::kRunning));
  EXPECT_EQ(says["silent"][0]["says"], "the sum is wrong \xef\xbf\xbd");
  EXPECT_EQ(says["silent"][0]["last_answered_unix_s"], nullptr);
}

TEST(Health, IsBadWhileDispatchIsSilentAndWellAgainThen) {
  Health health;
  health.Update(ProbeAnswer{.dispatch_ns = -1, .lanes = {{.name = "shm0"}}}, kUnix);
  EXPECT_EQ(health.Healthz().status, 503U);
  EXPECT_EQ(BodyOf(health.Healthz())["silent"][0]["name"], "dispatch");
  health.Update(AllWell(), kUnix + kSecond);
  EXPECT_EQ(health.Healthz().status, 200U);
  EXPECT_TRUE(BodyOf(health.Readyz(State::kRunning))["silent"].empty());
}

TEST(Health, NamesEveryThreadThatIsSilent) {
  Health health;
  ProbeAnswer answer = AllWell();
  answer.parts = {{.name = "peers", .answered = true, .ns = 5000}, {.name = "watch"}};
  health.Update(answer, kUnix);
  EXPECT_EQ(health.Healthz().status, 503U);
  EXPECT_EQ(BodyOf(health.Healthz())["silent"][0]["name"], "watch");
  EXPECT_EQ(BodyOf(health.Readyz(State::kRunning))["answered_s"]["peers"], 5e-6);
  // Nothing is known of those that rpc would have asked.
  health.Update(ProbeAnswer{.dispatch_ns = -1, .lanes = {}, .parts = {{.name = "rpc"}}}, kUnix);
  const json says = BodyOf(health.Healthz());
  EXPECT_EQ(says["silent"].size(), 2U);
  EXPECT_EQ(says["silent"][0]["name"], "rpc");
  answer.parts[1].answered = true;
  health.Update(answer, kUnix + kSecond);
  EXPECT_EQ(health.Healthz().status, 200U);
}

using HealthOverHttp = HttpTest;

TEST_F(HealthOverHttp, GoesThroughTheDataPath) {
  EXPECT_EQ(Get("/readyz").status(), 200);
  EXPECT_EQ(Get("/readyz").header("Content-Type"), "application/json");
  EXPECT_GE(asked, 1);
}

TEST_F(HealthOverHttp, AsksOnceForManyWhoAskInAHurry) {
  for (int i = 0; i < 20; ++i) EXPECT_EQ(Get("/healthz").status(), 200);
  EXPECT_LT(asked, 20) << "each asked the data path anew";
}

TEST_F(HealthOverHttp, IsBadWhenTheDataPathHasNotAnswered) {
  answer = ProbeAnswer{.dispatch_ns = -1, .lanes = {{.name = "shm0"}}};
  for (const char* path : {"/healthz", "/readyz"}) {
    const Visit visit = Get(path);
    EXPECT_EQ(visit.status(), 503) << path;
    EXPECT_NE(visit.body.find("dispatch"), std::string::npos);
  }
}

TEST_F(HealthOverHttp, HoldsNobodyElseUpWhileItAsks) {
  answer.reset();
  auto waiting = Connect();
  const std::string text = "GET /readyz HTTP/1.1\r\nHost: here\r\n\r\n";
  waiting->write(text.data(), text.size()).wait(io.waitScope);
  ASSERT_TRUE(Until([this] { return !probes.empty(); }));
  EXPECT_EQ(Get("/metrics").status(), 200);
  probes[0]->fulfill(AllWell());
  EXPECT_EQ(Read(*waiting).status(), 200);
}

TEST_F(HealthOverHttp, SurvivesAProbeThatFails) {
  answer.reset();
  auto waiting = Connect();
  const std::string text = "GET /readyz HTTP/1.1\r\nHost: here\r\n\r\n";
  waiting->write(text.data(), text.size()).wait(io.waitScope);
  ASSERT_TRUE(Until([this] { return !probes.empty(); }));
  probes[0]->reject(KJ_EXCEPTION(OVERLOADED, "too many probes wait"));
  EXPECT_EQ(Read(*waiting).status(), 503);
}

}  // namespace
}  // namespace headrace::service

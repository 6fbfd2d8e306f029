// A job that is drained ends, with a named cause, once what is posted has ended.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/expect_text.h"
#include "tests/support/hand_driven_cluster.h"
#include "tests/unit/service/dispatch/expect.h"
#include "tests/unit/service/dispatch/planned.h"

namespace headrace::support {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using Kind = service::Steering::Kind;

const JobSpec kBert{.name = "bert", .world_size = 2};

service::SteerJob Drain(JobId job = JobId{1}) { return {job, {.kind = Kind::kDrain, .uid = 1000}}; }

TEST(JobDrain, EndsWhatAnyRankHasPostedAndRefusesWhatComesLater) {
  HandDrivenNode node(Loopback({.startup_ns = kMillisecond}));
  ClientEnd& a = node.Attach(kBert, 0);
  ClientEnd& b = node.Attach(kBert, 1);
  a.PostApart(kSum);
  b.PostApart(kSum);
  a.PostApart(kSum);
  node.Settle();
  node.Send(Drain());
  node.Settle();
  a.PostApart(kSum);
  node.Settle();
  ExpectFailed(a, 3, Code::kCancelled, {"uid 1000", "operation 2"});
  EXPECT_EQ(node.JobRow(JobId{1})->draining, 1U);
  EXPECT_EQ(node.JobRow(JobId{1})->state, static_cast<std::uint32_t>(ipc::JobState::kRunning));
  b.PostApart(kSum);
  node.Settle();
  node.Advance(5 * kMillisecond);
  for (const ClientEnd* rank : {&a, &b}) {
    ExpectOk(*rank, 1);
    ExpectOk(*rank, 2);
  }
  EXPECT_EQ(node.JobRow(JobId{1})->state, static_cast<std::uint32_t>(ipc::JobState::kFailed));
  b.PostApart(kSum);
  node.Settle();
  ExpectFailed(b, 3, Code::kCancelled, {"uid 1000", "operation 2"});
  EXPECT_THAT(node.watch_tap().events,
              Contains(AllOf(HasSubstr("uid 1000"), HasSubstr("operation 2"))));
  EXPECT_TEXTS(node.watch_tap().events);
}

TEST(JobDrain, OfAJobThatHasNothingOpenIsOverAtOnce) {
  HandDrivenNode node;
  ClientEnd& a = node.Attach(kBert, 0);
  node.Send(Drain());
  a.PostApart(kSum);
  node.Settle();
  ExpectFailed(a, 1, Code::kCancelled, {"uid 1000", "operation 0"});
}

TEST(JobDrain, LetsTheIterationEndAndRefusesTheNextPostByPost) {
  HandDrivenNode node(Loopback({.startup_ns = kMillisecond}));
  const auto layout = PackedLayout({100, 100});
  std::array<ClientEnd*, 2> ranks{};
  for (const std::uint32_t rank : {0U, 1U}) {
    ranks[rank] = &node.Attach(kBert, rank);
    HandIn(node, *ranks[rank], layout);
  }
  Adopt(node, JobId{1}, PlanOf({{{1, 0, 100}}, {{0, 0, 100}}}));
  node.Settle();
  for (ClientEnd* rank : ranks) PostGradient(*rank, *layout, 1);
  node.Settle();
  node.Advance(2 * kMillisecond);
  node.Send(Drain());
  node.Settle();
  // Gradient 1 comes again while gradient 0 of the iteration before is still to come.
  const std::uint64_t refused = PostGradient(*ranks[0], *layout, 1);
  node.Settle();
  ExpectFailed(*ranks[0], refused, Code::kCancelled, {"uid 1000", "iteration 1"});
  const std::uint64_t last = PostGradient(*ranks[0], *layout, 0);
  const std::uint64_t other = PostGradient(*ranks[1], *layout, 0);
  node.Settle();
  node.Advance(2 * kMillisecond);
  ExpectOk(*ranks[0], last);
  ExpectOk(*ranks[1], other);
  EXPECT_EQ(node.JobRow(JobId{1})->state, static_cast<std::uint32_t>(ipc::JobState::kFailed));
}

// Passes on what the nodes have to tell each other, as the job's leader does.
struct Led {
  void Pass() {
    for (std::size_t from = 0; from < cluster.nodes_count(); ++from) {
      const auto requests = cluster.node(from).peers().Of<service::SteerJob>();
      for (; told[from] < requests.size(); ++told[from]) {
        for (std::size_t to = 0; to < cluster.nodes_count(); ++to) {
          service::Steering steering = requests[told[from]]->steering;
          if (to != from) steering.node = HandDrivenCluster::NameOf(from);
          cluster.node(to).Send(service::SteerJob{JobId{1}, steering});
        }
      }
    }
    cluster.Advance(kMillisecond);
  }
  std::size_t Broken(std::size_t node) {
    return cluster.node(node).peers().Of<service::JobFailed>().size();
  }

  JobSpec job{.name = "bert", .world_size = 2, .rendezvous = "a:7733"};
  HandDrivenCluster cluster{{.nodes_count = 2}};
  ClientEnd& a = cluster.node(0).Attach(job, 0);
  ClientEnd& b = cluster.node(1).Attach(job, 1);
  std::array<std::size_t, 2> told{};
};

TEST(JobDrain, OfSeveralNodesEndsWhereTheFurthestOfThemIs) {
  Led led;
  led.cluster.Form(led.job, {{0}, {1}});
  led.cluster.Advance(kMillisecond);
  for (int i = 0; i < 3; ++i) led.a.PostApart(kSum);
  led.b.PostApart(kSum);
  led.cluster.Advance(kMillisecond);
  for (std::size_t node = 0; node < 2; ++node) led.cluster.node(node).Send(Drain());
  led.cluster.Advance(kMillisecond);
  // Before the nodes have told each other they accept more, and begin nothing of it.
  led.a.PostApart(kSum);
  led.b.PostApart(kSum);
  led.cluster.Advance(kSecond);
  ExpectOpen(led.a, 4);
  ExpectOpen(led.b, 2);
  led.Pass();
  ExpectOk(led.b, 2);
  ExpectFailed(led.a, 4, Code::kCancelled, {"uid 1000", "operation 3"});
  ExpectOpen(led.a, 3);
  EXPECT_EQ(led.Broken(0) + led.Broken(1), 0U);
  led.b.PostApart(kSum);
  led.b.PostApart(kSum);
  led.cluster.Advance(kMillisecond);
  for (const ClientEnd* rank : {&led.a, &led.b}) {
    for (std::uint64_t operation = 1; operation <= 3; ++operation) ExpectOk(*rank, operation);
    ExpectFailed(*rank, 4, Code::kCancelled, {"uid 1000", "operation 3"});
  }
  EXPECT_EQ(led.Broken(0), 1U) << "that all has ended here";
  EXPECT_EQ(led.Broken(1), 1U);
}

TEST(JobDrain, OfSeveralNodesThatTrainEndsWithTheIterationOfTheFurthest) {
  Led led;
  const auto layout = PackedLayout({100, 100});
  for (std::size_t node = 0; node < 2; ++node) {
    HandIn(led.cluster.node(node), node == 0 ? led.a : led.b, layout);
  }
  led.cluster.Form(led.job, {{0}, {1}});
  led.cluster.Advance(kMillisecond);
  for (std::size_t node = 0; node < 2; ++node) {
    Adopt(led.cluster.node(node), JobId{1}, PlanOf({{{1, 0, 100}}, {{0, 0, 100}}}));
  }
  led.cluster.Advance(kMillisecond);
  // Iteration 1 ends; a has begun iteration 2.
  for (ClientEnd* rank : {&led.a, &led.b}) {
    PostGradient(*rank, *layout, 1);
    PostGradient(*rank, *layout, 0);
  }
  led.cluster.Advance(kMillisecond);
  PostGradient(led.a, *layout, 1);
  led.cluster.Advance(kMillisecond);
  for (std::size_t node = 0; node < 2; ++node) led.cluster.node(node).Send(Drain());
  led.cluster.Advance(kMillisecond);
  PostGradient(led.b, *layout, 1);
  led.cluster.Advance(kMillisecond);
  ExpectOpen(led.b, 3);
  led.Pass();
  ExpectOk(led.a, 3);
  ExpectOk(led.b, 3);
  PostGradient(led.a, *layout, 0);
  PostGradient(led.b, *layout, 0);
  led.cluster.Advance(kMillisecond);
  ExpectOk(led.a, 4);
  ExpectOk(led.b, 4);
  PostGradient(led.b, *layout, 1);
  led.cluster.Advance(kMillisecond);
  ExpectFailed(led.b, 5, Code::kCancelled, {"uid 1000", "iteration 2"});
  EXPECT_EQ(led.Broken(0), 1U);
  EXPECT_EQ(led.Broken(1), 1U);
}

// A leader may say anything in the nodes' names: what has begun here goes on all the same.
TEST(JobDrain, ThatIsSaidToBeBehindWhatHasBegunHereRefusesNoneOfIt) {
  Led led;
  const auto layout = PackedLayout({100, 100});
  for (std::size_t node = 0; node < 2; ++node) {
    HandIn(led.cluster.node(node), node == 0 ? led.a : led.b, layout);
  }
  led.cluster.Form(led.job, {{0}, {1}});
  led.cluster.Advance(kMillisecond);
  for (std::size_t node = 0; node < 2; ++node) {
    Adopt(led.cluster.node(node), JobId{1}, PlanOf({{{1, 0, 100}}, {{0, 0, 100}}}));
  }
  led.cluster.Advance(kMillisecond);
  const ipc::Record beside = OnSegment(Collective::kAllReduce, DType::kFloat32, 16, 4096);
  led.a.Post(beside);
  PostGradient(led.a, *layout, 1);
  PostGradient(led.a, *layout, 0);
  led.cluster.Advance(kMillisecond);
  led.cluster.node(0).Send(Drain());
  for (const Kind kind : {Kind::kDrainOperations, Kind::kDrainIterations}) {
    for (const char* const node : {"", "b"}) {
      led.cluster.node(0).Send(
          service::SteerJob{JobId{1}, {.kind = kind, .value = 0, .uid = 1000, .node = node}});
    }
  }
  led.cluster.Advance(kMillisecond);
  for (std::uint64_t record = 1; record <= 3; ++record) ExpectOpen(led.a, record);
  led.b.Post(beside);
  PostGradient(led.b, *layout, 1);
  PostGradient(led.b, *layout, 0);
  led.cluster.Advance(kSecond);
  for (std::uint64_t record = 1; record <= 3; ++record) ExpectOk(led.a, record);
}

}  // namespace
}  // namespace headrace::support

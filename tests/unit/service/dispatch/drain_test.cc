// Drain: finish what is posted, accept nothing new, within a bound.
#include <gtest/gtest.h>

#include "tests/unit/service/dispatch/expect.h"

namespace headrace::support {
namespace {

std::size_t Drained(HandDrivenNode& node) { return node.rpc().Of<service::Drained>().size(); }

TEST(Dispatch, IsDrainedAtOnceWhenNothingIsOpen) {
  HandDrivenNode node;
  node.Attach(kPair, 0);
  node.Settle();
  node.Send(service::Drain{node.now + kSecond});
  node.Settle();
  EXPECT_EQ(Drained(node), 1U);
  EXPECT_EQ(node.dispatch().NextDeadline(), kNever);
  node.Advance(2 * kSecond);
  EXPECT_EQ(Drained(node), 1U);
  // Nothing waits for the deadline of another one.
  node.Send(service::Drain{node.now + kSecond});
  node.Settle();
  EXPECT_EQ(node.dispatch().NextDeadline(), kNever);
  node.Advance(2 * kSecond);
}

TEST(Dispatch, FinishesWhatIsPostedWhenItDrainsAndRefusesWhatIsNew) {
  HandDrivenNode node(Loopback({.startup_ns = kMillisecond}));
  ClientEnd& a = node.Attach(kPair, 0);
  ClientEnd& b = node.Attach(kPair, 1);
  a.PostApart(kSum);
  b.PostApart(kSum);
  a.PostApart(kSum);
  node.Settle();
  node.Send(service::Drain{node.now + kSecond});
  node.Settle();
  EXPECT_EQ(Drained(node), 0U);
  b.PostApart(kSum);  // joins what was posted before
  b.PostApart(kSum);
  node.Settle();
  ExpectFailed(b, 3, Code::kUnavailable, {});
  node.Advance(5 * kMillisecond);
  for (const ClientEnd* rank : {&a, &b}) {
    ExpectOk(*rank, 1);
    ExpectOk(*rank, 2);
  }
  EXPECT_EQ(Drained(node), 1U);
  a.PostApart(kSum);
  node.Settle();
  ExpectFailed(a, 3, Code::kUnavailable, {"shutting down"});
}

TEST(Dispatch, EndsWhatIsOpenWhenTheTimeToDrainIsOver) {
  HandDrivenNode node(Loopback({.startup_ns = 10 * kSecond}));
  ClientEnd& a = node.Attach(kPair, 0);
  ClientEnd& b = node.Attach(kPair, 1);
  a.PostApart(kSum);
  b.PostApart(kSum);
  a.Post(Barrier());
  node.Settle();
  node.Send(service::Drain{node.now + kSecond});
  node.Settle();
  EXPECT_EQ(node.dispatch().NextDeadline(), node.now + kSecond);
  node.Advance(kSecond - 1);
  ExpectOpen(a, 1);
  ExpectOpen(a, 2);
  EXPECT_EQ(Drained(node), 0U);
  node.Advance(1);
  for (const ClientEnd* rank : {&a, &b}) {
    ExpectFailed(*rank, 1, Code::kUnavailable, {"operation 1"});
  }
  ExpectFailed(a, 2, Code::kUnavailable, {"operation 2 [barrier]"});
  EXPECT_EQ(Drained(node), 1U);
  EXPECT_EQ(node.transport().cancelled.size(), 1U);
}

}  // namespace
}  // namespace headrace::support

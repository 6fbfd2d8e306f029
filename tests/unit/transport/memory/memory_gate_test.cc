// Collectives and calls at the gate between them, by hand.
#include "transport/memory/memory_gate.h"

#include <gtest/gtest.h>

namespace headrace::transport {
namespace {

constexpr TimeNs kBegin = 7 * kSecond;

TEST(MemoryGate, LetsCallsBeginWhileNoCollectiveIsUnderWay) {
  MemoryGate gate;
  MemoryGate::Caller caller(gate);
  ASSERT_TRUE(gate.TryBeginCollective());
  ASSERT_TRUE(gate.TryBeginCollective());
  EXPECT_FALSE(caller.TryBegin(kBegin));
  gate.EndCollective();
  EXPECT_FALSE(caller.TryBegin(kBegin));
  EXPECT_TRUE(gate.TryBeginCollective()) << "who waits holds nothing up";
  gate.EndCollective();
  gate.EndCollective();
  EXPECT_TRUE(caller.TryBegin(kBegin));
}

TEST(MemoryGate, LaunchesNoCollectiveWhileCallsAreMade) {
  MemoryGate gate;
  MemoryGate::Caller first(gate);
  ASSERT_TRUE(first.TryBegin(kBegin));
  {
    MemoryGate::Caller second(gate);
    ASSERT_TRUE(second.TryBegin(kBegin)) << "calls do not mind each other";
    first.End();
    EXPECT_FALSE(gate.TryBeginCollective());
  }
  EXPECT_TRUE(gate.TryBeginCollective()) << "it ended with its owner";
}

TEST(MemoryGate, LetsACallGoOnWhenACollectiveTakesTooLong) {
  MemoryGate gate;
  MemoryGate::Caller caller(gate);
  ASSERT_TRUE(gate.TryBeginCollective());
  EXPECT_FALSE(caller.TryBegin(kBegin));
  EXPECT_FALSE(caller.TryBegin(kBegin + MemoryGate::kPatience - 1));
  EXPECT_TRUE(caller.TryBegin(kBegin + MemoryGate::kPatience));
  EXPECT_TRUE(gate.TryBeginCollective()) << "it is not held up by such a call";
  caller.End();
  // The next does not wait for the same collective once more.
  EXPECT_TRUE(caller.TryBegin(kBegin + MemoryGate::kPatience));
  caller.End();
  gate.EndCollective();
  gate.EndCollective();
  ASSERT_TRUE(gate.TryBeginCollective());
  const TimeNs later = kBegin + 2 * MemoryGate::kPatience;
  EXPECT_FALSE(caller.TryBegin(later)) << "for another one it does";
  EXPECT_TRUE(caller.TryBegin(later + MemoryGate::kPatience));
}

TEST(MemoryGate, ForgetsACallThatIsNotWantedAnyMore) {
  MemoryGate gate;
  MemoryGate::Caller caller(gate);
  ASSERT_TRUE(gate.TryBeginCollective());
  EXPECT_FALSE(caller.TryBegin(kBegin));
  caller.End();
  EXPECT_FALSE(caller.TryBegin(kBegin + MemoryGate::kPatience)) << "it waits from now on";
}

}  // namespace
}  // namespace headrace::transport

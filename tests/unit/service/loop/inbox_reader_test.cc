// Messages of an inbox are handled in order, and never keep timers waiting.
#include "service/loop/inbox_reader.h"

#include <gtest/gtest.h>

#include <vector>

#include "service/loop/loop_thread.h"
#include "service/rpc/messages.h"

namespace headrace::service {
namespace {

TEST(InboxReader, HandlesWhatCameBeforeAndWhatComesLaterInOrder) {
  kj::AsyncIoContext io = kj::setupAsyncIo();
  const auto inbox = LoopInbox<RpcMessage>::Create().value();
  std::vector<std::uint64_t> tokens;
  InboxReader<RpcMessage> reader(*inbox, io, [&tokens](RpcMessage& message) {
    tokens.push_back(std::get<Pong>(message).token);
  });
  constexpr std::uint64_t kHalf = 3 * InboxReader<RpcMessage>::kMessagesPerTurn;
  for (std::uint64_t i = 0; i < kHalf; ++i) ASSERT_TRUE(inbox->Send(Pong{i}));
  auto reading = reader.Read().eagerlyEvaluate(nullptr);
  const auto wait = [&io] {
    io.provider->getTimer().afterDelay(20 * kj::MILLISECONDS).wait(io.waitScope);
  };
  wait();
  EXPECT_EQ(tokens.size(), kHalf);
  for (std::uint64_t i = kHalf; i < 2 * kHalf; ++i) ASSERT_TRUE(inbox->Send(Pong{i}));
  wait();
  ASSERT_EQ(tokens.size(), 2 * kHalf);
  for (std::uint64_t i = 0; i < tokens.size(); ++i) EXPECT_EQ(tokens[i], i);
}

TEST(InboxReader, ATimerFiresBetweenMessagesThatNeverEnd) {
  kj::AsyncIoContext io = kj::setupAsyncIo();
  io.waitScope.setBusyPollInterval(kEventsPerPoll);
  const auto inbox = LoopInbox<RpcMessage>::Create().value();
  std::size_t handled = 0;
  // Each message brings the next.
  InboxReader<RpcMessage> reader(*inbox, io, [&](RpcMessage&) {
    ++handled;
    ASSERT_TRUE(inbox->Send(Pong{1}));
  });
  ASSERT_TRUE(inbox->Send(Pong{1}));
  auto reading = reader.Read().eagerlyEvaluate(nullptr);
  const TimeNs begin = MonotonicNow();
  io.provider->getTimer().afterDelay(5 * kj::MILLISECONDS).wait(io.waitScope);
  EXPECT_LT(MonotonicNow() - begin, 10 * kSecond) << "it would never fire";
  EXPECT_GT(handled, 0U);
}

TEST(LoopThread, TellsWhoStartsItWhatFailed) {
  const auto thread =
      LoopThread::Start("hr-test", [](kj::AsyncIoContext&, kj::Promise<void>, const auto& started) {
        started(Error(Code::kUnavailable, "the port is taken"));
      });
  ASSERT_FALSE(thread.ok());
  EXPECT_EQ(thread.error().text(), "the port is taken");
}

TEST(LoopThread, StopsWhenItIsDestroyed) {
  bool stopped = false;
  {
    const auto thread = LoopThread::Start(
        "hr-test", [&stopped](kj::AsyncIoContext& io, kj::Promise<void> stop, const auto& started) {
          started({});
          stop.wait(io.waitScope);
          stopped = true;
        });
    ASSERT_TRUE(thread.ok());
  }
  EXPECT_TRUE(stopped);
}

}  // namespace
}  // namespace headrace::service

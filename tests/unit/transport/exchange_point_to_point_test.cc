// Sends and receives of a group: beside its collectives, in any order, ended alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "tests/unit/transport/exchange_fleet.h"
#include "tests/unit/transport/sent_message.h"

namespace headrace::transport {
namespace {

void PostReceive(Fleet& fleet, SentMessage& message) {
  fleet.Post(message.target, message.Of(true, fleet.nodes_count()));
}
void PostSend(Fleet& fleet, SentMessage& message) {
  fleet.Post(message.source, message.Of(false, fleet.nodes_count()));
}

TEST(ExchangePointToPoint, MovesMessagesOfEverySizeInBothDirections) {
  for (const std::size_t bytes : {0U, 1U, 4096U, 4097U, 400'000U}) {
    Fleet fleet({});
    SentMessage there(0, 1, 7, bytes);
    SentMessage back(1, 0, 7, bytes);
    PostReceive(fleet, there);
    PostReceive(fleet, back);
    PostSend(fleet, there);
    PostSend(fleet, back);
    fleet.RunToTheEnd();
    for (std::uint32_t node = 0; node < 2; ++node) {
      ASSERT_EQ(fleet.completions(node).size(), 2U) << bytes;
      for (const auto& each : fleet.completions(node)) ASSERT_EQ(each.code, Code::kOk);
    }
    EXPECT_TRUE(there.HasCome() && back.HasCome()) << bytes;
    EXPECT_EQ(fleet.network().open_count(), 0U);
  }
}

// The wire may write them past the caches, but not what the exchange sums right away.
TEST(ExchangePointToPoint, LetTheWireKnowHowLargeTheyAre) {
  for (const std::uint32_t rails : {1U, 2U}) {
    Fleet fleet({.rails_count = rails});
    SentMessage message(0, 1, 7, 400'000);
    FleetTransfer sum(Collective::kAllReduce, DType::kFloat32, Reduction::kSum, 100'000, 2, 8);
    PostReceive(fleet, message);
    PostSend(fleet, message);
    fleet.PostEverywhere(sum.transfer());
    fleet.RunToTheEnd();
    EXPECT_TRUE(message.HasCome());
    EXPECT_EQ(fleet.network().wholes(), (std::set<std::size_t>{0, 400'000})) << rails;
  }
}

// As many as may be open, of many nodes, with collectives beside them and jitter on the links.
TEST(ExchangePointToPoint, NeverWaitForCollectivesOrForEachOther) {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    std::mt19937_64 dice(seed);
    const auto nodes = static_cast<std::uint32_t>(2 + dice() % 3);
    Fleet fleet({.data_count = nodes, .network = {.seed = seed, .jitter_ns = kMillisecond}});
    FleetTransfer stuck(Collective::kAllReduce, DType::kInt32, Reduction::kSum, 40'000, nodes, 5);
    fleet.Post(0, stuck.transfer());  // the others never post it
    std::vector<SentMessage> messages;
    std::vector<std::uint32_t> received(nodes);
    std::vector<std::uint32_t> sent(nodes);
    for (std::uint64_t i = 0; i < 1000; ++i) {
      const auto source = static_cast<std::uint32_t>(dice() % nodes);
      const auto target = static_cast<std::uint32_t>((source + 1 + dice() % (nodes - 1)) % nodes);
      if (sent[source] == PointToPoint::kOpenMax || received[target] == PointToPoint::kOpenMax) {
        continue;
      }
      ++sent[source];
      ++received[target];
      messages.emplace_back(source, target, i + 1, dice() % 30'000);
    }
    for (SentMessage& message : messages) PostReceive(fleet, message);
    std::shuffle(messages.begin(), messages.end(), dice);
    for (SentMessage& message : messages) {
      PostSend(fleet, message);
      for (std::uint64_t steps = dice() % 5; steps > 0; --steps) fleet.Step();
    }
    fleet.RunToTheEnd();
    std::size_t ended = 0;
    for (std::uint32_t node = 0; node < nodes; ++node) ended += fleet.completions(node).size();
    ASSERT_EQ(ended, 2 * messages.size()) << "seed " << seed;
    for (const SentMessage& message : messages) ASSERT_TRUE(message.HasCome()) << "seed " << seed;
  }
}

TEST(ExchangePointToPoint, TakeNoMoreThanTheyHaveRoomFor) {
  Fleet fleet({});
  std::vector<SentMessage> messages;
  for (std::uint64_t i = 0; i <= PointToPoint::kOpenMax; ++i) messages.emplace_back(0, 1, i + 1, 9);
  for (std::uint64_t i = 0; i < PointToPoint::kOpenMax; ++i) PostReceive(fleet, messages[i]);
  EXPECT_EQ(fleet.node(1).Post(Fleet::Local(messages.back().Of(true, 2), 1), 0), PostResult::kBusy);
  // Sends have room of their own, or two nodes full of receives would wait for each other.
  for (std::uint64_t i = 0; i < PointToPoint::kOpenMax; ++i) PostSend(fleet, messages[i]);
  fleet.RunToTheEnd();
  EXPECT_EQ(fleet.completions(1).size(), PointToPoint::kOpenMax);
}

TEST(ExchangePointToPoint, EndAloneWhenCancelledAtAnyMoment) {
  for (std::uint64_t steps = 0; steps < 120; ++steps) {
    for (const bool sender : {true, false}) {
      Fleet fleet({});
      SentMessage message(0, 1, 3, 200'000);
      SentMessage other(0, 1, 4, 5000);
      for (SentMessage* each : {&message, &other}) PostReceive(fleet, *each);
      for (SentMessage* each : {&message, &other}) PostSend(fleet, *each);
      for (std::uint64_t i = 0; i < steps; ++i) fleet.Step();
      const std::uint32_t node = sender ? 0 : 1;
      fleet.node(node).Cancel(message.Of(!sender, 2).token);
      fleet.RunToTheEnd();
      const auto code_of = [&](std::uint32_t at, std::uint64_t token) {
        for (const auto& each : fleet.completions(at)) {
          if (each.token == token) return each.code;
        }
        return Code::kBusy;
      };
      const Code own = code_of(node, message.Of(!sender, 2).token);
      ASSERT_TRUE(own == Code::kOk || own == Code::kCancelled) << steps;
      ASSERT_EQ(code_of(1, other.Of(true, 2).token), Code::kOk) << steps;
      ASSERT_TRUE(other.HasCome());
      // A receive that its send was cancelled for is cancelled too, as its service does.
      if (sender && own == Code::kCancelled) {
        fleet.node(1).Cancel(message.Of(true, 2).token);
        fleet.RunToTheEnd();
        ASSERT_EQ(code_of(1, message.Of(true, 2).token), Code::kCancelled);
      }
      if (!sender) {
        ASSERT_EQ(code_of(0, message.Of(false, 2).token), Code::kOk) << steps;
      }
      ASSERT_EQ(fleet.network().open_count(), 0U);
    }
  }
}

TEST(ExchangePointToPoint, DropWhatNobodyReceives) {
  Fleet fleet({});
  SentMessage message(0, 1, 3, 10'000);
  PostSend(fleet, message);
  fleet.RunToTheEnd();
  EXPECT_EQ(fleet.node(1).counters().messages_dropped, 3U);
  SentMessage next(0, 1, 4, 10);
  PostReceive(fleet, next);
  PostSend(fleet, next);
  fleet.RunToTheEnd();
  EXPECT_TRUE(next.HasCome());
}

TEST(ExchangePointToPoint, ThatContradictTheirReceiveFailTheGroup) {
  Fleet fleet({});
  SentMessage message(0, 1, 3, 10'000);
  PostReceive(fleet, message);
  Transfer send = message.Of(false, 2);
  send.count -= 1;
  fleet.Post(0, send);
  fleet.RunToTheEnd();
  ASSERT_EQ(fleet.completions(1).size(), 1U);
  EXPECT_EQ(fleet.completions(1)[0].code, Code::kMismatch);
}

// Closes the group on both sides after so many steps: each side ends well, or with that cause.
void ExpectEndedByClosing(Fleet& fleet, std::uint64_t steps) {
  for (std::uint64_t i = 0; i < steps; ++i) fleet.Step();
  fleet.node(0).CloseGroup(1, "over");
  fleet.node(1).CloseGroup(1, "over");
  fleet.RunToTheEnd();
  for (std::uint32_t node = 0; node < 2; ++node) {
    ASSERT_EQ(fleet.completions(node).size(), 1U) << steps;
    const Completion& ended = fleet.completions(node)[0];
    ASSERT_TRUE(ended.code == Code::kOk || ended.cause == "over") << ended.cause;
  }
  ASSERT_EQ(fleet.network().open_count(), 0U) << steps;
}

TEST(ExchangePointToPoint, EndWithTheCauseWhenTheGroupCloses) {
  for (std::uint64_t steps = 0; steps < 60; ++steps) {
    Fleet fleet({});
    SentMessage message(0, 1, 3, 300'000);
    PostReceive(fleet, message);
    PostSend(fleet, message);
    ASSERT_NO_FATAL_FAILURE(ExpectEndedByClosing(fleet, steps));
  }
}

// Either side first, in whatever order each node comes to them, with jitter on the links.
TEST(ExchangePointToPoint, MeetInAnyOrderAndLoseNothing) {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    std::mt19937_64 dice(seed);
    const auto nodes = static_cast<std::uint32_t>(2 + dice() % 3);
    Fleet fleet({.data_count = nodes,
                 .network = {.seed = seed, .jitter_ns = kMillisecond, .duplicate_share = 0.1}});
    std::vector<SentMessage> messages;
    std::vector<std::uint32_t> sent(nodes);
    std::vector<std::uint32_t> received(nodes);
    for (std::uint64_t i = 0; i < 300; ++i) {
      const auto source = static_cast<std::uint32_t>(dice() % nodes);
      const auto target = static_cast<std::uint32_t>((source + 1 + dice() % (nodes - 1)) % nodes);
      if (sent[source] == PointToPoint::kOpenMax || received[target] == PointToPoint::kOpenMax) {
        continue;
      }
      ++sent[source];
      ++received[target];
      messages.emplace_back(source, target, i + 1, dice() % 3 == 0 ? 0 : dice() % 30'000);
      messages.back().meets = true;
    }
    // Each node posts what it sends and what it receives in the order of their positions.
    std::vector<std::size_t> next(2 * nodes);
    for (std::size_t left = 2 * messages.size(); left > 0;) {
      const std::size_t queue = dice() % next.size();
      const bool receives = queue % 2 == 1;
      const auto node = static_cast<std::uint32_t>(queue / 2);
      for (; next[queue] < messages.size(); ++next[queue]) {
        SentMessage& message = messages[next[queue]];
        if ((receives ? message.target : message.source) != node) continue;
        receives ? PostReceive(fleet, message) : PostSend(fleet, message);
        ++next[queue];
        --left;
        break;
      }
      for (std::uint64_t steps = dice() % 5; steps > 0; --steps) fleet.Step();
    }
    fleet.RunToTheEnd();
    std::size_t ended = 0;
    for (std::uint32_t node = 0; node < nodes; ++node) {
      ended += fleet.completions(node).size();
      for (const auto& each : fleet.completions(node)) {
        ASSERT_EQ(each.code, Code::kOk) << each.cause;
      }
    }
    ASSERT_EQ(ended, 2 * messages.size()) << "seed " << seed;
    for (const SentMessage& message : messages) ASSERT_TRUE(message.HasCome()) << "seed " << seed;
  }
}

// The first piece goes at once, the others when the receive has said that it is there.
TEST(ExchangePointToPoint, SendAFirstPieceBeforeTheOtherNodeIsThereAndNoMore) {
  constexpr std::uint64_t kFleetPiece = 4096;
  constexpr std::uint64_t kSize = 3 * kFleetPiece;
  Fleet fleet({});
  SentMessage message(0, 1, 3, kSize);
  message.meets = true;
  PostSend(fleet, message);
  fleet.RunToTheEnd();
  EXPECT_EQ(fleet.node(0).counters().bytes_sent, kFleetPiece);
  EXPECT_EQ(fleet.node(0).Missing(message.Of(false, 2).token), 2U) << "it waits for node 1";
  EXPECT_EQ(fleet.node(1).counters().messages_dropped, 0U);
  PostReceive(fleet, message);
  fleet.RunToTheEnd();
  EXPECT_TRUE(message.HasCome());
  EXPECT_EQ(fleet.node(1).counters().messages_sent, 1U) << "that it is there";
  EXPECT_EQ(fleet.node(0).counters().bytes_sent, kSize);
}

// Until both are there they may disagree, so a message of one piece does not end before either.
TEST(ExchangePointToPoint, EndNoSendBeforeItsReceiveIsThere) {
  Fleet fleet({});
  SentMessage message(0, 1, 3, 100);
  message.meets = true;
  PostSend(fleet, message);
  fleet.RunToTheEnd();
  EXPECT_EQ(fleet.node(0).counters().bytes_sent, 100U);
  EXPECT_TRUE(fleet.completions(0).empty());
  PostReceive(fleet, message);
  fleet.RunToTheEnd();
  EXPECT_TRUE(message.HasCome());
  EXPECT_EQ(fleet.completions(0).size(), 1U);
  EXPECT_EQ(fleet.node(0).counters().bytes_sent, 100U) << "once";
}

// A node keeps few messages that it does not wait for; each receive gives room for another one.
TEST(ExchangePointToPoint, SendFewFirstPiecesAtATimeBeforeTheOtherNodeIsThere) {
  constexpr std::uint64_t kMessages = PointToPoint::kUnmetMax + 3;
  Fleet fleet({});
  std::vector<SentMessage> messages;
  messages.reserve(kMessages);
  for (std::uint64_t i = 0; i < kMessages; ++i) {
    messages.emplace_back(0, 1, i + 1, 100);
    messages.back().meets = true;
    PostSend(fleet, messages.back());
  }
  fleet.RunToTheEnd();
  EXPECT_EQ(fleet.node(0).counters().messages_sent, PointToPoint::kUnmetMax);
  for (std::uint64_t i = 0; i < kMessages; ++i) {
    PostReceive(fleet, messages[i]);
    fleet.RunToTheEnd();
    EXPECT_TRUE(messages[i].HasCome()) << i;
    EXPECT_EQ(fleet.node(0).counters().messages_sent,
              std::min(kMessages, i + 1 + PointToPoint::kUnmetMax));
  }
  EXPECT_EQ(fleet.node(1).counters().messages_dropped, 0U);
}

// Both nodes gave up operations of which one node had not posted the receives.
TEST(ExchangePointToPoint, ForgetFirstPiecesWhoseReceivesNeverCome) {
  constexpr std::uint64_t kGivenUp = PointToPoint::kUnmetMax;
  Fleet fleet({});
  std::vector<SentMessage> messages;
  messages.reserve(2 * kGivenUp);
  for (std::uint64_t i = 0; i < 2 * kGivenUp; ++i) {
    messages.emplace_back(0, 1, i + 1, 100);
    messages.back().meets = true;
    PostSend(fleet, messages.back());
  }
  fleet.RunToTheEnd();
  for (std::uint64_t i = 0; i < kGivenUp; ++i) {
    fleet.node(0).Cancel(messages[i].Of(false, 2).token);
  }
  fleet.RunToTheEnd();
  EXPECT_EQ(fleet.completions(0).size(), kGivenUp);
  EXPECT_EQ(fleet.node(0).counters().messages_sent, kGivenUp) << "the others have no right to";
  PostReceive(fleet, messages[kGivenUp]);
  fleet.RunToTheEnd();
  EXPECT_EQ(fleet.node(1).counters().messages_dropped, kGivenUp);
  EXPECT_EQ(fleet.node(0).counters().messages_sent, 2 * kGivenUp);
  for (std::uint64_t i = kGivenUp + 1; i < 2 * kGivenUp; ++i) PostReceive(fleet, messages[i]);
  fleet.RunToTheEnd();
  for (std::uint64_t i = kGivenUp; i < 2 * kGivenUp; ++i) EXPECT_TRUE(messages[i].HasCome()) << i;
  EXPECT_EQ(fleet.network().open_count(), 0U);
}

// Who sends more than that is no honest node, and what comes for no receive any more is dropped.
TEST(ExchangePointToPoint, KeepNoMoreFirstPiecesThanANodeMaySend) {
  Fleet fleet({});
  MessageHeader header{.key = KeyOf(1),
                       .epoch = 3,
                       .plan_version = 5,
                       .count = 1,
                       .kind = static_cast<std::uint8_t>(kSend),
                       .dtype = static_cast<std::uint8_t>(DType::kUInt8),
                       .round = 1,
                       .sender = 1};
  for (std::uint64_t i = 0; i < PointToPoint::kUnmetMax; ++i) {
    header.position = 100 + i;
    fleet.network().Inject("a", header, std::vector<std::byte>(1));
    fleet.network().Inject("a", header, std::vector<std::byte>(1));  // twice
  }
  fleet.RunToTheEnd();
  EXPECT_EQ(fleet.node(0).counters().messages_dropped, PointToPoint::kUnmetMax);
  MessageHeader second = header;
  second.piece = 1;  // no first piece
  fleet.network().Inject("a", second, std::vector<std::byte>(1));
  second.piece = 0;
  second.round = 0;  // one whose receive is known to be there
  fleet.network().Inject("a", second, std::vector<std::byte>(1));
  fleet.RunToTheEnd();
  EXPECT_EQ(fleet.node(0).counters().messages_dropped, PointToPoint::kUnmetMax + 2);
  header.position = 200;
  fleet.network().Inject("a", header, std::vector<std::byte>(1));
  SentMessage message(0, 1, 300, 10);
  message.meets = true;
  PostSend(fleet, message);
  fleet.RunToTheEnd();
  ASSERT_EQ(fleet.completions(0).size(), 1U);
  EXPECT_EQ(fleet.completions(0)[0].code, Code::kMismatch);
}

TEST(ExchangePointToPoint, ThatMeetAndDifferFailTheGroup) {
  for (const std::uint64_t expected : {0U, 9000U, 20'000U}) {
    Fleet fleet({});
    SentMessage message(0, 1, 3, 10'000);
    message.meets = true;
    message.got.resize(20'000);
    Transfer receive = message.Of(true, 2);
    receive.count = expected;
    PostSend(fleet, message);
    fleet.Post(1, receive);
    fleet.RunToTheEnd();
    ASSERT_EQ(fleet.completions(1).size(), 1U) << expected;
    EXPECT_EQ(fleet.completions(1)[0].code, Code::kMismatch) << expected;
  }
}

TEST(ExchangePointToPoint, EndWellOrWithTheCauseWhenTheyMeetAndTheGroupCloses) {
  for (std::uint64_t steps = 0; steps < 60; ++steps) {
    Fleet fleet({});
    SentMessage message(0, 1, 3, 300'000);
    message.meets = true;
    PostSend(fleet, message);
    PostReceive(fleet, message);
    ASSERT_NO_FATAL_FAILURE(ExpectEndedByClosing(fleet, steps));
  }
}

// Who says of more receives than a node can have open that they are there is no honest node.
TEST(ExchangePointToPoint, AreAnnouncedByNoMoreThanMayBeOpen) {
  Fleet fleet({});
  MessageHeader header{.key = KeyOf(1),
                       .epoch = 3,
                       .plan_version = 5,
                       .kind = static_cast<std::uint8_t>(kReceive),
                       .dtype = static_cast<std::uint8_t>(DType::kUInt8),
                       .sender = 1};
  for (std::uint64_t i = 0; i < PointToPoint::kOpenMax; ++i) {
    header.position = 100 + i;
    fleet.network().Inject("a", header, {});
    fleet.network().Inject("a", header, {});  // saying it twice is dropped
  }
  fleet.RunToTheEnd();
  EXPECT_EQ(fleet.node(0).counters().messages_dropped, PointToPoint::kOpenMax);
  header.position = 99;
  fleet.network().Inject("a", header, std::vector<std::byte>(1));
  header.root = 1;
  fleet.network().Inject("a", header, {});
  fleet.RunToTheEnd();
  EXPECT_EQ(fleet.node(0).counters().messages_dropped, PointToPoint::kOpenMax + 2);
  header.root = 0;
  fleet.network().Inject("a", header, {});
  fleet.RunToTheEnd();
  SentMessage message(0, 1, 200, 10);
  message.meets = true;
  PostSend(fleet, message);
  fleet.RunToTheEnd();
  ASSERT_EQ(fleet.completions(0).size(), 1U);
  EXPECT_EQ(fleet.completions(0)[0].code, Code::kMismatch);
}

}  // namespace
}  // namespace headrace::transport

// Messages that no honest node would send, or that two honest nodes that disagree would.
#include <gtest/gtest.h>

#include <functional>

#include "tests/support/expect_text.h"
#include "tests/unit/transport/exchange_fleet.h"

namespace headrace::transport {
namespace {

FleetTransfer IntegerSum(std::uint64_t count, std::uint32_t nodes, std::uint64_t position) {
  return {Collective::kAllReduce, DType::kInt32, Reduction::kSum, count, nodes, position};
}

// What node b would send to the others for a sum of 100 int32 at position 1.
MessageHeader Honest() {
  MessageHeader header{.key = KeyOf(1), .epoch = 3, .plan_version = 5, .position = 1, .count = 100};
  header.kind = static_cast<std::uint8_t>(Collective::kAllReduce);
  header.dtype = static_cast<std::uint8_t>(DType::kInt32);
  header.reduction = static_cast<std::uint8_t>(Reduction::kSum);
  header.sender = 1;
  return header;
}

struct Lie {
  std::string name;
  std::function<void(MessageHeader&)> tell;

  friend void PrintTo(const Lie& lie, std::ostream* out) { *out << lie.name; }
};

std::vector<Lie> AllLies() {
  return {{"OtherKey", [](MessageHeader& header) { header.key ^= 1; }},
          {"OldEpoch", [](MessageHeader& header) { header.epoch = 2; }},
          {"OtherPlan", [](MessageHeader& header) { header.plan_version = 4; }},
          {"SenderItself", [](MessageHeader& header) { header.sender = 0; }},
          {"SenderBeyond", [](MessageHeader& header) { header.sender = 3; }},
          {"KindZero", [](MessageHeader& header) { header.kind = 0; }},
          {"KindBeyond", [](MessageHeader& header) { header.kind = 7; }},
          {"KindOfMessages",
           [](MessageHeader& header) { header.kind = static_cast<std::uint8_t>(kAllToAll); }},
          {"DTypeZero", [](MessageHeader& header) { header.dtype = 0; }},
          {"DTypeBeyond", [](MessageHeader& header) { header.dtype = 8; }},
          {"ReductionZero", [](MessageHeader& header) { header.reduction = 0; }},
          {"ReductionBeyond", [](MessageHeader& header) { header.reduction = 6; }},
          {"CountBeyond", [](MessageHeader& header) { header.count = UINT64_MAX; }},
          {"RootOfASum", [](MessageHeader& header) { header.root = 1; }},
          {"DivisorOfASum", [](MessageHeader& header) { header.divisor = 2; }},
          {"ParameterWithoutCodec", [](MessageHeader& header) { header.codec_parameter = 1; }},
          {"CodecBeyond", [](MessageHeader& header) { header.codec = 200; }},
          {"CodecOfASumOfIntegers",
           [](MessageHeader& header) { header.codec = static_cast<std::uint8_t>(Codec::kInt8); }},
          {"RootRankOfASum", [](MessageHeader& header) { header.root_rank = 1; }},
          {"AskedCodecBeyond", [](MessageHeader& header) { header.asked_codec = 200; }},
          {"AskedParameterWithoutCodec",
           [](MessageHeader& header) { header.asked_codec_parameter = 1; }},
          {"AverageByZero",
           [](MessageHeader& header) {
             header.reduction = static_cast<std::uint8_t>(Reduction::kAverage);
           }},
          {"BarrierOfElements", [](MessageHeader& header) {
             header.kind = static_cast<std::uint8_t>(Collective::kBarrier);
           }}};
}

class ExchangeLie : public ::testing::TestWithParam<Lie> {};

TEST_P(ExchangeLie, IsDroppedAndCountedAndChangesNothing) {
  Fleet fleet({.data_count = 3});
  FleetTransfer work = IntegerSum(100, 3, 1);
  const auto expected = work.Expected();
  MessageHeader header = Honest();
  GetParam().tell(header);
  fleet.network().Inject("a", header, std::vector<std::byte>(400));
  fleet.RunToTheEnd();
  fleet.PostEverywhere(work.transfer());
  fleet.network().Inject("a", header, std::vector<std::byte>(400));
  fleet.RunToTheEnd();
  EXPECT_EQ(fleet.node(0).counters().messages_dropped, 2U);
  for (std::uint32_t node = 0; node < 3; ++node) {
    ASSERT_EQ(fleet.completions(node).size(), 1U);
    EXPECT_EQ(fleet.completions(node)[0].code, Code::kOk);
  }
  EXPECT_EQ(work.members().Contents(), expected);
}

INSTANTIATE_TEST_SUITE_P(Of, ExchangeLie, ::testing::ValuesIn(AllLies()),
                         [](const auto& test) { return test.param.name; });

TEST(ExchangeHostile, DropsMessagesTooLargeForAnyPiece) {
  Fleet fleet({.data_count = 3});
  fleet.network().Inject("a", Honest(), std::vector<std::byte>(4097));
  fleet.RunToTheEnd();
  EXPECT_EQ(fleet.node(0).counters().messages_dropped, 1U);
}

TEST(ExchangeHostile, DropsMessagesOfTransfersThatAreOver) {
  Fleet fleet({.data_count = 3});
  FleetTransfer work = IntegerSum(100, 3, 1);
  fleet.PostEverywhere(work.transfer());
  fleet.RunToTheEnd();
  const auto after = work.members().Contents();
  fleet.network().Inject("a", Honest(), std::vector<std::byte>(400));
  fleet.RunToTheEnd();
  EXPECT_EQ(fleet.node(0).counters().messages_dropped, 1U);
  EXPECT_EQ(work.members().Contents(), after);
}

// Early, in time and late; on nodes and servers.
TEST(ExchangeHostile, DropsTheSecondOfTheSameMessage) {
  for (const std::uint32_t servers : {0U, 2U}) {
    for (std::uint64_t seed = 1; seed < 20; ++seed) {
      FleetOptions options{.data_count = 3, .servers_count = servers};
      options.network = {.seed = seed, .jitter_ns = kMillisecond, .duplicate_share = 1};
      Fleet fleet(options);
      std::vector<FleetTransfer> work;
      for (std::uint64_t position = 0; position < 5; ++position) {
        work.push_back(IntegerSum(3000 * position, 3, position));
        const auto expected = work.back().Expected();
        fleet.PostEverywhere(work.back().transfer());
        fleet.RunToTheEnd();
        ASSERT_EQ(work.back().members().Contents(), expected) << "seed " << seed;
      }
      std::uint64_t received = 0;
      std::uint64_t dropped = 0;
      for (std::uint32_t node = 0; node < fleet.nodes_count(); ++node) {
        received += fleet.node(node).counters().messages_received;
        dropped += fleet.node(node).counters().messages_dropped;
      }
      EXPECT_EQ(dropped, received);
      EXPECT_EQ(fleet.network().open_count(), 0U);
    }
  }
}

TEST(ExchangeHostile, FailsTheGroupWhenAMemberIsFurtherAheadThanAnyMayBe) {
  Fleet fleet({.data_count = 3});
  MessageHeader header = Honest();
  for (std::uint64_t position = 0; position < 1000; ++position) {
    header.position = position;
    fleet.network().Inject("a", header, std::vector<std::byte>(400));
  }
  fleet.RunToTheEnd();
  FleetTransfer work = IntegerSum(100, 3, 2000);
  fleet.Post(0, work.transfer());
  fleet.RunToTheEnd();
  ASSERT_EQ(fleet.completions(0).size(), 1U);
  EXPECT_EQ(fleet.completions(0)[0].code, Code::kExhausted);
  EXPECT_TEXT(fleet.completions(0)[0].cause, "node b");
}

// Messages of a member for pieces and rounds that the transfer does not have.
TEST(ExchangeHostile, FailsTheGroupWhenAMemberCutsOtherwise) {
  const std::function<void(MessageHeader&, std::vector<std::byte>&)> lies[] = {
      [](MessageHeader& header, auto&) { header.piece = 1; },
      [](MessageHeader& header, auto&) { header.round = 9; },
      [](MessageHeader&, auto& bytes) { bytes.pop_back(); },
      [](MessageHeader&, auto& bytes) { bytes.resize(404); },
      [](MessageHeader&, auto& bytes) { bytes.clear(); }};
  for (const auto& lie : lies) {
    for (const bool early : {false, true}) {
      Fleet fleet({.data_count = 3, .algorithm = Algorithm::kDirectExchange});
      MessageHeader header = Honest();
      std::vector<std::byte> bytes(400);
      lie(header, bytes);
      FleetTransfer work = IntegerSum(100, 3, 1);
      if (!early) fleet.Post(0, work.transfer());
      if (!early) fleet.RunToTheEnd();
      fleet.network().Inject("a", header, bytes);
      fleet.RunToTheEnd();
      if (early) fleet.Post(0, work.transfer());
      fleet.RunToTheEnd();
      ASSERT_EQ(fleet.completions(0).size(), 1U) << early;
      EXPECT_EQ(fleet.completions(0)[0].code, Code::kMismatch);
      EXPECT_EQ(fleet.completions(0)[0].cause.find("node b "), 0U);
      EXPECT_TRUE(work.members().GuardsAreWhole());
    }
  }
}

struct Pair {
  std::string name;
  Transfer a;
  Transfer b;

  friend void PrintTo(const Pair& pair, std::ostream* out) { *out << pair.name; }
};

std::vector<Pair> AllPairs() {
  const Transfer sum{.kind = Collective::kAllReduce, .dtype = DType::kFloat32, .count = 512};
  std::vector<Pair> pairs(8, {.name = "", .a = sum, .b = sum});
  pairs[0].name = "Count";
  pairs[0].b.count = 1024;
  pairs[1].name = "DType";
  pairs[1].b.dtype = DType::kFloat16;
  pairs[2].name = "Reduction";
  pairs[2].b.reduction = Reduction::kMax;
  pairs[3].name = "Kind";
  pairs[3].b.kind = Collective::kBarrier;
  pairs[3].b.count = 0;
  pairs[4].name = "Root";
  pairs[4].a.kind = pairs[4].b.kind = Collective::kBroadcast;
  pairs[4].b.root = 1;
  pairs[5].name = "Divisor";
  pairs[5].a.reduction = pairs[5].b.reduction = Reduction::kAverage;
  pairs[5].b.divisor = 9;
  pairs[6].name = "Nothing";
  pairs[6].b.count = 0;
  pairs[7].name = "Order";
  pairs[7].b.kind = Collective::kBroadcast;
  return pairs;
}

class ExchangeMismatch : public ::testing::TestWithParam<Pair> {};

TEST_P(ExchangeMismatch, EndsBothAndNamesBothSides) {
  for (const std::uint32_t late : {0U, 1U, 2U}) {  // 2: neither
    Fleet fleet({.network = {.closes_are_told = true}});
    Members members(DType::kFloat64, 1024, 2);
    Transfer posts[] = {GetParam().a, GetParam().b};
    for (Transfer& post : posts) {
      post.position = 3;
      post.members_count = 2;
      post.members[0] = members.Member(0);
      post.members[1] = members.Member(1);
    }
    for (std::uint32_t node = 0; node < 2; ++node) {
      if (node != late) fleet.Post(node, posts[node]);
    }
    if (late < 2) {
      fleet.RunToTheEnd();
      fleet.Post(late, posts[late]);
    }
    fleet.RunToTheEnd();
    bool named = false;
    for (std::uint32_t node = 0; node < 2; ++node) {
      ASSERT_EQ(fleet.completions(node).size(), 1U);
      const Completion& completion = fleet.completions(node)[0];
      ASSERT_TRUE(completion.code == Code::kMismatch || completion.code == Code::kPeerLost);
      if (completion.code != Code::kMismatch) continue;
      const std::string expected = "node " + Fleet::NameOf(1 - node) + " sends " +
                                   Describe(SpecOf(posts[1 - node])) + ", this node posted " +
                                   Describe(SpecOf(posts[node])) + " (position 3)";
      EXPECT_EQ(completion.cause, expected);
      named = true;
    }
    EXPECT_TRUE(named);
    EXPECT_TRUE(members.GuardsAreWhole());
  }
}

INSTANTIATE_TEST_SUITE_P(Of, ExchangeMismatch, ::testing::ValuesIn(AllPairs()),
                         [](const auto& test) { return test.param.name; });

TEST(ExchangeShape, IsDescribedForPeople) {
  EXPECT_TEXT(Describe(CollectiveSpec{
                  .kind = Collective::kAllReduce, .dtype = DType::kFloat32, .count = 1024}),
              "1024", "float32");
  EXPECT_TEXT(Describe(CollectiveSpec{.kind = Collective::kAllReduce,
                                      .dtype = DType::kBFloat16,
                                      .reduction = Reduction::kAverage,
                                      .count = 3,
                                      .divisor = 8}),
              "bfloat16");
  EXPECT_TEXT(Describe(CollectiveSpec{
                  .kind = Collective::kBroadcast, .root = 2, .root_rank = 5, .count = 7}),
              "uint8", "rank 5");
  EXPECT_EQ(Describe(CollectiveSpec{}), "barrier");
}

}  // namespace
}  // namespace headrace::transport

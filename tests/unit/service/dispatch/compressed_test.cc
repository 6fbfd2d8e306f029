// Gradients of a plan that cross between nodes encoded.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "ipc/board.h"
#include "tests/support/expect_text.h"
#include "tests/support/hand_driven_cluster.h"
#include "tests/unit/service/dispatch/compressed_fleet.h"
#include "tests/unit/service/dispatch/expect.h"
#include "tests/unit/service/dispatch/planned.h"
#include "transport/codec/codec.h"

namespace headrace::support {
namespace {

TEST(Compressed, LargeBlocksAreEncodedSmallOnesAndOtherTensorsAreExact) {
  for (const Codec codec : {Codec::kBFloat16, Codec::kFloat16, Codec::kInt8, Codec::kInt4}) {
    CompressedFleet fleet(codec);
    const std::vector<float> sums = fleet.Iterate();
    double worst = 0;
    for (std::size_t i = 0; i < kElementsInAll; ++i) {
      const double error = std::abs(double{sums[i]} - double{fleet.Sum(i)});
      if (i >= kLarge) {
        ASSERT_LE(error, 1e-6) << Name(codec) << " element " << i;
      }
      worst = std::max(worst, error);
    }
    // Node a's sums are below 2, node b's below 1.
    EXPECT_LE(worst, 3 * transport::ErrorBound(codec) + 1e-6) << Name(codec);
    EXPECT_GT(worst, 3e-5) << Name(codec);
  }
}

// Each sum of theirs is encoded once more, and what is left out of that is kept there. Rails take
// other shares of a block, as their costs change, and have it in common.
TEST(Compressed, NothingIsLostOverServers) {
  constexpr int kIterations = 12;
  for (const std::uint32_t rails : {1U, 2U}) {
    for (const Codec codec : {Codec(Codec::kInt4), Codec(Codec::kTopK), Codec(Codec::kRandomK)}) {
      CompressedFleet fleet(codec, rails, 0, 0, 0, 2);
      std::vector<double> applied(kElementsInAll);
      double worst = 0;
      for (int iteration = 0; iteration < kIterations; ++iteration) {
        const std::vector<float> sums = fleet.Iterate();
        for (std::size_t i = 0; i < kElementsInAll; ++i) {
          applied[i] += double{sums[i]};
          worst = std::max(worst, std::abs(double{sums[i]} - double{fleet.Sum(i)}));
        }
      }
      EXPECT_GT(worst, 1e-3) << "something was left out";
      fleet.AdoptPlan(Codec::kNone, 2, kIterations + 1);
      const std::vector<float> last = fleet.Iterate();
      const std::vector<float> exact = fleet.Iterate();
      for (std::size_t i = 0; i < kElementsInAll; ++i) {
        ASSERT_NEAR(applied[i] + double{last[i]}, (kIterations + 1) * double{fleet.Sum(i)}, 1e-3)
            << Name(codec) << " over " << rails << " rails, element " << i;
        ASSERT_NEAR(exact[i], fleet.Sum(i), 1e-5) << i;
      }
    }
  }
}

// So an exact sum gets back all that servers have kept, though the gradients between are in it,
// too.
TEST(Compressed, ElementsStayWithTheirServerWhateverAPlanCuts) {
  CompressedFleet fleet(Codec::kNone, 1, 0, 0, 0, 2, 1, 0, {.name = "net0", .piece_size = 4096});
  plan::Plan encoded = *PlanOf({{{1, 0, kSmall}}, {{0, 0, kLarge}, {2, 0, kLarge}}}, 2);
  encoded.codecs = {{Codec::kInt4, 0, 1}, {Codec::kInt4, 2, 1}};
  fleet.AdoptPlan(std::make_shared<const plan::Plan>(std::move(encoded)), 1);
  std::vector<double> applied(kElementsInAll);
  const auto apply = [&] {
    const std::vector<float> sums = fleet.Iterate();
    for (std::size_t i = 0; i < kElementsInAll; ++i) applied[i] += double{sums[i]};
  };
  for (int iteration = 0; iteration < 3; ++iteration) apply();
  fleet.AdoptPlan(PlanOf({{{0, 0, kLarge}, {1, 0, kSmall}, {2, 0, kLarge}}}, 3), 4);
  apply();
  for (std::size_t i = 0; i < kElementsInAll; ++i) {
    ASSERT_NEAR(applied[i], 4 * double{fleet.Sum(i)}, 1e-3) << i;
  }
}

TEST(Compressed, SaysOnceThatServersBeginWithoutResidualsAfterALoss) {
  const auto says = [](CompressedFleet& fleet) {
    fleet.Iterate();
    fleet.AdoptPlan(Codec::kTopK, 2, 2);
    fleet.Iterate();
    return std::ranges::count_if(fleet.cluster.node(0).watch_tap().events,
                                 [](const std::string& text) {
                                   return text.find("servers had left out") != std::string::npos;
                                 });
  };
  CompressedFleet anew(Codec::kInt8, 1, 0, 0, 0, 1);
  EXPECT_EQ(says(anew), 0);
  CompressedFleet goes_on(Codec::kInt8, 1, 0, 0, 0, 1, 3);
  EXPECT_EQ(says(goes_on), 1);
  CompressedFleet without(Codec::kInt8, 1, 0, 0, 0, 0, 3);
  EXPECT_EQ(says(without), 0);
}

TEST(Compressed, ResidualsThatTheServiceKeepsAreBookedOnTheFirstRankOnce) {
  CompressedFleet fleet(Codec::kInt8);
  fleet.Iterate();
  fleet.AdoptPlan(Codec::kInt4, 2, 2);
  fleet.Iterate();
  for (std::size_t node = 0; node < 2; ++node) {
    const auto allocated = fleet.cluster.node(node).rpc().Of<service::ResidualsAllocated>();
    ASSERT_EQ(allocated.size(), 1U) << node;
    EXPECT_EQ(allocated[0]->session, fleet.clients[node == 0 ? 0 : 2]->id());
    EXPECT_EQ(allocated[0]->bytes, sizeof(float) * kElementsInAll);
  }
  CompressedFleet exact(Codec::kNone);
  exact.Iterate();
  EXPECT_TRUE(exact.cluster.node(0).rpc().Of<service::ResidualsAllocated>().empty());
}

TEST(Compressed, TheSessionOnWhichResidualsAreBookedIsDiscardedWithTheJob) {
  CompressedFleet fleet(Codec::kInt8);
  fleet.Iterate();
  HandDrivenNode& node = fleet.cluster.node(0);
  const SessionId first = fleet.clients[0]->id();
  const SessionId second = fleet.clients[1]->id();
  node.Close(*fleet.clients[0], true, "left the job");
  fleet.cluster.Advance(kMillisecond);
  EXPECT_TRUE(node.rpc().Of<service::SessionDiscarded>().empty());
  node.Close(*fleet.clients[1], true, "left the job");
  fleet.cluster.Advance(kMillisecond);
  const auto discarded = node.rpc().Of<service::SessionDiscarded>();
  ASSERT_EQ(discarded.size(), 2U);
  EXPECT_EQ(discarded[0]->session, second);
  EXPECT_EQ(discarded[1]->session, first);
}

TEST(Compressed, TheJobFailsOnAllNodesWhereAUserMayNotHaveResiduals) {
  CompressedFleet fleet(Codec::kInt8);
  fleet.Iterate();
  HandDrivenNode& node = fleet.cluster.node(1);
  node.Send(service::ResidualsRefused{SessionId{99}});  // it has left meanwhile
  fleet.cluster.Advance(kSecond);
  EXPECT_TRUE(node.peers().Of<service::JobFailed>().empty());
  node.Send(service::ResidualsRefused{fleet.clients[2]->id(), Code::kExhausted,
                                      "residuals of 8 bytes beside the 8"});
  PostGradient(*fleet.clients[2], *fleet.layout, 0);
  fleet.cluster.Advance(kSecond);
  ExpectFailed(*fleet.clients[2], 4, Code::kExhausted, {"residuals of 8 bytes"});
  const auto failed = node.peers().Of<service::JobFailed>();
  ASSERT_EQ(failed.size(), 1U);
  EXPECT_EQ(failed[0]->code, Code::kExhausted);
}

TEST(Compressed, WhatIsLeftOutComesWithLaterIterations) {
  constexpr int kIterations = 30;
  for (const std::uint32_t rails : {1U, 3U}) {
    CompressedFleet fleet(Codec::kInt4, rails);
    std::vector<double> applied(kLarge);
    for (int iteration = 0; iteration < kIterations; ++iteration) {
      const std::vector<float> sums = fleet.Iterate();
      for (std::size_t i = 0; i < kLarge; ++i) applied[i] += double{sums[i]};
    }
    for (std::size_t i = 0; i < kLarge; ++i) {
      // Without it an element would be off by the same error each time.
      ASSERT_NEAR(applied[i], kIterations * double{fleet.Sum(i)},
                  6 * transport::ErrorBound(Codec::kInt4))
          << rails << " rails, element " << i;
    }
  }
}

// Residuals are of elements, whatever plan and codec come after. The first iteration that encodes
// nothing any more has what is still left of them.
TEST(Compressed, WhatIsLeftOutSurvivesAnotherPlanAndAnotherCodec) {
  CompressedFleet fleet(Codec::kInt4);
  const std::vector<float> lossy = fleet.Iterate();
  fleet.AdoptPlan(Codec::kInt8, 2, 2);
  const std::vector<float> corrected = fleet.Iterate();
  fleet.AdoptPlan(Codec::kNone, 3, 3);
  const std::vector<float> last = fleet.Iterate();
  const std::vector<float> exact = fleet.Iterate();
  double worst = 0;
  double worst_corrected = 0;
  double worst_last = 0;
  for (std::size_t i = 0; i < kLarge; ++i) {
    const double sum = fleet.Sum(i);
    worst = std::max(worst, std::abs(double{lossy[i]} - sum));
    worst_corrected =
        std::max(worst_corrected, std::abs(double{lossy[i]} + double{corrected[i]} - 2 * sum));
    worst_last = std::max(worst_last, std::abs(double{last[i]} - sum));
    const double given_out = double{lossy[i]} + double{corrected[i]} + double{last[i]};
    ASSERT_NEAR(given_out, 3 * sum, 1e-5) << i << ": nothing is lost";
    ASSERT_NEAR(exact[i], sum, 1e-6) << i << ": nor comes twice";
  }
  EXPECT_GT(worst_last, 1e-4) << "what int8 left out was no nothing";
  EXPECT_GT(worst, 10 * transport::ErrorBound(Codec::kInt8));
  EXPECT_LE(worst_corrected, 6 * transport::ErrorBound(Codec::kInt8))
      << "what int4 left out came with int8";
}

// Also where another plan takes the gradient apart into transfers that are too small to be encoded,
// and where halves or a codec that loses nothing carry it.
TEST(Compressed, WhatIsLeftOutComesWithTheFirstExactSum) {
  constexpr std::uint32_t kQuarter = kLarge / 4;
  const Blocks blocks{{{0, 0, kQuarter}},
                      {{0, kQuarter, kQuarter}},
                      {{0, 2 * kQuarter, kQuarter}},
                      {{0, 3 * kQuarter, kQuarter}},
                      {{1, 0, kSmall}, {2, 0, kLarge}}};
  plan::Plan small = *PlanOf(blocks, 2);
  small.codecs = {{Codec::kInt4, 0, 1}};
  const plan::Plan lossless = *CompressedFleet::PlanWith(Codec::kLossless, 2);
  const plan::Plan halves = *HalvesOf(blocks, 2);
  for (const plan::Plan& plan : {small, lossless, halves}) {
    CompressedFleet fleet(Codec::kInt4);
    const std::vector<float> lossy = fleet.Iterate();
    fleet.AdoptPlan(std::make_shared<const plan::Plan>(plan), 2);
    const std::vector<float> last = fleet.Iterate();
    const std::vector<float> exact = fleet.Iterate();
    for (std::size_t i = 0; i < kLarge; ++i) {
      const double sum = fleet.Sum(i);
      ASSERT_NEAR(double{lossy[i]} + double{last[i]}, 2 * sum, 1e-5) << i;
      ASSERT_NEAR(exact[i], sum, 1e-6) << i;
    }
  }
}

// The residual is that of an earlier epoch, or was loaded: the plan in force encodes nothing.
TEST(Compressed, WhatARankHasKeptComesWithTheFirstIteration) {
  constexpr std::uint64_t kResiduals = (kElementsInAll * sizeof(float) + 63) / 64 * 64;
  CompressedFleet fleet(Codec::kNone, 1, kResiduals);
  const auto kept = [&fleet](std::size_t client) {
    return fleet.clients[client]->Elements<float>().subspan(kResiduals / sizeof(float),
                                                            kElementsInAll);
  };
  std::ranges::fill(kept(0), 0.5F);
  std::ranges::fill(kept(1), 8.0F);  // rank 0 of its node has room, too
  std::ranges::fill(kept(2), 0.25F);
  const std::vector<float> first = fleet.Iterate();
  const std::vector<float> second = fleet.Iterate();
  for (std::size_t i = 0; i < kElementsInAll; ++i) {
    ASSERT_NEAR(first[i], fleet.Sum(i) + 0.75F, 1e-5) << i;
    ASSERT_NEAR(second[i], fleet.Sum(i), 1e-6) << i;
    ASSERT_EQ(kept(0)[i], 0) << i;
  }
}

// It outlives the service there, and can be saved.
TEST(Compressed, WhatIsLeftOutIsKeptInTheMemoryOfTheLowestRankWithRoom) {
  constexpr std::uint64_t kResiduals = (kElementsInAll * sizeof(float) + 63) / 64 * 64;
  CompressedFleet fleet(Codec::kInt4, 1, kResiduals);
  const std::vector<float> first = fleet.Iterate();
  const auto kept = [&fleet](std::size_t client) {
    return fleet.clients[client]->Elements<float>().subspan(kResiduals / sizeof(float),
                                                            kElementsInAll);
  };
  double worst = 0;
  for (std::size_t i = 0; i < kElementsInAll; ++i) {
    ASSERT_EQ(kept(1)[i], 0) << "rank 0 of the same node has it";
    if (i >= kLarge) {
      ASSERT_EQ(kept(0)[i], 0) << i;
    }
    // Both nodes have encoded their sums: what is missing is what they have left out.
    const double left_out = double{kept(0)[i]} + double{kept(2)[i]};
    ASSERT_NEAR(double{first[i]} + left_out, fleet.Sum(i), 1e-5) << i;
    worst = std::max(worst, std::abs(left_out));
  }
  EXPECT_GT(worst, 1e-3);
  // Loaded before the next iteration, it counts there: nothing is left out of what was twice there.
  std::ranges::fill(kept(0), 0.0F);
  std::ranges::fill(kept(2), 0.0F);
  EXPECT_EQ(fleet.Iterate(), first) << "as it began";
}

// The third iteration of a job, and the first of its next epoch, which makes that one again.
TEST(Compressed, AnIterationThatIsMadeAgainDrawsTheSameByChance) {
  constexpr std::uint64_t kResiduals = (kElementsInAll * sizeof(float) + 63) / 64 * 64;
  for (const Codec codec : {Codec::kInt8Stochastic, Codec::kInt4Stochastic, Codec::kRandomK}) {
    CompressedFleet fleet(codec, 1, kResiduals);
    const std::vector<float> first = fleet.Iterate();
    fleet.Iterate();
    for (const std::size_t client : {0U, 2U}) {
      std::ranges::fill(fleet.clients[client]->Elements<float>().subspan(kResiduals / sizeof(float),
                                                                         kElementsInAll),
                        0.0F);
    }
    const std::vector<float> third = fleet.Iterate();
    EXPECT_NE(third, first) << Name(codec) << ": each draws others";
    CompressedFleet again(codec, 1, kResiduals, 2);
    EXPECT_EQ(again.Iterate(), third) << Name(codec);
  }
}

// Elements at equal distances from the begins of two parts would be rounded alike.
TEST(Compressed, PartsOfABlockOnTwoRailsDrawOtherNumbers) {
  constexpr std::size_t kLength = 1000;
  CompressedFleet fleet(Codec::kInt4Stochastic, 2);
  for (ClientEnd* client : fleet.clients) {
    for (std::size_t i = 0; i < kElementsInAll; ++i) {
      // Wherever blocks of the codec begin, 7 is the largest of each, and 0.5 a step is left over.
      const float value = i % 256 == 0 ? 7.0F : 1.5F;
      client->Elements<float>()[i] = client->rank() == 0 ? value : 0.0F;
    }
    for (std::uint32_t tensor = 0; tensor < 3; ++tensor) {
      PostGradient(*client, *fleet.layout, tensor);
    }
  }
  fleet.cluster.Advance(kSecond);
  const auto sums = fleet.clients[0]->Elements<float>();
  for (std::size_t other = 1; other + kLength <= kLarge; ++other) {
    std::size_t equal = 0;
    for (std::size_t i = 0; i < kLength; ++i) equal += sums[i] == sums[other + i] ? 1U : 0U;
    ASSERT_LT(equal, kLength * 3 / 4) << "as from element " << other << " on";
  }
}

std::vector<ipc::FlightRow> FlightRowsOf(const HandDrivenNode& node) {
  std::vector<ipc::FlightRow> rows;
  for (const auto& place : node.board().flights) {
    for (const auto& slot : place) {
      const auto row = ipc::ReadRow(slot);
      if (row && row->number != 0) rows.push_back(*row);
    }
  }
  return rows;
}

// The flight recorder has what each block's encoding came to.
TEST(Compressed, BlocksAreRecordedWithTheirCodec) {
  CompressedFleet fleet(Codec::kTopK);
  fleet.Iterate();
  std::size_t encoded = 0;
  for (const auto& row : FlightRowsOf(fleet.cluster.node(0))) {
    if (row.codec == 0) {
      EXPECT_EQ(row.sent_bytes + row.encode_us + row.decode_us, 0U) << row.bytes;
      continue;
    }
    ++encoded;
    EXPECT_EQ(row.codec, SteeringValue(Codec::kTopK));
    EXPECT_EQ(row.bytes, kLarge * sizeof(float));
    EXPECT_EQ(row.sent_bytes, transport::EncodedSize(Codec::kTopK, kLarge));
  }
  EXPECT_EQ(encoded, 1U);
}

// People hear of the first iteration with such values, of the second, the fourth, ...
TEST(Compressed, ValuesThatAreNotFiniteAreReportedNowAndThen) {
  for (const Codec codec : {Codec::kBFloat16, Codec::kFloat16, Codec::kInt8, Codec::kTopK}) {
    CompressedFleet fleet(codec);
    fleet.Iterate();
    const auto reports = [&fleet] {
      std::vector<std::string> texts;
      for (const std::string& text : fleet.cluster.node(0).watch_tap().events) {
        if (text.find("not finite") != std::string::npos) texts.push_back(text);
      }
      return texts;
    };
    EXPECT_TRUE(reports().empty()) << Name(codec);
    fleet.spoiled = 17;
    for (int iteration = 0; iteration < 5; ++iteration) fleet.Iterate();
    const std::vector<std::string> texts = reports();
    ASSERT_EQ(texts.size(), 3U) << Name(codec);
    EXPECT_NE(texts[0].find("iteration 2"), std::string::npos);
    EXPECT_NE(texts[2].find("iteration 5"), std::string::npos);
    if (codec == Codec::kInt8) EXPECT_TEXT(texts[0], "one block", "256");
  }
}

TEST(Compressed, PeopleHearWhatIsLostWhereAJobGoesOnWithOtherRanks) {
  constexpr std::uint64_t kResiduals = (kLarge * sizeof(float) + 63) / 64 * 64;
  HandDrivenNode node;
  ClientEnd& first = node.Attach({.world_size = 2}, 0);
  ClientEnd& second = node.Attach({.world_size = 2}, 1);
  node.Settle();
  node.Close(second, false, "exited or was killed");
  node.Settle();
  node.Close(first, false, "closed its connection");
  node.Settle();
  ClientEnd& again = node.Attach({.world_size = 1, .epoch = 2}, 0, std::size_t{1} << 17U);
  HandIn(node, again, PackedLayout({kLarge}), {{}, kResiduals});
  node.Settle();
  Adopt(node, JobId{1}, PlanOf({{{0, 0, kLarge}}}));
  node.Settle();
  std::vector<std::string> texts;
  for (const std::string& text : node.watch_tap().events) {
    if (text.find("left out") != std::string::npos) texts.push_back(text);
  }
  ASSERT_EQ(texts.size(), 1U);
  EXPECT_TEXT(texts[0], "is 1", "was 2");
}

TEST(Compressed, NothingIsWhereAllRanksAreOnOneNode) {
  JobSpec job{.world_size = 2};
  HandDrivenNode node;
  std::vector<ClientEnd*> clients;
  const auto layout = PackedLayout({kLarge, kSmall, kLarge});
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    clients.push_back(&node.Attach(job, rank));
    HandIn(node, *clients.back(), layout);
  }
  node.Settle();
  Adopt(node, job.id, CompressedFleet::PlanWith(Codec::kInt4, 1));
  for (ClientEnd* client : clients) {
    for (std::size_t i = 0; i < kElementsInAll; ++i) client->Elements<float>()[i] = 0.1F;
    for (std::uint32_t tensor = 0; tensor < 3; ++tensor) PostGradient(*client, *layout, tensor);
  }
  node.Settle();
  for (const ClientEnd* client : clients) {
    ExpectOk(*client, 1);
    ExpectOk(*client, 2);
    EXPECT_EQ(client->Elements<float>()[7], 0.1F + 0.1F);
  }
}

// An all-reduce that ranks post with a codec, or, for one of them, with another.
struct CompressedOperation {
  CompressedOperation(std::uint64_t count, Codec codec, std::uint32_t other_rank, Codec other)
      : cluster({.nodes_count = 2}) {
    for (std::size_t node = 0; node < ranks.size(); ++node) {
      for (const std::uint32_t rank : ranks[node]) {
        clients.push_back(&cluster.node(node).Attach(job, rank, std::size_t{1} << 17U));
      }
    }
    cluster.Form(job, ranks, std::uint64_t{1} << 14U);
    cluster.Advance(kMillisecond);
    for (ClientEnd* client : clients) {
      for (std::size_t i = 0; i < count; ++i) {
        client->Elements<float>()[i] = CompressedFleet::ValueGiven(client->rank(), i);
      }
      ipc::Record record = OnSegment(Collective::kAllReduce, DType::kFloat32, count);
      record.tag = SteeringValue(client->rank() == other_rank ? other : codec);
      client->Post(record);
    }
    cluster.Advance(kSecond);
  }
  CompressedOperation(std::uint64_t count, Codec codec)
      : CompressedOperation(count, codec, UINT32_MAX, codec) {}
  float Sum(std::size_t element) const {
    float sum = 0;
    for (const ClientEnd* client : clients)
      sum += CompressedFleet::ValueGiven(client->rank(), element);
    return sum;
  }
  // The largest error; all ranks have the same bits.
  double Error(std::size_t count) const {
    double worst = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const float got = clients[0]->Elements<float>()[i];
      worst = std::max(worst, std::abs(double{got} - double{Sum(i)}));
      for (const ClientEnd* client : clients) EXPECT_EQ(client->Elements<float>()[i], got) << i;
    }
    return worst;
  }

  std::vector<std::vector<std::uint32_t>> ranks = {{0, 1}, {2}};
  JobSpec job{.world_size = 3, .rendezvous = "a:7733"};
  HandDrivenCluster cluster;
  std::vector<ClientEnd*> clients;
};

TEST(CompressedOperations, CrossEncodedWhereTheyAreLarge) {
  constexpr std::uint64_t kCount = 12345;
  for (const Codec codec : {Codec::kBFloat16, Codec::kFloat16, Codec::kInt8Stochastic}) {
    CompressedOperation large(kCount, codec);
    for (const ClientEnd* client : large.clients) ExpectOk(*client, 1);
    const double error = large.Error(kCount);
    // Rounded by chance they are off by twice as much at most.
    EXPECT_LE(error, 6 * transport::ErrorBound(codec) + 1e-6) << Name(codec);
    EXPECT_GT(error, 3e-5) << Name(codec);
    CompressedOperation small(kSmall, codec);
    EXPECT_LE(small.Error(kSmall), 1e-6) << Name(codec);
  }
  CompressedOperation lossless(kCount, Codec::kLossless);
  CompressedOperation plain(kCount, Codec::kNone);
  lossless.Error(kCount);
  for (std::size_t i = 0; i < kCount; ++i) {
    ASSERT_EQ(lossless.clients[0]->Elements<float>()[i], plain.clients[0]->Elements<float>()[i]);
  }
}

TEST(CompressedOperations, OfOtherCodecsAreNoneTogether) {
  CompressedOperation on_a_node(8192, Codec::kBFloat16, 1, Codec::kFloat16);
  EXPECT_EQ(on_a_node.clients[0]->Read(1).code, Code::kMismatch);
  EXPECT_EQ(on_a_node.clients[1]->Read(1).code, Code::kMismatch);
  CompressedOperation on_two(8192, Codec::kBFloat16, 2, Codec::kFloat16);
  std::vector<Code> codes;
  for (std::size_t node = 0; node < 2; ++node) {
    for (const auto* failed : on_two.cluster.node(node).peers().Of<service::JobFailed>()) {
      codes.push_back(failed->code);
    }
  }
  EXPECT_EQ(codes, (std::vector<Code>(codes.size(), Code::kMismatch)));
  EXPECT_FALSE(codes.empty());
}

}  // namespace
}  // namespace headrace::support

// Gradients of a plan that cross between nodes encoded.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "tests/support/expect_text.h"
#include "tests/support/hand_driven_cluster.h"
#include "tests/unit/service/dispatch/expect.h"
#include "tests/unit/service/dispatch/planned.h"
#include "transport/codec/codec.h"

namespace headrace::support {
namespace {

constexpr std::uint32_t kLarge = 5000;  // elements: more than 16 KiB
constexpr std::uint32_t kSmall = 300;

struct CompressedFleet {
  explicit CompressedFleet(Codec codec, std::uint32_t rails = 1)
      : cluster({.nodes_count = 2, .rails_count = rails}), layout(LayoutWith(codec)) {
    job.world_size = 3;
    for (std::size_t node = 0; node < ranks.size(); ++node) {
      for (const std::uint32_t rank : ranks[node]) {
        clients.push_back(&cluster.node(node).Attach(job, rank));
        HandIn(cluster.node(node), *clients.back(), layout);
      }
    }
    cluster.Form(job, ranks);
    cluster.Advance(kMillisecond);
    const auto plan = PlanOf({{{1, 0, kSmall}}, {{0, 0, kLarge}}});
    for (std::size_t node = 0; node < 2; ++node) Adopt(cluster.node(node), job.id, plan);
  }
  static std::shared_ptr<const service::Layout> LayoutWith(Codec codec) {
    service::Layout layout = *PackedLayout({kLarge, kSmall});
    layout.codec = codec;
    return std::make_shared<const service::Layout>(std::move(layout));
  }
  static float Given(std::uint32_t rank, std::size_t element) {
    return std::sin(static_cast<float>(element * (rank + 3)));
  }
  // The sums that every rank gets; the ranks give the same each time.
  std::vector<float> Iterate() {
    ++iteration;
    for (ClientEnd* client : clients) {
      for (std::size_t i = 0; i < kLarge + kSmall; ++i) {
        client->Elements<float>()[i] = Given(client->rank(), i);
      }
      for (std::uint32_t tensor = 0; tensor < 2; ++tensor) PostGradient(*client, *layout, tensor);
    }
    cluster.Advance(kSecond);
    for (const ClientEnd* client : clients) {
      ExpectOk(*client, 2 * iteration - 1);
      ExpectOk(*client, 2 * iteration);
    }
    const auto sums = [](const ClientEnd* client) {
      const auto elements = client->Elements<float>();
      return std::vector<float>(elements.begin(), elements.begin() + kLarge + kSmall);
    };
    for (const ClientEnd* client : clients) EXPECT_EQ(sums(client), sums(clients[0]));
    return sums(clients[0]);
  }
  float Sum(std::size_t element) const {
    float sum = 0;
    for (const ClientEnd* client : clients) sum += Given(client->rank(), element);
    return sum;
  }

  std::vector<std::vector<std::uint32_t>> ranks = {{0, 1}, {2}};
  JobSpec job{.world_size = 0, .rendezvous = "a:7733"};
  HandDrivenCluster cluster;
  std::shared_ptr<const service::Layout> layout;
  std::vector<ClientEnd*> clients;
  std::uint64_t iteration = 0;
};

TEST(Compressed, LargeBlocksAreEncodedAndSmallOnesAreExact) {
  for (const Codec codec : {Codec::kBFloat16, Codec::kFloat16, Codec::kInt8, Codec::kInt4}) {
    CompressedFleet fleet(codec);
    const std::vector<float> sums = fleet.Iterate();
    double worst = 0;
    for (std::size_t i = 0; i < kLarge + kSmall; ++i) {
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

TEST(Compressed, NothingIsWhereAllRanksAreOnOneNode) {
  JobSpec job{.world_size = 2};
  HandDrivenNode node;
  std::vector<ClientEnd*> clients;
  const auto layout = CompressedFleet::LayoutWith(Codec::kInt4);
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    clients.push_back(&node.Attach(job, rank));
    HandIn(node, *clients.back(), layout);
  }
  node.Settle();
  Adopt(node, job.id, PlanOf({{{1, 0, kSmall}}, {{0, 0, kLarge}}}));
  for (ClientEnd* client : clients) {
    for (std::size_t i = 0; i < kLarge + kSmall; ++i) client->Elements<float>()[i] = 0.1F;
    for (std::uint32_t tensor = 0; tensor < 2; ++tensor) PostGradient(*client, *layout, tensor);
  }
  node.Settle();
  for (const ClientEnd* client : clients) {
    ExpectOk(*client, 1);
    ExpectOk(*client, 2);
    EXPECT_EQ(client->Elements<float>()[7], 0.1F + 0.1F);
  }
}

}  // namespace
}  // namespace headrace::support

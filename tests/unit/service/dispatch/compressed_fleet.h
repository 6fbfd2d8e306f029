// A job of three ranks on two nodes, whose gradients a plan sends encoded: what tests of that
// drive.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include "tests/support/hand_driven_cluster.h"
#include "tests/unit/service/dispatch/expect.h"
#include "tests/unit/service/dispatch/planned.h"

namespace headrace::support {

inline constexpr std::uint32_t kLarge = 5000;  // elements: more than 16 KiB
inline constexpr std::uint32_t kSmall = 300;
inline constexpr std::uint32_t kElementsInAll = 2 * kLarge + kSmall;

struct CompressedFleet {
  explicit CompressedFleet(Codec codec, std::uint32_t rails = 1, std::uint64_t residuals = 0,
                           std::uint64_t iterations_before = 0, std::uint64_t rows = 0,
                           std::uint32_t servers = 0, std::uint32_t epoch = 1,
                           std::uint32_t factors_rank = 0,
                           const transport::ExchangeOptions& exchange = {.name = "net0"})
      : before(iterations_before),
        cluster({.nodes_count = 2 + servers,
                 .exchange = exchange,
                 .rails_count = rails,
                 .servers_count = servers}),
        layout(LayoutOf(rows)) {
    job.world_size = 3;
    job.epoch = epoch;
    for (std::size_t node = 0; node < ranks.size(); ++node) {
      for (const std::uint32_t rank : ranks[node]) {
        clients.push_back(&cluster.node(node).Attach(job, rank, std::size_t{1} << 17U));
        HandIn(cluster.node(node), *clients.back(), layout, {{}, residuals, factors_rank});
      }
    }
    cluster.Form(job, ranks);
    cluster.Advance(kMillisecond);
    AdoptPlan(codec, 1, 1);
  }
  // The large ones with so many rows.
  static std::shared_ptr<const service::Layout> LayoutOf(std::uint64_t rows) {
    service::Layout packed = *PackedLayout({kLarge, kSmall, kLarge});
    packed.tensors[0].rows = packed.tensors[2].rows = rows;
    return std::make_shared<const service::Layout>(std::move(packed));
  }
  // Tensors 0 and 1 in that codec, tensor 2 beside tensor 0 in one block of the plan as it is.
  static std::shared_ptr<const plan::Plan> PlanWith(Codec codec, std::uint32_t version) {
    plan::Plan plan = *PlanOf({{{1, 0, kSmall}}, {{0, 0, kLarge}, {2, 0, kLarge}}}, version);
    if (codec != Codec::kNone) plan.codecs = {{codec, 0, 2}};
    return std::make_shared<const plan::Plan>(std::move(plan));
  }
  void AdoptPlan(Codec codec, std::uint32_t version, std::uint64_t from) {
    AdoptPlan(PlanWith(codec, version), from);
  }
  void AdoptPlan(const std::shared_ptr<const plan::Plan>& plan, std::uint64_t from) {
    for (std::size_t node = 0; node < 2; ++node) {
      Adopt(cluster.node(node), job.id, plan, from, before);
    }
  }
  static float ValueGiven(std::uint32_t rank, std::size_t element) {
    return std::sin(static_cast<float>(element * (rank + 3)));
  }
  // The sums that every rank gets; the ranks give the same each time.
  std::vector<float> Iterate() {
    ++iteration;
    for (ClientEnd* client : clients) {
      for (std::size_t i = 0; i < kElementsInAll; ++i) {
        client->Elements<float>()[i] = ValueGiven(client->rank(), i);
      }
      if (spoiled) {
        client->Elements<float>()[*spoiled] = std::numeric_limits<float>::infinity();
      }
      for (std::uint32_t tensor = 0; tensor < 3; ++tensor) PostGradient(*client, *layout, tensor);
    }
    cluster.Advance(kSecond);
    for (const ClientEnd* client : clients) {
      for (std::uint64_t tensor = 0; tensor < 3; ++tensor) {
        ExpectOk(*client, 3 * iteration - tensor);
      }
    }
    const auto sums = [](const ClientEnd* client) {
      const auto elements = client->Elements<float>();
      return std::vector<float>(elements.begin(), elements.begin() + kElementsInAll);
    };
    for (const ClientEnd* client : clients) {
      // Bits, since some may be no numbers.
      EXPECT_EQ(std::memcmp(client->Elements<float>().data(), clients[0]->Elements<float>().data(),
                            kElementsInAll * sizeof(float)),
                0);
    }
    return sums(clients[0]);
  }
  float Sum(std::size_t element) const {
    float sum = 0;
    for (const ClientEnd* client : clients) sum += ValueGiven(client->rank(), element);
    return sum;
  }

  std::uint64_t before;
  std::vector<std::vector<std::uint32_t>> ranks = {{0, 1}, {2}};
  JobSpec job{.world_size = 0, .rendezvous = "a:7733"};
  HandDrivenCluster cluster;
  std::shared_ptr<const service::Layout> layout;
  std::vector<ClientEnd*> clients;
  std::uint64_t iteration = 0;
  std::optional<std::size_t> spoiled;  // an element that is infinite
};

}  // namespace headrace::support

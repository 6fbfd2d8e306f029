// Seeded runs of jobs whose gradients move by plans of the real planner, over a simulated network:
// ranks post in any order and at any time, operations go on beside, plans change while iterations
// run. After every iteration each rank's gradients are the sums of that iteration, and nothing
// else.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <random>
#include <vector>

#include "service/plan/planner.h"
#include "tests/support/hand_driven_cluster.h"
#include "tests/unit/service/dispatch/expect.h"
#include "tests/unit/service/dispatch/planned.h"

namespace headrace::support {
namespace {

constexpr int kSeeds = 60;
constexpr int kIterations = 24;
constexpr std::size_t kOtherOffset = 32768;  // where operations of their own have their memory
constexpr std::size_t kOtherPlaces = 16;     // so many at a time

class Course {
 public:
  explicit Course(std::uint64_t seed) : random_(seed), cluster_(AnyCluster(seed)) {
    for (std::uint64_t left = Between(1, 9); left > 0; --left) counts_.push_back(Between(1, 900));
    layout_ = PackedLayout(counts_);
    for (std::size_t node = 0; node < cluster_.nodes_count(); ++node) {
      ranks_.emplace_back();
      for (std::uint64_t left = Between(1, 3); left > 0; --left) {
        ranks_.back().push_back(job_.world_size++);
      }
    }
    for (std::size_t node = 0; node < ranks_.size(); ++node) {
      for (const std::uint32_t rank : ranks_[node]) {
        clients_.push_back(&cluster_.node(node).Attach(job_, rank));
        HandIn(cluster_.node(node), *clients_.back(), layout_);
      }
    }
    cluster_.Form(job_, ranks_);
    posted_.resize(job_.world_size);
    iterations_.resize(job_.world_size, 0);
  }

  void Go() {
    Offer();
    for (int guard = 0; guard < 100'000 && !Over(); ++guard) {
      Act();
      if (::testing::Test::HasFatalFailure()) return;
    }
    EXPECT_TRUE(Over()) << "iterations stand still";
    EXPECT_GT(switched_, 1U);
  }

 private:
  std::uint64_t Between(std::uint64_t low, std::uint64_t high) {
    return std::uniform_int_distribution<std::uint64_t>(low, high)(random_);
  }
  ClusterSpec AnyCluster(std::uint64_t seed) {
    transport::SimulatedNetworkOptions network{.seed = seed};
    network.latency_ns = static_cast<TimeNs>(Between(1'000, 100'000));
    network.jitter_ns = static_cast<TimeNs>(Between(0, 200'000));
    network.ns_per_byte = static_cast<double>(Between(0, 100));
    return {.nodes_count = static_cast<std::uint32_t>(Between(2, 4)),
            .network = network,
            .credit_bytes = std::uint64_t{1} << Between(7, 20),
            .exchange = {.name = "net0", .piece_size = 4096}};
  }
  bool Over() const {
    return std::ranges::all_of(iterations_, [](int done) { return done == kIterations; });
  }

  void Act() {
    const std::uint64_t what = Between(0, 99);
    if (what < 40) {
      PostOrLook(static_cast<std::uint32_t>(Between(0, job_.world_size - 1)));
    } else if (what < 44) {
      PostOther();
    } else if (what < 47 && !offered_) {
      Offer();
    } else if (what < 60 && offered_) {
      SwitchIfTaken();
    } else {
      cluster_.Advance(static_cast<TimeNs>(Between(0, 2'000'000)));
    }
  }

  float ValueOf(std::uint32_t rank, int iteration, std::size_t element) const {
    return static_cast<float>((static_cast<std::size_t>(rank + 1) * 7 + element * 3 +
                               static_cast<std::size_t>(iteration) * 11) %
                              1000);
  }

  // The next gradient of the rank's iteration, in an order of its own; or, when all are posted,
  // whether they have ended.
  void PostOrLook(std::uint32_t rank) {
    if (iterations_[rank] == kIterations) return;
    ClientEnd& client = *clients_[rank];
    std::vector<std::uint64_t>& posted = posted_[rank];
    if (posted.empty()) {
      std::vector<float> values(std::accumulate(counts_.begin(), counts_.end(), std::size_t{0}));
      for (std::size_t i = 0; i < values.size(); ++i) {
        values[i] = ValueOf(rank, iterations_[rank], i);
      }
      std::ranges::copy(values, client.Elements<float>().begin());
      order_.resize(counts_.size());
      std::iota(order_.begin(), order_.end(), 0U);
      std::shuffle(order_.begin(), order_.end(), random_);
      orders_[rank] = order_;
    }
    if (posted.size() < counts_.size()) {
      posted.push_back(PostGradient(client, *layout_, orders_[rank][posted.size()]));
      return;
    }
    if (!std::ranges::all_of(posted, [&](auto record) { return client.HasEnded(record); })) return;
    for (const std::uint64_t record : posted) ExpectOk(client, record);
    CheckSums(rank);
    posted.clear();
    ++iterations_[rank];
  }

  void CheckSums(std::uint32_t rank) const {
    const auto total = std::accumulate(counts_.begin(), counts_.end(), std::size_t{0});
    for (std::size_t i = 0; i < total; ++i) {
      float sum = 0;
      for (std::uint32_t other = 0; other < job_.world_size; ++other) {
        sum += ValueOf(other, iterations_[rank], i);
      }
      ASSERT_EQ(clients_[rank]->Elements<float>()[i], sum)
          << fmt::format("rank {} iteration {} element {}", rank, iterations_[rank] + 1, i);
    }
  }

  void PostOther() {
    for (ClientEnd* client : clients_) {
      if (!client->HasRoom()) return;
    }
    // Each has memory of its own while it is open.
    const std::size_t place = others_ % kOtherPlaces;
    for (std::size_t rank = 0; rank < clients_.size(); ++rank) {
      const std::uint64_t before = others_ < kOtherPlaces ? 0 : other_records_[rank][place];
      if (before != 0 && !clients_[rank]->HasEnded(before)) return;
    }
    for (std::size_t rank = 0; rank < clients_.size(); ++rank) {
      other_records_[rank][place] = clients_[rank]->Post(
          OnSegment(Collective::kAllReduce, DType::kFloat32, 300, kOtherOffset + place * 1200));
    }
    ++others_;
  }

  void Offer() {
    plan::Profile profile{.model = "random", .tensors = {}};
    for (const std::uint64_t count : counts_) {
      profile.tensors.push_back({.name = "",
                                 .elements = count,
                                 .backward_s = static_cast<double>(Between(0, 1000)) * 1e-6,
                                 .forward_s = static_cast<double>(Between(0, 1000)) * 1e-6});
    }
    const plan::Policy policy = plan::kPolicies[Between(0, std::size(plan::kPolicies) - 1)];
    const plan::Route route = plan::AllReduceRoute(plan::Affine(
        static_cast<double>(Between(1, 300)) * 1e-6, static_cast<double>(Between(1, 900)) * 1e-9));
    const Result<plan::Plan> plan = plan::MakePlan(policy, profile, route, ++version_);
    ASSERT_TRUE(plan.ok()) << plan.error().text();
    plan_ = std::make_shared<const plan::Plan>(*plan);
    for (std::size_t node = 0; node < ranks_.size(); ++node) {
      cluster_.node(node).Send(service::PlanOffer{.job = job_.id, .plan = plan_, .hash = 1});
    }
    offered_ = true;
    cluster_.Advance(0);
  }

  // As the leader does: every node has taken it, and the iteration is one that none has begun.
  void SwitchIfTaken() {
    std::uint64_t last = 0;
    for (std::size_t node = 0; node < ranks_.size(); ++node) {
      const auto taken = cluster_.node(node).peers().Of<service::PlanAck>();
      if (taken.empty() || taken.back()->version != version_) return;
      last = std::max(last, taken.back()->iteration);
    }
    const std::uint64_t from = version_ == 1 ? 1 : last + service::kSwitchSlack;
    for (std::size_t node = 0; node < ranks_.size(); ++node) {
      cluster_.node(node).Send(service::PlanSwitch{job_.id, version_, from});
      cluster_.Advance(static_cast<TimeNs>(Between(0, 3'000'000)));
    }
    offered_ = false;
    ++switched_;
  }

  std::mt19937_64 random_;
  HandDrivenCluster cluster_;
  JobSpec job_{.world_size = 0, .rendezvous = "a:7733"};
  std::vector<std::vector<std::uint32_t>> ranks_;  // by node
  std::vector<std::uint64_t> counts_;
  std::shared_ptr<const service::Layout> layout_;
  std::shared_ptr<const plan::Plan> plan_;
  std::vector<ClientEnd*> clients_;
  std::vector<std::vector<std::uint64_t>> posted_;  // records of the rank's iteration
  std::map<std::uint32_t, std::vector<std::uint32_t>> orders_;
  std::size_t others_ = 0;  // operations of their own so far
  std::map<std::size_t, std::array<std::uint64_t, kOtherPlaces>> other_records_;  // by rank
  std::vector<std::uint32_t> order_;
  std::vector<int> iterations_;  // that have ended, by rank
  std::uint32_t version_ = 0;
  std::uint64_t switched_ = 0;
  bool offered_ = false;
};

TEST(PlannedRandom, EveryIterationHasItsSumsWhateverThePlansAndWhoeverComesFirst) {
  for (int seed = 1; seed <= kSeeds; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Course run(static_cast<std::uint64_t>(seed));
    run.Go();
    if (::testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace headrace::support

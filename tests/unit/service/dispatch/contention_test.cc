// How much computing is slowed down by blocks under way, as recorded times tell.
#include "service/dispatch/job/contention.h"

#include <gtest/gtest.h>

#include "service/plan/random.h"

namespace headrace::support {
namespace {

using service::BusyTimes;
using service::Contention;

TEST(BusyTimes, AreTheUnionOfBlocks) {
  BusyTimes busy;
  busy.Add(5, 6);
  busy.Add(1, 3);
  busy.Add(2, 4);
  busy.Add(8, 7);  // has not ended
  busy.Seal();
  EXPECT_DOUBLE_EQ(busy.Within(0, 2), 1);
  EXPECT_DOUBLE_EQ(busy.Within(2, 5.5), 2.5);
  EXPECT_DOUBLE_EQ(busy.Within(5.5, 9), 0.5);
  EXPECT_DOUBLE_EQ(busy.Within(9, 10), 0);
  busy.Rewind();
  EXPECT_DOUBLE_EQ(busy.Within(0, 10), 4);
}

using plan::ContentionShares;

struct Simulated {
  ContentionShares shares{};
  double noise = 0;             // up to that much more or less for other reasons
  bool always_in_node = false;  // the node's lane is always busy
  bool always_between = false;  // so are those between nodes
  bool alike = false;           // both are busy at the same times
};

// Iterations of parts that take 1 to 5 ms each while nothing moves, and less of their rate by the
// shares while something does.
ContentionShares Estimated(const Simulated& how, std::uint64_t seed) {
  constexpr std::size_t kParts = 40;
  plan::Random random(seed);
  Contention contention(kParts);
  for (int iteration = 0; iteration < 30; ++iteration) {
    for (std::size_t part = 0; part < kParts; ++part) {
      const double work_s = 1e-3 * static_cast<double>(1 + part % 5);
      const double between = how.always_between ? 1 : random.Unit();
      const double in_node = how.always_in_node ? 1 : how.alike ? between : random.Unit();
      const double rate = 1 - how.shares[0] * in_node - how.shares[1] * between;
      const double lasts_s = work_s / rate * (1 + how.noise * (2 * random.Unit() - 1));
      contention.Add(part, lasts_s, {in_node * lasts_s, between * lasts_s});
    }
  }
  contention.Update();
  return contention.shares();
}

TEST(Contention, IsFoundAgainInBothPlacesAmongOtherDifferences) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    for (const ContentionShares& shares : {ContentionShares{0.1, 0.3}, ContentionShares{0.4, 0.1},
                                           ContentionShares{0, 0.3}, ContentionShares{}}) {
      const ContentionShares exact = Estimated({.shares = shares}, seed);
      const ContentionShares noisy = Estimated({.shares = shares, .noise = 0.2}, seed);
      for (std::size_t place = 0; place < plan::kLanePlaces; ++place) {
        EXPECT_NEAR(exact[place], shares[place], 0.02) << seed;
        EXPECT_NEAR(noisy[place], shares[place], 0.08) << seed;
      }
    }
  }
}

TEST(Contention, IsNotMadeUpWhereALaneIsAlwaysBusy) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const Simulated both{
        .shares = {0.3, 0.3}, .noise = 0.2, .always_in_node = true, .always_between = true};
    EXPECT_EQ(Estimated(both, seed), ContentionShares()) << seed;
    // A place without variance keeps 0, and the other one's share is of what is left.
    const ContentionShares found = Estimated({.shares = {0, 0.3}, .always_in_node = true}, seed);
    EXPECT_EQ(found[0], 0) << seed;
    EXPECT_NEAR(found[1], 0.3, 0.01) << seed;
  }
}

TEST(Contention, IsSharedWhereNothingTellsThePlacesApart) {
  const ContentionShares found = Estimated({.shares = {0.1, 0.3}, .alike = true}, 1);
  EXPECT_NEAR(found[0], 0.2, 0.01);
  EXPECT_NEAR(found[1], 0.2, 0.01);
}

TEST(Contention, LeavesSomethingOfTheRate) {
  const ContentionShares found = Estimated({.shares = {0.49, 0.49}}, 1);
  EXPECT_LE(plan::SumOf(found), plan::kContentionMax);
  EXPECT_GT(plan::SumOf(found), 0.85);
  EXPECT_TRUE(plan::AreShares(found));
}

TEST(Contention, StaysKnownWhenNothingMoreCanBeLearnt) {
  Contention contention(1);
  for (const double busy : {0.0, 1.0, 0.5, 0.0, 1.0}) {
    const double lasts_s = 0.1 / (1 - 0.4 * busy);
    contention.Add(0, lasts_s, {0, busy * lasts_s});
  }
  contention.Update();
  const ContentionShares known = contention.shares();
  EXPECT_NEAR(known[1], 0.4, 0.01);
  for (int i = 0; i < 10; ++i) contention.Add(0, 0.16, {0, 0.16});
  contention.Update();
  EXPECT_EQ(contention.shares(), known);
}

}  // namespace
}  // namespace headrace::support

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

// Iterations of parts that take 1 to 5 ms each while nothing moves, `share` of their rate less
// while something does, and up to `noise` more or less for other reasons.
double Estimated(double share, double noise, bool always_busy, std::uint64_t seed) {
  constexpr std::size_t kParts = 40;
  plan::Random random(seed);
  Contention contention(kParts);
  for (int iteration = 0; iteration < 30; ++iteration) {
    for (std::size_t part = 0; part < kParts; ++part) {
      const double work_s = 1e-3 * static_cast<double>(1 + part % 5);
      const double busy = always_busy ? 1 : random.Unit();
      const double lasts_s = work_s / (1 - share * busy) * (1 + noise * (2 * random.Unit() - 1));
      contention.Add(part, lasts_s, busy * lasts_s);
    }
  }
  contention.Update();
  return contention.share();
}

TEST(Contention, IsFoundAgainAmongOtherDifferences) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    EXPECT_NEAR(Estimated(0.3, 0, false, seed), 0.3, 0.01) << seed;
    EXPECT_NEAR(Estimated(0.3, 0.2, false, seed), 0.3, 0.06) << seed;
    EXPECT_NEAR(Estimated(0, 0.2, false, seed), 0, 0.06) << seed;
  }
}

TEST(Contention, IsNotMadeUpWhereALaneIsAlwaysBusy) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) EXPECT_EQ(Estimated(0.3, 0.2, true, seed), 0);
}

TEST(Contention, StaysKnownWhenNothingMoreCanBeLearnt) {
  Contention contention(1);
  for (const double busy : {0.0, 1.0, 0.5, 0.0, 1.0}) {
    const double lasts_s = 0.1 / (1 - 0.4 * busy);
    contention.Add(0, lasts_s, busy * lasts_s);
  }
  contention.Update();
  const double known = contention.share();
  EXPECT_NEAR(known, 0.4, 0.01);
  for (int i = 0; i < 10; ++i) contention.Add(0, 0.16, 0.16);
  contention.Update();
  EXPECT_EQ(contention.share(), known);
}

}  // namespace
}  // namespace headrace::support

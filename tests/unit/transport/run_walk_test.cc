// Where the elements of a transfer lie, run by run.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "tests/contract/scattered.h"
#include "transport/runs.h"

namespace headrace::transport {
namespace {

// Where element `element` of the runs lies, in the slowest and plainest way.
std::uint64_t PlainOffset(const std::vector<Run>& runs, std::uint64_t element, DType dtype) {
  for (const Run& run : runs) {
    if (element < run.count) return run.offset + element * SizeOf(dtype);
    element -= run.count;
  }
  ADD_FAILURE() << "the runs have no such element";
  return 0;
}

TEST(RunWalk, FindsEveryElementWhereItLies) {
  for (const DType dtype : {DType::kUInt8, DType::kFloat64}) {
    const Scattered place(dtype, RunCounts(200, 30, 1), 2);
    for (const std::uint64_t skip : {std::uint64_t{0}, place.count() / 3, place.count() - 1}) {
      const std::uint64_t count = (place.count() - skip + 1) / 2;
      const RunWalk walk(dtype, count, place.runs(), skip);
      for (std::uint64_t begin = 0; begin < count; begin += 97) {
        const std::uint64_t end = std::min(count, begin + 150);
        std::uint64_t next = begin;
        ForEachStretch(walk, begin, end, [&](auto element, auto offset, auto length) {
          ASSERT_EQ(element, next);
          ASSERT_GT(length, 0U);
          for (std::uint64_t i = 0; i < length; ++i) {
            ASSERT_EQ(offset + i * SizeOf(dtype),
                      PlainOffset(place.runs(), skip + element + i, dtype));
          }
          next += length;
        });
        ASSERT_EQ(next, end);
      }
    }
  }
}

TEST(RunWalk, GoesOnFromWhereItIs) {
  const Scattered place(DType::kFloat32, RunCounts(100, 9, 3), 4);
  const RunWalk start(DType::kFloat32, place.count(), place.runs(), 0);
  RunWalk walk = start;
  for (std::uint64_t element = 0; element < place.count(); element += 3) {
    walk.Seek(element);
    ASSERT_FALSE(walk.over());
    ASSERT_LE(walk.stretch().begin, element);
    ASSERT_LT(element, walk.stretch().end);
    ASSERT_EQ(walk.OffsetOf(element), PlainOffset(place.runs(), element, DType::kFloat32));
  }
  walk.Seek(place.count());
  EXPECT_TRUE(walk.over());
}

TEST(RunWalk, IsOneStretchWithoutRuns) {
  RunWalk walk(DType::kFloat32, 1000, {}, 0);
  EXPECT_EQ(walk.stretch().end, 1000U);
  EXPECT_EQ(walk.OffsetOf(7), 28U);
  walk.Next();
  EXPECT_TRUE(walk.over());
}

TEST(RunWalk, LeavesOutWhatIsSkippedAndWhatIsEmpty) {
  const transport::Run runs[] = {{.offset = 80, .count = 3},
                                 {.offset = 0, .count = 0},
                                 {.offset = 40, .count = 4},
                                 {.offset = 8, .count = 2}};
  RunWalk walk(DType::kInt64, 3, runs, 5);
  ASSERT_FALSE(walk.over());
  EXPECT_EQ(walk.stretch().begin, 0U);
  EXPECT_EQ(walk.stretch().end, 2U);
  EXPECT_EQ(walk.stretch().offset, 40U + 2 * 8);
  EXPECT_EQ(walk.OffsetOf(1), 40U + 3 * 8);
  walk.Next();
  EXPECT_EQ(walk.stretch().begin, 2U);
  EXPECT_EQ(walk.stretch().end, 3U);
  EXPECT_EQ(walk.stretch().offset, 8U);
  walk.Next();
  EXPECT_TRUE(walk.over());
}

TEST(RunWalk, IsOverAtOnceWhereThereIsNothing) {
  EXPECT_TRUE(RunWalk().over());
  EXPECT_TRUE(RunWalk(DType::kFloat32, 0, {}, 0).over());
  const transport::Run runs[] = {{.offset = 0, .count = 4}};
  EXPECT_TRUE(RunWalk(DType::kFloat32, 0, runs, 4).over());
}

}  // namespace
}  // namespace headrace::transport

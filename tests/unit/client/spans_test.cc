#include "client/lib/spans.h"

#include <gtest/gtest.h>

#include <random>
#include <utility>
#include <vector>

namespace headrace::client {
namespace {

TEST(SpanAllocator, GivesAlignedSpansThatDoNotOverlap) {
  SpanAllocator spans(1024);
  const auto a = spans.Allocate(1);
  const auto b = spans.Allocate(65);
  const auto c = spans.Allocate(64);
  ASSERT_TRUE(a && b && c);
  EXPECT_EQ(*a, 0U);
  EXPECT_EQ(*b, 64U);
  EXPECT_EQ(*c, 192U);
}

TEST(SpanAllocator, SaysWhenNothingIsLongEnough) {
  SpanAllocator spans(256);
  EXPECT_FALSE(spans.Allocate(257));
  EXPECT_TRUE(spans.Allocate(256));
  EXPECT_FALSE(spans.Allocate(1));
  EXPECT_FALSE(spans.Allocate(~std::size_t{0}));  // rounding up would overflow
}

TEST(SpanAllocator, MergesNeighboursWhateverTheOrderOfGiving) {
  const std::vector<std::vector<std::size_t>> orders = {
      {0, 64, 128, 192}, {192, 128, 64, 0}, {64, 192, 0, 128}, {0, 128, 192, 64}};
  for (const auto& order : orders) {
    SpanAllocator spans(256);
    for (int i = 0; i < 4; ++i) ASSERT_TRUE(spans.Allocate(64));
    for (const std::size_t offset : order) spans.Free(offset, 64);
    EXPECT_TRUE(spans.IsWhole());
    EXPECT_EQ(spans.Allocate(256), std::size_t{0});
  }
}

TEST(SpanAllocatorDeathTest, DiesWhenASpanIsGivenTwice) {
  SpanAllocator spans(256);
  const auto offset = spans.Allocate(64);
  spans.Free(*offset, 64);
  EXPECT_DEATH(spans.Free(*offset, 64), "check failed");
}

// A byte map is the reference: every span that is taken must be free in it.
TEST(SpanAllocator, KeepsTrackThroughManyRandomSteps) {
  std::mt19937 random(20261121);
  SpanAllocator spans(std::size_t{64} * 256);
  std::vector<bool> taken(spans.size());
  std::vector<std::pair<std::size_t, std::size_t>> open;
  const auto mark = [&taken](std::size_t offset, std::size_t size, bool value) {
    for (std::size_t i = offset; i < offset + size; ++i) {
      ASSERT_NE(taken[i], value) << "byte " << i;
      taken[i] = value;
    }
  };
  for (int step = 0; step < 5000; ++step) {
    const std::size_t size = 1 + random() % 2000;
    if (random() % 2 == 0) {
      if (const auto offset = spans.Allocate(size)) {
        mark(*offset, size, true);
        open.emplace_back(*offset, size);
      }
    } else if (!open.empty()) {
      std::swap(open[random() % open.size()], open.back());
      mark(open.back().first, open.back().second, false);
      spans.Free(open.back().first, open.back().second);
      open.pop_back();
    }
  }
  for (const auto& [offset, size] : open) spans.Free(offset, size);
  EXPECT_TRUE(spans.IsWhole());
}

}  // namespace
}  // namespace headrace::client

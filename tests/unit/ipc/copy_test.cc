#include "ipc/base/copy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <vector>

namespace headrace {
namespace {

std::vector<std::byte> Numbered(std::size_t size) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i % 251 + 1);
  return bytes;
}

TEST(CopyLarge, CopiesAnySizeFromAnyPlaceToAnyPlaceAndNothingBeside) {
  const std::vector<std::byte> source = Numbered(400);
  for (const std::size_t from : {0U, 1U, 16U, 63U}) {
    for (const std::size_t to : {0U, 1U, 7U, 16U, 63U, 64U}) {
      for (const std::size_t size : {0U, 1U, 5U, 63U, 64U, 65U, 128U, 191U, 300U}) {
        std::vector<std::byte> target(400);
        std::vector<std::byte> expected(400);
        CopyLarge(target.data() + to, source.data() + from, size);
        std::copy_n(source.begin() + static_cast<std::ptrdiff_t>(from), size,
                    expected.begin() + static_cast<std::ptrdiff_t>(to));
        ASSERT_EQ(target, expected) << from << " " << to << " " << size;
      }
    }
  }
}

TEST(CopyPartOf, CopiesPiecesOfSmallAndOfLargeArrays) {
  const std::vector<std::byte> source = Numbered(3000);
  for (const std::size_t whole : {source.size(), kLargeCopyMin - 1, kLargeCopyMin}) {
    std::vector<std::byte> target(source.size());
    CopyPartOf(whole, target.data(), source.data(), source.size());
    EXPECT_EQ(target, source) << whole;
    CopyPartOf(whole, target.data(), nullptr, 0);
    EXPECT_EQ(target, source) << whole;
  }
}

}  // namespace
}  // namespace headrace

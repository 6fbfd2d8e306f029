#include "transport/shm/piecework.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <thread>
#include <vector>

namespace headrace::transport {
namespace {

// Two members of ones: an element that is summed once is 2, twice would be 4.
struct Ones {
  explicit Ones(std::size_t count) : a(count, 1), b(count, 1) {
    transfer.kind = Collective::kAllReduce;
    transfer.dtype = DType::kUInt8;
    transfer.count = count;
    transfer.members_count = 2;
    transfer.members[0] = reinterpret_cast<std::byte*>(a.data());
    transfer.members[1] = reinterpret_cast<std::byte*>(b.data());
  }
  std::size_t CountOf(std::uint8_t value) const {
    return static_cast<std::size_t>(std::ranges::count(a, value));
  }

  std::vector<std::uint8_t> a;
  std::vector<std::uint8_t> b;
  Transfer transfer;
};

TEST(Piecework, HandsOutEveryElementOnceToManyThreads) {
  Ones ones(5'000'003);
  Piecework work;
  work.Open(ones.transfer, 3);
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&work] {
      while (work.DoPiece()) {
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(ones.CountOf(2), ones.a.size());
  EXPECT_EQ(ones.a, ones.b);
}

TEST(Piecework, CutsLargePiecesFirstAndSmallOnesLast) {
  Ones ones(4 * kPieceSizeMax);
  Piecework work;
  work.Open(ones.transfer, 2);
  std::vector<std::size_t> sizes;
  std::size_t done = 0;
  while (work.DoPiece()) {
    sizes.push_back(ones.CountOf(2) - done);
    done = ones.CountOf(2);
  }
  EXPECT_EQ(done, ones.a.size());
  EXPECT_EQ(sizes.front(), kPieceSizeMax);
  EXPECT_EQ(sizes.back(), kPieceSizeMin);
  EXPECT_TRUE(std::ranges::is_sorted(sizes, std::ranges::greater()));
}

TEST(Piecework, LeavesASmallTransferInOnePieceForOneThread) {
  Ones ones(kPieceSizeMax - 3);
  Piecework work;
  work.Open(ones.transfer, 1);
  EXPECT_TRUE(work.DoPiece());
  EXPECT_FALSE(work.DoPiece());
  EXPECT_EQ(ones.CountOf(2), ones.a.size());
}

TEST(Piecework, HandsOutNothingAfterStop) {
  Ones ones(4 * kPieceSizeMax);
  Piecework work;
  work.Open(ones.transfer, 1);
  EXPECT_TRUE(work.DoPiece());
  EXPECT_TRUE(work.Stop());
  EXPECT_FALSE(work.HasPieces());
  EXPECT_FALSE(work.DoPiece());
  EXPECT_FALSE(work.Stop());  // nothing was left this time
  EXPECT_EQ(ones.CountOf(2), kPieceSizeMax);
}

}  // namespace
}  // namespace headrace::transport

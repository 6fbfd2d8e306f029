#include "client/lib/arrays.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <thread>
#include <vector>

#include "tests/unit/client/service_end.h"

namespace headrace::client {
namespace {

ArrayUse Whole(std::vector<std::byte>& array) {
  const ArrayPiece whole{array.data(), 0, array.size()};
  return {array.size(), {whole}, {whole}};
}

class ArraysTest : public testing::Test {
 protected:
  ipc::Channel::Created created_ = ipc::Channel::Create().value();
  UniqueFd doorbell_{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  Operations operations_{created_.channel.layout(), doorbell_.get(), 0};
  ServiceEnd service_{created_.channel.layout()};
  FakeControl control_;
  Arrays arrays_{control_, operations_};

  std::uint64_t Post(std::vector<std::byte>& array) {
    return arrays_.Post(ipc::Record{.kind = 1, .dtype = 7}, Whole(array)).value();
  }
  // The service's view of the memory a record names.
  std::byte* MemoryOf(const ipc::Record& record) {
    EXPECT_EQ(record.tensor, ipc::kNoTensor);
    return control_.segments.at(record.segment).data() + record.offset;
  }
};

std::vector<std::byte> Bytes(std::size_t size, int value) {
  return std::vector<std::byte>(size, static_cast<std::byte>(value));
}

TEST_F(ArraysTest, CopyInAtPostAndOutWhenSettled) {
  std::vector<std::byte> array = Bytes(100, 1);
  const std::uint64_t sequence = Post(array);
  const ipc::Record record = service_.Take();
  EXPECT_EQ(MemoryOf(record)[99], std::byte{1});
  std::memset(MemoryOf(record), 9, 100);
  EXPECT_EQ(array[0], std::byte{1});
  service_.End(sequence);
  arrays_.Settle(sequence, true);
  EXPECT_EQ(array, Bytes(100, 9));
  EXPECT_EQ(arrays_.copied_size(), 200U);
}

TEST_F(ArraysTest, CopyOnlyWhatIsReadAndWritten) {
  std::vector<std::byte> array = Bytes(100, 1);
  const ArrayUse use{100, {{array.data() + 20, 20, 10}}, {{array.data() + 50, 50, 10}}};
  const std::uint64_t sequence = arrays_.Post(ipc::Record{.kind = 4, .dtype = 7}, use).value();
  std::byte* memory = MemoryOf(service_.Take());
  EXPECT_EQ(memory[19], std::byte{0});
  EXPECT_EQ(memory[20], std::byte{1});
  EXPECT_EQ(memory[29], std::byte{1});
  EXPECT_EQ(memory[30], std::byte{0});
  std::memset(memory, 9, 100);
  service_.End(sequence);
  arrays_.Settle(sequence, true);
  EXPECT_EQ(std::count(array.begin(), array.end(), std::byte{9}), 10);
  EXPECT_EQ(array[50], std::byte{9});
  EXPECT_EQ(array[59], std::byte{9});
}

TEST_F(ArraysTest, CopyFromAndIntoPiecesThatLieApart) {
  std::vector<std::byte> one = Bytes(40, 1);
  std::vector<std::byte> two = Bytes(60, 2);
  std::vector<std::byte> result = Bytes(30, 0);
  std::vector<std::byte> other = Bytes(10, 0);
  ArrayUse use{100,
               {{one.data(), 0, 40}, {two.data(), 40, 60}},
               {{result.data(), 35, 30}, {other.data(), 90, 10}}};
  const std::uint64_t sequence =
      arrays_.Post(ipc::Record{.kind = 1, .dtype = 7}, std::move(use)).value();
  std::byte* memory = MemoryOf(service_.Take());
  EXPECT_EQ(std::count(memory, memory + 40, std::byte{1}), 40);
  EXPECT_EQ(std::count(memory + 40, memory + 100, std::byte{2}), 60);
  service_.End(sequence);
  arrays_.Settle(sequence, true);
  EXPECT_EQ(std::count(result.begin(), result.end(), std::byte{1}), 5);
  EXPECT_EQ(std::count(result.begin(), result.end(), std::byte{2}), 25);
  EXPECT_EQ(other, Bytes(10, 2));
  EXPECT_EQ(arrays_.copied_size(), 140U);
}

TEST_F(ArraysTest, LeaveTheArrayAloneAfterAFailure) {
  std::vector<std::byte> array = Bytes(100, 1);
  const std::uint64_t sequence = Post(array);
  std::memset(MemoryOf(service_.Take()), 9, 100);
  service_.End(sequence, Code::kPeerLost, "gone");
  arrays_.Settle(sequence, false);
  EXPECT_EQ(array, Bytes(100, 1));
}

TEST_F(ArraysTest, KeepManyInFlightApartAndUseMemoryAgain) {
  constexpr int kInFlight = 200;
  for (int round = 0; round < 20; ++round) {
    std::vector<std::vector<std::byte>> arrays;
    for (int i = 0; i < kInFlight; ++i) arrays.push_back(Bytes(1000, i));
    std::vector<std::uint64_t> sequences;
    for (auto& array : arrays) sequences.push_back(Post(array));
    for (int i = 0; i < kInFlight; ++i) {
      const ipc::Record record = service_.Take();
      ASSERT_EQ(MemoryOf(record)[999], static_cast<std::byte>(i));
      std::memset(MemoryOf(record), i + 1, 1000);
      service_.End(record.commit);
    }
    for (const std::uint64_t sequence : sequences) arrays_.Settle(sequence, true);
    for (int i = 0; i < kInFlight; ++i)
      EXPECT_EQ(arrays[static_cast<std::size_t>(i)], Bytes(1000, i + 1));
  }
  EXPECT_EQ(arrays_.staging_size(), Staging::kSegmentSizeMin);
  EXPECT_EQ(control_.segments.size(), 1U);
}

TEST_F(ArraysTest, GrowForALargeArrayAndLetTheUnusedSegmentGo) {
  std::vector<std::byte> little = Bytes(100, 1);
  arrays_.Settle((Post(little), service_.Serve().commit), true);
  std::vector<std::byte> large = Bytes(3 * Staging::kSegmentSizeMin, 2);
  const std::uint64_t sequence = Post(large);
  EXPECT_EQ(control_.segments.size(), 1U);
  EXPECT_EQ(arrays_.staging_size(), 4 * Staging::kSegmentSizeMin);
  service_.Serve();
  arrays_.Settle(sequence, true);
  EXPECT_EQ(large, Bytes(3 * Staging::kSegmentSizeMin, 2));
}

TEST_F(ArraysTest, KeepASegmentThatIsInUseWhenGrowing) {
  std::vector<std::byte> little = Bytes(100, 1);
  const std::uint64_t first = Post(little);
  std::vector<std::byte> large = Bytes(3 * Staging::kSegmentSizeMin, 2);
  Post(large);
  EXPECT_EQ(control_.segments.size(), 2U);
  std::memset(MemoryOf(service_.Take()), 9, 100);
  service_.End(first);
  arrays_.Settle(first, true);
  EXPECT_EQ(little, Bytes(100, 9));
}

TEST_F(ArraysTest, FreeTheMemoryOfDiscardedOperationsOnceTheyEnd) {
  std::vector<std::byte> array = Bytes(Staging::kSegmentSizeMin, 1);
  const std::uint64_t sequence = Post(array);
  std::memset(MemoryOf(service_.Take()), 9, 100);
  arrays_.Discard(sequence);
  std::vector<std::byte> other = Bytes(Staging::kSegmentSizeMin, 2);
  Post(other);  // the first is still open: its memory must not be touched
  EXPECT_EQ(control_.segments.size(), 2U);
  service_.End(sequence);
  Post(other);
  EXPECT_EQ(control_.segments.size(), 2U);
  arrays_.Settle(sequence, true);
  EXPECT_EQ(array, Bytes(Staging::kSegmentSizeMin, 1));
}

TEST_F(ArraysTest, GiveTheMemoryBackWhenThePostFails) {
  operations_.Lose(Error(Code::kUnavailable, "gone"));
  std::vector<std::byte> array = Bytes(Staging::kSegmentSizeMin, 1);
  for (int i = 0; i < 3; ++i) {
    const auto posted = arrays_.Post(ipc::Record{}, Whole(array));
    ASSERT_FALSE(posted.ok());
    EXPECT_EQ(posted.error().text(), "gone");
  }
  EXPECT_EQ(arrays_.staging_size(), Staging::kSegmentSizeMin);
}

TEST_F(ArraysTest, SayWhyThereIsNoStagingMemory) {
  control_.refusal = Error(Code::kExhausted, "no more segments");
  std::vector<std::byte> array = Bytes(10, 1);
  const auto posted = arrays_.Post(ipc::Record{}, Whole(array));
  ASSERT_FALSE(posted.ok());
  EXPECT_EQ(posted.error().code(), Code::kExhausted);
  EXPECT_EQ(posted.error().text(), "staging memory: no more segments");
  EXPECT_FALSE(service_.HasRecord());
}

// Both waiters must see the result, though only one of them copies it.
TEST_F(ArraysTest, LetTwoThreadsSettleTheSameOperation) {
  for (int round = 0; round < 50; ++round) {
    std::vector<std::byte> array = Bytes(1 << 18, 1);
    const std::uint64_t sequence = Post(array);
    std::memset(MemoryOf(service_.Take()), 9, array.size());
    service_.End(sequence);
    const auto settle = [&] {
      arrays_.Settle(sequence, true);
      EXPECT_EQ(array.back(), std::byte{9});
    };
    std::thread other(settle);
    settle();
    other.join();
  }
}

}  // namespace
}  // namespace headrace::client

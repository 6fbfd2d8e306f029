// The submission ring within one process: order, laps, fullness, garbage, the doorbell.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <random>
#include <thread>

#include "ipc/channel.h"
#include "ipc/completion.h"
#include "ipc/futex.h"
#include "ipc/ring_reader.h"
#include "ipc/ring_writer.h"

namespace headrace::ipc {
namespace {

class Ring : public testing::Test {
 protected:
  ChannelLayout& layout() { return created_->channel.layout(); }

  Result<Channel::Created> created_ = Channel::Create();
  RingWriter writer_{layout()};
  RingReader reader_{layout()};
  CompletionWriter completions_{layout()};
};

Record RecordOf(std::uint64_t count) {
  return {.kind = 1, .dtype = 1, .reduction = 1, .tensor = 7, .count = count};
}

std::atomic_ref<std::uint64_t> CommitOf(ChannelLayout& layout, std::uint64_t sequence) {
  return std::atomic_ref<std::uint64_t>(layout.records[sequence % kOperationsMax].commit);
}

TEST_F(Ring, ReadsNothingFromAFreshChannel) {
  EXPECT_FALSE(reader_.HasRecord());
  Result<std::optional<Record>> record = reader_.Read();
  ASSERT_TRUE(record.ok());
  EXPECT_FALSE(record->has_value());
  EXPECT_EQ(reader_.next_sequence(), 1U);
}

TEST_F(Ring, CarriesEveryFieldUnchangedAndNumbersTheRecord) {
  const Record sent{.kind = 2,
                    .dtype = 3,
                    .reduction = 4,
                    .flags = 5,
                    .tensor = 6,
                    .segment = 7,
                    .root = 8,
                    .offset = 9,
                    .count = 10,
                    .timeout_ms = 11,
                    .parts = 12,
                    .posted_ns = 13,
                    .tag = 14,
                    .commit = 999};
  (void)writer_.Write(sent);
  Result<std::optional<Record>> read = reader_.Read();
  ASSERT_TRUE(read.ok() && read->has_value());
  const Record got = read->value();
  EXPECT_EQ(got.commit, 1U);  // the operation's number, not what the caller left there
  Record expected = sent;
  expected.commit = 1;
  EXPECT_EQ(std::memcmp(&got, &expected, sizeof got), 0);
}

TEST_F(Ring, KeepsOrderOverSeveralLaps) {
  for (std::uint64_t sequence = 1; sequence <= 5 * kOperationsMax + 3; ++sequence) {
    ASSERT_TRUE(writer_.HasRoom());
    EXPECT_EQ(writer_.next_sequence(), sequence);
    (void)writer_.Write(RecordOf(sequence * 3));
    Result<std::optional<Record>> read = reader_.Read();
    ASSERT_TRUE(read.ok() && read->has_value()) << sequence;
    ASSERT_EQ(read->value().commit, sequence);
    ASSERT_EQ(read->value().count, sequence * 3);
    ASSERT_FALSE(reader_.HasRecord());
    completions_.End(sequence, Code::kOk, "");
  }
}

TEST_F(Ring, IsFullUntilTheOldestOperationEndsNotUntilItIsRead) {
  for (std::uint64_t i = 0; i < kOperationsMax; ++i) (void)writer_.Write(RecordOf(i));
  EXPECT_FALSE(writer_.HasRoom());
  for (std::uint64_t i = 0; i < kOperationsMax; ++i) ASSERT_TRUE(reader_.Read().ok());
  EXPECT_FALSE(writer_.HasRoom());
  completions_.End(2, Code::kOk, "");
  EXPECT_FALSE(writer_.HasRoom()) << "operation 2 does not free the slot of operation 1";
  completions_.End(1, Code::kTimeout, "too late");
  EXPECT_TRUE(writer_.HasRoom());
  (void)writer_.Write(RecordOf(0));
  EXPECT_TRUE(writer_.HasRoom()) << "operation 2 has ended before";
  (void)writer_.Write(RecordOf(0));
  EXPECT_FALSE(writer_.HasRoom());
}

TEST_F(Ring, DiesOfAWriteWithoutRoomBecauseThatIsABugOfTheCaller) {
  for (std::uint64_t i = 0; i < kOperationsMax; ++i) (void)writer_.Write(RecordOf(i));
  EXPECT_DEATH((void)writer_.Write(RecordOf(0)), "HasRoom.*1025");
}

TEST_F(Ring, RefusesEveryCommitWordThatNoHonestWriterStores) {
  std::mt19937_64 random(20261121);
  for (std::uint64_t sequence = 1; sequence <= 3 * kOperationsMax; ++sequence) {
    const std::uint64_t stale = sequence <= kOperationsMax ? 0 : sequence - kOperationsMax;
    const std::uint64_t words[] = {random(), sequence + 1, sequence + kOperationsMax,
                                   ~std::uint64_t{0}, stale + 1 == sequence ? 3 : stale + 1};
    for (const std::uint64_t word : words) {
      if (word == stale || word == sequence) continue;
      CommitOf(layout(), sequence).store(word);
      ASSERT_TRUE(reader_.HasRecord());
      Result<std::optional<Record>> read = reader_.Read();
      ASSERT_FALSE(read.ok()) << sequence << " " << word;
      ASSERT_EQ(read.error().code(), Code::kCorrupt);
      ASSERT_NE(read.error().text().find(std::to_string(word)), std::string::npos);
      ASSERT_EQ(reader_.next_sequence(), sequence) << "garbage is not consumed";
    }
    CommitOf(layout(), sequence).store(sequence);
    ASSERT_TRUE(reader_.Read().ok());
  }
}

TEST_F(Ring, SurvivesARecordThatChangesAfterItWasRead) {
  (void)writer_.Write(RecordOf(5));
  Result<std::optional<Record>> read = reader_.Read();
  ASSERT_TRUE(read.ok() && read->has_value());
  layout().records[1].count = 6;
  EXPECT_EQ(read->value().count, 5U);
}

TEST_F(Ring, AsksForTheDoorbellOnlyWhileTheServiceSleepsAndOnlyOnce) {
  EXPECT_FALSE(writer_.Write(RecordOf(1)));
  EXPECT_FALSE(reader_.PrepareToSleep()) << "a record is waiting";
  EXPECT_EQ(layout().header.service_sleeps.load(), 0U);
  ASSERT_TRUE(reader_.Read().ok());
  EXPECT_TRUE(reader_.PrepareToSleep());
  EXPECT_TRUE(writer_.Write(RecordOf(2)));
  EXPECT_FALSE(writer_.Write(RecordOf(3))) << "one ring wakes the service for both";
  EXPECT_TRUE(reader_.Read()->has_value());
  EXPECT_TRUE(reader_.Read()->has_value());
  EXPECT_TRUE(reader_.PrepareToSleep());
  reader_.Awake();
  EXPECT_FALSE(writer_.Write(RecordOf(4))) << "the service woke for another reason";
}

TEST_F(Ring, DoesNotSleepOverGarbage) {
  CommitOf(layout(), 1).store(77);
  EXPECT_FALSE(reader_.PrepareToSleep());
}

// The race the fences are there for: the writer stores a record while the reader goes to sleep.
// The reader here sleeps without a time limit, so one lost doorbell hangs the test.
TEST_F(Ring, NeverLosesADoorbellBetweenTwoThreads) {
  constexpr std::uint64_t kRecords = 60'000;
  std::atomic<std::uint32_t> doorbell{0};
  std::uint64_t slept = 0;
  std::uint64_t tried = 0;
  std::thread service([&] {
    for (std::uint64_t sequence = 1; sequence <= kRecords;) {
      const std::uint32_t rung = doorbell.load();
      Result<std::optional<Record>> read = reader_.Read();
      ASSERT_TRUE(read.ok());
      if (read->has_value()) {
        ASSERT_EQ(read->value().count, sequence);
        completions_.End(sequence++, Code::kOk, "");
      } else if (++tried; reader_.PrepareToSleep()) {
        ++slept;
        FutexWait(doorbell, rung, kNever);
        reader_.Awake();
      }
    }
  });
  CompletionReader ends(layout());
  std::uint64_t rings = 0;
  for (std::uint64_t sequence = 1; sequence <= kRecords; ++sequence) {
    while (!writer_.HasRoom()) ends.Wait(sequence - kOperationsMax, kSecond);
    if (writer_.Write(RecordOf(sequence))) {
      ++rings;
      ++doorbell;
      FutexWakeAll(doorbell);
    }
    // Now and then the writer lets the service run dry, so that it goes to sleep.
    if (sequence % 7 == 0) {
      ASSERT_TRUE(ends.Wait(sequence, 30 * kSecond)) << sequence;
    }
  }
  service.join();
  EXPECT_GT(slept, 0U) << "the race was never run";
  EXPECT_LE(rings, tried) << "each ring answers one call for it";
}

}  // namespace
}  // namespace headrace::ipc

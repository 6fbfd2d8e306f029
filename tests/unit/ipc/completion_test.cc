// How operations end: words, texts, waiters, and the client that ends what a dead service left.
#include "ipc/completion.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "ipc/channel.h"

namespace headrace::ipc {
namespace {

class Completion : public testing::Test {
 protected:
  ChannelLayout& layout() { return created_->channel.layout(); }

  Result<Channel::Created> created_ = Channel::Create();
  CompletionWriter writer_{layout()};
  CompletionReader reader_{layout()};
};

TEST_F(Completion, WordKeepsItsThreePartsInTheirPlaces) {
  const CompletionWord word{.sequence = 0x123456789abc, .text_index = 0x42, .code = Code::kTimeout};
  EXPECT_EQ(word.Pack(), 0x123456789abc4208U);
  const CompletionWord back = CompletionWord::Unpack(word.Pack());
  EXPECT_EQ(back.sequence, word.sequence);
  EXPECT_EQ(back.text_index, word.text_index);
  EXPECT_EQ(back.code, word.code);
  EXPECT_EQ(CompletionWord{.sequence = kSequenceMax}.Pack() >> 16, kSequenceMax);
}

TEST_F(Completion, SuccessNeedsNoTextAndNoSystemCall) {
  EXPECT_FALSE(reader_.HasEnded(1));
  EXPECT_FALSE(writer_.End(1, Code::kOk, ""));
  EXPECT_TRUE(reader_.HasEnded(1));
  EXPECT_FALSE(reader_.HasEnded(2));
  EXPECT_FALSE(reader_.HasEnded(1 + kOperationsMax));
  const Outcome outcome = reader_.Read(1);
  EXPECT_EQ(outcome.code, Code::kOk);
  EXPECT_EQ(outcome.text, "");
}

// The two threads are to run at the same time: each gives way only when the other does not.
void AwaitRound(const std::atomic<std::uint64_t>& reached, std::uint64_t round) {
  for (int looks = 0; reached.load(std::memory_order_acquire) != round; ++looks) {
    if (looks > 100'000) std::this_thread::yield();
  }
}

// A waiter counts itself and then looks at the word; the service writes the word and then looks for
// waiters. One of them must see the other, or the waiter sleeps over its end. Many rounds, since
// only the processor decides in which order two cores see what the other does.
TEST_F(Completion, NeverMissesAWaiterWhoMissedTheWord) {
  constexpr std::uint64_t kRounds = 200'000;
  const TimeNs end = MonotonicNow() + 20 * kSecond;  // on a machine that is busy otherwise
  bool over = false;
  std::atomic<std::uint64_t> begun = 0;
  std::atomic<std::uint64_t> done = 0;
  bool seen_word = false;
  std::thread waiter([&] {
    for (std::uint64_t round = 1; round <= kRounds; ++round) {
      AwaitRound(begun, round);
      if (over) return;
      layout().header.client_waiters.fetch_add(1);
      seen_word = reader_.HasEnded(round);
      done.store(round, std::memory_order_release);
    }
  });
  std::uint64_t missed = 0;
  for (std::uint64_t round = 1; round <= kRounds; ++round) {
    layout().header.client_waiters.store(0);
    over = round == kRounds || missed != 0 || MonotonicNow() > end;
    begun.store(round, std::memory_order_release);
    // So that the two meet at different places.
    for (std::uint64_t left = round % 512; left > 0; --left) {
      std::atomic_signal_fence(std::memory_order_seq_cst);
    }
    if (over) break;
    const bool seen_waiter = writer_.End(round, Code::kOk, "");
    AwaitRound(done, round);
    missed += !seen_waiter && !seen_word ? 1 : 0;
  }
  waiter.join();
  EXPECT_EQ(missed, 0U) << "of " << kRounds;
}

TEST_F(Completion, FailureCarriesItsCodeAndCause) {
  writer_.End(9, Code::kPeerLost, "rank 3 (pid 1234) exited");
  const Outcome outcome = reader_.Read(9);
  EXPECT_EQ(outcome.code, Code::kPeerLost);
  EXPECT_EQ(outcome.text, "rank 3 (pid 1234) exited");
}

TEST_F(Completion, CutsATextThatDoesNotFitAndEndsItInNul) {
  const std::string longest(sizeof(ErrorText::text) - 1, 'x');
  writer_.End(1, Code::kInternal, longest + "cut");
  EXPECT_EQ(reader_.Read(1).text, longest);
  writer_.End(2, Code::kInternal, longest);
  EXPECT_EQ(reader_.Read(2).text, longest);
}

TEST_F(Completion, GivesTheNameOfTheCodeWhenTheTextWasUsedAgainForAnotherError) {
  for (std::uint64_t sequence = 1; sequence <= kErrorTextsMax + 1; ++sequence) {
    writer_.End(sequence, sequence == 1 ? Code::kCancelled : Code::kTimeout,
                "text " + std::to_string(sequence));
  }
  EXPECT_EQ(reader_.Read(1).code, Code::kCancelled);
  EXPECT_EQ(reader_.Read(1).text, "cancelled");
}

TEST_F(Completion, GivesTheTextOfALaterOperationThatEndedAlike) {
  for (std::uint64_t sequence = 1; sequence <= kErrorTextsMax + 1; ++sequence) {
    writer_.End(sequence, Code::kTimeout, "text " + std::to_string(sequence));
  }
  EXPECT_EQ(reader_.Read(1).code, Code::kTimeout);
  EXPECT_EQ(reader_.Read(1).text, "text " + std::to_string(kErrorTextsMax + 1) +
                                      " (the text of a later operation with the same error)");
  EXPECT_EQ(reader_.Read(2).text, "text 2");
  EXPECT_EQ(reader_.Read(kErrorTextsMax + 1).text, "text " + std::to_string(kErrorTextsMax + 1));
}

TEST_F(Completion, ReadsATextWholeOrNotAtAllWhileItIsUsedAgain) {
  std::atomic<bool> stop{false};
  std::atomic<std::uint64_t> newest{0};
  std::thread service([&] {
    for (std::uint64_t sequence = 1; !stop; ++sequence) {
      writer_.End(sequence, Code::kTimeout,
                  std::string(400, static_cast<char>('a' + sequence % 26)));
      newest = sequence;
    }
  });
  std::uint64_t whole = 0;
  std::uint64_t used_again = 0;
  const TimeNs deadline = MonotonicNow() + 30 * kSecond;
  for (std::uint64_t look = 0; look < 100'000 || whole == 0 || used_again == 0; ++look) {
    ASSERT_LT(MonotonicNow(), deadline) << whole << " whole, " << used_again << " used again";
    // Around the operation whose text is being overwritten at this moment.
    const std::uint64_t back = kErrorTextsMax - look % 4;
    const std::uint64_t last = newest;
    if (last <= back) continue;
    const Outcome outcome = reader_.Read(last - back);
    if (outcome.code == Code::kOk) continue;  // the word, too, was used again
    const char now = static_cast<char>('a' + (last - back) % 26);
    if (outcome.text == "timeout") {
      ++used_again;
    } else if (outcome.text.ends_with(')')) {  // of whichever operation used it last
      ASSERT_EQ(outcome.text, std::string(380, outcome.text[0]) +
                                  " (the text of a later operation with the same error)");
      ++used_again;
    } else {
      ASSERT_EQ(outcome.text, std::string(400, now));
      ++whole;
    }
  }
  stop = true;
  service.join();
}

TEST_F(Completion, RefusesATextIndexThatIsOutOfRange) {
  layout().words[3].store(
      CompletionWord{.sequence = 3, .text_index = 200, .code = Code::kCorrupt}.Pack());
  EXPECT_EQ(reader_.Read(3).text, "corrupt");
  layout().words[4].store(CompletionWord{.sequence = 4, .code = static_cast<Code>(99)}.Pack());
  EXPECT_EQ(reader_.Read(4).text, "unknown");
}

TEST_F(Completion, WaitReturnsAtOnceForWhatHasEndedAndInTimeForWhatHasNot) {
  writer_.End(1, Code::kOk, "");
  EXPECT_TRUE(reader_.Wait(1, 0));
  EXPECT_TRUE(reader_.Wait(1, kNever));
  EXPECT_FALSE(reader_.Wait(2, 0));
  EXPECT_FALSE(reader_.Wait(2, -5));
  const TimeNs start = MonotonicNow();
  EXPECT_FALSE(reader_.Wait(2, 20 * kMillisecond));
  EXPECT_GE(MonotonicNow() - start, 20 * kMillisecond);
  EXPECT_EQ(layout().header.client_waiters.load(), 0U);
}

TEST_F(Completion, WaitAcceptsATimeBeyondTheEndOfTheClock) {
  std::thread service([&] { writer_.End(1, Code::kOk, ""); });
  EXPECT_TRUE(reader_.Wait(1, kNever - 1));
  service.join();
}

TEST_F(Completion, WakesEveryThreadThatWaits) {
  constexpr int kThreads = 4;
  std::vector<std::thread> threads;
  std::atomic<int> woken{0};
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      if (reader_.Wait(static_cast<std::uint64_t>(1 + i % 2), 30 * kSecond)) ++woken;
    });
  }
  while (layout().header.client_waiters.load() != kThreads) std::this_thread::yield();
  EXPECT_TRUE(writer_.End(1, Code::kOk, ""));
  EXPECT_TRUE(writer_.End(2, Code::kOk, ""));
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(woken, kThreads);
  EXPECT_FALSE(writer_.End(3, Code::kOk, "")) << "nobody waits any more";
}

TEST_F(Completion, WakesAWaiterInAnotherProcess) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const bool ended = reader_.Wait(1, 30 * kSecond);
    const Outcome outcome = reader_.Read(1);
    ::_exit(ended && outcome.code == Code::kCancelled && outcome.text == "enough" ? 0 : 1);
  }
  while (layout().header.client_waiters.load() != 1) std::this_thread::yield();
  EXPECT_TRUE(writer_.End(1, Code::kCancelled, "enough"));
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST_F(Completion, EndAllOpenEndsWhatIsOpenAndKeepsWhatHadEnded) {
  writer_.End(1, Code::kOk, "");
  writer_.End(3, Code::kMismatch, "float32 against float64");
  reader_.EndAllOpen(4, Code::kUnavailable);
  EXPECT_EQ(reader_.Read(1).code, Code::kOk);
  EXPECT_EQ(reader_.Read(2).code, Code::kUnavailable);
  EXPECT_EQ(reader_.Read(2).text, "unavailable");
  EXPECT_EQ(reader_.Read(3).text, "float32 against float64");
  EXPECT_EQ(reader_.Read(4).code, Code::kUnavailable);
  EXPECT_FALSE(reader_.HasEnded(5)) << "was never posted";
}

TEST_F(Completion, EndAllOpenReachesExactlyOneLapBack) {
  const std::uint64_t last = 3 * kOperationsMax + 17;
  const std::uint64_t first = last - kOperationsMax + 1;
  for (std::uint64_t sequence = 1; sequence < first; ++sequence) {
    writer_.End(sequence, Code::kOk, "");
  }
  reader_.EndAllOpen(last, Code::kUnavailable);
  for (std::uint64_t sequence = first; sequence <= last; ++sequence) {
    ASSERT_EQ(reader_.Read(sequence).code, Code::kUnavailable) << sequence;
  }
}

TEST_F(Completion, EndAllOpenWakesSleepers) {
  std::thread waiter([&] { EXPECT_TRUE(reader_.Wait(2, 30 * kSecond)); });
  while (layout().header.client_waiters.load() != 1) std::this_thread::yield();
  reader_.EndAllOpen(2, Code::kUnavailable);
  waiter.join();
}

TEST_F(Completion, EndAllOpenAgainstEndLeavesEachOperationEndedWithOneOfTheTwoOutcomes) {
  std::uint64_t by_service = 0;
  for (std::uint64_t lap = 0; lap < 20; ++lap) {
    const std::uint64_t first = lap * kOperationsMax + 1;
    const std::uint64_t last = first + kOperationsMax - 1;
    std::atomic<bool> go{false};
    std::thread service([&] {
      while (!go) std::this_thread::yield();
      for (std::uint64_t s = first; s <= last; ++s) writer_.End(s, Code::kOk, "");
    });
    std::thread client([&] {
      while (!go) std::this_thread::yield();
      reader_.EndAllOpen(last, Code::kUnavailable);
    });
    go = true;
    for (std::uint64_t s = first; s <= last; ++s) ASSERT_TRUE(reader_.Wait(s, 30 * kSecond));
    service.join();
    client.join();
    for (std::uint64_t s = first; s <= last; ++s) {
      const Outcome outcome = reader_.Read(s);
      ASSERT_TRUE(outcome.code == Code::kOk || outcome.code == Code::kUnavailable);
      ASSERT_EQ(layout().words[s % kOperationsMax].load() >> 16, s) << "no word is torn or lost";
      by_service += outcome.code == Code::kOk ? 1 : 0;
    }
  }
  EXPECT_GT(by_service, 0U);
}

TEST(Codes, EveryCodeHasAName) {
  for (int code = 0; code < kCodesCount; ++code) {
    EXPECT_NE(CodeName(static_cast<Code>(code)), "unknown") << code;
  }
  EXPECT_EQ(CodeName(static_cast<Code>(kCodesCount)), "unknown");
}

}  // namespace
}  // namespace headrace::ipc

// Words in stream order, by the GPU and by calls of the host.
#include "transport/memory/stream_words.h"

#include <atomic>
#include <memory>
#include <thread>

#include "tests/unit/transport/memory/double_test.h"
#include "transport/memory/cuda_device.h"

namespace headrace::transport {
namespace {

using cuda_double::Environment;

constexpr std::size_t kReady = 0;
constexpr std::size_t kDone = 64;

// Over both means: the promise is the same but for streams beside each other.
class StreamWordsTest : public DoubleTest, public ::testing::WithParamInterface<WordMeans> {
 protected:
  void SetUp() override {
    if (GetParam() == WordMeans::kHostCall)
      poor_ = std::make_unique<Environment>(
          std::initializer_list<Environment::Variable>{{"LACKS", "stream_words"}});
    Start();
    pages_ = HostPages(8192);
    auto words = StreamWords::Pin(contexts_[0], pages_.data(), pages_.size(), GetParam());
    ASSERT_TRUE(words.ok()) << words.error().text();
    words_ = std::move(*words);
    auto stream = CreateStream(contexts_[0], kCuStreamNonBlocking, 0);
    ASSERT_TRUE(stream.ok());
    stream_ = std::move(*stream);
  }
  void TearDown() override {
    words_ = nullptr;
    stream_.reset();
    DoubleTest::TearDown();
  }
  std::atomic_ref<std::uint64_t> Word(std::size_t offset) const {
    return std::atomic_ref(*reinterpret_cast<std::uint64_t*>(pages_.data() + offset));
  }
  CuStream stream() const { return stream_.get().thing; }
  CuResult Query() const {
    const CurrentContext current = In();
    return call().stream_query(stream());
  }
  CuResult Synchronize() const {
    const CurrentContext current = In();
    return call().stream_synchronize(stream());
  }

  std::unique_ptr<Environment> poor_;
  Mapping pages_;
  std::unique_ptr<StreamWords> words_;
  CudaStream stream_;
};

TEST_P(StreamWordsTest, MeansAreWhatTheGpuCanDo) {
  const auto means = WordMeansOf(*driver_, 0);
  ASSERT_TRUE(means.ok());
  EXPECT_EQ(*means, GetParam());
  EXPECT_EQ(words_->means(), GetParam());
}

TEST_P(StreamWordsTest, TellReadyAndAwaitDoneWithoutTheHost) {
  ASSERT_EQ(TextOf(words_->Write(stream(), kReady, 5)), "ok");
  ASSERT_EQ(TextOf(words_->AwaitAtLeast(stream(), kDone, 9)), "ok");
  ASSERT_EQ(TextOf(words_->Write(stream(), kReady, 6)), "ok");
  while (Word(kReady) != 5) std::this_thread::yield();
  EXPECT_EQ(Query(), CuResult::kNotReady) << "9 was awaited and not written";
  EXPECT_EQ(Word(kReady), 5U) << "what follows the wait must not be done before it";
  Word(kDone) = 8;
  EXPECT_EQ(Query(), CuResult::kNotReady);
  Word(kDone) = 10;
  EXPECT_EQ(Synchronize(), CuResult::kSuccess);
  EXPECT_EQ(Word(kReady), 6U);
}

TEST_P(StreamWordsTest, CompareCyclically) {
  Word(kDone) = 2;
  ASSERT_TRUE(words_->AwaitAtLeast(stream(), kDone, UINT64_MAX).ok());
  EXPECT_EQ(Synchronize(), CuResult::kSuccess) << "2 comes after the largest number";
}

TEST_P(StreamWordsTest, RefuseOffsetsThatNameNoWord) {
  EXPECT_EQ(TextOf(words_->Write(stream(), 8192, 1)), "no word at offset 8192 of 8192 bytes");
  EXPECT_EQ(TextOf(words_->AwaitAtLeast(stream(), 12, 1)), "no word at offset 12 of 8192 bytes");
}

TEST_P(StreamWordsTest, LetStreamsOfTwoGpusMeet) {
  if (GetParam() == WordMeans::kHostCall) {
    // Two streams at once are for the GPU's own words only.
    ASSERT_TRUE(words_->AwaitAtLeast(stream(), kDone, 1).ok());
    EXPECT_EQ(words_->Write(nullptr, kDone, 1).code(), Code::kBusy);
    Word(kDone) = 1;
    EXPECT_EQ(Synchronize(), CuResult::kSuccess);
    return;
  }
  auto other = CreateStream(contexts_[1], kCuStreamNonBlocking, 0);
  ASSERT_TRUE(other.ok());
  ASSERT_TRUE(words_->AwaitAtLeast(stream(), kDone, 1).ok());
  ASSERT_TRUE(words_->Write(stream(), kReady, 1).ok());
  ASSERT_TRUE(words_->Write(other->get().thing, kDone, 1).ok());
  ASSERT_TRUE(words_->AwaitAtLeast(other->get().thing, kReady, 1).ok());
  const CurrentContext second = In(1);
  EXPECT_EQ(call().stream_synchronize(other->get().thing), CuResult::kSuccess);
}

// The GPU's own waits end with the context only, and are not limited by us.
using StreamWordsOfHostCalls = StreamWordsTest;

TEST_P(StreamWordsOfHostCalls, EndWhileAStreamStillWaits) {
  ASSERT_TRUE(words_->AwaitAtLeast(stream(), kDone, 1).ok());
  ASSERT_TRUE(words_->Write(stream(), kReady, 1).ok());
  words_ = nullptr;
  EXPECT_EQ(Synchronize(), CuResult::kSuccess);
  EXPECT_EQ(Word(kReady), 0U) << "nothing touches the words any more";
}

TEST_P(StreamWordsOfHostCalls, SayWhenTooManyWait) {
  ASSERT_TRUE(words_->AwaitAtLeast(stream(), kDone, 1).ok());
  for (std::size_t i = 1; i < kHostCallsMax; ++i) {
    ASSERT_TRUE(words_->Write(stream(), kReady, i).ok());
  }
  EXPECT_EQ(words_->Write(stream(), kReady, kHostCallsMax).code(), Code::kBusy);
  Word(kDone) = 1;
  ASSERT_EQ(Synchronize(), CuResult::kSuccess);
  EXPECT_EQ(Word(kReady), kHostCallsMax - 1);
  EXPECT_TRUE(words_->Write(stream(), kReady, kHostCallsMax).ok());
  EXPECT_EQ(Synchronize(), CuResult::kSuccess);
}

INSTANTIATE_TEST_SUITE_P(By, StreamWordsTest,
                         ::testing::Values(WordMeans::kStream, WordMeans::kHostCall),
                         [](const auto& test) {
                           return test.param == WordMeans::kStream ? "TheGpu" : "HostCalls";
                         });

INSTANTIATE_TEST_SUITE_P(By, StreamWordsOfHostCalls, ::testing::Values(WordMeans::kHostCall),
                         [](const auto&) { return "HostCalls"; });

class StreamWordsRefusals : public DoubleTest {};

TEST_F(StreamWordsRefusals, NameWhatCouldNotBePinned) {
  Start();
  auto pages = HostPages(4096);
  const auto first = StreamWords::Pin(contexts_[0], pages.data(), 4096, WordMeans::kStream);
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(TextOf(StreamWords::Pin(contexts_[0], pages.data(), 4096, WordMeans::kStream)),
            "pin host memory for the GPU: CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED (part or all "
            "of the requested memory range is already mapped)");
}

TEST_F(StreamWordsRefusals, NameADriverThatCannotWriteWords) {
  const Environment poor{{"LACKS", "stream_words"}};
  Start();
  auto pages = HostPages(4096);
  const auto words = StreamWords::Pin(contexts_[0], pages.data(), 4096, WordMeans::kStream);
  ASSERT_TRUE(words.ok());
  EXPECT_EQ(TextOf((*words)->Write(nullptr, 0, 1)),
            "write a word in stream order: CUDA_ERROR_NOT_SUPPORTED (operation not supported)");
}

}  // namespace
}  // namespace headrace::transport

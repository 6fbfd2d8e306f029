// Operations in the order of a GPU's stream.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <bit>
#include <cstring>
#include <thread>
#include <vector>

#include "tests/unit/client/gpu_session.h"

namespace headrace::client {
namespace {

using cuda_double::Environment;
using transport::CuResult;
using transport::CuStream;
using transport::WordMeans;

// By the GPU's own word operations, and by a thread of its driver.
// Captures a stream into a graph while it lives.
class StreamCapture {
 public:
  explicit StreamCapture(CuStream stream) : stream_(stream) {
    const auto begin = Find<CuResult(CuStream, std::uint32_t)>("cuStreamBeginCapture_v2");
    EXPECT_EQ(begin(stream_, 0), CuResult::kSuccess);
  }
  // That the capture has succeeded: what a driver refuses in it spoils it.
  ~StreamCapture() {
    void* graph = nullptr;
    const auto end = Find<CuResult(CuStream, void**)>("cuStreamEndCapture");
    EXPECT_EQ(end(stream_, &graph), CuResult::kSuccess);
  }
  StreamCapture(const StreamCapture&) = delete;
  StreamCapture& operator=(const StreamCapture&) = delete;

 private:
  template <typename Function>
  static Function* Find(const char* name) {
    const transport::Library library(
        ::dlopen(cuda_double::LibraryPath().c_str(), RTLD_NOW | RTLD_NOLOAD));
    void* symbol = ::dlsym(library.get(), name);
    HR_CHECK(symbol != nullptr, name);
    return reinterpret_cast<Function*>(symbol);
  }

  CuStream stream_;
};

class GpuStreamsTest : public GpuSessionTest, public testing::WithParamInterface<WordMeans> {
 protected:
  void SetUp() override {
    if (GetParam() == WordMeans::kHostCall) {
      poor_ = std::make_unique<Environment>(
          std::initializer_list<Environment::Variable>{{"LACKS", "stream_words"}});
    }
    GpuSessionTest::SetUp();
  }

  void ExpectPostRefusedInCapture(hr_tensor* tensor) {
    hr_operation operation = 0;
    EXPECT_EQ(
        hr_all_reduce_on_stream(&handle_, tensor, nullptr, HR_SUM, stream(), &operation, &error_),
        HR_INVALID_ARGUMENT);
    EXPECT_TRUE(Says("captured into a CUDA graph")) << error_.text;
    EXPECT_TRUE(Says("outside of the capture")) << error_.text;
  }

  std::unique_ptr<Environment> poor_;
};

TEST_P(GpuStreamsTest, SaysThatMemoryIsReadyWhenTheStreamHasComeSoFar) {
  hr_tensor* tensor = Tensor(100);
  StreamBlocker blocker;
  blocker.Close(contexts_[0], stream());
  const hr_operation operation = Post(tensor);
  const ipc::Record record = service_->Take();
  EXPECT_EQ(record.flags, ipc::kRecordAwaitsWord);
  EXPECT_EQ(record.commit, operation);
  EXPECT_EQ(record.count, 100U);
  EXPECT_EQ(Ready(operation), 0U);
  blocker.Open();
  Synchronize();
  EXPECT_EQ(Ready(operation), operation);
  service_->End(operation);
  EXPECT_EQ(hr_wait(&handle_, operation, -1, &error_), HR_OK);
}

TEST_P(GpuStreamsTest, HoldsTheStreamUntilTheOperationHasEnded) {
  hr_tensor* tensor = Tensor(100);
  const hr_operation operation = Post(tensor);
  ASSERT_EQ(hr_stream_wait(&handle_, operation, stream(), &error_), HR_OK) << error_.text;
  EXPECT_FALSE(IsIdle());
  const ipc::Record record = service_->Take();
  // The word before the one that is awaited does not let it go.
  channel_->layout().words[operation].store((record.commit << 16) - 1);
  EXPECT_FALSE(IsIdle());
  service_->End(record.commit);
  Synchronize();
  ASSERT_EQ(hr_stream_wait(&handle_, operation, stream(), &error_), HR_OK);
  EXPECT_TRUE(IsIdle());  // of what has ended, nothing is put into the stream
}

TEST_P(GpuStreamsTest, LeavesACaptureAloneThatTheFirstPostOfASessionFinds) {
  hr_tensor* tensor = Tensor(100);
  {
    const StreamCapture capture(stream());
    ExpectPostRefusedInCapture(tensor);
  }
  const hr_operation posted = Post(tensor);
  service_->End(service_->Take().commit);
  EXPECT_EQ(hr_wait(&handle_, posted, -1, &error_), HR_OK);
}

// A replay of the graph would write and await the words of an operation that ended long ago.
TEST_P(GpuStreamsTest, RefusesAStreamThatIsBeingCaptured) {
  hr_tensor* tensor = Tensor(100);
  const hr_operation posted = Post(tensor);
  const StreamCapture capture(stream());
  ExpectPostRefusedInCapture(tensor);
  EXPECT_EQ(hr_stream_wait(&handle_, posted, stream(), &error_), HR_INVALID_ARGUMENT);
  EXPECT_TRUE(Says("captured into a CUDA graph")) << error_.text;
  service_->End(service_->Take().commit);
  EXPECT_EQ(hr_wait(&handle_, posted, -1, &error_), HR_OK);
}

TEST_P(GpuStreamsTest, LetsTheStreamGoOnAfterAFailureThatHrWaitTells) {
  const hr_operation operation = Post(Tensor(100));
  ASSERT_EQ(hr_stream_wait(&handle_, operation, stream(), &error_), HR_OK);
  service_->Serve(Code::kPeerLost, "rank 0 exited");
  Synchronize();
  EXPECT_EQ(hr_wait(&handle_, operation, 0, &error_), HR_PEER_LOST);
  EXPECT_TRUE(Says("rank 0 exited")) << error_.text;
}

TEST_P(GpuStreamsTest, PostsEveryKindWithItsArguments) {
  hr_tensor* tensor = Tensor(100);
  hr_operation operation = 0;
  const hr_range range{40, 8};
  ASSERT_EQ(hr_broadcast_on_stream(&handle_, tensor, &range, 1, stream(), &operation, &error_),
            HR_OK);
  const ipc::Record broadcast = service_->Serve();
  EXPECT_EQ(broadcast.kind, static_cast<std::uint8_t>(Collective::kBroadcast));
  EXPECT_EQ(broadcast.root, 1U);
  EXPECT_EQ(broadcast.offset, 160U);
  ASSERT_EQ(hr_reduce_scatter_on_stream(&handle_, tensor, nullptr, HR_AVERAGE, stream(), &operation,
                                        &error_),
            HR_OK);
  const ipc::Record scatter = service_->Serve();
  EXPECT_EQ(scatter.kind, static_cast<std::uint8_t>(Collective::kReduceScatter));
  EXPECT_EQ(scatter.reduction, static_cast<std::uint8_t>(Reduction::kAverage));
  ASSERT_EQ(hr_all_gather_on_stream(&handle_, tensor, nullptr, stream(), &operation, &error_),
            HR_OK);
  EXPECT_EQ(service_->Serve().kind, static_cast<std::uint8_t>(Collective::kAllGather));
  // Without a stream the memory is ready now.
  ASSERT_EQ(hr_all_gather(&handle_, tensor, nullptr, &operation, &error_), HR_OK);
  EXPECT_EQ(service_->Serve().flags, 0);
  Synchronize();
}

TEST_P(GpuStreamsTest, PostsAReduceScatterToAnotherTensorWithItsPartsTable) {
  hr_tensor* const input = Tensor(100);
  hr_tensor* const output = Tensor(64);
  const std::uint64_t counts[] = {60, 40};
  const hr_range range{4, 40};
  const auto post = [&] {
    hr_operation operation = 0;
    EXPECT_EQ(hr_reduce_scatter_into_on_stream(&handle_, input, nullptr, output, &range, counts,
                                               HR_MAX, stream(), &operation, &error_),
              HR_OK)
        << error_.text;
    return operation;
  };
  hr_operation operation = post();
  Synchronize();
  EXPECT_EQ(Ready(operation), operation);
  const ipc::Record record = service_->Serve();
  EXPECT_EQ(record.kind, static_cast<std::uint8_t>(Collective::kReduceScatter));
  EXPECT_EQ(record.reduction, static_cast<std::uint8_t>(Reduction::kMax));
  EXPECT_EQ(record.flags, ipc::kRecordAwaitsWord | ipc::kRecordHasParts | ipc::kRecordHasResult);
  EXPECT_EQ(record.tensor, input->id);
  EXPECT_EQ(record.root, output->segment->id);
  EXPECT_EQ(record.count, 100U);
  ipc::PartRow rows[2];
  std::memcpy(rows, control_->segments.at(record.parts).data() + record.tag, sizeof rows);
  EXPECT_EQ(rows[0].sent_count, 60U);
  EXPECT_EQ(rows[1].sent_offset, 60U);
  EXPECT_EQ(rows[1].sent_count, 40U);
  EXPECT_EQ(rows[1].received_offset, 4U);
  EXPECT_EQ(rows[1].received_count, 40U);
  // A table is free again once its operation has ended, although only the stream waited for that.
  operation = post();
  const ipc::Record next = service_->Take();
  EXPECT_EQ(next.parts, record.parts);
  EXPECT_EQ(next.tag, record.tag);
  hr_tensor* released = output;
  EXPECT_EQ(hr_tensors_release(&handle_, &released, 1, &error_), HR_BUSY);
  service_->End(operation);
  EXPECT_EQ(hr_wait(&handle_, operation, -1, &error_), HR_OK);
  Synchronize();
}

TEST_P(GpuStreamsTest, RefusesTensorsThatAReduceScatterCannotHaveTogether) {
  hr_tensor* const input = Tensor(100);
  const auto refuse = [&](hr_tensor* output, const char* words) {
    hr_operation operation = 0;
    EXPECT_EQ(hr_reduce_scatter_into_on_stream(&handle_, input, nullptr, output, nullptr, nullptr,
                                               HR_SUM, stream(), &operation, &error_),
              HR_INVALID_ARGUMENT);
    EXPECT_TRUE(Says(words)) << error_.text;
  };
  refuse(Tensor(50, 1), "float32 on GPU 0 and float32 on GPU 1");
  refuse(Tensor(49), "2 ranks are not together the 100 elements");
  refuse(nullptr, "NULL");
  const hr_tensor_spec halves{Segment(4096), 0, 50, HR_FLOAT16, "h", 0};
  hr_tensor* half = nullptr;
  ASSERT_EQ(hr_tensor_register(&handle_, &halves, &half, &error_), HR_OK);
  refuse(half, "float32 on GPU 0 and float16 on GPU 0");
  hr_segment* on_host = nullptr;
  ASSERT_EQ(hr_segment_create(&handle_, 4096, &on_host, &error_), HR_OK);
  const hr_tensor_spec host_spec{on_host, 0, 50, HR_FLOAT32, "c", 0};
  hr_tensor* host = nullptr;
  ASSERT_EQ(hr_tensor_register(&handle_, &host_spec, &host, &error_), HR_OK);
  refuse(host, "float32 on GPU 0 and float32 in host memory");
  hr_tensor* const part = Tensor(50);
  hr_tensor of_another_session = *part;
  refuse(&of_another_session, "not of this session");
  hr_operation operation = 0;
  EXPECT_EQ(
      hr_all_gather_into(&handle_, part, nullptr, input, nullptr, nullptr, &operation, &error_),
      HR_INVALID_ARGUMENT);
  EXPECT_TRUE(Says("on a GPU")) << error_.text;
  EXPECT_FALSE(service_->HasRecord());
}

TEST_P(GpuStreamsTest, LetsStreamsGoWhenTheSessionIsClosed) {
  const hr_operation operation = Post(Tensor(100));
  ASSERT_EQ(hr_stream_wait(&handle_, operation, stream(), &error_), HR_OK);
  EXPECT_FALSE(IsIdle());
  handle_.session.reset();
  Synchronize();
  EXPECT_EQ(counts().host_registrations, 0U);
  EXPECT_EQ(counts().events, 0U);
}

TEST_P(GpuStreamsTest, LeavesTheJobWhenItsStreamsHavePassed) {
  const hr_operation operation = Post(Tensor(100));
  ASSERT_EQ(hr_stream_wait(&handle_, operation, stream(), &error_), HR_OK);
  bool was_idle = false;
  control_->on_leave = [this, &was_idle] { was_idle = IsIdle(); };
  auto* session = new hr_session{std::move(handle_.session)};
  std::thread server([this] { service_->Serve(); });
  EXPECT_EQ(hr_close(session, &error_), HR_OK);
  server.join();
  EXPECT_TRUE(was_idle);
}

TEST_P(GpuStreamsTest, LetsStreamsGoWhenTheServiceIsLost) {
  hr_tensor* tensor = Tensor(100);
  const hr_operation operation = Post(tensor);
  ASSERT_EQ(hr_stream_wait(&handle_, operation, stream(), &error_), HR_OK);
  EXPECT_FALSE(IsIdle());
  handle_.session->OnLost(Error(Code::kUnavailable, "it is gone"));
  Synchronize();
  EXPECT_EQ(hr_wait(&handle_, operation, -1, &error_), HR_UNAVAILABLE);
  EXPECT_TRUE(Says("it is gone")) << error_.text;
  hr_operation later = 0;
  EXPECT_EQ(hr_all_reduce_on_stream(&handle_, tensor, nullptr, HR_SUM, stream(), &later, &error_),
            HR_UNAVAILABLE);
}

TEST_P(GpuStreamsTest, PostsNothingThatTheDriverWillNotSignal) {
  hr_tensor* tensor = Tensor(100);
  Post(tensor);
  service_->Serve();
  doubled_.fail(GetParam() == WordMeans::kStream ? "cuStreamWriteValue64_v2" : "cuLaunchHostFunc",
                1, CuResult::kOutOfMemory);
  hr_operation operation = 0;
  EXPECT_EQ(
      hr_all_reduce_on_stream(&handle_, tensor, nullptr, HR_SUM, stream(), &operation, &error_),
      HR_EXHAUSTED);
  EXPECT_FALSE(service_->HasRecord());
  EXPECT_EQ(Post(tensor), 2U);
  Synchronize();
  EXPECT_EQ(Ready(2), 2U);
}

TEST_P(GpuStreamsTest, RunsAheadOfTheGpuByAnIterationOfALayout) {
  hr_segment* segment = Segment(4096);
  const std::vector<hr_tensor_spec> specs = {{segment, 0, 4, HR_FLOAT32, "a", 0},
                                             {segment, 16, 4, HR_FLOAT32, "b", 0}};
  hr_layout_options options{};
  options.size = sizeof options;
  options.reduction = HR_AVERAGE;
  hr_layout* layout = nullptr;
  ASSERT_EQ(hr_layout_create(&handle_, specs.data(), 2, &options, &layout, &error_), HR_OK)
      << error_.text;
  const auto post = [&](std::uint32_t index) {
    return hr_layout_post_on_stream(layout, index, stream(), nullptr, &error_);
  };
  ASSERT_EQ(hr_layout_wait_on_stream(layout, 0, stream(), &error_), HR_OK) << error_.text;
  ASSERT_EQ(hr_layout_begin_backward(layout, &error_), HR_OK);
  ASSERT_EQ(post(0), HR_OK) << error_.text;
  ASSERT_EQ(post(1), HR_OK) << error_.text;
  const ipc::Record first = service_->Take();
  EXPECT_EQ(std::bit_cast<ipc::GradientRecord>(first).flags,
            ipc::kRecordIsGradient | ipc::kRecordAwaitsWord);
  const ipc::Record other = service_->Take();
  // The host reaches the next backward pass while the GPU waits for the sums of this one.
  ASSERT_EQ(hr_layout_wait_on_stream(layout, 0, stream(), &error_), HR_OK) << error_.text;
  ASSERT_EQ(hr_layout_begin_backward(layout, &error_), HR_OK);
  EXPECT_EQ(post(1), HR_BUSY);  // nobody waited for it
  EXPECT_TRUE(Says("has not ended: call hr_layout_wait first")) << error_.text;
  std::thread poster([&] { EXPECT_EQ(post(0), HR_OK) << error_.text; });
  EXPECT_FALSE(service_->HasRecord());
  service_->End(first.commit);
  poster.join();
  EXPECT_EQ(service_->Take().commit, 3U);
  Synchronize();
  EXPECT_EQ(Ready(3), 3U);
  service_->End(other.commit, Code::kPeerLost, "rank 0 exited");
  EXPECT_EQ(hr_layout_wait_on_stream(layout, 1, stream(), &error_), HR_PEER_LOST);
  EXPECT_TRUE(Says("gradient 1 (b): rank 0 exited")) << error_.text;
}

INSTANTIATE_TEST_SUITE_P(By, GpuStreamsTest,
                         testing::Values(WordMeans::kStream, WordMeans::kHostCall),
                         [](const auto& each) {
                           return each.param == WordMeans::kStream ? "gpu" : "driver";
                         });

using GpuStreamsOfHostTest = GpuSessionTest;

TEST_F(GpuStreamsOfHostTest, RefusesStreamsWhereNothingIsOnAGpu) {
  hr_segment* segment = nullptr;
  ASSERT_EQ(hr_segment_create(&handle_, 4096, &segment, &error_), HR_OK);
  const hr_tensor_spec spec{segment, 0, 4, HR_FLOAT32, "t", 0};
  hr_tensor* tensor = nullptr;
  ASSERT_EQ(hr_tensor_register(&handle_, &spec, &tensor, &error_), HR_OK);
  hr_operation operation = 0;
  EXPECT_EQ(
      hr_all_reduce_on_stream(&handle_, tensor, nullptr, HR_SUM, stream(), &operation, &error_),
      HR_INVALID_ARGUMENT);
  EXPECT_TRUE(Says("the memory is the host's")) << error_.text;
  ASSERT_EQ(hr_all_reduce(&handle_, tensor, nullptr, HR_SUM, &operation, &error_), HR_OK);
  EXPECT_EQ(hr_stream_wait(&handle_, operation, stream(), &error_), HR_INVALID_ARGUMENT);
  EXPECT_TRUE(Says("no memory on a GPU")) << error_.text;
  EXPECT_EQ(hr_stream_wait(&handle_, 2, stream(), &error_), HR_INVALID_ARGUMENT);
  EXPECT_TRUE(Says("never posted")) << error_.text;
}

TEST_F(GpuStreamsOfHostTest, WaitsInTheDefaultStreamOfTheCurrentGpu) {
  Segment(4096, 0);
  const hr_tensor_spec spec{Segment(4096, 1), 0, 4, HR_FLOAT32, "t", 0};
  hr_tensor* tensor = nullptr;
  ASSERT_EQ(hr_tensor_register(&handle_, &spec, &tensor, &error_), HR_OK);
  hr_operation operation = 0;
  ASSERT_EQ(
      hr_all_reduce_on_stream(&handle_, tensor, nullptr, HR_SUM, nullptr, &operation, &error_),
      HR_OK)
      << error_.text;
  const transport::CurrentContext current(*driver_, contexts_[1].get().context);
  ASSERT_EQ(hr_stream_wait(&handle_, operation, nullptr, &error_), HR_OK) << error_.text;
  EXPECT_EQ(call().stream_query(nullptr), CuResult::kNotReady);
  {
    const transport::CurrentContext other(*driver_, contexts_[0].get().context);
    EXPECT_EQ(call().stream_query(nullptr), CuResult::kSuccess);
  }
  service_->Serve();
  EXPECT_EQ(call().stream_synchronize(nullptr), CuResult::kSuccess);
}

// In a process of its own, which ends with what is left on purpose.
TEST(GpuStreamsDeathTest, LeavesWordsToAStreamThatIsHeldUpBySomethingElse) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        auto driver = cuda_double::OpenDouble().value();
        auto context = transport::RetainPrimaryContext(*driver, 0).value();
        auto stream = transport::CreateStream(context, transport::kCuStreamNonBlocking, 0).value();
        ipc::Channel::Created channel = ipc::Channel::Create().value();
        const ipc::Channel seen = ipc::Channel::Open(channel.fd.get()).value();
        StreamBlocker blocker;
        blocker.Close(context, stream.get().thing);
        {
          SessionGpus gpus(channel.channel.layout(), cuda_double::LibraryPath());
          HR_CHECK(gpus.Driver().ok() && gpus.NoteMemoryOn(0).ok());
          GpuWords* words = gpus.WordsOf(0, stream.get().thing).value();
          HR_CHECK(words->WriteReady(stream.get().thing, 5).ok());
          gpus.LetStreamsPass(kMillisecond);
        }
        { const ipc::Channel gone = std::move(channel.channel); }
        blocker.Open();
        const transport::CurrentContext current(*driver, context.get().context);
        HR_CHECK(driver->call().stream_synchronize(stream.get().thing) == CuResult::kSuccess);
        HR_CHECK(seen.layout().ready[5].load() == 5);
        ::_exit(0);
      },
      testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace headrace::client

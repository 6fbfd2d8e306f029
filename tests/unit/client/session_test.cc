#include "client/lib/session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <utility>
#include <vector>

#include "client/lib/api.h"
#include "ipc/base/codecs.h"
#include "tests/support/expect_text.h"
#include "tests/unit/client/service_end.h"

namespace headrace::client {
namespace {

// Rank 1 of 4, with this test in the service's place.
class SessionTest : public testing::Test {
 protected:
  SessionTest() {
    hr_options options{};
    options.size = sizeof options;
    std::strcpy(options.job, "test");
    options.rank = 1;
    options.world_size = 4;
    ipc::Channel::Created created = ipc::Channel::Create().value();
    service_.emplace(created.channel.layout());
    handle_.session = std::make_unique<Session>(
        options, Session::Endpoints{ForkGuard::Create().value(), std::move(created.channel),
                                    UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK))});
    auto control = std::make_unique<FakeControl>();
    control_ = control.get();
    handle_.session->Adopt({.control = std::move(control), .service_pid = 5, .grant = {}});
  }

  hr_segment* Segment(std::size_t size) {
    hr_segment* segment = nullptr;
    EXPECT_EQ(hr_segment_create(&handle_, size, &segment, &error_), HR_OK) << error_.text;
    return segment;
  }
  hr_tensor* Tensor(std::uint64_t count) {
    const hr_tensor_spec spec{Segment(count * 4), 0, count, HR_FLOAT32, "t", 0};
    hr_tensor* tensor = nullptr;
    EXPECT_EQ(hr_tensor_register(&handle_, &spec, &tensor, &error_), HR_OK) << error_.text;
    return tensor;
  }
  // Registers one tensor that must be refused; returns why.
  std::string Refused(const hr_tensor_spec& spec) {
    hr_tensor* tensor = nullptr;
    EXPECT_EQ(hr_tensor_register(&handle_, &spec, &tensor, &error_), HR_INVALID_ARGUMENT);
    EXPECT_EQ(tensor, nullptr);
    return error_.text;
  }

  hr_session handle_;
  FakeControl* control_ = nullptr;  // owned by the session
  std::optional<ServiceEnd> service_;
  hr_error error_{};
  hr_operation operation_ = 0;
};

TEST_F(SessionTest, RoundsSegmentsUpToPagesAndSharesThem) {
  hr_segment* segment = Segment(5000);
  EXPECT_EQ(hr_segment_size(segment), 8192U);
  std::memset(hr_segment_address(segment), 3, 8192);
  EXPECT_EQ(control_->segments.at(7).data()[8191], std::byte{3});
  EXPECT_EQ(hr_segment_release(&handle_, segment, &error_), HR_OK);
  EXPECT_TRUE(control_->segments.empty());
}

TEST_F(SessionTest, KeepsASegmentWhoseReleaseIsRefused) {
  hr_segment* segment = Segment(4096);
  control_->refusal = Error(Code::kBusy, "2 tensors lie in it");
  EXPECT_EQ(hr_segment_release(&handle_, segment, &error_), HR_BUSY);
  EXPECT_TEXT(error_.text, "2 tensors");
  std::memset(hr_segment_address(segment), 3, 4096);
}

TEST_F(SessionTest, RegistersManyTensorsAtOnceAndReleasesThemInRows) {
  const hr_segment* segment = Segment(4096);
  const std::vector<hr_tensor_spec> specs = {{segment, 0, 4, HR_FLOAT32, "a", 0},
                                             {segment, 64, 4, HR_FLOAT64, nullptr, 1},
                                             {segment, 128, 4, HR_UINT8, "c", 2}};
  std::vector<hr_tensor*> tensors(3);
  ASSERT_EQ(hr_tensors_register(&handle_, specs.data(), 3, tensors.data(), &error_), HR_OK);
  ASSERT_EQ(control_->tensors.size(), 3U);
  EXPECT_EQ(control_->tensors[1].segment, 7U);
  EXPECT_EQ(control_->tensors[1].offset, 64U);
  EXPECT_EQ(control_->tensors[1].dtype, DType::kFloat64);
  EXPECT_EQ(control_->tensors[2].name, "c");
  EXPECT_EQ(hr_tensor_address(tensors[1]),
            static_cast<std::byte*>(hr_segment_address(segment)) + 64);
  std::swap(tensors[0], tensors[2]);
  ASSERT_EQ(hr_tensors_release(&handle_, tensors.data(), 3, &error_), HR_OK);
  const std::vector<std::pair<std::uint32_t, std::uint32_t>> rows = {{2, 1}, {1, 1}, {0, 1}};
  EXPECT_EQ(control_->released, rows);
  EXPECT_EQ(tensors[0], nullptr);
}

TEST_F(SessionTest, KeepsTensorsOnWhichOperationsAreOpen) {
  const hr_segment* segment = Segment(4096);
  const std::vector<hr_tensor_spec> specs = {{segment, 0, 4, HR_FLOAT32, "a", 0},
                                             {segment, 64, 4, HR_FLOAT32, "b", 1}};
  std::vector<hr_tensor*> tensors(2);
  ASSERT_EQ(hr_tensors_register(&handle_, specs.data(), 2, tensors.data(), &error_), HR_OK);
  ASSERT_EQ(hr_barrier(&handle_, &operation_, &error_), HR_OK);
  ASSERT_EQ(hr_all_reduce(&handle_, tensors[1], nullptr, HR_SUM, &operation_, &error_), HR_OK);
  // The service has read neither.
  EXPECT_EQ(hr_tensors_release(&handle_, tensors.data(), 2, &error_), HR_BUSY);
  EXPECT_TEXT(error_.text, "operation 2 is open");
  EXPECT_TRUE(control_->released.empty());
  EXPECT_EQ(hr_tensors_release(&handle_, tensors.data(), 1, &error_), HR_OK);
  service_->Serve();
  EXPECT_EQ(hr_tensors_release(&handle_, tensors.data(), 2, &error_), HR_BUSY)
      << "only the barrier";
  service_->Serve();
  EXPECT_EQ(hr_tensors_release(&handle_, tensors.data(), 2, &error_), HR_OK);
}

TEST_F(SessionTest, RefusesTensorsThatDoNotLieInTheirSegment) {
  const hr_segment* segment = Segment(4096);
  EXPECT_VARYING_TEXT(Refused({nullptr, 0, 1, HR_FLOAT32, "", 0}));
  EXPECT_VARYING_TEXT(Refused({segment, 2, 1, HR_FLOAT32, "", 0}));
  EXPECT_VARYING_TEXT(Refused({segment, 0, 0, HR_FLOAT32, "", 0}));
  EXPECT_VARYING_TEXT(Refused({segment, 0, 1025, HR_FLOAT32, "", 0}), "4096");
  EXPECT_VARYING_TEXT(Refused({segment, 4096, 1, HR_FLOAT32, "", 0}));
  EXPECT_VARYING_TEXT(Refused({segment, 0, UINT64_MAX, HR_INT64, "", 0}));
  EXPECT_VARYING_TEXT(Refused({segment, 0, 1, static_cast<hr_dtype>(0), "", 0}), "dtype 0");
  EXPECT_TRUE(control_->tensors.empty());
}

TEST_F(SessionTest, PostsWhatWasAskedOnTheWholeTensorOrARange) {
  hr_tensor* tensor = Tensor(100);
  ASSERT_EQ(hr_all_reduce(&handle_, tensor, nullptr, HR_AVERAGE, &operation_, &error_), HR_OK);
  EXPECT_EQ(operation_, 1U);
  ipc::Record record = service_->Serve();
  EXPECT_EQ(record.kind, static_cast<std::uint8_t>(Collective::kAllReduce));
  EXPECT_EQ(record.reduction, static_cast<std::uint8_t>(Reduction::kAverage));
  EXPECT_EQ(record.dtype, static_cast<std::uint8_t>(DType::kFloat32));
  EXPECT_EQ(record.count, 100U);

  const hr_range range{40, 8};
  ASSERT_EQ(hr_broadcast(&handle_, tensor, &range, 3, &operation_, &error_), HR_OK);
  record = service_->Serve();
  EXPECT_EQ(record.kind, static_cast<std::uint8_t>(Collective::kBroadcast));
  EXPECT_EQ(record.offset, 160U);
  EXPECT_EQ(record.count, 8U);
  EXPECT_EQ(record.root, 3U);

  ASSERT_EQ(hr_barrier(&handle_, &operation_, &error_), HR_OK);
  record = service_->Serve();
  EXPECT_EQ(record.kind, static_cast<std::uint8_t>(Collective::kBarrier));
  EXPECT_EQ(record.tensor, ipc::kNoTensor);
  EXPECT_EQ(record.count, 0U);
  EXPECT_EQ(hr_wait(&handle_, operation_, -1, &error_), HR_OK);
}

TEST_F(SessionTest, PostsSumsOfFloatsInItsCodec) {
  hr_tensor* tensor = Tensor(100);
  std::vector<float> array(8, 1);
  const auto tag = [&](hr_reduction reduction) {
    EXPECT_EQ(hr_all_reduce(&handle_, tensor, nullptr, reduction, &operation_, &error_), HR_OK);
    return service_->Serve().tag;
  };
  EXPECT_EQ(tag(HR_SUM), 0U);
  ASSERT_EQ(hr_session_compress(&handle_, "bf16", &error_), HR_OK);
  EXPECT_EQ(tag(HR_SUM), SteeringValue(Codec::kBFloat16));
  EXPECT_EQ(tag(HR_AVERAGE), SteeringValue(Codec::kBFloat16));
  EXPECT_EQ(tag(HR_MAX), 0U);
  ASSERT_EQ(
      hr_all_reduce_array(&handle_, array.data(), 8, HR_FLOAT32, HR_SUM, &operation_, &error_),
      HR_OK);
  EXPECT_EQ(service_->Serve().tag, SteeringValue(Codec::kBFloat16));
  ASSERT_EQ(hr_all_reduce_array(&handle_, array.data(), 8, HR_INT32, HR_SUM, &operation_, &error_),
            HR_OK);
  EXPECT_EQ(service_->Serve().tag, 0U);
  ASSERT_EQ(hr_broadcast(&handle_, tensor, nullptr, 0, &operation_, &error_), HR_OK);
  EXPECT_EQ(service_->Serve().tag, 0U);
  // What would need residuals is refused, and changes nothing.
  for (const char* wrong : {"int8", "topk:8", "auto:bf16", "gzip"}) {
    EXPECT_EQ(hr_session_compress(&handle_, wrong, &error_), HR_INVALID_ARGUMENT) << wrong;
    EXPECT_THAT(error_.text, testing::HasSubstr(wrong));
  }
  EXPECT_EQ(tag(HR_SUM), SteeringValue(Codec::kBFloat16));
  ASSERT_EQ(hr_session_compress(&handle_, nullptr, &error_), HR_OK);
  EXPECT_EQ(tag(HR_SUM), 0U);
  EXPECT_EQ(hr_session_compress(nullptr, "bf16", &error_), HR_INVALID_ARGUMENT);
}

TEST_F(SessionTest, RefusesOperationsThatCannotBeMeant) {
  hr_tensor* tensor = Tensor(100);
  const auto refused = [this](hr_status status, const char* word) {
    EXPECT_EQ(status, HR_INVALID_ARGUMENT);
    EXPECT_NE(std::string(error_.text).find(word), std::string::npos) << error_.text;
  };
  const hr_range beyond{1, 100};
  const hr_range odd{0, 99};
  const hr_range wrapped{UINT64_MAX, 2};
  hr_operation* out = &operation_;
  hr_session* session = &handle_;
  refused(hr_all_reduce(session, nullptr, nullptr, HR_SUM, out, &error_), "NULL");
  refused(hr_all_reduce(session, tensor, &beyond, HR_SUM, out, &error_), "tensor's 100");
  refused(hr_all_reduce(session, tensor, &wrapped, HR_SUM, out, &error_), "tensor's 100");
  refused(hr_all_reduce(session, tensor, nullptr, static_cast<hr_reduction>(6), out, &error_),
          "reduction 6");
  refused(hr_broadcast(session, tensor, nullptr, 4, out, &error_), "rank 4");
  refused(hr_reduce_scatter(session, tensor, &odd, HR_SUM, out, &error_), "4 ranks");
  refused(hr_all_gather(session, tensor, &odd, out, &error_), "4 ranks");
  refused(hr_all_reduce(session, tensor, nullptr, HR_SUM, nullptr, &error_), "NULL");
  refused(hr_all_reduce_array(session, nullptr, 1, HR_FLOAT32, HR_SUM, out, &error_), "NULL");
  std::uint8_t memory[8] = {};
  const hr_piece good{memory, 0, 8}, outside{memory, 4, 5}, none{memory, 4, 0}, null{nullptr, 0, 1};
  const auto reduce = [&](const hr_piece* read, size_t reads, const hr_piece* written) {
    return hr_all_reduce_pieces(session, 8, HR_UINT8, HR_SUM, read, reads, written, 1, out,
                                &error_);
  };
  refused(reduce(&outside, 1, &good), "5 elements from element 4 on: the array has 8");
  refused(reduce(&good, 1, &outside), "5 elements from element 4 on: the array has 8");
  refused(reduce(&none, 1, &good), "at least one");
  refused(reduce(&null, 1, &good), "memory is NULL");
  refused(reduce(nullptr, 1, &good), "pieces are NULL");
  const hr_piece wrapping{memory, ~std::uint64_t{0}, 2};
  refused(reduce(&wrapping, 1, &good), "the array has 8");
  refused(hr_all_gather_pieces(session, 7, HR_UINT8, &good, 1, &good, 1, out, &error_), "4 ranks");
  refused(hr_wait(session, 1, 0, &error_), "never posted");
  EXPECT_FALSE(service_->HasRecord());
  EXPECT_EQ(operation_, 0U);
}

TEST_F(SessionTest, PostsOperationsOfNothing) {
  hr_tensor* tensor = Tensor(100);
  const hr_range empty{5, 0};
  const auto expect_posted = [this](hr_status status, Collective kind) {
    ASSERT_EQ(status, HR_OK) << error_.text;
    const ipc::Record record = service_->Serve();
    EXPECT_EQ(record.kind, static_cast<std::uint8_t>(kind));
    EXPECT_EQ(record.count, 0U);
    EXPECT_EQ(hr_wait(&handle_, operation_, -1, &error_), HR_OK) << error_.text;
  };
  hr_operation* out = &operation_;
  hr_session* session = &handle_;
  for (int i = 0; i < 3; ++i) {
    expect_posted(hr_all_reduce(session, tensor, &empty, HR_SUM, out, &error_),
                  Collective::kAllReduce);
    expect_posted(hr_all_reduce_array(session, nullptr, 0, HR_FLOAT32, HR_SUM, out, &error_),
                  Collective::kAllReduce);
    expect_posted(hr_all_gather_pieces(session, 0, HR_UINT8, nullptr, 0, nullptr, 0, out, &error_),
                  Collective::kAllGather);
    expect_posted(hr_send_array(session, nullptr, 0, HR_UINT8, 3, 7, out, &error_), ipc::kSend);
    expect_posted(hr_recv_array(session, nullptr, 0, HR_UINT8, 3, 7, out, &error_), ipc::kReceive);
  }
}

TEST_F(SessionTest, SendsAndReceivesWithRankAndTagAndSaysWhoSent) {
  hr_tensor* tensor = Tensor(100);
  const hr_range range{40, 8};
  ASSERT_EQ(hr_send(&handle_, tensor, &range, 3, UINT64_MAX, &operation_, &error_), HR_OK);
  ipc::Record record = service_->Serve();
  EXPECT_EQ(record.kind, static_cast<std::uint8_t>(ipc::kSend));
  EXPECT_EQ(record.root, 3U);
  EXPECT_EQ(record.tag, UINT64_MAX);
  EXPECT_EQ(record.offset, 160U);
  EXPECT_EQ(record.count, 8U);
  ASSERT_EQ(hr_recv(&handle_, tensor, nullptr, HR_ANY_SOURCE, 7, &operation_, &error_), HR_OK);
  record = service_->Take();
  EXPECT_EQ(record.kind, static_cast<std::uint8_t>(ipc::kReceive));
  EXPECT_EQ(record.root, ipc::kAnyRank);
  EXPECT_EQ(record.tag, 7U);
  std::uint32_t source = 99;
  EXPECT_EQ(hr_recv_source(&handle_, operation_, &source, &error_), HR_BUSY);
  service_->EndReceive(record.commit, 2);
  EXPECT_EQ(hr_wait(&handle_, operation_, -1, &error_), HR_OK);
  EXPECT_EQ(hr_recv_source(&handle_, operation_, &source, &error_), HR_OK);
  EXPECT_EQ(source, 2U);
  EXPECT_EQ(hr_recv_source(&handle_, operation_, nullptr, &error_), HR_INVALID_ARGUMENT);
  EXPECT_EQ(hr_recv_source(&handle_, 3, &source, &error_), HR_INVALID_ARGUMENT);
  ASSERT_EQ(hr_recv(&handle_, tensor, nullptr, 0, 7, &operation_, &error_), HR_OK);
  service_->Serve(Code::kPeerLost, "rank 0 is gone");
  EXPECT_EQ(hr_recv_source(&handle_, operation_, &source, &error_), HR_BUSY);
  for (std::uint64_t i = 0; i < ipc::kOperationsMax; ++i) {
    ASSERT_EQ(hr_barrier(&handle_, &operation_, &error_), HR_OK);
    service_->Serve();
  }
  EXPECT_EQ(hr_recv_source(&handle_, 2, &source, &error_), HR_NOT_FOUND) << error_.text;
  EXPECT_EQ(source, 2U) << "untouched";
}

TEST_F(SessionTest, RefusesToSendToOrReceiveFromWhoCannotBeMeant) {
  hr_tensor* tensor = Tensor(100);
  const auto refused = [this](hr_status status, const char* word) {
    EXPECT_EQ(status, HR_INVALID_ARGUMENT);
    EXPECT_NE(std::string(error_.text).find(word), std::string::npos) << error_.text;
  };
  hr_operation* out = &operation_;
  refused(hr_send(&handle_, tensor, nullptr, 4, 0, out, &error_), "the job has 4 ranks");
  refused(hr_send(&handle_, tensor, nullptr, 1, 0, out, &error_), "copy the memory");
  refused(hr_send(&handle_, tensor, nullptr, HR_ANY_SOURCE, 0, out, &error_), "send to rank");
  refused(hr_recv(&handle_, tensor, nullptr, 4, 0, out, &error_), "receive from rank 4");
  refused(hr_recv(&handle_, tensor, nullptr, 1, 0, out, &error_), "copy the memory");
  EXPECT_FALSE(service_->HasRecord());
}

// What each kind reads of a one-off array and writes there, for rank 1 of 4.
TEST_F(SessionTest, CopiesOfAnArrayWhatItsKindMoves) {
  const auto run = [this](auto post) {
    std::vector<std::uint8_t> array(8, 1);
    EXPECT_EQ(post(array.data()), HR_OK) << error_.text;
    const ipc::Record record = service_->Take();
    std::byte* memory = control_->segments.at(record.segment).data() + record.offset;
    std::string moved;
    for (int i = 0; i < 8; ++i) moved += memory[i] == std::byte{1} ? 'r' : '-';
    std::memset(memory, 2, 8);
    service_->End(record.commit);
    EXPECT_EQ(hr_wait(&handle_, record.commit, -1, &error_), HR_OK);
    moved += ' ';
    for (const std::uint8_t element : array) moved += element == 2 ? 'w' : '-';
    // The staging memory is used again: leave no trace for the next look.
    std::memset(memory, 0, 8);
    return moved;
  };
  hr_session* session = &handle_;
  EXPECT_EQ(run([&](void* array) {
              return hr_all_reduce_array(session, array, 8, HR_UINT8, HR_SUM, &operation_, &error_);
            }),
            "rrrrrrrr wwwwwwww");
  EXPECT_EQ(run([&](void* array) {
              return hr_broadcast_array(session, array, 8, HR_UINT8, 1, &operation_, &error_);
            }),
            "rrrrrrrr --------");
  EXPECT_EQ(run([&](void* array) {
              return hr_broadcast_array(session, array, 8, HR_UINT8, 0, &operation_, &error_);
            }),
            "-------- wwwwwwww");
  EXPECT_EQ(run([&](void* array) {
              return hr_reduce_scatter_array(session, array, 8, HR_UINT8, HR_SUM, &operation_,
                                             &error_);
            }),
            "rrrrrrrr --ww----");
  EXPECT_EQ(run([&](void* array) {
              return hr_all_gather_array(session, array, 8, HR_UINT8, &operation_, &error_);
            }),
            "--rr---- wwwwwwww");
  EXPECT_EQ(run([&](void* array) {
              return hr_send_array(session, array, 8, HR_UINT8, 0, 7, &operation_, &error_);
            }),
            "rrrrrrrr --------");
  EXPECT_EQ(run([&](void* array) {
              return hr_recv_array(session, array, 8, HR_UINT8, 0, 7, &operation_, &error_);
            }),
            "-------- wwwwwwww");
}

TEST_F(SessionTest, MovesAnArrayThatLiesInPieces) {
  std::vector<std::uint8_t> own(2, 1);
  std::vector<std::uint8_t> first(2), last(2);
  const hr_piece read{own.data(), 2, 2};
  // Nobody wants the two parts between.
  const hr_piece written[] = {{first.data(), 0, 2}, {last.data(), 6, 2}};
  ASSERT_EQ(hr_all_gather_pieces(&handle_, 8, HR_UINT8, &read, 1, written, 2, &operation_, &error_),
            HR_OK)
      << error_.text;
  own.assign(2, 9);  // it may be used again at once
  const ipc::Record record = service_->Take();
  EXPECT_EQ(record.count, 8U);
  std::byte* memory = control_->segments.at(record.segment).data() + record.offset;
  EXPECT_EQ(memory[2], std::byte{1});
  EXPECT_EQ(memory[3], std::byte{1});
  for (int i = 0; i < 8; ++i) memory[i] = static_cast<std::byte>(i);
  service_->End(record.commit);
  EXPECT_EQ(hr_wait(&handle_, record.commit, -1, &error_), HR_OK);
  EXPECT_EQ(first, (std::vector<std::uint8_t>{0, 1}));
  EXPECT_EQ(last, (std::vector<std::uint8_t>{6, 7}));
}

TEST_F(SessionTest, WaitsForAllAndReportsTheFirstErrorAfterTheLastEnd) {
  std::vector<hr_operation> operations(3);
  for (hr_operation& each : operations) ASSERT_EQ(hr_barrier(&handle_, &each, &error_), HR_OK);
  service_->Serve();
  service_->Serve(Code::kPeerLost, "rank 2 is gone");
  EXPECT_EQ(hr_wait_all(&handle_, operations.data(), 3, 1'000'000, &error_), HR_TIMEOUT);
  EXPECT_TEXT(error_.text, "operation 3");
  int ended = 2;
  EXPECT_EQ(hr_test(&handle_, operations[2], &ended, &error_), HR_OK);
  EXPECT_EQ(ended, 0);
  service_->Serve(Code::kTimeout, "late");
  EXPECT_EQ(hr_wait_all(&handle_, operations.data(), 3, -1, &error_), HR_PEER_LOST);
  EXPECT_TEXT(error_.text, "operation 2", "rank 2");
  EXPECT_EQ(hr_wait_all(&handle_, nullptr, 0, -1, &error_), HR_OK);
}

TEST_F(SessionTest, CutsATextThatDoesNotFitTheErrorStructure) {
  control_->refusal = Error(Code::kExhausted, std::string(2000, 'x'));
  hr_segment* segment = nullptr;
  EXPECT_EQ(hr_segment_create(&handle_, 4096, &segment, &error_), HR_EXHAUSTED);
  EXPECT_EQ(std::strlen(error_.text), sizeof error_.text - 1);
  EXPECT_EQ(hr_segment_create(&handle_, 4096, &segment, nullptr), HR_EXHAUSTED);
}

TEST_F(SessionTest, CountsWhatItDid) {
  std::vector<float> array(10);
  ASSERT_EQ(
      hr_all_reduce_array(&handle_, array.data(), 10, HR_FLOAT32, HR_SUM, &operation_, &error_),
      HR_OK);
  EXPECT_EQ(hr_wait(&handle_, operation_, 1'000'000, &error_), HR_TIMEOUT);
  service_->Serve();
  EXPECT_EQ(hr_wait(&handle_, operation_, -1, &error_), HR_OK);
  hr_counters counters{};
  EXPECT_EQ(hr_session_counters(&handle_, &counters, &error_), HR_INVALID_ARGUMENT);
  counters.size = sizeof counters;
  ASSERT_EQ(hr_session_counters(&handle_, &counters, &error_), HR_OK);
  EXPECT_EQ(counters.posted, 1U);
  EXPECT_EQ(counters.waits, 1U);
  EXPECT_GE(counters.waited_ns, 1'000'000U);
  EXPECT_EQ(counters.arrays, 1U);
  EXPECT_EQ(counters.copied_bytes, 80U);
  EXPECT_EQ(counters.staging_bytes, Staging::kSegmentSizeMin);
}

TEST_F(SessionTest, RefusesAForkedChild) {
  hr_tensor* tensor = Tensor(100);
  const pid_t child = ::fork();
  if (child == 0) {
    const hr_status status = hr_all_reduce(&handle_, tensor, nullptr, HR_SUM, &operation_, &error_);
    const bool named = std::strstr(error_.text, "forked child") != nullptr;
    ::_exit(status == HR_INVALID_ARGUMENT && named && !service_->HasRecord() ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(hr_all_reduce(&handle_, tensor, nullptr, HR_SUM, &operation_, &error_), HR_OK);
}

TEST(HrStatus, HasANameForEveryNumber) {
  EXPECT_STREQ(hr_status_name(HR_OK), "ok");
  EXPECT_STREQ(hr_status_name(HR_PEER_LOST), "peer lost");
  EXPECT_STREQ(hr_status_name(static_cast<hr_status>(15)), "unknown");
}

}  // namespace
}  // namespace headrace::client

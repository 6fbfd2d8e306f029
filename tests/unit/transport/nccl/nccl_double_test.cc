// Whether the double has NCCL's manners, by its own calls.
#include <cstdlib>

#include "tests/unit/transport/nccl/nccl_test.h"
#include "transport/nccl/nccl_library.h"

namespace headrace::transport {
namespace {

class NcclDouble : public NcclTest {
 protected:
  void Open(int devices_count) {
    ASSERT_NO_FATAL_FAILURE(Start(devices_count));
    auto opened = NcclLibrary::Open(nccl_double::LibraryPath());
    ASSERT_TRUE(opened.ok()) << opened.error().text();
    library_ = std::move(*opened);
    for (int device = 0; device < devices_count; ++device) {
      auto stream = CreateStream(gpus_->context(device), kCuStreamNonBlocking, 0);
      ASSERT_TRUE(stream.ok());
      streams_.push_back(std::move(*stream));
    }
  }
  void TearDown() override {
    streams_.clear();
    NcclTest::TearDown();
  }

  const NcclFunctions& call() const { return library_->call(); }

  NcclResult Begin(NcclComm& comm, int ranks_count, const NcclId& id, int rank, int device) {
    NcclConfig config;
    const CurrentContext current(gpus_->driver(), gpus_->context(device).get().context);
    return call().init_rank(&comm, ranks_count, id, rank, &config);
  }

  // Once it is about nothing any more.
  NcclResult StateOf(NcclComm comm) {
    NcclResult state = NcclResult::kInProgress;
    while (state == NcclResult::kInProgress) {
      EXPECT_EQ(call().get_async_error(comm, &state), NcclResult::kSuccess);
      std::this_thread::yield();
    }
    return state;
  }

  // Ranks 0 and 1 on GPUs 0 and 1.
  void FormTwo(NcclComm (&comms)[2]) {
    NcclId id;
    ASSERT_EQ(call().get_unique_id(&id), NcclResult::kSuccess);
    for (int rank = 0; rank < 2; ++rank) {
      ASSERT_EQ(Begin(comms[rank], 2, id, rank, rank), NcclResult::kInProgress);
    }
    for (NcclComm comm : comms) ASSERT_EQ(StateOf(comm), NcclResult::kSuccess);
  }

  NcclResult Sum(NcclComm comm, int device, const GpuArray<float>& memory, std::size_t count) {
    return call().all_reduce(memory.bytes(), memory.bytes(), count, NcclType::kFloat32, kNcclSum,
                             comm, streams_[static_cast<std::size_t>(device)].get().thing);
  }

  bool StreamIsDone(int device) {
    const CurrentContext current(gpus_->driver(), gpus_->context(device).get().context);
    const CuResult result =
        gpus_->driver().call().stream_query(streams_[static_cast<std::size_t>(device)].get().thing);
    EXPECT_TRUE(result == CuResult::kSuccess || result == CuResult::kNotReady);
    return result == CuResult::kSuccess;
  }

  std::unique_ptr<NcclLibrary> library_;
  std::vector<CudaStream> streams_;
};

TEST_F(NcclDouble, FormsRanksOnceAllHaveCome) {
  Open(2);
  NcclId id;
  ASSERT_EQ(call().get_unique_id(&id), NcclResult::kSuccess);
  NcclComm first = nullptr;
  NcclComm second = nullptr;
  ASSERT_EQ(Begin(first, 2, id, 0, 0), NcclResult::kInProgress);
  NcclResult state = NcclResult::kSuccess;
  ASSERT_EQ(call().get_async_error(first, &state), NcclResult::kSuccess);
  EXPECT_EQ(state, NcclResult::kInProgress);
  // Who does anything with it meanwhile is refused.
  const GpuArray<float> memory(*gpus_, 0, {1, 2});
  EXPECT_EQ(Sum(first, 0, memory, 2), NcclResult::kInvalidArgument);
  ASSERT_EQ(Begin(second, 2, id, 1, 1), NcclResult::kInProgress);
  EXPECT_EQ(StateOf(first), NcclResult::kSuccess);
  EXPECT_EQ(StateOf(second), NcclResult::kSuccess);
  EXPECT_EQ(call().abort(first), NcclResult::kSuccess);
  EXPECT_EQ(call().abort(second), NcclResult::kSuccess);
  EXPECT_EQ(call().abort(second), NcclResult::kInvalidArgument);
}

TEST_F(NcclDouble, RefusesTwoRanksOnOneGpuUnlessTheirHostsDiffer) {
  Open(1);
  for (const bool differ : {false, true}) {
    NcclId id;
    ASSERT_EQ(call().get_unique_id(&id), NcclResult::kSuccess);
    NcclComm comms[2] = {};
    for (int rank = 0; rank < 2; ++rank) {
      if (differ) ::setenv("NCCL_HOSTID", rank == 0 ? "a" : "b", 1);
      ASSERT_EQ(Begin(comms[rank], 2, id, rank, 0), NcclResult::kInProgress);
    }
    ::unsetenv("NCCL_HOSTID");
    for (NcclComm comm : comms) {
      EXPECT_EQ(StateOf(comm), differ ? NcclResult::kSuccess : NcclResult::kInvalidUsage);
      call().abort(comm);
    }
  }
}

TEST_F(NcclDouble, CarriesOutOnceAllHaveComeAndInTheOrderOfTheStream) {
  Open(2);
  NcclComm comms[2] = {};
  ASSERT_NO_FATAL_FAILURE(FormTwo(comms));
  const GpuArray<float> a(*gpus_, 0, {1, 2});
  const GpuArray<float> b(*gpus_, 1, {10, 20});
  ASSERT_EQ(Sum(comms[0], 0, a, 2), NcclResult::kInProgress);
  ASSERT_EQ(StateOf(comms[0]), NcclResult::kSuccess);  // launched, and not done
  EXPECT_FALSE(StreamIsDone(0));
  EXPECT_EQ(a.elements(), (std::vector<float>{1, 2}));
  ASSERT_EQ(Sum(comms[1], 1, b, 2), NcclResult::kInProgress);
  ASSERT_EQ(StateOf(comms[1]), NcclResult::kSuccess);
  while (!StreamIsDone(0) || !StreamIsDone(1)) std::this_thread::yield();
  EXPECT_EQ(a.elements(), (std::vector<float>{11, 22}));
  EXPECT_EQ(b.elements(), (std::vector<float>{11, 22}));
  // The orderly end.
  for (NcclComm comm : comms) EXPECT_EQ(call().finalize(comm), NcclResult::kInProgress);
  for (NcclComm comm : comms) EXPECT_EQ(StateOf(comm), NcclResult::kSuccess);
  for (NcclComm comm : comms) EXPECT_EQ(call().destroy(comm), NcclResult::kSuccess);
}

TEST_F(NcclDouble, HangsOnCallsThatDifferUntilTheAbort) {
  Open(2);
  NcclComm comms[2] = {};
  ASSERT_NO_FATAL_FAILURE(FormTwo(comms));
  const GpuArray<float> a(*gpus_, 0, {1, 2});
  const GpuArray<float> b(*gpus_, 1, {10, 20});
  ASSERT_EQ(Sum(comms[0], 0, a, 2), NcclResult::kInProgress);
  ASSERT_EQ(Sum(comms[1], 1, b, 1), NcclResult::kInProgress);
  ASSERT_EQ(StateOf(comms[0]), NcclResult::kSuccess);
  ASSERT_EQ(StateOf(comms[1]), NcclResult::kSuccess);
  for (int i = 0; i < 1000; ++i) ASSERT_FALSE(StreamIsDone(0) || StreamIsDone(1));
  EXPECT_EQ(call().abort(comms[0]), NcclResult::kSuccess);
  // The other is told, and waits on for its own.
  NcclResult state = NcclResult::kSuccess;
  while (state == NcclResult::kSuccess) call().get_async_error(comms[1], &state);
  EXPECT_EQ(state, NcclResult::kRemoteError);
  EXPECT_FALSE(StreamIsDone(1));
  EXPECT_EQ(call().abort(comms[1]), NcclResult::kSuccess);
  while (!StreamIsDone(0) || !StreamIsDone(1)) std::this_thread::yield();
  EXPECT_EQ(a.elements(), (std::vector<float>{1, 2}));
  EXPECT_EQ(b.elements(), (std::vector<float>{10, 20}));
}

TEST_F(NcclDouble, LaunchesNothingOfAGroupInWhichACallFailed) {
  Open(1);
  NcclId id;
  ASSERT_EQ(call().get_unique_id(&id), NcclResult::kSuccess);
  NcclComm comm = nullptr;
  ASSERT_EQ(Begin(comm, 1, id, 0, 0), NcclResult::kInProgress);
  ASSERT_EQ(StateOf(comm), NcclResult::kSuccess);
  const GpuArray<float> memory(*gpus_, 0, {1, 2});
  ASSERT_EQ(call().group_start(), NcclResult::kSuccess);
  EXPECT_EQ(Sum(comm, 0, memory, 2), NcclResult::kSuccess);
  EXPECT_EQ(call().broadcast(memory.bytes(), memory.bytes(), 2, NcclType::kFloat32, 1, comm,
                             streams_[0].get().thing),
            NcclResult::kInvalidArgument);
  EXPECT_EQ(call().group_end(), NcclResult::kInvalidArgument);
  // The rank is of no use any more, and says why.
  EXPECT_EQ(StateOf(comm), NcclResult::kInvalidArgument);
  EXPECT_EQ(Sum(comm, 0, memory, 2), NcclResult::kInvalidArgument);
  EXPECT_TRUE(StreamIsDone(0));
  EXPECT_EQ(call().abort(comm), NcclResult::kSuccess);
  EXPECT_EQ(call().group_end(), NcclResult::kInvalidUsage);
}

// As a real kernel would: the context is broken.
TEST_F(NcclDouble, TouchesOnlyWhatTheGpuMay) {
  Open(1);
  NcclId id;
  ASSERT_EQ(call().get_unique_id(&id), NcclResult::kSuccess);
  NcclComm comm = nullptr;
  ASSERT_EQ(Begin(comm, 1, id, 0, 0), NcclResult::kInProgress);
  ASSERT_EQ(StateOf(comm), NcclResult::kSuccess);
  float pageable = 1;
  ASSERT_EQ(call().all_reduce(&pageable, &pageable, 1, NcclType::kFloat32, kNcclSum, comm,
                              streams_[0].get().thing),
            NcclResult::kInProgress);
  ASSERT_EQ(StateOf(comm), NcclResult::kSuccess);
  const CurrentContext current(gpus_->driver(), gpus_->context(0).get().context);
  CuResult result = CuResult::kNotReady;
  while (result == CuResult::kNotReady) {
    result = gpus_->driver().call().stream_query(streams_[0].get().thing);
  }
  EXPECT_EQ(result, CuResult::kIllegalAddress);
  EXPECT_EQ(call().abort(comm), NcclResult::kSuccess);
}

TEST_F(NcclDouble, RefusesAConfigThatItCannotKnow) {
  Open(1);
  NcclId id;
  ASSERT_EQ(call().get_unique_id(&id), NcclResult::kSuccess);
  NcclComm comm = nullptr;
  const CurrentContext current(gpus_->driver(), gpus_->context(0).get().context);
  NcclConfig config;
  config.magic = 1;
  EXPECT_EQ(call().init_rank(&comm, 1, id, 0, &config), NcclResult::kInvalidArgument);
  config = {};
  config.blocking = 1;
  EXPECT_EQ(call().init_rank(&comm, 1, id, 0, &config), NcclResult::kInvalidArgument);
  config = {};
  EXPECT_EQ(call().init_rank(&comm, 1, NcclId{}, 0, &config), NcclResult::kInvalidArgument);
  EXPECT_EQ(call().init_rank(&comm, 1, id, 1, &config), NcclResult::kInvalidArgument);
  ids_abandoned_ = 1;
}

}  // namespace
}  // namespace headrace::transport

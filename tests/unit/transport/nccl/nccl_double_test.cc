// Whether the double has NCCL's manners, by its own calls.
#include <atomic>
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

  NcclId MakeId() {
    NcclId id;
    EXPECT_EQ(call().get_unique_id(&id), NcclResult::kSuccess);
    return id;
  }

  // A rank on each of these GPUs, formed.
  std::vector<NcclComm> Form(const std::vector<int>& devices) {
    const NcclId id = MakeId();
    const auto count = static_cast<int>(devices.size());
    std::vector<NcclComm> comms(devices.size());
    for (int rank = 0; rank < count; ++rank) {
      const auto at = static_cast<std::size_t>(rank);
      EXPECT_EQ(Begin(comms[at], count, id, rank, devices[at]), NcclResult::kInProgress);
    }
    for (NcclComm comm : comms) EXPECT_EQ(StateOf(comm), NcclResult::kSuccess);
    return comms;
  }

  CuStream StreamOf(int device) const {
    return streams_[static_cast<std::size_t>(device)].get().thing;
  }

  NcclResult Sum(NcclComm comm, int device, const GpuArray<float>& memory, std::size_t count) {
    return call().all_reduce(memory.bytes(), memory.bytes(), count, NcclType::kFloat32, kNcclSum,
                             comm, StreamOf(device));
  }

  bool StreamIsDone(int device) { return IsDone(device, StreamOf(device)); }
  bool IsDone(int device, CuStream stream) {
    const CurrentContext current(gpus_->driver(), gpus_->context(device).get().context);
    const CuResult result = gpus_->driver().call().stream_query(stream);
    EXPECT_TRUE(result == CuResult::kSuccess || result == CuResult::kNotReady);
    return result == CuResult::kSuccess;
  }

  std::unique_ptr<NcclLibrary> library_;
  std::vector<CudaStream> streams_;
};

TEST_F(NcclDouble, FormsRanksOnceAllHaveCome) {
  Open(2);
  const NcclId id = MakeId();
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
    const NcclId id = MakeId();
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
  const std::vector<NcclComm> comms = Form({0, 1});
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
  const std::vector<NcclComm> comms = Form({0, 1});
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

// Ranks of one process belong together until the last of them ends.
TEST_F(NcclDouble, FreesTheRanksOfAProcessWithTheLastOfThem) {
  Open(3);
  const std::vector<NcclComm> comms = Form({0, 1, 2});
  for (const std::size_t ended : {2U, 0U}) {
    EXPECT_EQ(call().abort(comms[ended]), NcclResult::kSuccess);
    EXPECT_EQ(nccl_.Counts().ranks, 3U);
  }
  EXPECT_EQ(call().destroy(comms[1]), NcclResult::kSuccess);
  EXPECT_EQ(nccl_.Counts().ranks, 0U);
}

TEST_F(NcclDouble, EndsTheLastRankOnceTheStreamsOfAllHavePassedTheirCalls) {
  Open(2);
  const std::vector<NcclComm> comms = Form({0, 1});
  // NCCL's kernels stand behind what the host has still to let go.
  std::atomic<bool> may_go = false;
  const auto wait = [](void* go) {
    while (!*static_cast<std::atomic<bool>*>(go)) std::this_thread::yield();
  };
  const CudaFunctions& cuda = gpus_->driver().call();
  {
    const CurrentContext current(gpus_->driver(), gpus_->context(0).get().context);
    ASSERT_EQ(cuda.launch_host_call(StreamOf(0), wait, &may_go), CuResult::kSuccess);
  }
  const GpuArray<float> a(*gpus_, 0, {1, 2});
  ASSERT_EQ(Sum(comms[0], 0, a, 2), NcclResult::kInProgress);
  ASSERT_EQ(StateOf(comms[0]), NcclResult::kSuccess);
  EXPECT_EQ(call().abort(comms[0]), NcclResult::kSuccess) << "the first waits for nothing";
  std::atomic<bool> ended = false;
  std::thread last([&] {
    EXPECT_EQ(call().abort(comms[1]), NcclResult::kSuccess);
    ended = true;
  });
  const std::uint64_t aborted = nccl_.Counts().aborted;
  while (nccl_.Counts().aborted == aborted && !ended) std::this_thread::yield();
  for (int i = 0; i < 1000; ++i) {
    ASSERT_FALSE(ended);
    std::this_thread::yield();
  }
  may_go = true;
  last.join();
  EXPECT_EQ(nccl_.Counts().ranks, 0U);
}

TEST_F(NcclDouble, LaunchesNothingOfAGroupInWhichACallFailed) {
  Open(1);
  const NcclComm comm = Form({0})[0];
  const GpuArray<float> memory(*gpus_, 0, {1, 2});
  ASSERT_EQ(call().group_start(), NcclResult::kSuccess);
  EXPECT_EQ(Sum(comm, 0, memory, 2), NcclResult::kSuccess);
  EXPECT_EQ(
      call().broadcast(memory.bytes(), memory.bytes(), 2, NcclType::kFloat32, 1, comm, StreamOf(0)),
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
  const NcclComm comm = Form({0})[0];
  float pageable = 1;
  ASSERT_EQ(
      call().all_reduce(&pageable, &pageable, 1, NcclType::kFloat32, kNcclSum, comm, StreamOf(0)),
      NcclResult::kInProgress);
  // The kernel may have run already.
  const NcclResult state = StateOf(comm);
  EXPECT_TRUE(state == NcclResult::kSuccess || state == NcclResult::kUnhandledCudaError)
      << static_cast<int>(state);
  const CurrentContext current(gpus_->driver(), gpus_->context(0).get().context);
  CuResult result = CuResult::kNotReady;
  while (result == CuResult::kNotReady) {
    result = gpus_->driver().call().stream_query(StreamOf(0));
  }
  EXPECT_EQ(result, CuResult::kIllegalAddress);
  EXPECT_EQ(call().abort(comm), NcclResult::kSuccess);
}

TEST_F(NcclDouble, RefusesAConfigThatItCannotKnow) {
  Open(1);
  const NcclId id = MakeId();
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

// Two sets of ranks on the same two GPUs. Each of the GPUs launches two calls of one set and then
// two of the other, and they differ in which is first. The parameter is the driver's version:
// before CUDA 12.3 NCCL's order is that of ends, else that of begins.
class NcclDoubleOfOrders : public NcclDouble, public ::testing::WithParamInterface<const char*> {
 protected:
  void Launch() {
    const cuda_double::Environment machine({{"VERSION", GetParam()}});
    Open(2);
    for (std::int8_t device = 0; device < 2; ++device) {
      auto stream = CreateStream(gpus_->context(device), kCuStreamNonBlocking, 0);
      ASSERT_TRUE(stream.ok());
      streams_.push_back(std::move(*stream));
      for (int set = 0; set < 2; ++set) {
        memory_.emplace_back(*gpus_, device, std::vector<float>{1, 2});
      }
    }
    for (auto& set : sets_) set = Form({0, 1});
    for (const int device : {0, 1}) {
      for (const int set : {device, device, 1 - device, 1 - device}) LaunchOne(set, device);
    }
  }
  void TearDown() override {
    ::unsetenv("NCCL_LAUNCH_ORDER_IMPLICIT");
    memory_.clear();
    NcclDouble::TearDown();
  }

  void Abort(int set) {
    for (NcclComm comm : sets_[set]) EXPECT_EQ(call().abort(comm), NcclResult::kSuccess);
  }
  std::vector<float> ElementsOf(int set, int device) const {
    return memory_[static_cast<std::size_t>(2 * device + set)].elements();
  }
  bool AllAreDone() {
    return StreamIsDone(0) && StreamIsDone(1) && IsDone(0, StreamOf(2)) && IsDone(1, StreamOf(3));
  }

 private:
  void LaunchOne(int set, int device) {
    std::byte* const bytes = memory_[static_cast<std::size_t>(2 * device + set)].bytes();
    NcclComm comm = sets_[set][static_cast<std::size_t>(device)];
    EXPECT_EQ(call().all_reduce(bytes, bytes, 2, NcclType::kFloat32, kNcclSum, comm,
                                StreamOf(2 * set + device)),
              NcclResult::kInProgress);
    EXPECT_EQ(StateOf(comm), NcclResult::kSuccess);
  }

  std::vector<NcclComm> sets_[2];
  std::vector<GpuArray<float>> memory_;  // by GPU, and of each by set
};

TEST_P(NcclDoubleOfOrders, LetsSetsOfRanksBeLaunchedCrosswise) {
  Launch();
  while (!AllAreDone()) std::this_thread::yield();
  for (const int set : {0, 1}) {
    EXPECT_EQ(ElementsOf(set, 0), (std::vector<float>{4, 8}));
    EXPECT_EQ(ElementsOf(set, 1), (std::vector<float>{4, 8}));
    Abort(set);
  }
}

// Hence the service refuses that setting.
TEST_P(NcclDoubleOfOrders, HangsOnThemWithAnImplicitOrderOfLaunches) {
  ::setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 1);
  Launch();
  // One on each GPU has begun, and waits for one that the other GPU does not begin.
  while (nccl_.Counts().waiting != 2) std::this_thread::yield();
  for (int i = 0; i < 1000; ++i) {
    ASSERT_EQ(nccl_.Counts().waiting, 2U);
    std::this_thread::yield();
  }
  Abort(0);
  while (!AllAreDone()) std::this_thread::yield();
  for (const int device : {0, 1}) {
    EXPECT_EQ(ElementsOf(0, device), (std::vector<float>{1, 2}));
    EXPECT_EQ(ElementsOf(1, device), (std::vector<float>{4, 8}));
  }
  Abort(1);
}

INSTANTIATE_TEST_SUITE_P(Drivers, NcclDoubleOfOrders, ::testing::Values("12020", "13000"));

}  // namespace
}  // namespace headrace::transport

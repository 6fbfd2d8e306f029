// GPU memory that is handed over: what is refused before the driver hears of it, and what goes on.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <functional>
#include <string>
#include <vector>

#include "ipc/base/device_handle.h"
#include "tests/support/expect_text.h"
#include "tests/unit/service/rpc/attached.h"

namespace headrace::support {
namespace {

constexpr std::uint64_t kPiece = std::uint64_t{2} << 20;

class DeviceCallsTest : public AttachedTest {
 protected:
  // Two pieces, all of which is meant.
  static DeviceClaim Honest() {
    return {.kind = 1,
            .device = std::string(16, 'g'),
            .offset = 0,
            .size = 2 * kPiece,
            .piece_size = kPiece,
            .legacy = {},
            .pieces_count = 2};
  }
  Numbered Register(const DeviceClaim& claim) {
    return caller_->RegisterDeviceSegment(session_, claim, memory_.get());
  }
  void ExpectRefused(const std::function<void(DeviceClaim&)>& change, Code code,
                     std::initializer_list<std::string_view> values = {}) {
    DeviceClaim claim = Honest();
    change(claim);
    const Numbered answer = Register(claim);
    EXPECT_EQ(answer.code, code) << answer.text;
    ExpectText(__FILE__, __LINE__, answer.text, values);
  }

  UniqueFd memory_{::memfd_create("headrace-test", MFD_CLOEXEC)};
};

TEST_F(DeviceCallsTest, GoToWatchAsTheyCameAndThenToDispatch) {
  Begin();
  const Numbered answer = Register(Honest());
  ASSERT_EQ(answer.code, Code::kOk) << answer.text;
  EXPECT_EQ(answer.number, 0U);
  stand_->mapping().Visit<service::MapDeviceSegment>(0, [](const service::MapDeviceSegment& map) {
    EXPECT_EQ(map.handle.kind, DeviceHandleKind::kPosixFds);
    EXPECT_EQ(map.handle.device[15], 'g');
    EXPECT_EQ(map.handle.size, 2 * kPiece);
    EXPECT_EQ(map.handle.piece_size, kPiece);
    ASSERT_EQ(map.fds.size(), 2U);
    EXPECT_NE(::fcntl(map.fds[1].get(), F_GETFD), -1);
  });
  EXPECT_EQ(stand_->dispatch().Count<service::AddSegment>(), 1U);
  // Tensors are checked against what is meant.
  service::Tensor tensor{.name = "w", .segment = {}, .offset = 0, .count = kPiece / 2};
  tensor.dtype = DType::kFloat32;
  EXPECT_EQ(caller_->RegisterTensors(session_, {tensor}).code, Code::kOk);
  tensor.offset = 4;
  EXPECT_EQ(caller_->RegisterTensors(session_, {tensor}).code, Code::kInvalidArgument);
}

TEST_F(DeviceCallsTest, TakeALegacyHandleWithItsBytes) {
  Begin();
  DeviceClaim claim = Honest();
  claim.kind = 2;
  claim.piece_size = 0;
  claim.pieces_count = 0;
  claim.offset = 512;
  claim.size = 1004;
  claim.legacy = std::string(64, 'l');
  const Numbered answer = Register(claim);
  ASSERT_EQ(answer.code, Code::kOk) << answer.text;
  stand_->mapping().Visit<service::MapDeviceSegment>(0, [](const service::MapDeviceSegment& map) {
    EXPECT_EQ(map.handle.kind, DeviceHandleKind::kLegacyIpc);
    EXPECT_EQ(map.handle.offset, 512U);
    EXPECT_EQ(map.handle.legacy[63], 'l');
  });
}

TEST_F(DeviceCallsTest, AreRefusedByTheNameOfTheFieldThatMakesNoSense) {
  Begin();
  const auto invalid = Code::kInvalidArgument;
  ExpectRefused([](auto& claim) { claim.kind = 0; }, invalid);
  ExpectRefused([](auto& claim) { claim.kind = 3; }, invalid);
  ExpectRefused([](auto& claim) { claim.device = "short"; }, invalid, {"5 bytes"});
  ExpectRefused([](auto& claim) { claim.device.clear(); }, invalid, {"0 bytes"});
  ExpectRefused([](auto& claim) { claim.legacy = "x"; }, invalid, {"1 bytes"});
  ExpectRefused([](auto& claim) { claim.size = 0; }, invalid);
  ExpectRefused([](auto& claim) { claim.size = UINT64_MAX; }, invalid);
  ExpectRefused([](auto& claim) { claim.offset = 4; }, invalid);
  ExpectRefused([](auto& claim) { claim.offset = UINT64_MAX - 7; }, invalid);
  ExpectRefused([](auto& claim) { claim.piece_size = 0; }, invalid);
  ExpectRefused([](auto& claim) { claim.piece_size = UINT64_MAX; }, invalid);
  ExpectRefused([](auto& claim) { claim.pieces_count = 1; }, invalid);
  ExpectRefused([](auto& claim) { claim.pieces_count = 0; }, invalid);
  ExpectRefused([](auto& claim) { claim.offset = kPiece; }, invalid);
  ExpectRefused([](auto& claim) { claim.kind = 2, claim.legacy = std::string(64, 'l'); }, invalid);
  EXPECT_EQ(stand_->mapping().Count<service::MapDeviceSegment>(), 0U);
}

TEST_F(DeviceCallsTest, WithoutADescriptorAreRefusedAndLeaveRoomForTheNext) {
  Begin();
  const Numbered answer = caller_->RegisterDeviceSegment(session_, Honest(), -1);
  EXPECT_EQ(answer.code, Code::kInvalidArgument);
  EXPECT_VARYING_TEXT(answer.text, "piece 0");
  EXPECT_EQ(Register(Honest()).code, Code::kOk);
}

TEST_F(DeviceCallsTest, SayWhyAServiceWithoutGpusTakesNone) {
  Begin({.gpus_missing = "this service uses no GPUs: libcuda.so.1 is not there, install it"});
  const Numbered answer = Register(Honest());
  EXPECT_EQ(answer.code, Code::kUnavailable);
  EXPECT_EQ(answer.text,
            "register GPU memory: this service uses no GPUs: libcuda.so.1 is not there, install "
            "it");
  EXPECT_EQ(stand_->mapping().Count<service::MapDeviceSegment>(), 0U);
}

TEST_F(DeviceCallsTest, CountWholePiecesAgainstTheQuotaUntilTheyAreGivenBack) {
  Begin({.quotas = {.memory = 3 * kPiece}});
  DeviceClaim little = Honest();
  little.size = kPiece + 4;  // both pieces are held for it
  ASSERT_EQ(Register(little).code, Code::kOk);
  const Numbered second = Register(little);
  EXPECT_EQ(second.code, Code::kExhausted) << second.text;
  EXPECT_VARYING_TEXT(second.text, "memory_per_uid");
  EXPECT_EQ(caller_->ReleaseSegment(session_, 0).code, Code::kOk);
  EXPECT_EQ(Register(little).code, Code::kOk);
}

TEST_F(DeviceCallsTest, ThatTheDriverRefusesAreAnsweredWithItsWordsAndNotCounted) {
  Begin({.device_refusal = Error(Code::kExhausted, "map it: CUDA_ERROR_OUT_OF_MEMORY"),
         .quotas = {.memory = 2 * kPiece}});
  for (int i = 0; i < 3; ++i) {
    const Numbered answer = Register(Honest());
    EXPECT_EQ(answer.code, Code::kExhausted);
    EXPECT_VARYING_TEXT(answer.text, "CUDA_ERROR_OUT_OF_MEMORY");
  }
  EXPECT_EQ(stand_->dispatch().Count<service::AddSegment>(), 0U);
}

}  // namespace
}  // namespace headrace::support

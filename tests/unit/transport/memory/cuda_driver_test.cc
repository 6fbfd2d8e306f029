// Opening the driver, and what it says when there is none to use.
#include "transport/memory/cuda_driver.h"

#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/expect_text.h"
#include "tests/unit/transport/memory/double_test.h"
#include "transport/memory/cuda_device.h"

namespace headrace::transport {
namespace {

using cuda_double::Environment;

Error RefusalOf(const std::string& library) {
  const auto opened = CudaDriver::Open(library);
  EXPECT_FALSE(opened.ok());
  return opened.ok() ? Error(Code::kOk, "") : opened.error();
}

class CudaDriverOnTheDouble : public DoubleTest {};

TEST(CudaDriver, SaysThatNoDriverIsInstalled) {
  const Error error = RefusalOf("libcuda-that-nobody-has.so.1");
  EXPECT_EQ(error.code(), Code::kNotFound);
  EXPECT_VARYING_TEXT(error.text());
}

TEST(CudaDriver, RefusesALibraryThatIsNoDriver) {
  const Error error = RefusalOf("libdl.so.2");
  EXPECT_EQ(error.code(), Code::kVersionMismatch);
  EXPECT_VARYING_TEXT(error.text());
}

TEST(CudaDriver, RefusesADriverThatIsTooOldAndSaysSo) {
  const Environment old{{"VERSION", "11040"}};
  const Error error = RefusalOf(cuda_double::LibraryPath());
  EXPECT_EQ(error.code(), Code::kVersionMismatch);
  EXPECT_VARYING_TEXT(error.text(), "11.4", "12.0");
}

TEST(CudaDriver, SaysThatThereIsNoGpu) {
  const Environment none{{"VISIBLE", ""}};
  const auto opened = cuda_double::OpenDouble();
  ASSERT_FALSE(opened.ok());
  EXPECT_EQ(opened.error().code(), Code::kUnavailable);
  EXPECT_VARYING_TEXT(opened.error().text());
}

TEST_F(CudaDriverOnTheDouble, TellsVersionAndNumberOfGpus) {
  const Environment machine{{"VERSION", "12080"}, {"DEVICES", "3"}};
  Start();
  EXPECT_EQ(driver_->version(), 12080);
  EXPECT_EQ(CudaVersionText(driver_->version()), "12.8");
  EXPECT_EQ(driver_->devices_count(), 3);
}

TEST_F(CudaDriverOnTheDouble, NamesTheVendorsErrorAndWhatWasBeingDone) {
  Start();
  const Error error = driver_->Failed(CuResult::kOutOfMemory, "allocate 5 bytes on GPU 1");
  EXPECT_EQ(error.code(), Code::kExhausted);
  EXPECT_EQ(error.text(), "allocate 5 bytes on GPU 1: CUDA_ERROR_OUT_OF_MEMORY (out of memory)");
  const Error unknown = driver_->Failed(static_cast<CuResult>(12345), "do");
  EXPECT_EQ(unknown.code(), Code::kInternal);
  EXPECT_EQ(unknown.text(), "do: CUDA error 12345");
}

TEST_F(CudaDriverOnTheDouble, FailsWhereTheEnvironmentSaysSo) {
  const Environment broken{{"FAIL", "cuDeviceGetCount:1:802"}};
  const auto opened = cuda_double::OpenDouble();
  ASSERT_FALSE(opened.ok());
  EXPECT_EQ(opened.error().code(), Code::kUnavailable);
  EXPECT_VARYING_TEXT(opened.error().text(), "CUDA_ERROR_SYSTEM_NOT_READY");
}

TEST_F(CudaDriverOnTheDouble, DescribesEachGpu) {
  const Environment machine{{"MEMORY", "12345"}, {"LACKS", "stream_words"}};
  Start();
  const auto devices = DescribeDevices(*driver_);
  ASSERT_TRUE(devices.ok()) << devices.error().text();
  ASSERT_EQ(devices->size(), 2U);
  EXPECT_EQ((*devices)[1].ordinal, 1);
  EXPECT_EQ((*devices)[1].memory_size, 12345U);
  EXPECT_EQ((*devices)[1].capability_major, 9);
  EXPECT_TRUE((*devices)[1].virtual_memory);
  EXPECT_FALSE((*devices)[1].stream_words);
  EXPECT_NE((*devices)[0].uuid, (*devices)[1].uuid);
  EXPECT_EQ(TextOf(DescribeDevice(*driver_, 2)),
            "describe GPU 2: CUDA_ERROR_INVALID_DEVICE (invalid device ordinal)");
}

TEST_F(CudaDriverOnTheDouble, FindsAGpuByItsUuidWhateverItsNumber) {
  DeviceUuid second{};
  {
    Start();
    second = DescribeDevice(*driver_, 1)->uuid;
    contexts_.clear();
  }
  const Environment other_order{{"VISIBLE", "1,0"}};
  Start();
  const auto found = FindDevice(*driver_, second);
  ASSERT_TRUE(found.ok());
  EXPECT_EQ(*found, 0);
  const auto missing = FindDevice(*driver_, DeviceUuid{});
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().code(), Code::kNotFound);
  EXPECT_VARYING_TEXT(missing.error().text(), "GPU-00000000-0000-0000-0000-000000000000");
}

TEST_F(CudaDriverOnTheDouble, IsOfNoUseInAForkedChild) {
  Start();
  const pid_t child = ::fork();
  if (child == 0) {
    int count = 0;
    ::_exit(call().device_get_count(&count) == CuResult::kNotInitialized &&
                    call().init(0) == CuResult::kNotInitialized
                ? 0
                : 1);
  }
  int status = 1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace headrace::transport

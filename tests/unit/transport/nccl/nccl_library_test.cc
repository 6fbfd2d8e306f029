// Finding NCCL, and saying why there is none.
#include "transport/nccl/nccl_library.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "tests/support/cuda_double/doubled_driver.h"
#include "tests/support/expect_text.h"
#include "tests/support/nccl_double/doubled_nccl.h"

namespace headrace::transport {
namespace {

TEST(NcclLibrary, OpensAndTellsItsVersion) {
  const auto opened = NcclLibrary::Open(nccl_double::LibraryPath());
  ASSERT_TRUE(opened.ok()) << opened.error().text();
  EXPECT_EQ(NcclVersionText((*opened)->version()), "2.28.9");
}

TEST(NcclLibrary, SaysWhatToInstallWhereItIsAbsent) {
  const auto opened = NcclLibrary::Open("libnccl_of_nobody.so.2");
  ASSERT_FALSE(opened.ok());
  EXPECT_EQ(opened.error().code(), Code::kNotFound);
  EXPECT_VARYING_TEXT(opened.error().text(), "libnccl_of_nobody", "gpu_lane");
}

TEST(NcclLibrary, RefusesALibraryThatIsSomethingElse) {
  const auto opened = NcclLibrary::Open(cuda_double::LibraryPath());
  ASSERT_FALSE(opened.ok());
  EXPECT_EQ(opened.error().code(), Code::kVersionMismatch);
  EXPECT_VARYING_TEXT(opened.error().text());
}

TEST(NcclLibrary, RefusesOneThatTellsNoVersion) {
  nccl_double::LoadDouble().fail("ncclGetVersion", 1, 2);
  const auto opened = NcclLibrary::Open(nccl_double::LibraryPath());
  ASSERT_FALSE(opened.ok());
  EXPECT_EQ(opened.error().code(), Code::kUnavailable);
  EXPECT_VARYING_TEXT(opened.error().text());
}

// In a process of its own, since a double's version is read once.
TEST(NcclLibraryDeathTest, RefusesAnOldOneAndSaysWhichAndWhatIsNeeded) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        ::setenv("HEADRACE_NCCL_DOUBLE_VERSION", "22605", 1);
        const auto opened = NcclLibrary::Open(nccl_double::LibraryPath());
        if (!opened) std::fputs(opened.error().text().c_str(), stderr);
        std::exit(opened.ok() ? 0 : static_cast<int>(opened.error().code()));
      },
      ::testing::ExitedWithCode(static_cast<int>(Code::kVersionMismatch)),
      "is NCCL 2.26.5, 2.27.3 or later is needed: install NCCL");
}

TEST(NcclLibrary, WritesVersionsAsPeopleDo) {
  EXPECT_EQ(NcclVersionText(2708), "2.7.8");
  EXPECT_EQ(NcclVersionText(21801), "2.18.1");
  EXPECT_EQ(NcclVersionText(23203), "2.32.3");
}

}  // namespace
}  // namespace headrace::transport

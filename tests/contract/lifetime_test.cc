// Whether a transport gives back what it took.
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <thread>

#include "tests/contract/members.h"
#include "tests/contract/subject.h"

namespace headrace::transport {
namespace {

std::ptrdiff_t CountOf(const char* directory) {
  const std::filesystem::directory_iterator entries(directory);
  return std::distance(begin(entries), end(entries));
}

using TransportLifetime = TransportContract;

TEST_P(TransportLifetime, ReturnsThreadsAndDescriptorsAfterAThousandConstructions) {
  const auto with_subject = CountOf("/proc/self/task");
  subject_.reset();
  const auto fds = CountOf("/proc/self/fd");
  for (int i = 0; i < 1000; ++i) GetParam().make();
  EXPECT_EQ(CountOf("/proc/self/fd"), fds);
  // A joined thread may be listed for a moment more, for long on a busy machine.
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (CountOf("/proc/self/task") > with_subject && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_LE(CountOf("/proc/self/task"), with_subject);
}

TEST_P(TransportLifetime, MayEndWithTransfersOpen) {
  for (int steps = 0; steps < 5; ++steps) {
    const Members members(DType::kUInt8, std::uint64_t{8} << 20, 2);
    Transfer transfer{.token = 1, .kind = Collective::kAllReduce};
    members.Describe(transfer);
    auto subject = GetParam().make();
    std::vector<Completion> completions;
    subject->Post(transfer);
    for (int i = 0; i < steps; ++i) subject->transport().DoWork(subject->Now(), completions);
    subject.reset();
    const auto left = members.Contents();
    std::this_thread::yield();
    EXPECT_EQ(members.Contents(), left);
    EXPECT_TRUE(members.GuardsAreWhole());
  }
}

INSTANTIATE_TEST_SUITE_P(Over, TransportLifetime, ::testing::ValuesIn(AllSubjects()), SubjectName);

}  // namespace
}  // namespace headrace::transport

// The least of what the machine and the control groups of the service allow.
#include "service/config/memory_found.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <map>
#include <string>

namespace headrace::service {
namespace {

constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;

ReadText ReadFrom(std::map<std::string, std::string> files) {
  return [files = std::move(files)](const std::string& path) {
    const auto found = files.find(path);
    return found == files.end() ? std::string() : found->second;
  };
}

TEST(MemoryFound, IsTheMachinesWhereNoControlGroupLimitsIt) {
  const auto unlimited = ReadFrom({{"/sys/fs/cgroup/a/memory.max", "max\n"},
                                   {"/sys/fs/cgroup/memory.max", "99999999999999\n"}});
  for (const auto& [groups, read] : {std::pair{std::string("0::/a\n"), unlimited},
                                     {std::string(), unlimited},
                                     {std::string("0::/a\n"), ReadFrom({})}}) {
    const MemoryFound found = FindMemory(64 * kGiB, groups, read);
    EXPECT_EQ(found.bytes, 64 * kGiB);
    EXPECT_EQ(found.limited_by, "");
  }
}

TEST(MemoryFound, IsTheSmallestLimitOnTheWayUp) {
  const MemoryFound found =
      FindMemory(64 * kGiB, "0::/pod/headraced\n",
                 ReadFrom({{"/sys/fs/cgroup/pod/headraced/memory.max", "max\n"},
                           {"/sys/fs/cgroup/pod/memory.max", std::to_string(8 * kGiB) + "\n"},
                           {"/sys/fs/cgroup/memory.max", std::to_string(32 * kGiB) + "\n"}}));
  EXPECT_EQ(found.bytes, 8 * kGiB);
  EXPECT_EQ(found.limited_by, "/sys/fs/cgroup/pod/memory.max");
}

// As Docker on a host of version 1 shows it: the path is the host's, what is mounted the
// container's.
TEST(MemoryFound, OfVersionOneIsRead) {
  const std::string groups = "5:memory:/docker/1f\n1:name=systemd:/docker/1f\n0::/docker/1f\n";
  const char* root = "/sys/fs/cgroup/memory/memory.limit_in_bytes";
  EXPECT_EQ(FindMemory(64 * kGiB, groups, ReadFrom({{root, "4294967296\n"}})).bytes, 4 * kGiB);
  const auto none = ReadFrom({{root, "9223372036854771712\n"}});
  EXPECT_EQ(FindMemory(64 * kGiB, groups, none).limited_by, "");
}

TEST(MemoryFound, IgnoresWhatIsNoNumber) {
  for (const char* text : {"", "\n", "-1\n", "12 13\n", "4G\n", "99999999999999999999999\n"}) {
    EXPECT_EQ(FindMemory(kGiB, "0::/\n", ReadFrom({{"/sys/fs/cgroup/memory.max", text}})).bytes,
              kGiB)
        << text;
  }
}

TEST(MemoryFound, OfThisProcessIsNoMoreThanTheMachineHas) {
  const MemoryFound found = FindOwnMemory();
  EXPECT_GT(found.bytes, 0U);
  EXPECT_LE(found.bytes, static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES)) *
                             static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE)));
}

TEST(MemoryFound, LeavesAQuarterByDefaultAndIsNeverNoLimit) {
  const MemoryFound found{.bytes = 8 * kGiB, .limited_by = "/sys/fs/cgroup/pod/memory.max"};
  EXPECT_EQ(DefaultMemoryPerUid(found), 6 * kGiB);
  EXPECT_EQ(DefaultMemoryPerUid({}), 1U);
  EXPECT_NE(DescribeDefaultMemory(found).find("6144 MiB"), std::string::npos);
  EXPECT_NE(DescribeDefaultMemory(found).find(found.limited_by), std::string::npos);
}

}  // namespace
}  // namespace headrace::service

// Where limits of control groups stand, by the kernel's list of them.
#include "ipc/base/cgroup.h"

#include <gtest/gtest.h>

namespace headrace {
namespace {

using Files = std::vector<std::string>;

TEST(CgroupFiles, GoFromTheProcessesGroupUpToTheRoot) {
  EXPECT_EQ(CgroupFiles("0::/system.slice/headraced.service\n", "", "cpu.max"),
            (Files{"/sys/fs/cgroup/system.slice/headraced.service/cpu.max",
                   "/sys/fs/cgroup/system.slice/cpu.max", "/sys/fs/cgroup/cpu.max"}));
  EXPECT_EQ(CgroupFiles("0::/", "", "cpu.max"), Files{"/sys/fs/cgroup/cpu.max"});
}

TEST(CgroupFiles, OfVersionOneAreTheControllersOwn) {
  const char* groups = "12:cpu,cpuacct:/a\n5:memory:/docker/1f\n1:name=systemd:/b\n0::/c\n";
  EXPECT_EQ(CgroupFiles(groups, "memory", "memory.limit_in_bytes"),
            (Files{"/sys/fs/cgroup/memory/docker/1f/memory.limit_in_bytes",
                   "/sys/fs/cgroup/memory/docker/memory.limit_in_bytes",
                   "/sys/fs/cgroup/memory/memory.limit_in_bytes"}));
  EXPECT_EQ(CgroupFiles(groups, "cpuacct", "x").front(), "/sys/fs/cgroup/cpuacct/a/x");
  EXPECT_EQ(CgroupFiles(groups, "", "x").front(), "/sys/fs/cgroup/c/x");
}

TEST(CgroupFiles, AreNoneWhereThereIsNoSuchHierarchy) {
  EXPECT_TRUE(CgroupFiles("12:cpu:/a\n", "", "cpu.max").empty());
  EXPECT_TRUE(CgroupFiles("0::/a\n", "memory", "x").empty());
  for (const char* nonsense : {"", "\n\n", "0", "0:", "::", "a::b:"}) {
    for (const std::string& file : CgroupFiles(nonsense, "", "x")) {
      EXPECT_TRUE(file.starts_with("/sys/fs/cgroup")) << nonsense;
    }
  }
}

TEST(CgroupFiles, AreBoundedHoweverDeepTheGroupIs) {
  std::string path = "0::";
  for (int i = 0; i < 1000; ++i) path += "/a";
  EXPECT_EQ(CgroupFiles(path, "", "x").size(), 64U);
}

}  // namespace
}  // namespace headrace

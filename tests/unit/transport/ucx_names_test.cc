#include "transport/ucx/names.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tests/support/expect_text.h"

namespace headrace::transport {
namespace {

using Names = std::set<std::string>;

TEST(UcxNames, AreReadFromTheLanesOfAnEndpoint) {
  EXPECT_EQ(
      LanesInText("#\n# UCP endpoint\n#\n#               peer: <no debug data>\n"
                  "#   lane[0]:  0:tcp/lo.0 md[0]                -> md[0]/tcp/sysdev[255] am\n"
                  "#   lane[1]:  3:rc_verbs/mlx5_0:1.0 md[2]     -> md[1]/ib/sysdev[3] rma_bw\n"
                  "#   lane[2]:  4:tcp/eth0.100.1 md[0]          -> md[0]/tcp am_bw#1\n#\n"),
      (Names{"tcp/lo", "rc_verbs/mlx5_0:1", "tcp/eth0.100"}));
}

TEST(UcxNames, AreReadFromTheResourcesOfAContext) {
  EXPECT_EQ(ResourcesInText("# UCP context\n#     component 1  :  tcp\n"
                            "#            md 0  :  component 1  tcp \n"
                            "#      resource 0  :  md 0  dev 0  flags -- tcp/lo\n"
                            "#      resource 1  :  md 0  dev 1  flags -- tcp/eth0\n"),
            (Names{"tcp/lo", "tcp/eth0"}));
}

TEST(UcxNames, AreNoneInTextThatSaysSomethingElse) {
  EXPECT_EQ(LanesInText("lane[0]\nlane[: md[\nlane[1]:  <none>\n"), Names{});
  EXPECT_EQ(ResourcesInText("resource \nresource 0 : nothing"), Names{});
  EXPECT_EQ(LanesInText(""), Names{});
}

TEST(UcxNames, OfWhatStaysOnTheNodeAreNoWires) {
  EXPECT_TRUE(ReachesNodes("tcp/eth0"));
  EXPECT_TRUE(ReachesNodes("rc_mlx5/mlx5_0:1"));
  EXPECT_FALSE(ReachesNodes("cuda_copy/cuda"));
  EXPECT_FALSE(ReachesNodes("cuda_ipc/cuda"));
  EXPECT_FALSE(ReachesNodes("gdr_copy/cuda"));
}

TEST(UcxNames, SayHowMemoryOfGpusGoes) {
  EXPECT_EQ(GpuPathText(false),
            "GPU memory reaches other nodes through pinned host memory: this UCX has no CUDA "
            "transports");
  EXPECT_VARYING_TEXT(GpuPathText(true));
}

class RdmaDevices : public ::testing::Test {
 protected:
  RdmaDevices() {
    std::string name = std::filesystem::temp_directory_path() / "rdma.XXXXXX";
    root_ = mkdtemp(name.data());
  }
  ~RdmaDevices() override { std::filesystem::remove_all(root_); }

  void AddPort(const std::string& device, const std::string& port, const std::string& state) {
    const std::filesystem::path path = root_ / device / "ports" / port;
    std::filesystem::create_directories(path);
    std::ofstream(path / "state") << state << "\n";
  }

  std::filesystem::path root_;
};

TEST_F(RdmaDevices, AreMissedWhenTcpIsInUse) {
  AddPort("mlx5_0", "1", "1: DOWN");
  EXPECT_EQ(SlowWireWarning("tcp/eth0", root_), "");
  AddPort("mlx5_1", "2", "4: ACTIVE");
  const std::string warning = SlowWireWarning("tcp/eth0", root_);
  EXPECT_VARYING_TEXT(warning, "mlx5_1:2", "tcp/eth0");
}

TEST_F(RdmaDevices, AreNotMissedWhenInUse) {
  AddPort("mlx5_0", "1", "4: ACTIVE");
  EXPECT_EQ(SlowWireWarning("rc_mlx5/mlx5_0:1", root_), "");
}

TEST_F(RdmaDevices, NeedNotBeThere) { EXPECT_EQ(SlowWireWarning("tcp/lo", root_ / "none"), ""); }

}  // namespace
}  // namespace headrace::transport

// Which devices carry an address, on this machine and on one with RDMA.
#include <gtest/gtest.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <stdlib.h>
#include <sys/socket.h>

#include <filesystem>
#include <string>

#include "ipc/base/check.h"
#include "transport/ucx/devices.h"

namespace headrace::transport {
namespace {

constexpr const char* kNoRdma = "/nowhere";

TEST(UcxDevices, OfAnAddressAreItsInterface) {
  EXPECT_EQ(DevicesAt("127.0.0.1", kNoRdma), "lo");
  EXPECT_EQ(DevicesAt("127.0.0.53", kNoRdma), "lo");
  ifaddrs* all = nullptr;
  ASSERT_EQ(::getifaddrs(&all), 0);
  for (const ifaddrs* each = all; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr || each->ifa_addr->sa_family != AF_INET) continue;
    char text[NI_MAXHOST] = {};
    ASSERT_EQ(::getnameinfo(each->ifa_addr, sizeof(sockaddr_in), text, sizeof text, nullptr, 0,
                            NI_NUMERICHOST),
              0);
    const std::string name = each->ifa_name;
    EXPECT_EQ(DevicesAt(text, kNoRdma), name.substr(0, name.find(':'))) << text;
  }
  ::freeifaddrs(all);
}

TEST(UcxDevices, OfAHostNameAreTheInterfacesOfItsAddresses) {
  EXPECT_EQ(DevicesAt("localhost", kNoRdma), "lo");
}

TEST(UcxDevices, AreUcxsChoiceWhereTheAddressNamesNoInterface) {
  for (const char* address : {"*", "0.0.0.0", "::", "node-a.invalid", "", "203.0.113.7"}) {
    EXPECT_EQ(DevicesAt(address, kNoRdma), "") << address;
  }
}

TEST(UcxDevices, KeepEveryRdmaPortWhichListensNowhere) {
  std::string folder = std::filesystem::temp_directory_path() / "headrace-rdma-XXXXXX";
  HR_CHECK(::mkdtemp(folder.data()) != nullptr, folder);
  for (const char* port : {"mlx5_1/ports/1", "mlx5_0/ports/2", "mlx5_0/ports/1"}) {
    std::filesystem::create_directories(folder + "/" + port);
  }
  EXPECT_EQ(DevicesAt("127.0.0.1", folder), "lo,mlx5_0:1,mlx5_0:2,mlx5_1:1");
  EXPECT_EQ(DevicesAt("node-a.invalid", folder), "");
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace headrace::transport

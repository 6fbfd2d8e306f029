#include "service/config/notify.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstring>
#include <string>

#include "ipc/base/fd.h"

namespace headrace::service {
namespace {

// Stands where systemd would: an abstract socket, which leaves nothing behind.
UniqueFd Listen(const std::string& name) {
  UniqueFd socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  EXPECT_EQ(::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), size), 0);
  return socket;
}

TEST(Notify, TellsTheSocketThatIsNamed) {
  const std::string name = "headrace-notify-" + std::to_string(::getpid());
  const UniqueFd socket = Listen(name);
  ASSERT_TRUE(NotifySystemd("@" + name, "READY=1"));
  std::array<char, 32> told{};
  ASSERT_EQ(::recv(socket.get(), told.data(), told.size(), 0), 7);
  EXPECT_STREQ(told.data(), "READY=1");
}

TEST(Notify, NamesTheSocketThatDoesNotAnswer) {
  const Status status = NotifySystemd("@headrace-nobody-is-there", "READY=1");
  ASSERT_FALSE(status);
  EXPECT_NE(status.error().text().find("@headrace-nobody-is-there"), std::string::npos);
}

TEST(Notify, RefusesWhatIsNoSocketsName) {
  EXPECT_EQ(NotifySystemd("vsock:2:1234", "READY=1").error().code(), Code::kInvalidArgument);
  EXPECT_EQ(NotifySystemd("", "READY=1").error().code(), Code::kInvalidArgument);
}

TEST(Notify, ReadsHowLongTheWatchdogWaits) {
  EXPECT_EQ(WatchdogPatience("30000000").value(), 30 * kSecond);
  EXPECT_EQ(WatchdogPatience("1").value(), kMicrosecond);
}

TEST(Notify, RefusesWhatIsNoTimeOfAWatchdog) {
  for (const char* text :
       {"", "0", "-1", "30s", "30000000 ", "86400000001", "18446744073709551616"}) {
    const Result<TimeNs> patience = WatchdogPatience(text);
    ASSERT_FALSE(patience) << text;
    EXPECT_NE(patience.error().text().find(text), std::string::npos);
  }
}

}  // namespace
}  // namespace headrace::service

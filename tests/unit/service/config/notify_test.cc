#include "service/notify.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <array>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <string>

#include "ipc/base/fd.h"

namespace headrace::service {
namespace {

// Stands where systemd would.
class Notify : public testing::Test {
 protected:
  void TearDown() override { ::unsetenv("NOTIFY_SOCKET"); }

  // An abstract socket, which leaves nothing behind.
  UniqueFd Listen(const std::string& name) {
    UniqueFd socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path + 1, name.data(), name.size());
    const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
    EXPECT_EQ(::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), size), 0);
    ::setenv("NOTIFY_SOCKET", ("@" + name).c_str(), 1);
    return socket;
  }
};

TEST_F(Notify, SaysNothingWhereNobodyAsked) {
  ::unsetenv("NOTIFY_SOCKET");
  EXPECT_TRUE(NotifySystemd("READY=1"));
}

TEST_F(Notify, TellsTheSocketThatIsNamed) {
  const UniqueFd socket = Listen("headrace-notify-" + std::to_string(::getpid()));
  ASSERT_TRUE(NotifySystemd("READY=1"));
  std::array<char, 32> told{};
  ASSERT_EQ(::recv(socket.get(), told.data(), told.size(), 0), 7);
  EXPECT_STREQ(told.data(), "READY=1");
}

TEST_F(Notify, NamesTheSocketThatDoesNotAnswer) {
  ::setenv("NOTIFY_SOCKET", "@headrace-nobody-is-there", 1);
  const Status status = NotifySystemd("READY=1");
  ASSERT_FALSE(status);
  EXPECT_NE(status.error().text().find("@headrace-nobody-is-there"), std::string::npos);
}

TEST_F(Notify, RefusesWhatIsNoSocketsName) {
  ::setenv("NOTIFY_SOCKET", "vsock:2:1234", 1);
  EXPECT_EQ(NotifySystemd("READY=1").error().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace headrace::service

// Who is at the other end of a socket, and whether that process is still the same one.
#include "service/rpc/client_process.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>

#include "ipc/base/fd.h"

namespace headrace::service {
namespace {

ClientProcess Self() {
  std::array<int, 2> ends{};
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
  const UniqueFd one(ends[0]);
  const UniqueFd other(ends[1]);
  return ClientProcessOf(one.get()).value();
}

TEST(ClientProcess, IsWhomTheKernelNames) {
  const ClientProcess self = Self();
  EXPECT_EQ(self.uid, ::geteuid());
  EXPECT_EQ(self.pid, ::getpid());
  EXPECT_GT(self.started_ticks, 0U);
  EXPECT_FALSE(HasExited(self));
}

// The pid is alive, but it is another process's by now: this one began at another time.
TEST(ClientProcess, HasExitedWhenItsPidIsUsedAgain) {
  ClientProcess earlier = Self();
  earlier.started_ticks -= 1;
  EXPECT_TRUE(HasExited(earlier));
}

TEST(ClientProcess, HasExitedWhenItIsAZombieAndWhenItIsGone) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  ASSERT_GT(child, 0);
  siginfo_t ended{};
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(child), &ended, WEXITED | WNOWAIT), 0);
  ClientProcess process = Self();
  process.pid = child;
  EXPECT_TRUE(HasExited(process));
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_TRUE(HasExited(process));
}

TEST(ClientProcess, IsNotBelievedDeadWhereItsPidCannotBeSeen) {
  EXPECT_FALSE(HasExited(ClientProcess{.pid = 0}));
}

}  // namespace
}  // namespace headrace::service

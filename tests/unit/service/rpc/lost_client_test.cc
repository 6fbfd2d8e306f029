// The lease: whatever way a client goes, dispatch hears of it at once, with the cause, and nothing
// of it stays.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <iterator>
#include <string>

#include "tests/support/open_descriptors.h"
#include "tests/unit/service/rpc/caller.h"
#include "tests/unit/service/rpc/stand.h"

extern char** environ;

namespace headrace::support {
namespace {

void ExpectLost(ControlStand& stand, const std::string& cause) {
  // Within a second, on a machine that is not busy; nothing here waits for any time-out.
  ASSERT_TRUE(stand.dispatch().WaitFor<service::CloseSession>(1));
  stand.dispatch().Visit<service::CloseSession>(0, [&cause](const service::CloseSession& closed) {
    EXPECT_FALSE(closed.orderly);
    EXPECT_EQ(closed.cause, cause);
  });
}

TEST(LostClient, ClosingTheConnectionEndsTheLease) {
  CallerLoop loop;
  ControlStand stand;
  {
    Caller caller(loop, stand.socket_path());
    const Attached attached = caller.Attach({});
    ASSERT_EQ(attached.code, Code::kOk);
  }
  ExpectLost(stand, "closed its connection");
}

TEST(LostClient, DroppingTheSessionEndsTheLease) {
  CallerLoop loop;
  ControlStand stand;
  Caller caller(loop, stand.socket_path());
  caller.Attach({});
  // The answer was dropped, and its release goes out with the next message.
  EXPECT_EQ(caller.Attach({.job = "next", .rank = 0}).code, Code::kOk);
  ExpectLost(stand, "closed its connection");
}

TEST(LostClient, ClosingWhileASegmentIsMappedEndsTheLeaseAtOnce) {
  CallerLoop loop;
  ControlStand stand({.map_segments = false});
  const auto memory = ipc::CreateSealedMemory("segment", ipc::kPageSize).value();
  {
    Caller caller(loop, stand.socket_path());
    Attached attached = caller.Attach({});
    auto request = attached.session.registerSegmentRequest();
    request.setMemory(Carry(memory.fd.get()));
    request.setSize(ipc::kPageSize);
    auto pending = request.send();
    loop.io.provider->getTimer().afterDelay(50 * kj::MILLISECONDS).wait(loop.io.waitScope);
  }
  ExpectLost(stand, "closed its connection");
}

TEST(LostClient, KillingTheProcessEndsTheLeaseWithinASecond) {
  ControlStand stand;
  std::array<int, 2> output{};
  ASSERT_EQ(::pipe2(output.data(), O_CLOEXEC), 0);
  const UniqueFd read_end(output[0]);
  UniqueFd write_end(output[1]);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, write_end.get(), STDOUT_FILENO);
  std::string program = ATTACH_AND_WAIT;
  std::string path = stand.socket_path();
  std::string rank = "1";
  std::array<char*, 4> arguments{program.data(), path.data(), rank.data(), nullptr};
  pid_t pid = 0;
  ASSERT_EQ(::posix_spawn(&pid, program.c_str(), &actions, nullptr, arguments.data(), environ), 0);
  ::posix_spawn_file_actions_destroy(&actions);
  write_end.reset();
  std::array<char, 256> line{};
  ASSERT_GT(::read(read_end.get(), line.data(), line.size() - 1), 0);
  EXPECT_STREQ(line.data(), "attached\n");
  ASSERT_EQ(::kill(pid, SIGKILL), 0);
  ExpectLost(stand, "exited or was killed");
  EXPECT_EQ(::waitpid(pid, nullptr, 0), pid);
}

TEST(LostClient, LeavesTheRankFreeAndNoDescriptorAfterAThousandRounds) {
  CallerLoop loop;
  ControlStand stand;
  const auto round = [&loop, &stand](int number) {
    Caller caller(loop, stand.socket_path());
    Attached attached = caller.Attach({});
    ASSERT_EQ(attached.code, Code::kOk) << number << ": " << attached.text;
    // Every other client goes without a word.
    if (number % 2 == 0) {
      ASSERT_EQ(caller.Leave(attached.session).code, Code::kOk);
    }
  };
  const auto settle = [&stand](std::size_t closed) {
    ASSERT_TRUE(stand.dispatch().WaitFor<service::CloseSession>(closed));
    stand.dispatch().Clear();
  };
  round(1);
  settle(1);
  const std::size_t before = OpenDescriptors();
  for (int number = 0; number < 1000; ++number) {
    round(number);
    settle(1);
  }
  // The last connection's socket is closed some turns of control's loop after its lease ended.
  for (int i = 0; i < 100 && OpenDescriptors() > before; ++i) {
    loop.io.provider->getTimer().afterDelay(10 * kj::MILLISECONDS).wait(loop.io.waitScope);
  }
  EXPECT_LE(OpenDescriptors(), before);
}

}  // namespace
}  // namespace headrace::support

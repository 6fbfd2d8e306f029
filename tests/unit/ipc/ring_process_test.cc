// The ring, the completion words and the doorbell between two processes, as they are used: the
// client creates the channel, the service opens it from the descriptor.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>

#include "ipc/channel.h"
#include "ipc/completion.h"
#include "ipc/ring_reader.h"
#include "ipc/ring_writer.h"

namespace headrace::ipc {
namespace {

constexpr std::uint64_t kRecordsPassed = 10'000;

// A small service: reads `kRecordsPassed`, fails every 100th, sleeps on the doorbell when it runs
// dry. Returns the exit status of its process.
int Serve(int channel_fd, int doorbell) {
  Result<Channel> channel = Channel::Open(channel_fd);
  if (!channel) return 2;
  RingReader ring(channel->layout());
  CompletionWriter completions(channel->layout());
  for (std::uint64_t sequence = 1; sequence <= kRecordsPassed;) {
    Result<std::optional<Record>> read = ring.Read();
    if (!read) return 3;
    if (read->has_value()) {
      if (read->value().count != sequence) return 4;
      const bool fails = sequence % 100 == 0;
      completions.End(sequence, fails ? Code::kTimeout : Code::kOk,
                      fails ? "number " + std::to_string(sequence) : "");
      ++sequence;
    } else if (ring.PrepareToSleep()) {
      pollfd wait{.fd = doorbell, .events = POLLIN, .revents = 0};
      if (::poll(&wait, 1, 30'000) != 1) return 5;
      std::uint64_t rings = 0;
      if (::read(doorbell, &rings, sizeof rings) != sizeof rings) return 6;
      ring.Awake();
    }
  }
  return 0;
}

TEST(RingBetweenProcesses, DeliversEveryRecordOnceInOrderAndEveryOutcomeBack) {
  Result<Channel::Created> client = Channel::Create();
  ASSERT_TRUE(client.ok());
  UniqueFd doorbell(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  const pid_t service = ::fork();
  ASSERT_GE(service, 0);
  if (service == 0) ::_exit(Serve(client->fd.get(), doorbell.get()));

  RingWriter ring(client->channel.layout());
  CompletionReader completions(client->channel.layout());
  for (std::uint64_t sequence = 1; sequence <= kRecordsPassed; ++sequence) {
    while (!ring.HasRoom()) {
      ASSERT_TRUE(completions.Wait(sequence - kOperationsMax, 30 * kSecond)) << sequence;
    }
    if (ring.Write({.kind = 1, .count = sequence})) {
      const std::uint64_t one = 1;
      ASSERT_EQ(::write(doorbell.get(), &one, sizeof one), 8);
    }
    if (sequence % 50 != 0) continue;
    ASSERT_TRUE(completions.Wait(sequence, 30 * kSecond)) << sequence;
    const Outcome outcome = completions.Read(sequence);
    if (sequence % 100 == 0) {
      ASSERT_EQ(outcome.code, Code::kTimeout);
      ASSERT_EQ(outcome.text, "number " + std::to_string(sequence));
    } else {
      ASSERT_EQ(outcome.code, Code::kOk);
    }
  }
  int status = 0;
  ASSERT_EQ(::waitpid(service, &status, 0), service);
  EXPECT_EQ(status, 0) << "exit status " << WEXITSTATUS(status);
}

TEST(RingBetweenProcesses, ClientCanEndItsOperationsWhenTheServiceIsKilled) {
  Result<Channel::Created> client = Channel::Create();
  ASSERT_TRUE(client.ok());
  RingWriter ring(client->channel.layout());
  CompletionReader completions(client->channel.layout());
  const pid_t service = ::fork();
  ASSERT_GE(service, 0);
  if (service == 0) {
    Result<Channel> channel = Channel::Open(client->fd.get());
    if (channel.ok()) CompletionWriter(channel->layout()).End(1, Code::kOk, "");
    for (;;) ::pause();
  }
  for (int i = 0; i < 3; ++i) (void)ring.Write({.kind = 1});
  ASSERT_TRUE(completions.Wait(1, 30 * kSecond));
  ASSERT_EQ(::kill(service, SIGKILL), 0);
  ASSERT_EQ(::waitpid(service, nullptr, 0), service);
  EXPECT_FALSE(completions.Wait(3, 0));
  completions.EndAllOpen(3, Code::kUnavailable);
  EXPECT_EQ(completions.Read(1).code, Code::kOk);
  EXPECT_TRUE(completions.Wait(3, 0));
  EXPECT_EQ(completions.Read(3).code, Code::kUnavailable);
}

}  // namespace
}  // namespace headrace::ipc

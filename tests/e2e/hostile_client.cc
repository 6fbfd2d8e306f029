// One user who takes what a service gives. Arguments: socket path, what to do, and numbers:
//   sparse BYTES      registers a memfd of which no page is allocated
//   large BYTES COUNT registers populated memory that large in so many sessions at once
//   seats             attaches jobs of one rank until it is refused
//   half COUNT        connections, each of which sends most of a message of 32 MiB
//   descriptors COUNT connections, each of which sends 253 descriptors and the start of a message
// Prints what came of it, and holds on to all of it until standard input ends.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "ipc/base/check.h"
#include "ipc/sealed_memory.h"
#include "tests/unit/service/rpc/caller.h"

namespace headrace {
namespace {

constexpr std::uint32_t kLargeWords = (4U << 20) - 1;
constexpr std::size_t kDescriptors = 253;

void Print(const support::Answered& answered) {
  std::printf("%s: %s\n", std::string(CodeName(answered.code)).c_str(), answered.text.c_str());
  std::fflush(stdout);
}

void Hold() {
  char byte = 0;
  while (::read(STDIN_FILENO, &byte, 1) > 0) continue;
}

void RegisterSparse(const std::string& path, std::size_t size) {
  support::CallerLoop loop;
  support::Caller caller(loop, path);
  support::Attached attached = caller.Attach({.job = "sparse"});
  if (attached.code != Code::kOk) return Print(attached);
  const ipc::SealedMemory memory = ipc::CreateSealedMemory("sparse", size).value();
  Print(caller.RegisterSegment(attached.session, memory.fd.get(), size));
  Hold();
}

void RegisterLarge(const std::string& path, std::size_t size, std::uint32_t count) {
  support::CallerLoop loop;
  ipc::SealedMemory memory = ipc::CreateSealedMemory("large", size).value();
  HR_CHECK(ipc::Populate(memory).ok(), size);
  std::vector<std::unique_ptr<support::Caller>> callers;
  std::vector<support::Attached> sessions;
  auto answers = kj::heapArrayBuilder<kj::Promise<void>>(count);
  for (std::uint32_t rank = 0; rank < count; ++rank) {
    callers.push_back(std::make_unique<support::Caller>(loop, path));
    sessions.push_back(callers.back()->Attach({.job = "large", .rank = rank, .world_size = count}));
    auto call = sessions.back().session.registerSegmentRequest();
    call.setMemory(support::Carry(memory.fd.get()));
    call.setSize(size);
    answers.add(call.send().ignoreResult());
  }
  kj::Timer& timer = loop.io.provider->getTimer();
  timer.afterDelay(20 * kj::MILLISECONDS).wait(loop.io.waitScope);
  std::printf("registering\n");
  std::fflush(stdout);
  kj::joinPromises(answers.finish()).wait(loop.io.waitScope);
  std::printf("registered\n");
  std::fflush(stdout);
  Hold();
}

void TakeSeats(const std::string& path) {
  support::CallerLoop loop;
  std::vector<std::unique_ptr<support::Caller>> callers;
  std::vector<support::Attached> sessions;
  do {
    callers.push_back(std::make_unique<support::Caller>(loop, path));
    sessions.push_back(callers.back()->Attach(
        {.job = "job" + std::to_string(callers.size()) + "-" + std::to_string(::getuid()),
         .world_size = 2}));
  } while (sessions.back().code == Code::kOk);
  std::printf("%zu ", sessions.size() - 1);
  Print(sessions.back());
  Hold();
}

// Most of a large message, as far as the service reads it.
void SendHalf(const std::string& path, int count) {
  std::vector<UniqueFd> connections;
  const std::vector<char> bytes(std::size_t{31} << 20);
  const std::array<std::uint32_t, 2> table{0, kLargeWords};
  std::size_t sent = 0;
  for (int i = 0; i < count; ++i) {
    connections.push_back(support::ConnectTo(path));
    const int fd = connections.back().get();
    const timeval patience{.tv_sec = 1, .tv_usec = 0};
    ::setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    ssize_t size = ::send(fd, table.data(), sizeof table, MSG_NOSIGNAL);
    for (std::size_t at = 0; size > 0 && at < bytes.size(); at += static_cast<std::size_t>(size)) {
      sent += static_cast<std::size_t>(size);
      size = ::send(fd, bytes.data() + at, bytes.size() - at, MSG_NOSIGNAL);
    }
  }
  std::printf("%zu bytes\n", sent);
  std::fflush(stdout);
  Hold();
}

void SendDescriptors(const std::string& path, int count) {
  std::vector<UniqueFd> connections;
  for (int i = 0; i < count; ++i) {
    connections.push_back(support::ConnectTo(path));
    std::array<int, kDescriptors> passed{};
    passed.fill(STDOUT_FILENO);
    std::array<std::uint32_t, 3> bytes{0, 100, 0};
    iovec piece{.iov_base = bytes.data(), .iov_len = sizeof bytes};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof passed)> control{};
    msghdr message{};
    message.msg_iov = &piece;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof passed);
    std::memcpy(CMSG_DATA(header), passed.data(), sizeof passed);
    HR_CHECK(::sendmsg(connections.back().get(), &message, MSG_NOSIGNAL) == sizeof bytes, errno);
  }
  std::printf("%d connections\n", count);
  std::fflush(stdout);
  Hold();
}

int Run(int count, char** arguments) {
  const std::string path = count > 1 ? arguments[1] : "";
  const std::string what = count > 2 ? arguments[2] : "";
  const long long number = count > 3 ? std::atoll(arguments[3]) : 0;
  if (what == "sparse") {
    RegisterSparse(path, static_cast<std::size_t>(number));
  } else if (what == "large") {
    RegisterLarge(path, static_cast<std::size_t>(number),
                  static_cast<std::uint32_t>(count > 4 ? std::atoi(arguments[4]) : 1));
  } else if (what == "seats") {
    TakeSeats(path);
  } else if (what == "half") {
    SendHalf(path, static_cast<int>(number));
  } else if (what == "descriptors") {
    SendDescriptors(path, static_cast<int>(number));
  } else {
    return 2;
  }
  return 0;
}

}  // namespace
}  // namespace headrace

int main(int count, char** arguments) { return headrace::Run(count, arguments); }

// One user who takes what a service gives. Arguments: socket path, what to do, and numbers:
//   sparse BYTES      registers a memfd of which no page is allocated
//   seats             attaches jobs of one rank until it is refused
//   half COUNT        connections, each of which sends most of a message of 32 MiB
//   descriptors COUNT connections, each of which sends 253 descriptors and the start of a message
// Prints what came of it, and holds on to all of it until standard input ends. Until it is killed:
//   quorums RENDEZVOUS  asks who is left of one job after another, on 16 connections
//   visits RENDEZVOUS   attaches one job of one rank after another, and leaves it
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
constexpr std::size_t kQuestionsAtOnce = 16;

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

// As many services as a job may have, none of which is there.
std::string PlacesOfNobody() {
  std::string places;
  for (int i = 1; i <= 64; ++i) {
    places += "n" + std::to_string(i) + " 127.0.0.1:" + std::to_string(i) + "\n";
  }
  return places;
}

// Each question is of a job that nobody else knows. So it is decided at once, or, of every other
// one, as soon as none of the services that it names could be reached.
kj::Promise<void> AskWhoIsLeft(support::Caller& caller, const std::string& rendezvous,
                               std::uint64_t number) {
  auto call = caller.bootstrap().joinQuorumRequest();
  call.getHello().setProtocolVersion(schema::PROTOCOL_VERSION);
  auto request = call.getRequest();
  request.setJob("asked" + std::to_string(::getpid()) + "-" + std::to_string(number));
  request.setRendezvous(rendezvous);
  request.getMembership().initMembers(1).set(0, 0);
  request.setAfterEpoch(1);
  request.setMinWorld(1);
  static const std::string places = PlacesOfNobody();
  if (number % 2 == 0) request.setPlaces(places);
  return call.send().ignoreResult();
}

void FloodQuorums(const std::string& path, const std::string& rendezvous) {
  support::CallerLoop loop;
  std::array<std::unique_ptr<support::Caller>, kQuestionsAtOnce> callers;
  for (std::uint64_t number = 0;;) {
    auto answers = kj::heapArrayBuilder<kj::Promise<void>>(callers.size());
    for (std::unique_ptr<support::Caller>& caller : callers) {
      if (caller == nullptr) caller = std::make_unique<support::Caller>(loop, path);
      // A connection that was closed is replaced.
      answers.add(AskWhoIsLeft(*caller, rendezvous, ++number).catch_([&caller](kj::Exception&&) {
        caller.reset();
      }));
    }
    kj::joinPromises(answers.finish()).wait(loop.io.waitScope);
  }
}

void FloodVisits(const std::string& path, const std::string& rendezvous) {
  support::CallerLoop loop;
  for (std::uint64_t number = 0;; ++number) {
    support::Caller caller(loop, path);
    support::Attached attached =
        caller.Attach({.job = "visit" + std::to_string(::getpid()) + "-" + std::to_string(number),
                       .world_size = 1,
                       .rendezvous = rendezvous});
    if (attached.code == Code::kOk) caller.Leave(attached.session);
  }
}

int Run(int count, char** arguments) {
  const std::string path = count > 1 ? arguments[1] : "";
  const std::string what = count > 2 ? arguments[2] : "";
  const std::string text = count > 3 ? arguments[3] : "";
  const long long number = std::atoll(text.c_str());
  if (what == "sparse") {
    RegisterSparse(path, static_cast<std::size_t>(number));
  } else if (what == "seats") {
    TakeSeats(path);
  } else if (what == "half") {
    SendHalf(path, static_cast<int>(number));
  } else if (what == "descriptors") {
    SendDescriptors(path, static_cast<int>(number));
  } else if (what == "quorums") {
    FloodQuorums(path, text);
  } else if (what == "visits") {
    FloodVisits(path, text);
  } else {
    return 2;
  }
  return 0;
}

}  // namespace
}  // namespace headrace

int main(int count, char** arguments) { return headrace::Run(count, arguments); }

#include "tests/contract/memory/peer.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>

extern char** environ;  // NOLINT: POSIX names it so

namespace headrace::memory_contract {
namespace {

constexpr std::size_t kFdsMax = 16;
constexpr std::size_t kNumbersMax = 16;
constexpr std::size_t kPieceSize = std::size_t{64} << 10;

// A command and its answer, both ways the same form.
struct Message {
  Command command = Command::kRelease;
  Code code = Code::kOk;
  std::uint64_t value = 0;  // size or seed
  DeviceHandle handle;
  std::uint64_t fds_count = 0;
  std::uint64_t numbers_count = 0;
  std::array<std::uint64_t, kNumbersMax> numbers{};
  std::array<char, 512> text{};
};

Status Send(int socket, Message message, const std::vector<UniqueFd>& fds) {
  message.fds_count = fds.size();
  iovec bytes{&message, sizeof message};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kFdsMax * sizeof(int))> control{};
  msghdr header{};
  header.msg_iov = &bytes;
  header.msg_iovlen = 1;
  if (!fds.empty()) {
    header.msg_control = control.data();
    header.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
    cmsghdr* rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
    for (std::size_t i = 0; i < fds.size(); ++i) {
      const int fd = fds[i].get();
      std::memcpy(CMSG_DATA(rights) + i * sizeof(int), &fd, sizeof fd);
    }
  }
  if (::sendmsg(socket, &header, MSG_NOSIGNAL) < 0) return SystemError("send to the peer", errno);
  return {};
}

Status Receive(int socket, Message& message, std::vector<UniqueFd>& fds) {
  iovec bytes{&message, sizeof message};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kFdsMax * sizeof(int))> control{};
  msghdr header{};
  header.msg_iov = &bytes;
  header.msg_iovlen = 1;
  header.msg_control = control.data();
  header.msg_controllen = control.size();
  const ssize_t size = ::recvmsg(socket, &header, MSG_CMSG_CLOEXEC);
  if (size != static_cast<ssize_t>(sizeof message)) {
    return Error(Code::kPeerLost, "the other process has ended");
  }
  const cmsghdr* rights = CMSG_FIRSTHDR(&header);
  for (std::size_t i = 0; rights != nullptr && i < message.fds_count; ++i) {
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(rights) + i * sizeof(int), sizeof fd);
    fds.emplace_back(fd);
  }
  return {};
}

Result<Message> Ask(int socket, const Message& command, const std::vector<UniqueFd>& fds,
                    std::vector<UniqueFd>& received) {
  if (auto done = Send(socket, command, fds); !done) return done.error();
  Message answer;
  if (auto done = Receive(socket, answer, received); !done) return done.error();
  if (answer.code != Code::kOk) return Error(answer.code, answer.text.data());
  return answer;
}

Status SendCommand(int socket, Command command, std::uint64_t value) {
  std::vector<UniqueFd> none;
  Message message;
  message.command = command;
  message.value = value;
  const auto answer = Ask(socket, message, {}, none);
  return answer ? Status() : Status(answer.error());
}

std::byte PatternAt(std::uint64_t place, std::uint64_t seed) {
  return static_cast<std::byte>((place * 2654435761U + seed * 40503U) >> 13);
}

// What the peer does with a command; the grant in `out` goes back with the answer.
Status Obey(Subject& subject, std::unique_ptr<Reachable>& memory, Message& message,
            std::vector<UniqueFd> in, std::vector<UniqueFd>& out) {
  if (!memory && (message.command == Command::kFill || message.command == Command::kMatches)) {
    return Error(Code::kNotFound, "the peer has no memory");
  }
  switch (message.command) {
    case Command::kAllocate: {
      auto made = subject.Allocate(message.value);
      if (!made) return made.error();
      memory = std::move(*made);
      auto grant = memory->Grant();
      if (!grant) return grant.error();
      message.handle = grant->handle;
      out = std::move(grant->fds);
      return {};
    }
    case Command::kImport: {
      auto imported = subject.Import({message.handle, std::move(in)});
      if (!imported) return imported.error();
      memory = std::move(*imported);
      return {};
    }
    case Command::kFill:
      return FillWithPattern(*memory, message.value);
    case Command::kMatches:
      return MatchesPattern(*memory, message.value);
    case Command::kRelease:
      memory = nullptr;
      return {};
    case Command::kHeld: {
      const auto held = subject.Held();
      message.numbers_count = std::min(held.size(), kNumbersMax);
      std::copy_n(held.begin(), message.numbers_count, message.numbers.begin());
      return {};
    }
  }
  return Error(Code::kInvalidArgument, "no such command");
}

}  // namespace

Status FillWithPattern(Reachable& memory, std::uint64_t seed) {
  std::vector<std::byte> piece(kPieceSize);
  for (std::uint64_t at = 0; at < memory.size(); at += piece.size()) {
    const std::size_t size = std::min<std::uint64_t>(piece.size(), memory.size() - at);
    for (std::size_t i = 0; i < size; ++i) piece[i] = PatternAt(at + i, seed);
    if (auto done = memory.Write(at, std::span(piece).first(size)); !done) return done;
  }
  return {};
}

Status MatchesPattern(Reachable& memory, std::uint64_t seed) {
  std::vector<std::byte> piece(kPieceSize);
  for (std::uint64_t at = 0; at < memory.size(); at += piece.size()) {
    const std::size_t size = std::min<std::uint64_t>(piece.size(), memory.size() - at);
    if (auto done = memory.Read(at, std::span(piece).first(size)); !done) return done;
    for (std::size_t i = 0; i < size; ++i) {
      if (piece[i] == PatternAt(at + i, seed)) continue;
      return Error(Code::kMismatch, "byte " + std::to_string(at + i) + " is another");
    }
  }
  return {};
}

int RunPeer(const std::string& kind, int socket) {
  const UniqueFd mine(socket);
  auto subject = MakeSubject(kind);
  if (!subject) {
    std::fprintf(stderr, "peer: %s\n", subject.error().text().c_str());
    return 1;
  }
  std::unique_ptr<Reachable> memory;
  for (;;) {
    Message message;
    std::vector<UniqueFd> in;
    if (!Receive(socket, message, in).ok()) return 0;
    std::vector<UniqueFd> out;
    const Status done = Obey(**subject, memory, message, std::move(in), out);
    message.code = done.code();
    if (!done) done.error().text().copy(message.text.data(), message.text.size() - 1);
    if (!Send(socket, message, out).ok()) return 0;
  }
}

Peer::Peer(const std::string& kind, const std::vector<std::string>& variables) {
  int ends[2];
  HR_CHECK(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0, errno);
  socket_ = UniqueFd(ends[0]);
  const UniqueFd theirs(::fcntl(ends[1], F_DUPFD, 100));  // survives the exec
  ::close(ends[1]);
  std::string program = "/proc/self/exe";
  std::string command = "--memory-peer";
  std::string name = kind;
  std::string fd = std::to_string(theirs.get());
  char* arguments[] = {program.data(), command.data(), name.data(), fd.data(), nullptr};
  std::vector<std::string> own = variables;
  std::vector<char*> environment;
  for (std::string& variable : own) environment.push_back(variable.data());
  for (char** variable = environ; *variable != nullptr; ++variable)
    environment.push_back(*variable);
  environment.push_back(nullptr);
  const int failed =
      ::posix_spawn(&pid_, program.c_str(), nullptr, nullptr, arguments, environment.data());
  HR_CHECK(failed == 0, failed);
}

Peer::~Peer() {
  socket_.reset();
  if (pid_ != 0) ::waitpid(pid_, nullptr, 0);
}

void Peer::Kill() {
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
  pid_ = 0;
}

Result<DeviceGrant> Peer::Allocate(std::uint64_t size) {
  Message message;
  message.command = Command::kAllocate;
  message.value = size;
  DeviceGrant grant;
  const auto answer = Ask(socket_.get(), message, {}, grant.fds);
  if (!answer) return answer.error();
  grant.handle = answer->handle;
  return grant;
}

Status Peer::Import(const DeviceGrant& grant) {
  Message message;
  message.command = Command::kImport;
  message.handle = grant.handle;
  std::vector<UniqueFd> none;
  const auto answer = Ask(socket_.get(), message, grant.fds, none);
  return answer ? Status() : Status(answer.error());
}

Status Peer::Fill(std::uint64_t seed) { return SendCommand(socket_.get(), Command::kFill, seed); }
Status Peer::Matches(std::uint64_t seed) {
  return SendCommand(socket_.get(), Command::kMatches, seed);
}
Status Peer::Release() { return SendCommand(socket_.get(), Command::kRelease, 0); }

Result<std::vector<std::uint64_t>> Peer::Held() {
  Message message;
  message.command = Command::kHeld;
  std::vector<UniqueFd> none;
  const auto answer = Ask(socket_.get(), message, {}, none);
  if (!answer) return answer.error();
  return std::vector(answer->numbers.begin(),
                     answer->numbers.begin() + static_cast<std::ptrdiff_t>(answer->numbers_count));
}

}  // namespace headrace::memory_contract

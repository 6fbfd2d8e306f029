// Another process that allocates, imports, reads and writes when it is told: this program, started
// anew, since a driver does not survive a fork. It ends with its socket.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tests/contract/memory/subject.h"

namespace headrace::memory_contract {

enum class Command : std::uint32_t { kAllocate, kImport, kFill, kMatches, kRelease, kHeld };

class Peer {
 public:
  // `variables`: "NAME=value", on top of this process's environment.
  explicit Peer(const std::string& kind, const std::vector<std::string>& variables = {});
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;
  ~Peer();

  // Each does it to the one memory that the peer has.
  Result<DeviceGrant> Allocate(std::uint64_t size);
  Status Import(const DeviceGrant& grant);
  Status Fill(std::uint64_t seed);     // with Pattern
  Status Matches(std::uint64_t seed);  // kMismatch names the first byte that is another
  Status Release();
  Result<std::vector<std::uint64_t>> Held();

  void Kill();  // -9, and waits for its end

 private:
  UniqueFd socket_;
  pid_t pid_ = 0;
};

// main() of the peer's process.
int RunPeer(const std::string& kind, int socket);

// Fills memory with bytes that tell their place, and checks them.
Status FillWithPattern(Reachable& memory, std::uint64_t seed);
Status MatchesPattern(Reachable& memory, std::uint64_t seed);

}  // namespace headrace::memory_contract

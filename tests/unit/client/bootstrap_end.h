// A service's socket played by a thread of the test: answers what it is told to answer.
#pragma once

#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ipc/base/device_handle.h"
#include "ipc/base/fd.h"
#include "ipc/base/result.h"

namespace headrace::client {

// How the bootstrap behaves; fixed before it starts.
struct Manners {
  Status refusal;                   // of attach and of every later call
  bool refuse_calls = false;        // the refusal is for later calls only
  bool silent = false;              // takes attach and never answers
  bool silent_pings = false;        // never answers pings
  std::uint32_t timeout_ms = 1500;  // of operations, as granted
  // How often registerSegment says that it has got on, and then no more; the answer comes
  // after `answers_after` questions.
  int gets_on = 0;
  int answers_after = 0;
  std::string places{};  // of the job's services, as the first notice
};

// A unix socket at `path` that listens and says nothing.
UniqueFd ListenAt(const std::string& path);

class BootstrapEnd {
 public:
  // Listens on a fresh path under the test's temporary folder.
  explicit BootstrapEnd(Manners manners);
  ~BootstrapEnd();

  const std::string& path() const { return path_; }

  // Closes every connection, as a killed service would; the path stays.
  void Vanish();

  // What clients said, under the thread's eyes until the call that said it has returned.
  struct Seen {
    std::uint32_t rank = 0;
    std::string program;
    std::string rendezvous;
    std::string architecture;
    std::uint64_t channel_size = 0;
    std::uint64_t segment_size = 0;
    std::uint64_t tensors = 0;
    DeviceHandle handle;                     // of GPU memory
    std::vector<std::uint64_t> piece_sizes;  // of the files that came with it
    std::string layout;                      // "first count reduction policy"
    bool left = false;
    int pings = 0;
  };
  Seen seen() const;

 private:
  struct Thread;
  std::string path_;
  std::unique_ptr<Thread> thread_;
};

}  // namespace headrace::client

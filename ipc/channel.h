// The shared memory of one session: header, completion words, ready words, error texts, submission
// ring.
//
// The client creates it (a sealed memfd, so the memory is charged to the client), the service
// verifies and maps it. The client writes records and its own header words, the service writes
// completion words, error texts and its own header words. Neither trusts what the other wrote.
// Ready words are written for the client by its GPU's streams, which also wait on completion words;
// both stand on pages of their own, which a client may pin for its GPU.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "ipc/base/check.h"
#include "ipc/base/fd.h"
#include "ipc/base/result.h"
#include "ipc/records.h"
#include "ipc/sealed_memory.h"

namespace headrace::ipc {

inline constexpr std::uint64_t kChannelMagic = 0x314e414843445248;  // "HRDCHAN1"
inline constexpr std::uint32_t kChannelVersion = 5;
inline constexpr std::uint32_t kErrorTextsMax = 64;
inline constexpr std::size_t kErrorTextSize = 512;

struct ChannelHeader {
  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t operations_max;
  std::uint64_t size;
  std::uint8_t reserved0[40];
  // Service -> client: 1 while the dispatch actor sleeps; the client that takes it to 0 rings the
  // doorbell. On its own cache line, as is each word below.
  alignas(64) std::atomic<std::uint32_t> service_sleeps;
  // Client -> service: threads of the client that sleep on a completion word. While it is 0 the
  // service ends operations without a system call.
  alignas(64) std::atomic<std::uint32_t> client_waiters;
  // Client -> service: for how long its threads have waited for operations in this session. What
  // they have not is their own time, by which ranks that are slow are found. Informative.
  std::atomic<std::uint64_t> client_waited_ns;
  // Client -> service: waits in other sessions of the process are counted in client_waited_ns, too.
  // 0: they are not; else 1 + the number of threads that are in such a wait. Informative.
  std::atomic<std::uint32_t> client_waits_elsewhere;
};
static_assert(sizeof(ChannelHeader) == 192 && offsetof(ChannelHeader, client_waited_ns) == 136);
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

// Written by the service before the completion word that points at it. `sequence` tells a late
// reader that the entry has been used again for a newer error.
struct ErrorText {
  std::atomic<std::uint64_t> sequence;
  char text[kErrorTextSize - 8];  // UTF-8, ends in NUL
};
static_assert(sizeof(ErrorText) == kErrorTextSize);

struct ChannelLayout {
  ChannelHeader header;
  alignas(kPageSize) std::atomic<std::uint64_t> words[kOperationsMax];
  // That of slot n: the number of the latest record in it whose memory is ready. Read for records
  // with kRecordAwaitsWord only.
  alignas(kPageSize) std::atomic<std::uint64_t> ready[kOperationsMax];
  alignas(kPageSize) ErrorText texts[kErrorTextsMax];
  alignas(kPageSize) Record records[kOperationsMax];
};
static_assert(offsetof(ChannelLayout, words) == 4096);
static_assert(offsetof(ChannelLayout, ready) == 12288);
static_assert(offsetof(ChannelLayout, texts) == 20480);
static_assert(offsetof(ChannelLayout, records) == 53248);
inline constexpr std::size_t kChannelSize = sizeof(ChannelLayout);
static_assert(kChannelSize == 118784 && kChannelSize % kPageSize == 0);

// A mapped channel, at either end.
class Channel {
 public:
  // Client side: creates and initialises the memory; the fd is for the service.
  struct Created;
  static Result<Created> Create();
  // Service side: verifies seals, size and header, then maps. Keeps no fd.
  static Result<Channel> Open(int fd);

  ChannelLayout& layout() const {
    HR_CHECK(mapping_.size() == kChannelSize, mapping_.size());  // it was not moved away
    return *reinterpret_cast<ChannelLayout*>(mapping_.data());
  }

 private:
  explicit Channel(Mapping mapping) : mapping_(std::move(mapping)) {}
  Mapping mapping_;
};

struct Channel::Created {
  Channel channel;
  UniqueFd fd;
};

}  // namespace headrace::ipc

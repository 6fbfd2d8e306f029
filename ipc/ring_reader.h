// The service's end of the submission ring. Trusts nothing in it.
#pragma once

#include <cstdint>
#include <optional>

#include "ipc/base/result.h"
#include "ipc/channel.h"

namespace headrace::ipc {

class RingReader {
 public:
  explicit RingReader(ChannelLayout& layout) : layout_(layout) {}

  std::uint64_t next_sequence() const { return next_; }

  // Whether a record (or garbage) is there to be read.
  bool HasRecord() const;

  // The next record, copied once; nothing when none is there. A commit word that no honest writer
  // stores gives kCorrupt; the ring is then of no further use.
  Result<std::optional<Record>> Read();

  // Before sleeping: asks the writer to ring the doorbell. Returns false when a record arrived in
  // the meantime, i.e. when the service must not sleep.
  bool PrepareToSleep();
  // Afterwards, slept or not. Returns whether the writer rang meanwhile.
  bool Awake() { return layout_.header.service_sleeps.exchange(0) == 0; }

 private:
  std::uint64_t Commit() const;

  ChannelLayout& layout_;
  std::uint64_t next_ = 1;
};

}  // namespace headrace::ipc

// The client's end of the submission ring. One thread at a time (the client library holds a lock).
#pragma once

#include <cstdint>

#include "ipc/channel.h"

namespace headrace::ipc {

class RingWriter {
 public:
  explicit RingWriter(ChannelLayout& layout) : layout_(&layout) {}

  // The number the next operation will get.
  std::uint64_t next_sequence() const { return next_; }

  // Whether the next slot is free, i.e. the operation that used it last has ended.
  bool HasRoom() const;

  // Publishes `record` (its `commit` is overwritten) as operation next_sequence(). Requires
  // HasRoom(). Returns true when the service sleeps and this writer must ring the doorbell.
  [[nodiscard]] bool Write(Record record);

 private:
  ChannelLayout* layout_;  // never null; a pointer, so that another writer can take this place
  std::uint64_t next_ = 1;
};

}  // namespace headrace::ipc

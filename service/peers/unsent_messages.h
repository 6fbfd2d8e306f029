// The queue of messages of one link that wait until the other end has taken earlier ones. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>

#include "service/cluster/peer_messages.h"

namespace headrace::service {

inline constexpr std::size_t kUnsentMax = 16384;  // limit of waiting messages; more end the link
inline constexpr std::size_t kUnsentBytesMax = std::size_t{64} << 20;  // limit of their bytes

class UnsentMessages {
 public:
  // Times of iterations and hashes of blocks come for ever, and the leader can do without any of
  // them: while the queue is half full they are left out, so that a job whose ranks iterate fast
  // never ends a link that is slow for a moment, and with it the jobs of others.
  // What a node says of a question takes the place of what it said before.
  // False when more waits than may: the link ends.
  [[nodiscard]] bool Push(PeerMessage message);
  // Not on an empty queue.
  PeerMessage Pop();
  void Clear();

  bool empty() const { return messages_.empty(); }
  std::size_t size() const { return messages_.size(); }
  std::size_t bytes() const { return bytes_; }
  // How many go into one call: no more of them, and no more bytes unless the first alone has more.
  std::size_t CountOfCall(std::size_t messages_max, std::size_t bytes_max) const;

 private:
  struct Waiting {
    PeerMessage message;
    std::size_t bytes;
  };

  // What waits of the same question; null: nothing.
  Waiting* FindOlderReport(const PeerMessage& message);

  std::deque<Waiting> messages_;
  std::size_t bytes_ = 0;
};

}  // namespace headrace::service

// The messages of one channel that the other end does not have yet, and their numbers, which are 1,
// 2, ... in the order in which they were pushed. A message stays here, also while it is under way,
// until the other end acknowledges it; so whatever a broken connection has lost can be sent again.
// Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>

#include "ipc/base/result.h"
#include "service/cluster/peer_messages.h"

namespace headrace::service {

inline constexpr std::size_t kUnsentMax = 16384;  // limit of waiting messages; more end the channel
inline constexpr std::size_t kUnsentBytesMax = std::size_t{64} << 20;  // limit of their bytes

class UnsentMessages {
 public:
  // Times of iterations and hashes of blocks come for ever, and the leader can do without any of
  // them: while the queue is half full they are left out, so that a job whose ranks iterate fast
  // never ends a channel that is slow for a moment, and with it the jobs of others.
  // What a node says of a question takes the place of what it said before, unless that is under
  // way.
  // False when more waits than may: the channel ends.
  [[nodiscard]] bool Push(PeerMessage message);
  void Clear();

  bool empty() const { return messages_.empty(); }
  std::size_t size() const { return messages_.size(); }
  std::size_t bytes() const { return bytes_; }
  // How many go into one call: no more of them, and no more bytes unless the first alone has more.
  std::size_t CountOfCall(std::size_t messages_max, std::size_t bytes_max) const;
  // Number of the first that waits.
  std::uint64_t first() const { return acknowledged_ + 1; }
  // `index` counts from the first that waits.
  const PeerMessage& at(std::size_t index) const { return messages_.at(index).message; }
  // The first `count` are under way from now on.
  void MarkSent(std::size_t count);
  // The other end has all messages up to that number. One that it has said before changes nothing.
  // kCorrupt if so many were never sent.
  Status Acknowledge(std::uint64_t number);

 private:
  struct Waiting {
    PeerMessage message;
    std::size_t bytes;
  };

  // What waits of the same question and is not under way; null: nothing.
  Waiting* FindOlderReport(const PeerMessage& message);

  std::deque<Waiting> messages_;
  std::size_t bytes_ = 0;
  std::uint64_t acknowledged_ = 0;
  std::uint64_t sent_ = 0;  // the highest number that has been under way
};

// The numbers of the messages that have come from the other end of a channel. Pure.
class ReceivedNumbers {
 public:
  enum class Verdict : std::uint8_t {
    kNext,     // to be delivered, and counted now
    kAgain,    // was delivered before
    kMissing,  // those before it have not come
  };
  Verdict Note(std::uint64_t number) {
    if (number <= last_) return Verdict::kAgain;
    if (number != last_ + 1) return Verdict::kMissing;
    last_ = number;
    return Verdict::kNext;
  }
  std::uint64_t last() const { return last_; }

 private:
  std::uint64_t last_ = 0;
};

}  // namespace headrace::service

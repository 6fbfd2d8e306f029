// Messages that arrived early: for a transfer that is not posted here yet, or for a later round.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "transport/exchange/wire.h"

namespace headrace::transport {

struct Message {
  MessageHeader header;
  std::size_t size = 0;
  ArrivalId arrival = 0;
};

// What tells the messages of a group apart.
struct MessageName {
  std::uint64_t position = 0;
  std::uint32_t piece = 0;
  std::uint8_t round = 0;
  std::uint16_t sender = 0;
  friend bool operator==(const MessageName&, const MessageName&) = default;
};

inline MessageName NameOf(const MessageHeader& header) {
  return {header.position, header.piece, header.round, header.sender};
}

class HeldMessages {
 public:
  enum class Outcome : std::uint8_t { kHeld, kTwice, kFull };

  explicit HeldMessages(std::size_t messages_max) : messages_max_(messages_max) {
    messages_.reserve(messages_max);
  }

  Outcome Hold(const Message& message);
  std::optional<Message> Pop(const MessageName& name);
  std::optional<Message> PopAny();
  template <typename Visit>
  void ForEach(Visit visit) const {
    for (const Message& message : messages_) visit(message);
  }
  // The lowest position not below `floor` that a message is held of.
  std::optional<std::uint64_t> LowestPosition(std::uint64_t floor) const;

  std::size_t messages_max() const { return messages_max_; }

 private:
  Message PopAt(std::size_t index);

  std::size_t messages_max_;
  std::vector<Message> messages_;
};

}  // namespace headrace::transport

// The interface of the exchange to a network: messages are sent from the memory where their bytes
// are, and received into memory that the receiver chooses when a message is announced.
//
// Used by one thread. Every request ends in exactly one call of WireEvents, which is made only from
// inside Progress. Until then the request's memory belongs to the wire. Messages of one link may
// overtake each other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>

#include "ipc/base/clock.h"
#include "ipc/base/result.h"
#include "transport/network.h"

namespace headrace::transport {

// Goes before the bytes of every message. Read from the network: everything is checked.
struct MessageHeader {
  std::uint64_t key = 0;  // of the group
  std::uint32_t epoch = 0;
  std::uint32_t plan_version = 0;
  std::uint64_t position = 0;  // of the transfer
  // Elements of the transfer, of the block it is a share of, and of the operation. With what
  // follows they say what the sender believes to be doing (CollectiveSpec).
  std::uint64_t count = 0;
  std::uint64_t block_count = 0;
  std::uint64_t operation_count = 0;
  std::uint8_t kind = 0;  // Collective
  std::uint8_t dtype = 0;
  std::uint8_t reduction = 0;
  // Round of the piece's schedule. In a send, 1 marks the first piece, which may go before its
  // receive is known to be there.
  std::uint8_t round = 0;
  std::uint32_t root = 0;
  std::uint32_t piece = 0;
  std::uint16_t sender = 0;  // member number
  std::uint8_t codec = 0;    // the encoding of the bytes: Codec::Kind and its parameter
  std::uint8_t codec_parameter = 0;
  std::uint32_t divisor = 0;
  std::uint16_t root_rank = 0;  // rank within the root member, which may have several
  // Transfer::asked_codec, of what crosses as it is.
  std::uint8_t asked_codec = 0;
  std::uint8_t asked_codec_parameter = 0;
  std::uint64_t rows = 0;   // of a matrix that crosses as two factors
  std::uint64_t place = 0;  // Transfer::place, where servers sum
  // Used by a wire of several rails, else 0: the message's number on its link, and the number of
  // the first message that has not arrived in the other direction.
  std::uint64_t sequence = 0;
  std::uint64_t acknowledged = 0;
};
static_assert(sizeof(MessageHeader) == 104 && std::is_trivially_copyable_v<MessageHeader>);

using LinkId = std::uint32_t;
// An announced message that waits for Accept or Drop.
using ArrivalId = std::uint64_t;

class WireEvents {
 public:
  virtual ~WireEvents() = default;
  // A message of `size` bytes after its header has come. Exactly one Accept or Drop must follow,
  // now (from inside this call) or later.
  virtual void Announced(const MessageHeader& header, std::size_t size, ArrivalId arrival) = 0;
  // A Send has ended: its memory may change.
  virtual void Sent(std::uint64_t token, Code code) = 0;
  // An Accept has ended: the bytes are there when `code` is kOk.
  virtual void Received(std::uint64_t token, Code code) = 0;
  // Nothing will get through on this link any more. Its sends and the accepts of its messages end
  // with an error code, before or after this.
  virtual void LinkFailed(LinkId link, const std::string& cause) = 0;
  // What is sent over the link takes another rail from now on. Nothing ends by that.
  virtual void LinkMoved([[maybe_unused]] LinkId link, [[maybe_unused]] const LinkMove& move) {}
};

class Wire {
 public:
  virtual ~Wire() = default;

  virtual const std::string& address() const = 0;
  virtual std::string Names() const = 0;

  // Connects to the wire with that address, without waiting. kUnavailable when the address makes no
  // sense; that nobody answers is reported by LinkFailed. `key` is that of the group whose messages
  // go over the link, both ways: two links to one wire have two keys, and end apart. `member` is
  // the sender that the other end's headers name.
  virtual Result<LinkId> Connect(const std::string& address, std::uint64_t key,
                                 std::uint16_t member) = 0;
  // Ends the link at once: what is open on it ends with kCancelled, which is what was sent over it
  // and what was accepted with its key. A message that went at once and was accepted is here, and
  // ends as if the link had not been closed.
  virtual void Close(LinkId link) = 0;

  // Whether a message of that size leaves as soon as the link has room for it. The Send of another
  // ends only after its receiver has accepted or dropped it.
  virtual bool IsEager(std::size_t size) const = 0;
  // Sends header and `size` bytes at `bytes`; 0 is allowed. Never refuses: what the link cannot
  // take yet waits.
  virtual void Send(LinkId link, const MessageHeader& header, const std::byte* bytes,
                    std::size_t size, std::uint64_t token) = 0;
  // Puts the announced message's bytes to `memory`, which has room for all of them. `whole` is the
  // size of the array that they are a part of, if it is not read here right away, else 0: bytes of
  // a large one may be written past the caches.
  virtual void Accept(ArrivalId arrival, std::byte* memory, std::uint64_t token,
                      std::size_t whole) = 0;
  void Accept(ArrivalId arrival, std::byte* memory, std::uint64_t token) {
    Accept(arrival, memory, token, 0);
  }
  virtual void Drop(ArrivalId arrival) = 0;

  // Memory the wire can receive to and send from without further ado. Lives as long as the wire
  // unless given back. kExhausted when there is none.
  virtual Result<std::span<std::byte>> AllocateStaging(std::size_t size) = 0;
  virtual void FreeStaging(std::span<std::byte> memory) = 0;

  // The time of what follows, for wires that wait for something.
  virtual void AdvanceTo([[maybe_unused]] TimeNs now) {}
  // Messages that the wire dropped by itself since its birth: that no wire of this kind can have
  // sent, or that came a second time. Nobody was told of them.
  virtual std::uint64_t dropped_count() const = 0;
  // When Progress has something to do though nothing came.
  virtual TimeNs NextDeadline() const { return kNever; }
  // Moves what can be moved, calls `events`, returns whether there was anything to do.
  virtual bool Progress(WireEvents& events) = 0;
  // False when there is something to do already; else event_fd() becomes readable when there is.
  virtual bool PrepareToSleep() = 0;
  virtual int event_fd() const = 0;
};

}  // namespace headrace::transport

// The sums of servers whose inputs come encoded: decodes and adds what all nodes sent of a piece,
// and encodes the sum once more for all, with a residual of the server's own.
//
// Sums of randomk are sums of what the nodes sent, which nothing is left out of. Lossless sums have
// the bits of sums that are not encoded, and factors of powersgd are summed as they are: neither
// has a residual here. What was left out before comes with the next of them that says where its
// elements belong, as does an exact one.
//
// One of an exchange, on the lane's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "transport/exchange/collective_spec.h"
#include "transport/exchange/lossless_gain.h"
#include "transport/exchange/message_tail.h"
#include "transport/exchange/partition.h"
#include "transport/exchange/piece_fault.h"
#include "transport/exchange/served_residuals.h"

namespace headrace::transport {

// A piece whose messages have all come.
struct ServedPiece {
  std::uint32_t group = 0;
  std::uint32_t self = 0;  // the server's place among the members
  const CollectiveSpec& spec;
  Partition::Range range;
  // In the order of members, each with its tail where it has one. The first is written to.
  std::span<const std::span<std::byte>> messages;
};

class ServerSums {
 public:
  // `residuals` outlives it.
  explicit ServerSums(ServedResiduals& residuals) : residuals_(residuals) {}

  ServedResiduals& residuals() { return residuals_; }

  // Puts the encoded sum into the first message's memory and its size into `size`. The transfer is
  // encoded, and not as factors.
  std::optional<PieceFault> Sum(const ServedPiece& piece, LosslessGain& gain, double s_per_byte,
                                std::size_t& size);
  // Adds what was left out before to the first message. Of a transfer that is not encoded, of which
  // some message has a tail.
  std::optional<PieceFault> AddLeftOut(const ServedPiece& piece);

 private:
  std::optional<PieceFault> ReadTails(const ServedPiece& piece);
  std::optional<PieceFault> SumBlocks(const ServedPiece& piece);
  std::optional<PieceFault> SumLossless(const ServedPiece& piece, LosslessGain& gain,
                                        double s_per_byte, std::size_t& size);
  void AddKept(const ServedPiece& piece, float* values);
  // Counts that the sum was encoded; `keeps`: something may be left out of it, and kept.
  void NoteEncoded(const ServedPiece& piece, bool keeps);
  void MakeRoom(std::uint64_t count);

  ServedResiduals& residuals_;
  // For the piece in hand; grows to the largest one and is kept.
  std::vector<float> sum_;
  std::vector<float> residual_;
  MessageTail tail_;                                // what the nodes agree on
  std::vector<std::span<const std::byte>> bodies_;  // the messages without their tails
};

}  // namespace headrace::transport

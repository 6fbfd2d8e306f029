// Measures the costs of the codecs on this machine: encodes and decodes once at a service's start,
// on the calling thread, in memory of its own.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ipc/base/codec_cost.h"
#include "transport/exchange/message_tail.h"
#include "transport/exchange/partition.h"
#include "transport/exchange/wire.h"

namespace headrace::transport {

// For each codec with its default parameter, the quickest of a few times over values as gradients
// have them, of float32 that were not in a near cache before: what is measured while others
// compute is no cost of the codec. Decoding is of one encoding. Takes about 50 ms.
std::vector<CodecCost> MeasureCodecs();

// What a node of so many pays for a transfer: all is encoded once; it decodes what others sent of
// its share, and the sum of everything. Two nodes exchange, and each decodes what both sent. Where
// servers sum, it decodes the sum alone. A matrix that crosses as factors is made of them once.
CodecCost OfTransfer(const CodecCost& measured, std::uint32_t nodes_count,
                     std::uint32_t servers_count);

// Where servers sum: with their work, which goes on beside that of the nodes, as nodes' processors
// do it. Each decodes what all nodes sent of its share, and encodes the sum once more; factors, and
// what all nodes chose by the same chance, are summed as they are. Each message of a piece costs
// whoever sends or gets it.
CodecCost WithServers(const CodecCost& of_transfer, std::uint32_t nodes_count,
                      std::uint32_t servers_count);

// What goes with a piece where servers sum, and its share of the bytes that are not encoded: a
// codec of few bytes has many messages for them. Tails mostly say of one run.
inline constexpr double kServedHeaderShare =
    static_cast<double>(sizeof(MessageHeader)) / (kServedPieceCountMax * sizeof(float));
inline constexpr double kServedTailShare =
    static_cast<double>(kTailSizeMin + kTailRunSize) / (kServedPieceCountMax * sizeof(float));

// How many nodes own pieces of an encoded transfer without servers: among two that exchange, pieces
// have no owner and are cut as if for one.
constexpr std::uint32_t EncodedOwners(std::uint32_t nodes_count) {
  return nodes_count == 2 ? 1 : nodes_count;
}

// In how many pieces the exchange moves an encoded transfer of gradients; not whole.
double PiecesCount(double encoded_bytes, double plain_bytes, std::uint32_t nodes_count,
                   std::uint32_t servers_count);

}  // namespace headrace::transport

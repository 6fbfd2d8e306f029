// Digests of members' memory: 64 bits that show whether two members have the same bytes. They
// detect accidental differences, not malicious ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "transport/transport.h"

namespace headrace::transport {

// A digest is the sum of those of pieces of this many bytes, so that several threads can make it
// in any order. Nodes compare digests: all of them cut alike, wherever their runs have borders.
inline constexpr std::size_t kDigestPieceSize = std::size_t{128} << 10;

// Digests the elements [begin, end) of one member; `begin` goes in, so that pieces in another
// order have another sum. XXH3 of 64 bits, with `begin` as its seed.
std::uint64_t DigestPiece(const Transfer& transfer, std::uint32_t member, std::uint64_t begin,
                          std::uint64_t end);

// What the completion says of the members' digests, in their order.
void ReportDigests(std::span<const std::uint64_t> digests, Completion& completion);

}  // namespace headrace::transport

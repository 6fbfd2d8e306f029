// What the time of an encoded transfer tells of the wire, and of the processors. Pure.
//
// The two work beside each other, piece by piece, so the slower one is seen; for powersgd they take
// turns, and the node knows of all work. Without servers a node
// knows what its own processor did. Of servers nobody tells what they did, and each of their many
// small messages costs them, too. If that were put down to the wire, a codec of few bytes would
// make a plan believe in a wire that is many times as slow as it is. Processors are no slower when
// a rail is lost, though.
//
// So of most transfers it is known how long they took, but not whose time it was. Whether a
// transfer counts for the wire's line must be decided at once. What processors took is asked for
// when a plan is made, and is what makes the plan expect as much as transfers took, with the wire's
// line that the plan goes by: ProcessorSeconds.
#pragma once

#include <cstdint>
#include <optional>

#include "ipc/base/codec_cost.h"
#include "transport/network.h"
#include "transport/transport.h"

namespace headrace::service {

struct EncodedTransfer {
  Codec codec;
  double seconds = 0;               // from its start to its end
  double bytes = 0;                 // as it is
  double sent_per_byte = 1;         // what a node sends for each byte that is not encoded
  transport::CodecUse use;          // of this node; some bytes were encoded
  std::uint32_t nodes_count = 0;    // with data
  std::uint32_t servers_count = 0;  // 0: the nodes sum
  // Where the job has come to another wire than the one that is believed in, and it is known: how
  // long processors have taken for as many bytes. What goes beyond is the wire's.
  std::optional<double> before_s{};
};

struct EncodedSample {
  double wire_bytes = 0;    // that this node sent
  double wire_s = 0;        // that the wire took for them, at most
  bool is_of_wire = false;  // it took as long as that, since processors were quicker
  // For the codec's costs, which are at least that: what servers took beyond this node, as if they
  // were as fast, or as is known from before, counts as its decoding.
  transport::CodecUse use;
  double seconds = 0;  // from its start to its end; 0: `use` has what is known of processors
  double pieces = 1;
  // What a piece holds as float32, where pieces have their places and the first and the last may
  // hold less (see plan::PieceSizes); else 0.
  double placed_bytes = 0;
};

// What processors took for all bytes of a transfer of so many pieces that took `seconds` beside its
// startup, of which the wire takes `wire_s`: what plan::EncodedLine makes the same seconds from. 0
// where the wire explains all.
double ProcessorSeconds(double seconds, double wire_s, double pieces);

// `wire` is the line that is believed in without the sample, in bytes sent.
EncodedSample EncodedSampleOf(const EncodedTransfer& transfer, const transport::CostLine& wire);

}  // namespace headrace::service

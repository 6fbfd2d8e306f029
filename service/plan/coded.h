// What encoding does to the costs of blocks, and how policies plan for it.
//
// A block of several codecs crosses as one transfer for each, one behind the other; where transfers
// hold neighbours only (Stage::offsets_bytes), as one for each run of them, encoded or not. A
// transfer is encoded, sent and decoded piece by piece: while one piece is on the wire, the node
// encodes the next and decodes the one before. So a transfer takes its startup, the slower of the
// wire and of the processor for all its bytes, and the quicker of both for one piece.
//
// A matrix that crosses as two factors (powersgd) is a transfer of its own, never cut, and goes
// over one rail. Matrices take rails in turn. It takes its work, two startups, and the wire for the
// bytes of both factors.
#pragma once

#include <span>
#include <vector>

#include "ipc/base/halves.h"
#include "service/plan/route.h"
#include "service/plan/tensor_range.h"
#include "service/plan/workload.h"

namespace headrace::plan {

// How the lane cuts an encoded transfer: into as many pieces as keep it busy, but none smaller than
// the least, and into more where one would be larger than the most, encoded or as elements.
struct PieceSizes {
  double least_bytes = 16 << 10;
  double most_bytes = 96 << 10;
  double most_plain_bytes = 1 << 20;
  double pieces_count = 4;
  // Where pieces have their places, whatever transfers they are of, the ends of a transfer lie
  // inside of some: it has one more than its bytes fill, and this is what one holds. 0: they begin
  // where the transfer does.
  double placed_bytes = 0;
};

// What a transfer costs in that codec where it costs `plain` as it is, in its own bytes.
PiecewiseCost EncodedLine(const CostPiece& plain, const CodecCost& cost, const PieceSizes& sizes);

// What the work on a matrix costs, and two startups; its factors' bytes come to that.
PiecewiseCost FactoredLine(const CostPiece& plain, const CodecCost& cost);
// Bytes that cross for each byte of the tensor in that codec: of powersgd that depends on it.
double SentShare(const Workload& work, std::size_t tensor, const Codec& codec);

// What each rail of the stage spends on a block of these ranges; below 0 where it has none of it.
std::vector<double> RailSeconds(const Stage& stage, const Workload& work,
                                std::span<const TensorRange> ranges, std::uint64_t bytes);
// How long a block of these ranges takes on the stage: StageSeconds, codecs included.
double BlockSeconds(const Stage& stage, const Workload& work, Collective kind,
                    std::span<const TensorRange> ranges, std::uint64_t bytes);

// The stage as it is for blocks of one codec; null: as they are.
Stage InCodec(const Stage& stage, const CodedLines* coded);

// The costs of a codec on the stage; null where it has none, which costs as if nothing were
// encoded.
const CodedLines* FindCoded(const Stage& stage, const Codec& codec);

}  // namespace headrace::plan

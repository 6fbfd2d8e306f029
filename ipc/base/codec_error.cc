#include "ipc/base/codec_error.h"

namespace headrace {

double ErrorBound(Codec codec) {
  // Half of the last place. The quotient's own rounding may move a value just beside the middle
  // between two steps to the farther one.
  constexpr double kSlack = 1 + 1e-5;
  switch (codec.kind) {
    case Codec::kNone:
    case Codec::kLossless:
      return 0;
    case Codec::kBFloat16:
      return 0x1p-8 * kSlack;
    case Codec::kFloat16:
      return 0x1p-11 * kSlack;
    case Codec::kInt8:
      return 0.5 / 127 * kSlack;
    case Codec::kInt4:
      return 0.5 / 7 * kSlack;
    case Codec::kInt8Stochastic:
      return 1.0 / 127 * kSlack;
    case Codec::kInt4Stochastic:
      return 1.0 / 7 * kSlack;
    case Codec::kFloat8E4M3:
      return 16.0 / 448 * kSlack;
    case Codec::kFloat8E5M2:
      return 4096.0 / 57344 * kSlack;
    case Codec::kSign:
    case Codec::kTopK:
    case Codec::kRandomK:
    case Codec::kPowerSgd:  // of all elements together, in the mean of their squares
      return 1;
  }
  return 0;
}

}  // namespace headrace

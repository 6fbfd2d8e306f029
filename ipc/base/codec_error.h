// Bounds of the codecs' errors, by which plans choose among codecs. What each does to its elements
// is in transport/codec/codec.h.
#pragma once

#include "ipc/base/codecs.h"

namespace headrace {

// The largest error of one element, as a share of the largest magnitude in its block.
double ErrorBound(Codec codec);

}  // namespace headrace

// An all-reduce can be split: a reduce-scatter, and later an all-gather of its results.
#pragma once

#include "ipc/base/collective.h"

namespace headrace {

constexpr bool IsHalf(Collective kind) {
  return kind == Collective::kReduceScatter || kind == Collective::kAllGather;
}

}  // namespace headrace

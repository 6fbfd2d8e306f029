// An all-reduce can be taken apart: a reduce-scatter, and later an all-gather of what it left.
#pragma once

#include "ipc/base/collective.h"

namespace headrace {

constexpr bool IsHalf(Collective kind) {
  return kind == Collective::kReduceScatter || kind == Collective::kAllGather;
}

}  // namespace headrace

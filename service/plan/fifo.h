// The policies that send gradients in the order they become ready, whole, and let the forward pass
// wait for the last one.
#pragma once

#include "service/plan/draft.h"
#include "service/plan/route.h"
#include "service/plan/workload.h"

namespace headrace::plan {

// All gradients in one block after the backward pass.
Draft Bsp(const Workload& work);

// Wait-free backpropagation: each tensor a block, as ready. Zhang et al., "Poseidon", USENIX ATC
// 2017.
Draft Wfbp(const Workload& work);

// Merged-gradient wait-free backpropagation. Shi, Chu, Li, "MG-WFBP", IEEE INFOCOM 2019: going from
// tensor L-1 to 1, l is merged into l-1 when its communication would start after r_{l-1} or when
// waiting for l-1 costs less than a startup: r_{l-1} - start_l < a. On a route of several stages
// the line of its slowest lane decides.
Draft MgWfbp(const Workload& work, const Route& route);

}  // namespace headrace::plan

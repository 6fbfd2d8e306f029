// The lower bound: an iteration time that no plan on the given lanes can beat.
#pragma once

#include "service/plan/route.h"
#include "service/plan/workload.h"

namespace headrace::plan {

// On one serial lane with cost a + b*m:
//   max( T_B + T_F, T_B + a + b*M_0 + T_F, JPS + a ),
// JPS = the preemptive input-first schedule without startups, max over l of (end of l + q_l).
// On several lanes the same is asked of each lane alone, with the startups of the stages before and
// after it added; a bent cost line is replaced by the straight lines below it. A lane that blocks
// pass once among other stages is also asked for the optimum of the sweep, and for the first
// tensor, which takes a second startup there unless one block carries it through every stage.
// `halves`: of plans too that take all-reduces apart, which may be faster where startups count.
double LowerBound(const Workload& work, const Route& route, bool halves = false);

}  // namespace headrace::plan

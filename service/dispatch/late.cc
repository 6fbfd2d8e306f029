// Whom operations wait for that take longer than they should.
#include "service/dispatch/flow.h"

namespace headrace::service {

// Dispatch asks no lane yet, so an answer can only be about a stage that nobody shows.
void Flow::StageWaits(Job&, const struct StageWaits&, TimeNs) {}

}  // namespace headrace::service

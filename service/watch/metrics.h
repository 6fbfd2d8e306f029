// The board as Prometheus scrapes it: METRICS.md lists every name with its meaning.
//
// A pure function of one reading. Its size is bounded by the board's tables. Series of a job carry
// its name, which no other living job has; they end with it, while those of the service stay.
#pragma once

#include <string>

#include "ipc/board_reading.h"
#include "service/watch/process_facts.h"

namespace headrace::service {

// "text/plain; version=0.0.4; charset=utf-8".
std::string WriteMetrics(const ipc::BoardReading& reading, const ProcessFacts& process);

}  // namespace headrace::service

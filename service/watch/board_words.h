// The numbers of board rows as words, as the command line spells them too.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "service/watch/board_reading.h"

namespace headrace::service {

// "running", ...; "unknown" for a number of another version.
std::string_view ServiceStateName(std::uint32_t state);
std::string_view JobStateName(std::uint32_t state);
std::string_view StageStateName(std::uint32_t state);
// "rank_not_ready", ...; empty for none.
std::string_view WaitReasonName(std::uint32_t reason);

// Why a block stage waits, in words: "rank 2 not ready for 1.4 s", "behind block 7"; empty when it
// does not wait.
std::string WhyItWaits(const ipc::QueueRow& row, const BoardReading& reading);

// Numbers in place of what the reading does not have.
std::string JobName(std::uint32_t id, const BoardReading& reading);
std::string LaneName(std::size_t index, const BoardReading& reading);

}  // namespace headrace::service

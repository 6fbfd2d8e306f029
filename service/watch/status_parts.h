// The parts of status_json.h. For this folder.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>

#include "ipc/board_reading.h"

namespace headrace::service {

// Keys stay in the order in which they were written.
using Json = nlohmann::ordered_json;

// Text from a row, as valid UTF-8.
Json JsonText(std::string_view text);
// Nanoseconds as seconds.
double JsonSeconds(TimeNs ns);

// What the page calls a job: its name, and where users with jobs of one name are, its owner, too:
// "bert (uid 1000)".
Json JobLabel(std::uint32_t job_id, const ipc::BoardReading& reading);

Json JobsJson(const ipc::BoardReading& reading);
Json ServedJson(const ipc::BoardReading& reading);
Json QueueJson(const ipc::BoardReading& reading);
// The last blocks and passes of one job; null when the recorder has no place for it.
Json TimelineJson(const ipc::JobRow& job, const ipc::BoardReading& reading,
                  const ipc::BoardLayout& layout);

}  // namespace headrace::service

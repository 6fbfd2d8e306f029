// Why the messages of a piece, or of one round of it, cannot be summed. A value.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "ipc/base/error.h"

namespace headrace::transport {

struct PieceFault {
  std::optional<std::size_t> message;  // that makes no sense; else it is this node's own fault
  Code code = Code::kMismatch;
  std::string what{};  // "sends of {what}", or the whole cause
};

}  // namespace headrace::transport

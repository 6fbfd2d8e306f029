// What bounds every message of another service, and how one that goes beyond is refused.
#pragma once

#include <cstddef>
#include <string>

#include "ipc/base/error.h"

namespace headrace::service {

inline constexpr std::size_t kLanesMax = 16;  // between nodes, of a service

// Why a message is refused.
Error Corrupt(const std::string& what);

}  // namespace headrace::service

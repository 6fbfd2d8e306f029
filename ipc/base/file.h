// Files that somebody else wrote.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "ipc/base/result.h"

namespace headrace {

inline constexpr std::size_t kSmallFileMax = std::size_t{1} << 20;

// Reads a file of at most kSmallFileMax bytes whole. Does not wait: a pipe without a writer is read
// as empty. `what_not` ends the error text for a larger file, as "not a configuration".
Result<std::string> ReadSmallFile(const std::string& path, std::string_view what_not);

}  // namespace headrace

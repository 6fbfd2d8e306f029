// Files that somebody else wrote.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "ipc/base/result.h"

namespace headrace {

inline constexpr std::size_t kSmallFileMax = std::size_t{1} << 20;

// The whole of a file that is to be small, at once: a pipe that nobody writes to is read as empty.
// `what_not` ends the sentence that refuses a larger one: "not a configuration".
Result<std::string> ReadSmallFile(const std::string& path, std::string_view what_not);

}  // namespace headrace

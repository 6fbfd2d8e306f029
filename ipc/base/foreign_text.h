// What a library says of a failure, in words for people. Any thread.
#pragma once

#include <string>
#include <string_view>

namespace headrace {

// The cause in the description of a kj exception: the system's own words ("Connection refused") or
// the resolver's, without the names of functions and parameters around them. Of a text that has
// neither, its first sentence. At most 300 bytes, without control characters.
std::string CauseInForeignText(std::string_view description);

}  // namespace headrace

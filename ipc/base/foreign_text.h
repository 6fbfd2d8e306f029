// Makes untrusted texts fit for a log, a screen or an error. Any thread.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace headrace {

// The first `size_max` bytes of `text` with each control character replaced by '?': what a client
// or a peer wrote must not move a cursor, start a line, or turn the direction of writing. In UTF-8
// that is C0, DEL, C1 and the marks of direction.
std::string Printable(std::string_view text, std::size_t size_max = std::string_view::npos);
// Whether Printable would replace anything.
bool HasControls(std::string_view text);

// The cause in the description of a kj exception: the system's own words ("Connection refused") or
// the resolver's, without the names of functions and parameters around them. Of a text that has
// neither, its first sentence. At most 300 bytes, without control characters.
std::string CauseInForeignText(std::string_view description);

}  // namespace headrace

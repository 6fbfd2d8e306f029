// Text from outside as valid UTF-8: board fields are cut at a byte, and names may hold anything.
#pragma once

#include <string>
#include <string_view>

namespace headrace::service {

// The same text, with U+FFFD in place of every byte that belongs to no well-formed sequence.
std::string ValidUtf8(std::string_view text);

}  // namespace headrace::service

// What the tests of dispatch expect of a client's completion.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string_view>

#include "tests/support/hand_driven_node.h"

namespace headrace::support {

// The operation has ended well on that rank.
void ExpectOk(const ClientEnd& client, std::uint64_t sequence);
// It has ended with this code, and its text has each of the parts.
void ExpectFailed(const ClientEnd& client, std::uint64_t sequence, Code code,
                  std::initializer_list<std::string_view> parts);
void ExpectOpen(const ClientEnd& client, std::uint64_t sequence);

// Fills segment 0 with value, value + 1, ... of float32.
void Fill(const ClientEnd& client, float value);

}  // namespace headrace::support

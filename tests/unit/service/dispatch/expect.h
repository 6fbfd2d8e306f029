// What the tests of dispatch expect of a client's completion.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include "tests/support/hand_driven_node.h"

namespace headrace::support {

// 16 elements of segment 0, and jobs of two ranks.
inline const ipc::Record kSum = OnSegment(Collective::kAllReduce, DType::kFloat32, 16);
// What is said of a rank whose process went.
inline const std::string kKilled = "exited or was killed";
inline const JobSpec kPair{.world_size = 2};
inline const JobSpec kPairFor1s{.world_size = 2, .timeout_ms = 1000};
inline const JobSpec kPairFor100Ms{.world_size = 2, .timeout_ms = 100};

// The operation has ended well on that rank.
void ExpectOk(const ClientEnd& client, std::uint64_t sequence);
// It has ended with this code, and its text is the golden one (expect_text.h) and has the values.
void ExpectFailed(const ClientEnd& client, std::uint64_t sequence, Code code,
                  std::initializer_list<std::string_view> values);
void ExpectOpen(const ClientEnd& client, std::uint64_t sequence);

// Fills segment 0 with value, value + 1, ... of float32.
void Fill(const ClientEnd& client, float value);

}  // namespace headrace::support

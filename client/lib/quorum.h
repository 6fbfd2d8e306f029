// The messages of a rank that has lost its job and asks which members are left. Plain values.
//
// A member is a process of the job, numbered by its first rank. Its current rank is its index in
// the membership.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace headrace::client {

struct Membership {
  std::uint32_t generation = 0;        // of the decision; 0: the job as it began
  std::vector<std::uint32_t> members;  // growing
};

struct ShrinkRules {
  std::uint32_t min_world = 1;  // with fewer ranks the job ends
  std::uint32_t grace_ms = 0;   // how long ranks are waited for of which nothing is known
};

struct QuorumRequest {
  std::uint8_t role = 0;  // an hr_role; of others than ranks the next two say nothing
  std::uint32_t member = 0;
  Membership membership;  // the last in which this rank has met all others
  std::string places{};   // of the job's services, as the last of its services had them
  ShrinkRules rules;
};

struct Quorum {
  Membership membership;
  std::uint32_t epoch = 0;   // to attach after
  std::uint32_t own = 0;     // the member that this process is
  std::string rendezvous{};  // to attach at; empty: as before
};

}  // namespace headrace::client

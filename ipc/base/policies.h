// The policies that make plans: their numbers stand in plans on the wire, their names in the
// configuration, in requests of clients and on screens.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace headrace::plan {

// One line for each policy: its number, its function in service/plan (declared in policies.h
// there), its name. Everything else that lists policies is derived from this table. A number is
// never used for another policy.
#define HEADRACE_POLICIES(POLICY)                   \
  POLICY(1, Bsp, "bsp")                             \
  POLICY(2, Wfbp, "wfbp")                           \
  POLICY(3, MgWfbp, "mg-wfbp")                      \
  POLICY(4, ByteScheduler, "bytescheduler")         \
  POLICY(5, UsByte, "us-byte")                      \
  POLICY(6, Exact, "exact")                         \
  POLICY(7, Ddp, "ddp")                             \
  POLICY(8, Horovod, "horovod")                     \
  POLICY(9, P3, "p3")                               \
  POLICY(10, ByteSchedulerFused, "bytesched-fused") \
  POLICY(11, Auto, "auto")                          \
  POLICY(12, Dear, "dear")

enum class Policy : std::uint8_t {
#define HEADRACE_POLICY(number, function, name) k##function = (number),
  HEADRACE_POLICIES(HEADRACE_POLICY)
#undef HEADRACE_POLICY
};

inline constexpr std::array kPolicies = {
#define HEADRACE_POLICY(number, function, name) Policy::k##function,
    HEADRACE_POLICIES(HEADRACE_POLICY)
#undef HEADRACE_POLICY
};

// In the order of kPolicies.
inline constexpr std::array<std::string_view, kPolicies.size()> kPolicyNames = {
#define HEADRACE_POLICY(number, function, name) name,
    HEADRACE_POLICIES(HEADRACE_POLICY)
#undef HEADRACE_POLICY
};

// "mg-wfbp"; "unknown" for a number that no policy has.
constexpr std::string_view Name(Policy policy) {
  for (std::size_t index = 0; index < kPolicies.size(); ++index) {
    if (kPolicies[index] == policy) return kPolicyNames[index];
  }
  return "unknown";
}

constexpr std::optional<Policy> PolicyNamed(std::string_view name) {
  for (std::size_t index = 0; index < kPolicies.size(); ++index) {
    if (kPolicyNames[index] == name) return kPolicies[index];
  }
  return std::nullopt;
}

}  // namespace headrace::plan

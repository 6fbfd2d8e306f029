#include "service/rpc/ask_peers.h"

#include <fmt/format.h>

#include <vector>

#include "ipc/base/foreign_text.h"

namespace headrace::service {

Result<std::optional<plan::Policy>> ReadPolicyName(std::string_view name) {
  if (name.empty()) return std::optional<plan::Policy>();
  if (const std::optional<plan::Policy> policy = plan::PolicyNamed(name)) return policy;
  std::vector<std::string_view> known;
  for (const plan::Policy policy : plan::kPolicies) known.push_back(plan::Name(policy));
  return Error(Code::kInvalidArgument,
               fmt::format("policy \"{}\" is none of {}", Printable(name, kJobNameShownMax),
                           fmt::join(known, ", ")));
}

}  // namespace headrace::service

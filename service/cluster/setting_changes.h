// What people ask of jobs: whether it makes sense, how it reads, and what is kept of it until the
// job runs. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ipc/base/codec_choice.h"
#include "ipc/base/result.h"
#include "service/plan/plan.h"
#include "service/session/steering.h"

namespace headrace::service {

// The policy of that name, nothing for an empty one, or which names there are.
Result<std::optional<plan::Policy>> ReadPolicyName(std::string_view name);
// The codecs of that name, none for an empty one; kInvalidArgument when it is none.
Result<CodecChoice> ReadCodecNames(std::string_view name);

// A kind and a value as they came from outside. The error names the value, what is possible and how
// to ask for it.
Status CheckSteering(std::uint8_t kind, std::uint64_t value);

// The same as it comes from another service, which may also say how far it is with a drain.
Status CheckNodeSteering(std::uint8_t kind, std::uint64_t value);

// kInvalidArgument for a codec with which a job whose optimizer is adaptive is known to diverge.
Status CheckUnderAdaptive(std::string_view job, const CodecChoice& choice);

// "pause", "weight 3", "limit 2000000 bytes/s"
std::string DescribeSteering(const Steering& steering);
// "uid 1000", "uid 1000 on node b"
std::string DescribeAsker(const Steering& steering);

// Why a job has ended: "cancelled by uid 1000 on node b", or drained.
std::string DescribeEnd(const Steering& steering);

// Steering that could not be sent yet: the last of each kind, in the order in which they came.
class PendingSteering {
 public:
  void Keep(Steering steering);
  // Null when there is none of that kind.
  const Steering* Find(SteeringKind kind) const;
  std::vector<Steering> PopAll();

 private:
  std::vector<Steering> kept_;
};

}  // namespace headrace::service

#include "service/rpc/rendezvous.h"

#include <fmt/format.h>

#include <utility>

#include "ipc/base/check.h"
#include "ipc/base/foreign_text.h"

namespace headrace::service {
namespace {

constexpr std::size_t kRendezvousMax = 255;

}  // namespace

Status CheckRendezvous(const RendezvousRules& rules, LeaseRequest& request) {
  if (request.rendezvous.size() > kRendezvousMax ||
      request.rendezvous != Printable(request.rendezvous, kRendezvousMax)) {
    return Error(Code::kInvalidArgument,
                 fmt::format("the rendezvous has {} bytes or control characters: \"host\" or "
                             "\"host:port\" of at most {} bytes is asked for",
                             request.rendezvous.size(), kRendezvousMax));
  }
  if (request.rendezvous.empty() && !rules.server) request.rendezvous = rules.rendezvous;
  if (request.rendezvous.empty()) return {};
  if (rules.names.address.empty()) {
    return Error(Code::kUnavailable,
                 fmt::format("job {} meets at {}, but this service has no address for other nodes: "
                             "start headraced with --node-address host:port",
                             request.job_name, request.rendezvous));
  }
  if (rules.server) {
    return Error(Code::kUnavailable,
                 "this service has the role of a server, which sums for the jobs of other nodes "
                 "and has no ranks of them");
  }
  if (!rules.has_lanes) {
    return Error(Code::kUnavailable,
                 fmt::format("job {} meets at {}, but this service has no lane between nodes",
                             request.job_name, request.rendezvous));
  }
  Result<std::string> leader = rules.names.At(request.rendezvous);
  if (!leader) return leader.error();
  request.rendezvous = std::move(leader).value();
  HR_CHECK(!request.rendezvous.empty(), request.job_name);  // that is a job on one node
  return {};
}

}  // namespace headrace::service

// The notices to another node about a pair whose other side is there. They wait in Job::pairs()
// until dispatch sends them.
//
// Dispatch's thread.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "service/dispatch/job/job.h"

namespace headrace::service {

// A send of this node to a rank of another one is posted, and its job has formed; or had ended with
// that failure before.
void SendAnnounced(Job& job, Pair& pair, const std::optional<Failure>& failure = std::nullopt);
// The job has formed: the sends that were posted before, in their order.
std::vector<std::uint64_t> SendsToAnnounce(Job& job);
// After these, the ranks that have left.
void SendWhoHasLeft(Job& job);
// What was announced with it is where it belongs.
void SendReceived(Job& job, const Pair& pair);
// A rank of this node has left the job, to all others: after its last sends.
void SendLeft(Job& job, std::uint32_t rank, const Failure& failure);
// Its memory is ready, which it was not when it was announced.
void SendReady(Job& job, const Pair& pair);
// All parts of that block of a pair that comes are on their lanes.
void OnBlockStands(Job& job, Pair& pair, std::uint32_t block);
// The pair has failed here: to the other node, if there is one and it does not know.
void SendEnded(Job& job, Pair& pair, const Failure& failure);
// A send of another node that no pair stands for.
void SendRefused(Job& job, std::uint32_t node, const SendNotice& announced, const Failure& failure);

}  // namespace headrace::service

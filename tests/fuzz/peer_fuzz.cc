// Arbitrary bytes as what another service says: whatever comes through the checks keeps the limits,
// reads the same when it is written again, and does no harm to who leads or follows. Only kj's own
// exceptions may come out.
#include <capnp/message.h>
#include <capnp/serialize.h>
#include <kj/exception.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <variant>
#include <vector>

#include "ipc/base/check.h"
#include "ipc/schema/peer.capnp.h"
#include "service/cluster/follower.h"
#include "service/cluster/leader.h"
#include "service/cluster/setting_changes.h"
#include "service/peers/channel_hello.h"
#include "service/peers/peer_wire.h"
#include "service/peers/unsent_messages.h"

namespace {

using namespace headrace;  // NOLINT: this program has no names of its own

// Less than a connection allows, so that one input is quick.
constexpr std::uint64_t kTraversalWords = 1U << 14U;
const std::string kLeader = "10.0.0.1:7733";

void Check(const service::Steering& steering) {
  HR_CHECK(
      service::CheckNodeSteering(static_cast<std::uint8_t>(steering.kind), steering.value).ok(),
      steering.value);
}
void Check(const service::RequestSteering& request) { Check(request.steering); }
void Check(const service::AnnounceSteering& steer) { Check(steer.steering); }
void Check(const service::ReportLayout& handed) {
  HR_CHECK(handed.layout != nullptr && service::CheckLayout(*handed.layout).ok());
}
void Check(const service::PlanPiece& piece) {
  HR_CHECK(piece.text != nullptr && piece.text->size() <= service::kPlanPieceMax);
}
void Check(const service::ReportTimesSeen& told) {
  HR_CHECK(told.seen.times.release_s.size() <= service::kLayoutTensorsMax);
  for (const double each : told.seen.times.release_s) HR_CHECK(std::isfinite(each) && each >= 0);
  for (const double each : told.seen.times.forward_s) HR_CHECK(std::isfinite(each) && each >= 0);
  HR_CHECK(std::isfinite(told.seen.times.iteration_s));
}
void Check(const service::AnnouncePlanSwitch& change) { HR_CHECK(std::isfinite(change.before_s)); }
void Check(const service::OpenJob& open) {
  HR_CHECK(open.agreement.nodes.size() <= transport::kNodesMax, open.agreement.nodes.size());
}
void Check(const service::JoinJob& join) {
  HR_CHECK(join.world_size >= 1 && join.world_size <= transport::kMembersMax, join.world_size);
}
template <typename Message>
void Check(const Message& /*message*/) {}

std::string BytesOf(const service::PeerMessage& message) {
  capnp::MallocMessageBuilder builder;
  service::WriteMessage(builder.initRoot<schema::PeerMessage>(), message);
  const auto words = capnp::messageToFlatArray(builder);
  const auto bytes = words.asBytes();
  return {reinterpret_cast<const char*>(bytes.begin()), bytes.size()};
}

// Written and read once more it is the same.
void Repeat(const service::PeerMessage& message) {
  const std::string bytes = BytesOf(message);
  std::vector<capnp::word> buffer(bytes.size() / sizeof(capnp::word));
  std::memcpy(static_cast<void*>(buffer.data()), bytes.data(), bytes.size());
  capnp::FlatArrayMessageReader reader({buffer.data(), buffer.size()});
  const auto again = service::ReadMessage(reader.getRoot<schema::PeerMessage>());
  HR_CHECK(again.ok() && again->index() == message.index(), message.index());
  HR_CHECK(BytesOf(*again) == bytes, message.index());
}

// A node with a rank of job 1 and a leader that has heard of it.
void Hear(const service::PeerMessage& message) {
  service::JobDirectory directory;
  service::Leader leader({.program = "headraced 0.1.0",
                          .node_name = "a",
                          .lanes_count = 1,
                          .block_bytes = 4096,
                          .random_key = [] { return std::uint64_t{1}; }},
                         directory);
  leader.OnNodeUp(1, {.name = "b", .addresses = {"B0"}}, "10.0.0.2:1");
  leader.Handle(1, service::JoinJob{.job = 1, .name = "train", .world_size = 2, .uid = 1000}, 0);
  leader.Handle(1, message, 1);
  leader.Handle(1, message, 2);
  HR_CHECK(leader.jobs_count() <= 2, leader.jobs_count());
  service::SessionIdentity rank;
  rank.job = JobId{1};
  rank.job_name = "train";
  rank.world_size = 2;
  rank.rendezvous = kLeader;
  service::JobDirectory places;
  service::Follower follower({.node_name = "b", .lanes = {1}}, places);
  follower.OnRankAttached(rank);
  follower.OnLeaderUp(kLeader);
  follower.Handle(kLeader, message, 1);
  follower.Handle(kLeader, message, 2);
  HR_CHECK(follower.jobs_count() <= 1, follower.jobs_count());
}

// The other end acknowledges and numbers as it likes, in eight bytes each: what it does not
// acknowledge is kept, and no message is taken twice or out of order.
void Number(const std::uint8_t* bytes, std::size_t size) {
  service::UnsentMessages unsent;
  service::ReceivedNumbers received;
  std::uint64_t pushed = 0;
  std::uint64_t sent = 0;
  for (; size >= sizeof(std::uint64_t); bytes += sizeof(std::uint64_t), size -= 8) {
    std::uint64_t number = 0;
    std::memcpy(&number, bytes, sizeof number);
    HR_CHECK(unsent.Push(service::ForgetJob{static_cast<std::uint32_t>(++pushed)}), pushed);
    if (number % 3 == 0) {
      unsent.MarkSent(unsent.size());
      sent = pushed;
    }
    // Numbers that may be right are seldom among arbitrary ones.
    const std::uint64_t near = number % 2 == 0 ? number : number / 2 % (pushed + 2);
    const std::uint64_t first = unsent.first();
    HR_CHECK(unsent.Acknowledge(near).ok() == (near <= sent), near, sent);
    HR_CHECK(unsent.first() == (near <= sent ? std::max(first, near + 1) : first), near, first);
    HR_CHECK(unsent.size() == pushed + 1 - unsent.first(), unsent.size(), pushed);
    const std::uint64_t last = received.last();
    const bool next = received.Note(near) == service::ReceivedNumbers::Verdict::kNext;
    HR_CHECK(next == (near == last + 1) && received.last() == last + (next ? 1 : 0), near, last);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  std::vector<capnp::word> buffer((size + sizeof(capnp::word) - 1) / sizeof(capnp::word));
  if (size > 0) std::memcpy(static_cast<void*>(buffer.data()), bytes, size);
  capnp::ReaderOptions options;
  options.traversalLimitInWords = kTraversalWords;
  options.nestingLimit = 16;
  // What is thrown says that the message is malformed; the connection would be closed.
  (void)kj::runCatchingExceptions([&] {
    capnp::FlatArrayMessageReader reader({buffer.data(), buffer.size()}, options);
    const auto message = service::ReadMessage(reader.getRoot<schema::PeerMessage>());
    if (!message) {
      HR_CHECK(message.error().code() == Code::kCorrupt, message.error().text());
      return;
    }
    std::visit([](const auto& each) { Check(each); }, *message);
    Repeat(*message);
    Hear(*message);
  });
  (void)kj::runCatchingExceptions([&] {
    capnp::FlatArrayMessageReader reader({buffer.data(), buffer.size()}, options);
    const auto facts = service::ReadHello(reader.getRoot<schema::PeerHello>());
    HR_CHECK(!facts || facts->addresses.size() <= service::kLanesMax);
  });
  (void)kj::runCatchingExceptions([&] {
    capnp::FlatArrayMessageReader reader({buffer.data(), buffer.size()}, options);
    const auto channel = service::ReadChannel(reader.getRoot<schema::PeerChannel>());
    HR_CHECK(channel || channel.error().code() == Code::kCorrupt, channel.error().text());
    HR_CHECK(!channel || channel->resumes || channel->received == 0, channel->received);
  });
  Number(bytes, size);
  return 0;
}

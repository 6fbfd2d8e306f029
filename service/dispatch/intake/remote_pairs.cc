#include "service/dispatch/intake/remote_pairs.h"

#include <fmt/format.h>

#include <utility>

#include "ipc/base/check.h"
#include "service/dispatch/blocks/cut.h"
#include "service/dispatch/job/pair_notices.h"

namespace headrace::service {

void RemotePairs::Handle(Job& job, SendNotices message, TimeNs now) {
  if (message.failure) {
    return flow_.LinksFailed(job, {message.failure->code(), message.failure->text()}, now);
  }
  if (!job.formed()) return KeepEarly(job, std::move(message), now);
  // Only nodes that have ranks send notices, and only jobs of several nodes get them.
  if (job.nodes() == nullptr || message.node >= job.nodes()->data_nodes_count()) return;
  for (SendNotice& notice : message.notices) {
    // What failed the job is sent to all nodes.
    if (job.failed) return;
    Handle(job, message.node, notice, now);
  }
}

// The leader has let another node begin before this one: at most what its ranks may have open.
void RemotePairs::KeepEarly(Job& job, SendNotices message, TimeNs now) {
  if (job.failed) return;
  Pairs& pairs = job.pairs();
  bool fits = message.node < transport::kNodesMax;
  for (const SendNotice& notice : message.notices) {
    if (!fits) break;
    pairs.data_coming[message.node] += notice.data.size();
    fits = ++pairs.early_count <= job.world_size() * (kOperationsMax + 1) &&
           pairs.data_coming[message.node] <= kSendDataOpenMax;
  }
  pairs.early.push_back(std::move(message));
  if (fits) return;
  pairs.early.clear();
  flow_.FailJob(job,
                {Code::kCorrupt,
                 "another node sent more notices of sends than its ranks may have "
                 "open: install the same release on all nodes"},
                Flow::Found::kHere, now);
}

void RemotePairs::HandleEarly(Job& job, TimeNs now) {
  Pairs& pairs = job.pairs();
  pairs.early_count = 0;
  pairs.data_coming = {};
  for (SendNotices& message : std::exchange(pairs.early, {})) {
    Handle(job, std::move(message), now);
  }
}

// Each side's rank is of the node that speaks, or of this one.
bool RemotePairs::AreWhereItSays(const Job& job, std::uint32_t node, const SendNotice& notice) {
  const std::uint32_t theirs = notice.FromSender() ? notice.source : notice.target;
  const std::uint32_t ours = notice.FromSender() ? notice.target : notice.source;
  const bool is_theirs = theirs < job.world_size() && NodeOf(*job.nodes(), theirs) == node;
  return is_theirs &&
         (notice.kind == SendNoticeKind::kLeft || (ours < job.world_size() && job.IsHere(ours)));
}

void RemotePairs::Handle(Job& job, std::uint32_t node, SendNotice& notice, TimeNs now) {
  HR_CHECK(job.formed() && node < job.nodes()->data_nodes_count(), job.id().value, node);
  if (node == job.nodes()->self || !AreWhereItSays(job, node, notice)) {
    return OnProtocolError(job, node, "reported a send between ranks that are elsewhere", now);
  }
  job.Changed();
  switch (notice.kind) {
    case SendNoticeKind::kAnnounced:
      return OnAnnounced(job, node, notice, now);
    case SendNoticeKind::kReady:
      return OnReady(job, node, notice, now);
    case SendNoticeKind::kMayGo:
      return OnMayGo(job, node, notice, now);
    case SendNoticeKind::kWithdrawn:
      return OnWithdrawn(job, node, notice, now);
    case SendNoticeKind::kRefused:
      return OnRefused(job, node, notice, now);
    case SendNoticeKind::kReceived:
      return OnReceived(job, node, notice, now);
    case SendNoticeKind::kLeft:
      return OnLeft(job, notice, now);
  }
}

SendNotices RemotePairs::Refusals(const SendNotices& message) {
  SendNotices refusals{.job = message.job, .node = message.node, .notices = {}};
  for (const SendNotice& notice : message.notices) {
    if (notice.kind != SendNoticeKind::kAnnounced) continue;
    refusals.notices.push_back(
        {.kind = SendNoticeKind::kRefused,
         .send = notice.send,
         .source = notice.source,
         .target = notice.target,
         .code = Code::kPeerLost,
         .cause = fmt::format("rank {} has left the job, and rank {} has something to send to it",
                              notice.target, notice.source)});
  }
  return refusals;
}

void RemotePairs::OnAnnounced(Job& job, std::uint32_t node, SendNotice& notice, TimeNs now) {
  if (job.pairs().data_coming[node] + notice.data.size() > kSendDataOpenMax) {
    return OnProtocolError(job, node, "sent more bytes with announcements than it may", now);
  }
  if (job.pairs().FindNamed(node, notice.send) != nullptr) {
    return OnProtocolError(job, node, "announced a send twice", now);
  }
  Pair* const pair = FindOrOpen(job, node, notice, now);
  if (pair == nullptr) return;
  Operation& operation = pair->operation;
  if (notice.code != Code::kOk) {
    pair->withdrawn = pair->other_knows = true;
    return flow_.FailOperation(job, operation, {notice.code, notice.cause}, now);
  }
  if (!notice.data.empty()) {
    job.pairs().HoldData(*pair, notice.data.size());
    pair->data = std::move(notice.data);
  }
  if (pair->waits()) return flow_.Begin(job, operation, now);
  OperationSpec spec = operation.spec;
  spec.kind = ipc::kSend;
  spec.source = notice.source;
  spec.count = notice.count;
  spec.dtype = notice.dtype;
  spec.device = notice.on_gpu ? std::int8_t{0} : transport::kHost;
  if (!operation.spec.Matches(spec)) {
    operation.spec.kind = ipc::kReceive;
    const std::string text = job.DescribeMismatch(operation, notice.source, spec);
    operation.spec.kind = ipc::kSend;
    return flow_.FailOperation(job, operation, {Code::kMismatch, text}, now);
  }
  flow_.Begin(job, operation, now);
}

Pair* RemotePairs::FindOrOpen(Job& job, std::uint32_t node, const SendNotice& notice, TimeNs now) {
  const PairSides sides{notice.source, notice.target, notice.tag};
  Pair* pair = job.pairs().Find(ipc::kSend, sides);
  if (pair != nullptr && pair->operation.state == Operation::State::kTombstone) {
    SendRefused(job, node, notice, *pair->operation.failure);
    job.pairs().Free(*pair);
    return nullptr;
  }
  if (pair != nullptr) {
    job.pairs().Match(*pair, notice.source);
    pair->operation.spec.kind = ipc::kSend;
  } else {
    if (auto failure = WhyNot(job, notice); failure) {
      SendRefused(job, node, notice, *failure);
      // Its sender has gone on, and the next receive would get a later message in its place.
      if (failure->code == Code::kExhausted && !notice.data.empty()) {
        flow_.FailJob(job, std::move(*failure), Flow::Found::kHere, now);
      }
      return nullptr;
    }
    pair = &job.pairs().Open(ipc::kSend, sides, notice.source);
    OperationSpec& spec = pair->operation.spec;
    spec.count = notice.count;
    spec.dtype = notice.dtype;
    spec.device = notice.on_gpu ? std::int8_t{0} : transport::kHost;
    pair->operation.posts.opened_ns = now;
    pair->operation.since_ns = now;
    flow_.recorder().ItemOpened(job, pair->operation);
    ++job.open.operations;
  }
  pair->operation.posts.among = Bit(notice.target);
  job.pairs().Name(*pair, node, notice.send);
  pair->send_ready = notice.ready;
  return pair;
}

std::optional<Failure> RemotePairs::WhyNot(const Job& job, const SendNotice& notice) const {
  if (job.IsGone(notice.target)) {
    return Failure{Code::kPeerLost,
                   fmt::format("{} left the job after {}, and {} has something to send to it",
                               job.DescribeRank(notice.target), job.DescribeProgress(notice.target),
                               job.DescribeRank(notice.source))};
  }
  // A message that is here can still be received.
  if (intake_.refuses_new() && notice.data.empty())
    return Failure{Code::kUnavailable, "the service is shutting down"};
  if (job.pairs().HasRoom(notice.source)) return {};
  return Failure{Code::kExhausted,
                 fmt::format("{} has {} sends whose receives were not posted, which is all it may: "
                             "wait for some of them first",
                             job.DescribeRank(notice.source), kOperationsMax)};
}

void RemotePairs::OnReady(Job& job, std::uint32_t node, const SendNotice& notice, TimeNs now) {
  Pair* const pair = job.pairs().FindNamed(node, notice.send);
  if (pair == nullptr || !pair->operation.open() || pair->send_ready) return;
  pair->send_ready = true;
  if (pair->operation.state == Operation::State::kGathering) flow_.Begin(job, pair->operation, now);
}

Pair* RemotePairs::FindGoing(Job& job, std::uint32_t node, const SendNotice& notice) {
  if (TrafficClassOf(notice.send) != schedule::TrafficClass::kPaired) return nullptr;
  if (PairPlace(notice.send) >= job.pairs().capacity()) return nullptr;
  Pair& pair = job.pairs().at(notice.send);
  const Operation& operation = pair.operation;
  const bool same = operation.state != Operation::State::kFree &&
                    operation.spec.sequence == notice.send && pair.away == Away::kGoes &&
                    pair.node == node && operation.spec.source == notice.source &&
                    operation.spec.target == notice.target;
  return same ? &pair : nullptr;
}

Pair* RemotePairs::FindSend(Job& job, std::uint32_t node, const SendNotice& notice) {
  Pair* const pair = FindGoing(job, node, notice);
  return pair != nullptr && pair->operation.open() && !pair->operation.failure ? pair : nullptr;
}

Pair* RemotePairs::FindSent(Job& job, std::uint32_t node, const SendNotice& notice) {
  Pair* const pair = FindGoing(job, node, notice);
  return pair != nullptr && pair->sent ? pair : nullptr;
}

void RemotePairs::OnMayGo(Job& job, std::uint32_t node, const SendNotice& notice, TimeNs now) {
  Pair* const pair = FindSend(job, node, notice);
  if (pair == nullptr) return;
  Operation& operation = pair->operation;
  const std::uint64_t blocks =
      BlocksCount(operation.spec, job.world_size(), job.nodes()->block_bytes);
  const bool ready = !operation.posts.Awaits(notice.source);
  if (notice.blocks <= operation.blocks_allowed || notice.blocks > blocks || !ready) {
    return OnProtocolError(job, node,
                           fmt::format("waits for {} blocks of {} that has {}", notice.blocks,
                                       ready ? "a send" : "a send that is not ready", blocks),
                           now);
  }
  if (!pair->waits()) return flow_.blocks().Extend(job, operation, notice.blocks, now);
  job.pairs().Match(*pair, notice.source);
  operation.blocks_allowed = notice.blocks;
  flow_.Begin(job, operation, now);
}

void RemotePairs::OnWithdrawn(Job& job, std::uint32_t node, const SendNotice& notice, TimeNs now) {
  Pair* const pair = job.pairs().FindNamed(node, notice.send);
  if (pair == nullptr || !pair->operation.open() || pair->operation.failure) return;
  pair->withdrawn = pair->other_knows = true;
  flow_.FailOperationHere(job, pair->operation, {notice.code, notice.cause}, now);
}

// Its sender has gone on; whoever was to receive it has the error.
void RemotePairs::OnSentRefused(Job& job, Pair& pair, const SendNotice& notice) {
  flow_.events().ReportUnreceived(job, pair, {notice.code, notice.cause});
  job.pairs().Free(pair);
}

void RemotePairs::OnRefused(Job& job, std::uint32_t node, const SendNotice& notice, TimeNs now) {
  if (Pair* const sent = FindSent(job, node, notice); sent != nullptr) {
    return OnSentRefused(job, *sent, notice);
  }
  Pair* const pair = FindSend(job, node, notice);
  if (pair == nullptr) return;
  pair->other_knows = true;
  flow_.FailOperationHere(job, pair->operation, {notice.code, notice.cause}, now);
}

void RemotePairs::OnReceived(Job& job, std::uint32_t node, const SendNotice& notice, TimeNs now) {
  if (Pair* const sent = FindSent(job, node, notice); sent != nullptr) {
    return job.pairs().Free(*sent);
  }
  if (FindSend(job, node, notice) == nullptr) return;
  OnProtocolError(job, node, "received a send that it was not sent", now);
}

// Its last sends came before this.
void RemotePairs::OnLeft(Job& job, const SendNotice& notice, TimeNs now) {
  job.departures.elsewhere |= Bit(notice.source);
  const std::string& node = job.nodes()->nodes[NodeOf(*job.nodes(), notice.source)].name;
  flow_.FailPairsOf(job, notice.source,
                    {notice.code, fmt::format("{} on node {}", notice.cause, node)}, now);
}

void RemotePairs::OnProtocolError(Job& job, std::uint32_t node, const std::string& what,
                                  TimeNs now) {
  flow_.FailJob(job,
                {Code::kCorrupt, fmt::format("node {} {}: install the same release on all nodes",
                                             job.nodes()->nodes[node].name, what)},
                Flow::Found::kHere, now);
}

}  // namespace headrace::service

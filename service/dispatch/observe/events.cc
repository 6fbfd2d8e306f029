#include "service/dispatch/observe/events.h"

#include <fmt/format.h>

#include "service/dispatch/observe/record.h"

namespace headrace::service {
namespace {

constexpr std::uint32_t kEventsPerJobMax = 64;

}  // namespace

void JobEvents::Report(const Job& job, Code code, std::string text) {
  std::uint32_t& sent = job.record->events_sent;
  if (sent > kEventsPerJobMax) return;
  if (++sent > kEventsPerJobMax) {
    text = fmt::format("more than {} events; the rest is not shown", kEventsPerJobMax);
  }
  Send(job, code, text, job.owner_uid());
}

void JobEvents::ReportUnreceived(const Job& job, const Pair& pair, const Failure& why) {
  Report(job, why.code,
         fmt::format("{} was not received: {}", job.DescribeOperation(pair.operation), why.text));
}

void JobEvents::ReportUnreceived(const Job& job) {
  const std::size_t count = job.pairs().sent();
  if (count == 0) return;
  Report(job, Code::kPeerLost,
         fmt::format("{} whose send had ended {} not received before the job failed",
                     count == 1 ? "a message" : fmt::format("{} messages", count),
                     count == 1 ? "was" : "were"));
}

void JobEvents::Announce(const Job& job, Code code, const std::string& text) {
  Send(job, code, text, job.owner_uid());
}

void JobEvents::AnnounceSteering(const Job& job, const Steering& asked, const std::string& text) {
  Send(job, Code::kOk, text, asked.uid);
}

void JobEvents::Send(const Job& job, Code code, const std::string& text,
                     std::optional<std::uint32_t> uid) {
  watch_.TrySend(Event{code, job.id(), fmt::format("job {}: {}", job.name(), text), uid});
}

void JobEvents::AnnounceMove(const Job& job, const std::string& lane, const std::string& node,
                             const transport::LinkMove& move) {
  const std::string head = fmt::format("lane {} sends to node {} over {}", lane, node, move.to);
  if (move.cause.empty()) return Send(job, Code::kOk, head + " again", std::nullopt);
  Send(job, Code::kUnavailable,
       fmt::format("{} and no longer over {}: {}. {} messages that had not arrived, of {} bytes, "
                   "were sent again; nothing has ended by that",
                   head, move.from, move.cause, move.messages, move.bytes),
       std::nullopt);
}

}  // namespace headrace::service

// Messages that the ranks of a job sent before the last of them left this node, and that were not
// received yet: the job is over here, and the node of each receiver has its message. What is left
// is to wait for that node's report before the service shuts down, which would end the job there.
//
// Holds the names of sends, nothing of the job. Bounded for each user, and in all: those of the
// oldest job are not waited for any more.
//
// Owned and called by dispatch, on its thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "ipc/base/clock.h"
#include "ipc/base/ids.h"
#include "service/actor/outgoing.h"
#include "service/dispatch/job/job.h"
#include "service/session/send_notices.h"
#include "service/watch/messages.h"

namespace headrace::service {

class LeftMessages {
 public:
  static constexpr std::size_t kJobsOfUserMax = 8;
  static constexpr std::size_t kJobsMax = 64;

  // It outlives this.
  explicit LeftMessages(Outgoing<WatchMessage>& watch) : watch_(watch) {}

  // The job is over here. Nothing where all that it sent was received.
  void Add(Job& job);
  // What another node reports of a job that is over here. A refused message is an event.
  void Handle(const SendNotices& message);
  // Whether any may still be received: none after its send's timeout.
  bool Any(TimeNs now);
  // When that may change although nobody reports anything.
  TimeNs NextDeadline() const;
  void Clear() { jobs_.clear(); }

 private:
  struct Message {
    std::uint64_t send = 0;
    std::uint32_t node = 0;
    TimeNs deadline_ns = 0;
  };
  struct LeftJob {
    JobId id;
    std::string name;
    std::uint32_t uid = 0;
    std::vector<Message> messages;
  };

  void DropOldest(std::uint32_t uid);

  Outgoing<WatchMessage>& watch_;
  std::vector<LeftJob> jobs_;  // by when they were over
};

}  // namespace headrace::service

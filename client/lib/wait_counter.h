// Shows the service, in a session's channel, what time the process waits in other sessions: a rank
// that waits there is not slow here. Shared by that session and by the others, of which any may end
// first. Thread-safe.
#pragma once

#include <cstdint>
#include <mutex>

#include "ipc/channel.h"

namespace headrace::client {

class WaitCounter {
 public:
  // Where to count from now on; null: nowhere, since the channel is about to go.
  void MoveTo(ipc::ChannelLayout* channel);
  // From now on waits elsewhere are counted.
  void Enable();

  void OnWaitBegun();
  // `over`: the operation has ended. A wait that goes on in parts is counted at its end, since time
  // that is counted shows the service that the process goes on.
  void OnWaitEnded(std::uint64_t waited_ns, bool over);

 private:
  void Show() const;  // with mutex_

  std::mutex mutex_;
  ipc::ChannelLayout* channel_ = nullptr;  // guarded by mutex_
  bool enabled_ = false;                   // likewise
  std::uint32_t waiting_ = 0;              // likewise
  std::uint64_t uncounted_ns_ = 0;         // likewise; of waits that are not over
};

}  // namespace headrace::client

// One rank of the played job, attached through the C library as a training process would be.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "client/cli/replay/profile.h"
#include "client/include/headrace/headrace.h"
#include "ipc/base/result.h"

namespace headrace::replay {

// How a rank attaches.
struct AttachOptions {
  std::string socket_path;
  std::string job;
  std::uint32_t rank = 0;
  std::uint32_t world_size = 1;
  std::string rendezvous;        // empty: as the environment says
  std::string architecture;      // who sums between nodes; empty: likewise
  std::string policy;            // empty: as the service at the rendezvous is configured
  std::uint32_t timeout_ms = 0;  // of every operation; 0: the service's
};

// One thread, from Attach to the end. Leaves the job when it goes.
class RankSession {
 public:
  // Attaches and hands in the profile's gradients, one behind the other in one segment.
  static Result<RankSession> Attach(const AttachOptions& attach, const Profile& profile);

  std::size_t count() const { return gradients_.size(); }
  std::span<std::byte> gradient(std::size_t index) { return gradients_[index]; }

  Status BeginBackward();
  Status Post(std::size_t index);
  // Whether gradient `index` still moves.
  Result<bool> IsOpen(std::size_t index);
  Status Wait(std::size_t index);
  Status EndForward();

  // Whether all ranks say yes; a round trip through all of them, beside the gradients.
  Result<bool> AllAgree(bool yes);

 private:
  struct Close {
    void operator()(hr_session* session) const { hr_close(session, nullptr); }
  };

  explicit RankSession(hr_session* session) : session_(session) {}
  Status RegisterGradients(const AttachOptions& attach, const Profile& profile);

  std::unique_ptr<hr_session, Close> session_;
  hr_layout* layout_ = nullptr;  // the session's
  std::vector<std::span<std::byte>> gradients_;
  std::vector<hr_operation> operations_;  // the last of each gradient; 0: none
};

}  // namespace headrace::replay

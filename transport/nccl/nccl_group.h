// This process's ranks of one NCCL communicator: one for each of its GPUs in it. They are formed
// and ended by threads of their own, so that the caller is never blocked: NCCL's nonblocking calls
// still allocate, load kernels and read the environment before they return. Launchers make their
// calls (nccl_launcher.h).
//
// One thread. The background threads, NCCL's own and those that form and end the ranks, own what
// they need.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "ipc/base/clock.h"
#include "ipc/base/collective.h"
#include "ipc/base/result.h"
#include "transport/memory/cuda_handles.h"
#include "transport/nccl/nccl_launch.h"
#include "transport/nccl/nccl_library.h"

namespace headrace::transport {

// One rank: its GPU, and the stream that all of its calls go to. Both outlive the group.
struct NcclLocalRank {
  const PrimaryContext* context = nullptr;
  CuStream stream = nullptr;
  std::uint32_t rank = 0;
  std::uint32_t launch_stream = 0;  // which stream this is among the owner's
};

class NcclGroup {
 public:
  // Begins to form the ranks; Poll tells when they are, or why not. `ranks_count` is that of all
  // processes, each of which calls this with the same id; without one, all ranks are here.
  // `ctas_max` 0: NCCL's own choice.
  static std::unique_ptr<NcclGroup> Form(const NcclLibrary& library,
                                         std::vector<NcclLocalRank> local_ranks,
                                         std::uint32_t ranks_count, const std::optional<NcclId>& id,
                                         std::uint32_t ctas_max);
  // Aborts what was not ended, and waits for the end no longer than kEndWait.
  ~NcclGroup();
  NcclGroup(const NcclGroup&) = delete;
  NcclGroup& operator=(const NcclGroup&) = delete;

  static constexpr TimeNs kEndWait = kSecond;

  const std::vector<NcclLocalRank>& local_ranks() const { return local_ranks_; }
  std::uint32_t ranks_count() const { return ranks_count_; }

  // The rank that a local rank's launches are made on.
  const std::shared_ptr<NcclRank>& RankOf(std::uint32_t local_rank) const {
    return ranks_[local_rank];
  }
  const NcclLibrary& library() const { return library_; }

  // True when nothing is under way in the background: formed, or launched on every GPU. An error is
  // NCCL's, also one that came later while GPUs ran; then only Abort makes sense.
  Result<bool> Poll();

  // Gives everything back in the background. Finish lets other processes finish first, and aborts
  // after kEndWait; Abort makes GPUs drop what they do. Nothing else may be called afterwards.
  void Finish();
  void Abort();
  // Whether all calls that end the ranks have returned.
  bool ended() const;

 private:
  struct Forming;  // what the thread that forms the ranks shares with this
  struct Ending;   // what the threads that end ranks share with this

  NcclGroup(const NcclLibrary& library, std::vector<NcclLocalRank> local_ranks,
            std::uint32_t ranks_count);
  void Begin(const std::optional<NcclId>& id, std::uint32_t ctas_max);
  void End(bool finish);

  const NcclLibrary& library_;
  std::vector<NcclLocalRank> local_ranks_;
  std::uint32_t ranks_count_;
  // By local rank; empty once they are being ended.
  std::vector<std::shared_ptr<NcclRank>> ranks_;
  std::shared_ptr<Forming> forming_;  // owners: this, the thread that forms, and those that end
  std::shared_ptr<Ending> ending_;    // owners: this, and the threads that end the ranks
};

}  // namespace headrace::transport

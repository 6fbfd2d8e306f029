// What was posted and how it ended, over all ranks: finds the operation that ended well although
// ranks did not agree, with other bytes than the reference, or on some ranks only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ipc/completion.h"
#include "tests/sim/encoded_sums.h"
#include "tests/sim/node_sums.h"
#include "tests/sim/program.h"

namespace headrace::sim {

// The number under which the checker keeps a gradient of an iteration, beside the operations.
constexpr std::uint64_t GradientNumber(std::uint64_t iteration, std::uint32_t tensor) {
  return std::uint64_t{1} << 63 | iteration << 16 | tensor;
}

constexpr std::uint64_t IterationOf(std::uint64_t gradient) { return gradient << 1 >> 17; }
constexpr std::uint32_t TensorOf(std::uint64_t gradient) { return gradient & 0xFFFF; }

class CompletionChecker {
 public:
  // `arithmetic` computes the reference: the code that the transport under the service does not
  // use.
  enum class Arithmetic : std::uint8_t { kReference, kKernels };
  explicit CompletionChecker(Arithmetic arithmetic) : arithmetic_(arithmetic) {}

  void AddJob(JobId job, std::uint32_t world_size) { world_sizes_[job] = world_size; }
  // Its ranks are on several nodes: who only sends need not wait for those who receive, and sums
  // are made in the orders that `sums` has.
  void AddJobOfNodes(JobId job, std::uint32_t world_size, NodeSums sums) {
    AddJob(job, world_size);
    of_nodes_.insert_or_assign(job, std::move(sums));
  }
  // Something has befallen the job, so that its operations may end in different ways on different
  // ranks. From now on its errors contain the name of one who is to blame.
  void Blame(JobId job, const std::string& name) { blamed_[job].insert(name); }
  bool IsBlamed(JobId job) const { return blamed_.contains(job); }
  // It ends by a drain and nothing else: what ends well somewhere still does so everywhere.
  void Drain(JobId job) { drained_.insert(job); }
  bool IsDrained(JobId job) const { return drained_.contains(job); }
  // Operations and gradients of the job that have ended well or not, on all its ranks.
  std::uint64_t EndedOf(JobId job) const;
  // The text of the first error of the job; empty when it had none.
  std::string FirstError(JobId job) const;
  // A rank has posted the operation with these bytes in its memory; `honest` when as planned.
  void Post(JobId job, std::uint64_t sequence, std::uint32_t rank, const Planned& planned,
            bool honest, std::vector<std::byte> input);
  // The operation has ended on a rank with these bytes in its memory. What is wrong, if anything.
  std::optional<std::string> End(JobId job, std::uint64_t sequence, std::uint32_t rank,
                                 const ipc::Outcome& outcome, const std::vector<std::byte>& result);

  // How many operations ended well, or not, on some rank.
  std::uint64_t ended_ok() const { return ended_ok_; }
  std::uint64_t ended_failed() const { return ended_failed_; }
  // Iterations of a gradient that ended well on some rank.
  std::uint64_t iterations_ok() const { return iterations_ok_; }

 private:
  struct Operation {
    Planned planned;
    std::uint64_t dishonest = 0;  // bit r: rank r posted something else
    std::uint64_t posted = 0;     // bit r: rank r
    std::vector<std::vector<std::byte>> inputs;
    std::optional<bool> ok;  // how it ended where it ended first
    std::vector<std::vector<std::byte>> expected;
    // Where the order of a sum may be one of several: each of its results, of all elements.
    std::vector<std::vector<std::byte>> sums;
    std::vector<std::byte> chosen;  // by the first rank that ended it: equal on all
  };

  std::optional<std::string> CheckCause(JobId job, const ipc::Outcome& outcome) const;
  std::optional<std::string> CheckPosted(JobId job, const Operation& operation,
                                         std::uint32_t rank) const;
  void Expect(JobId job, Operation& operation, bool of_plan) const;
  void ExpectParts(const Planned& planned, const transport::Transfer& whole) const;
  void Move(const transport::Transfer& transfer) const;
  static void ExpectMessages(Operation& operation, std::uint32_t world_size);
  std::optional<std::string> CheckEncoded(JobId job, std::uint64_t sequence, Operation& operation,
                                          const std::vector<std::byte>& result);
  std::optional<std::string> CheckSums(JobId job, Operation& operation, std::uint32_t rank,
                                       const std::vector<std::byte>& result) const;

  Arithmetic arithmetic_;
  std::map<JobId, std::uint32_t> world_sizes_;
  std::map<JobId, NodeSums> of_nodes_;
  std::set<JobId> drained_;
  std::map<JobId, std::uint64_t> ended_;
  std::map<JobId, std::set<std::string>> blamed_;
  std::map<JobId, std::string> first_errors_;
  std::map<std::pair<JobId, std::uint64_t>, Operation> operations_;
  std::map<std::pair<JobId, std::uint32_t>, EncodedSums> encoded_;  // by gradient
  std::uint64_t ended_ok_ = 0;
  std::uint64_t ended_failed_ = 0;
  std::uint64_t iterations_ok_ = 0;
};

}  // namespace headrace::sim

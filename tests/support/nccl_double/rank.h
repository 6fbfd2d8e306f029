// One rank: its line to the hub, and a thread that does in the background what NCCL does there.
//
// Thread-safe. Owners: the table of ranks until it is destroyed or aborted, its family until all of
// that are, its own thread, and kernels that stand in streams.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/cuda_double/doubled_driver.h"
#include "tests/support/nccl_double/companions.h"
#include "tests/support/nccl_double/messages.h"
#include "transport/memory/cuda_handles.h"

namespace headrace::nccl_double {

// The double of the driver, as this library uses it.
struct Cuda {
  Cuda(std::unique_ptr<transport::CudaDriver> opened, const cuda_double::Doubled& loaded)
      : driver(std::move(opened)), doubled(loaded) {}

  std::unique_ptr<transport::CudaDriver> driver;
  cuda_double::Doubled doubled;
};
const Cuda& TheCuda();

// A collective as it was asked for on one rank.
struct Call {
  Header header{};
  const std::byte* source = nullptr;
  std::size_t source_size = 0;
  std::byte* target = nullptr;
  std::size_t target_size = 0;
  transport::CuStream stream = nullptr;
};

class Rank : public std::enable_shared_from_this<Rank> {
 public:
  Rank(transport::CuContext context, transport::CuDevice device, std::uint32_t number,
       std::uint32_t ranks_count);
  ~Rank();

  std::uint32_t number() const { return number_; }
  std::uint32_t ranks_count() const { return ranks_count_; }
  NcclResult state() const { return state_.load(); }

  // What it answers from now on.
  void Fail(NcclResult result) { state_ = result; }

  // All three go on in the background: kInProgress until they are done.
  void Form(std::string hub);
  void Launch(std::vector<Call> calls);
  void Finalize();

  // Lets its streams go on: what it was to carry out is not any more.
  void Abort();
  // Holds the caller until then.
  void AwaitAbort();
  // Ends its thread, once that is about nothing more. Where this was the last of its family, waits
  // for the streams of all of them, and frees what they have.
  void Leave();
  bool finalized() const { return finalized_.load(); }

  NcclReduction MakeReduction(std::array<std::byte, 8> scalar);
  bool DropReduction(NcclReduction reduction);
  // The scalar of a reduction of its own.
  std::optional<std::array<std::byte, 8>> ScalarOf(NcclReduction reduction);

 private:
  struct Standing;  // a call in a stream

  void Start(std::function<NcclResult()> job);
  void RunJobs();
  NcclResult JoinHub(const std::string& hub);
  NcclResult LoadKernel();
  NcclResult Put(const Call& call);
  NcclResult PutKernel(const Call& call);
  void Free();
  static void RunKernel(const CudaDoubleLaunch* launch);
  void Move(transport::CuDevice device, const Call& call);
  NcclResult Exchange(const Header& header, std::span<const std::byte> bytes, Message& answer);

  transport::CuContext context_;
  transport::CuDevice device_;
  std::uint32_t number_;
  std::uint32_t ranks_count_;
  std::uint64_t host_;
  std::atomic<NcclResult> state_ = NcclResult::kSuccess;
  std::atomic<bool> finalized_ = false;
  std::atomic<bool> formed_ = false;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<NcclResult()>> jobs_;
  bool aborted_ = false;
  bool leaves_ = false;
  std::map<NcclReduction, std::array<std::byte, 8>> scalars_;
  NcclReduction next_reduction_ = transport::kNcclOwnReductionsFirst;
  std::mutex line_;  // one collective at a time
  UniqueFd socket_;
  std::shared_ptr<Family> family_;             // see Family; set when it begins to form
  std::shared_ptr<LaunchOrder> launch_order_;  // see LaunchOrder
  transport::CudaEvent finished_;              // behind its last kernel
  transport::CudaModule module_;
  transport::CuFunction kernel_ = nullptr;
  std::thread thread_;
};

}  // namespace headrace::nccl_double

// The shared-memory transport from Post to completion, beside the ideal loop on as many threads
// over the same memory. The ideal's threads wait for each round at a barrier, so that their start
// is not in its figure.
#include <atomic>
#include <barrier>
#include <thread>

#include "tests/bench/reduce/beside_ideal.h"
#include "tests/bench/reduce/ideal.h"
#include "tests/bench/reduce/mapped_members.h"
#include "transport/shm/shm_transport.h"

namespace headrace::transport {
namespace {

class SleepingWaker final : public Waker {
 public:
  void Wake() override {
    count_.fetch_add(1);
    count_.notify_all();
  }
  std::uint32_t count() const { return count_.load(); }
  void WaitBeyond(std::uint32_t seen) const { count_.wait(seen); }

 private:
  std::atomic<std::uint32_t> count_{0};
};

class IdealThreads {
 public:
  IdealThreads(std::size_t threads, const MappedMembers& members, std::size_t count)
      : members_(members), share_(count / threads), round_(static_cast<std::ptrdiff_t>(threads)) {
    for (std::size_t index = 1; index < threads; ++index) {
      others_.emplace_back([this, index] {
        for (round_.arrive_and_wait(); !stop_; round_.arrive_and_wait()) {
          SumShare(index);
          round_.arrive_and_wait();
        }
      });
    }
  }
  ~IdealThreads() {
    stop_ = true;
    round_.arrive_and_wait();
  }

  void Run() {
    round_.arrive_and_wait();
    SumShare(0);
    round_.arrive_and_wait();
  }

 private:
  void SumShare(std::size_t index) {
    IdealSum(members_.floats(), members_.bytes().size(), index * share_, (index + 1) * share_);
  }

  const MappedMembers& members_;
  std::size_t share_;  // elements
  std::barrier<> round_;
  std::atomic<bool> stop_{false};
  std::vector<std::jthread> others_;
};

// Arguments: threads, members, bytes of each.
void BM_ShmAllReduceFloat32(benchmark::State& state) {
  const auto threads = static_cast<std::uint32_t>(state.range(0));
  const auto members_count = static_cast<std::size_t>(state.range(1));
  const auto size = static_cast<std::size_t>(state.range(2));
  const MappedMembers members(members_count, size);
  IdealThreads ideal(threads, members, size / sizeof(float));
  SleepingWaker waker;
  ShmTransport transport(threads, waker);
  Transfer transfer{.kind = Collective::kAllReduce,
                    .dtype = DType::kFloat32,
                    .count = size / sizeof(float),
                    .members_count = static_cast<std::uint32_t>(members_count)};
  std::copy(members.bytes().begin(), members.bytes().end(), transfer.members.begin());
  std::vector<Completion> completions;
  const auto run_transfer = [&] {
    completions.clear();
    HR_CHECK(transport.Post(transfer, 0) == PostResult::kAccepted);
    while (completions.empty()) {
      const std::uint32_t seen = waker.count();
      if (!transport.DoWork(MonotonicNow(), completions) && completions.empty()) {
        waker.WaitBeyond(seen);
      }
    }
  };
  RunBesideIdeal(state, 2 * members_count * size, run_transfer, [&] { ideal.Run(); });
}

void TransportSizes(benchmark::internal::Benchmark* bench) {
  bench->UseManualTime();
  for (const std::int64_t members : {2, 4}) {
    for (const std::int64_t threads : {1, 2}) {
      for (const std::int64_t size :
           {4 << 10, 64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20, 4 << 20, 64 << 20}) {
        bench->Args({threads, members, size});
      }
    }
  }
}

BENCHMARK(BM_ShmAllReduceFloat32)->Apply(TransportSizes);

}  // namespace
}  // namespace headrace::transport

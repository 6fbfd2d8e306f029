// The shared-memory transport from Post to completion, beside the ideal loop on as many threads.
#include <benchmark/benchmark.h>

#include <atomic>
#include <barrier>
#include <thread>

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

void SetMoved(benchmark::State& state, std::size_t members_count, std::size_t size) {
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(2 * members_count * size));
}

// Threads, members, bytes of each.
void BM_ShmAllReduceFloat32(benchmark::State& state) {
  const auto threads = static_cast<std::uint32_t>(state.range(0));
  const auto members_count = static_cast<std::size_t>(state.range(1));
  const auto size = static_cast<std::size_t>(state.range(2));
  const MappedMembers members(members_count, size);
  SleepingWaker waker;
  ShmTransport transport(threads, waker);
  Transfer transfer{.kind = Collective::kAllReduce,
                    .dtype = DType::kFloat32,
                    .count = size / sizeof(float),
                    .members_count = static_cast<std::uint32_t>(members_count)};
  std::copy(members.bytes().begin(), members.bytes().end(), transfer.members.begin());
  std::vector<Completion> completions;
  for (auto _ : state) {
    completions.clear();
    if (transport.Post(transfer, 0) != PostResult::kAccepted) state.SkipWithError("busy");
    while (completions.empty()) {
      const std::uint32_t seen = waker.count();
      if (!transport.DoWork(MonotonicNow(), completions) && completions.empty()) {
        waker.WaitBeyond(seen);
      }
    }
  }
  SetMoved(state, members_count, size);
}

// The loop on threads that wait for each round at a barrier, so that no start is in the figure.
void BM_IdealAllReduceFloat32(benchmark::State& state) {
  const auto threads = static_cast<std::size_t>(state.range(0));
  const auto members_count = static_cast<std::size_t>(state.range(1));
  const auto size = static_cast<std::size_t>(state.range(2));
  const MappedMembers members(members_count, size);
  const std::size_t share = size / sizeof(float) / threads;
  std::barrier round(static_cast<std::ptrdiff_t>(threads));
  std::atomic<bool> stop{false};
  const auto sum_share = [&](std::size_t index) {
    IdealSum(members.floats(), members_count, index * share, (index + 1) * share);
  };
  std::vector<std::jthread> others;
  for (std::size_t index = 1; index < threads; ++index) {
    others.emplace_back([&, index] {
      for (round.arrive_and_wait(); !stop; round.arrive_and_wait()) {
        sum_share(index);
        round.arrive_and_wait();
      }
    });
  }
  for (auto _ : state) {
    round.arrive_and_wait();
    sum_share(0);
    round.arrive_and_wait();
  }
  stop = true;
  round.arrive_and_wait();
  SetMoved(state, members_count, size);
}

void Sizes(benchmark::internal::Benchmark* bench) {
  bench->UseRealTime();
  for (const std::int64_t members : {2, 4}) {
    for (const std::int64_t threads : {1, 2}) {
      for (const std::int64_t size :
           {4 << 10, 64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20, 4 << 20, 64 << 20}) {
        bench->Args({threads, members, size});
      }
    }
  }
}

BENCHMARK(BM_IdealAllReduceFloat32)->Apply(Sizes);
BENCHMARK(BM_ShmAllReduceFloat32)->Apply(Sizes);

}  // namespace
}  // namespace headrace::transport

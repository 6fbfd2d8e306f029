// The ideal: what the memory of this machine allows. One process maps every rank's memfd, as the
// service does, and a plain SIMD loop reads each input once and writes the sum to each once, cut
// over as many threads as there are cores. No posting, no waiting for ranks, no completion: nothing
// that serves several processes can be faster than this for long.
//
// usage: ideal FOLDER RANKS
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

#include "ipc/base/fd.h"
#include "ipc/sealed_memory.h"
#include "tests/bench/peers/rounds.h"

namespace {

constexpr int kRanksMax = 8;
// Below this size waking threads costs more than it brings, so one thread does it all.
constexpr std::size_t kCountAlone = (256 << 10) / sizeof(float);
// Threads meet every few microseconds while measured; they sleep when nothing comes for longer.
constexpr int kSpinsMax = 20000;

// Compiled for each instruction set; the loader takes the best that this machine has.
template <int kRanks>
inline __attribute__((always_inline)) void Sum(float* const* memory, std::size_t begin,
                                               std::size_t end) {
  float* __restrict rows[kRanks];
  for (int rank = 0; rank < kRanks; ++rank) rows[rank] = memory[rank];
#ifndef __clang__  // which finds that rows do not overlap by itself
#pragma GCC ivdep
#endif
  for (std::size_t i = begin; i < end; ++i) {
    float sum = rows[0][i];
    for (int rank = 1; rank < kRanks; ++rank) sum += rows[rank][i];
    for (int rank = 0; rank < kRanks; ++rank) rows[rank][i] = sum;
  }
}

#define HEADRACE_EACH_ISA __attribute__((target_clones("avx512f", "avx2", "default")))
HEADRACE_EACH_ISA void Sum2(float* const* memory, std::size_t begin, std::size_t end) {
  Sum<2>(memory, begin, end);
}
HEADRACE_EACH_ISA void Sum4(float* const* memory, std::size_t begin, std::size_t end) {
  Sum<4>(memory, begin, end);
}
HEADRACE_EACH_ISA void Sum8(float* const* memory, std::size_t begin, std::size_t end) {
  Sum<8>(memory, begin, end);
}

// Threads that start each round together and end it together. The caller is one of them.
class Team {
 public:
  Team(int size, void (*work)(void*, int part), void* state) : work_(work), state_(state) {
    for (int part = 1; part < size; ++part) {
      threads_.emplace_back([this, part](const std::stop_token& stop) { Serve(stop, part); });
    }
  }
  ~Team() {
    for (auto& thread : threads_) thread.request_stop();
    Start();
  }
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int size() const { return static_cast<int>(threads_.size()) + 1; }

  void Run() {
    left_.store(static_cast<int>(threads_.size()));
    Start();
    work_(state_, 0);
    while (left_.load() != 0) __builtin_ia32_pause();
  }

 private:
  void Start() {
    round_.fetch_add(1);
    round_.notify_all();
  }

  void Serve(const std::stop_token& stop, int part) {
    for (unsigned seen = 0;;) {
      for (int spins = 0; round_.load() == seen && spins < kSpinsMax; ++spins) {
        __builtin_ia32_pause();
      }
      round_.wait(seen);
      ++seen;
      if (stop.stop_requested()) return;
      work_(state_, part);
      left_.fetch_sub(1);
    }
  }

  void (*work_)(void*, int);
  void* state_;
  std::atomic<unsigned> round_{0};
  std::atomic<int> left_{0};
  std::vector<std::jthread> threads_;
};

class Ideal {
 public:
  Ideal(int ranks, int threads) : ranks_(ranks), team_(threads, &Ideal::Part, this) {}

  int Prepare(std::size_t count) {
    if (count == count_) return 0;
    count_ = count;
    segments_.clear();
    const std::size_t page = headrace::ipc::kPageSize;
    const std::size_t size = (count * sizeof(float) + page - 1) / page * page;
    for (int rank = 0; rank < ranks_; ++rank) {
      auto memory = headrace::ipc::CreateSealedMemory("headrace-bench", size);
      if (!memory.ok()) return 1;
      segments_.push_back(std::move(memory).value());
      rows_[rank] = reinterpret_cast<float*>(segments_.back().mapping.data());
    }
    return 0;
  }

  float* Memory(int rank) { return rows_[rank]; }

  void AllReduce() {
    if (count_ < kCountAlone) {
      SumRange(0, count_);
    } else {
      team_.Run();
    }
  }

 private:
  static void Part(void* state, int part) {
    auto* self = static_cast<Ideal*>(state);
    const auto parts = static_cast<std::size_t>(self->team_.size());
    const auto index = static_cast<std::size_t>(part);
    self->SumRange(self->count_ * index / parts, self->count_ * (index + 1) / parts);
  }

  void SumRange(std::size_t begin, std::size_t end) {
    (ranks_ == 2 ? Sum2 : ranks_ == 4 ? Sum4 : Sum8)(rows_, begin, end);
  }

  int ranks_;
  std::size_t count_ = 0;
  float* rows_[kRanksMax] = {};
  std::vector<headrace::ipc::SealedMemory> segments_;
  Team team_;
};

}  // namespace

int main(int argc, char** argv) {
  const int ranks = argc == 3 ? std::atoi(argv[2]) : 0;
  if (ranks != 2 && ranks != 4 && ranks != 8) {
    std::fprintf(stderr, "usage: ideal FOLDER 2|4|8\n");
    return 2;
  }
  Ideal ideal(ranks, static_cast<int>(std::max(1U, std::thread::hardware_concurrency())));
  const bench_contender contender = {
      .state = &ideal,
      .first_rank = 0,
      .rank_count = ranks,
      .world_size = ranks,
      .prepare = [](void* state,
                    std::size_t count) { return static_cast<Ideal*>(state)->Prepare(count); },
      .memory = [](void* state, int rank) { return static_cast<Ideal*>(state)->Memory(rank); },
      .all_reduce =
          [](void* state) {
            static_cast<Ideal*>(state)->AllReduce();
            return 0;
          },
  };
  return bench_serve(argv[1], &contender);
}

// The transports of host memory.
#include <atomic>

#include "tests/contract/subject.h"
#include "tests/support/loopback/loopback_transport.h"
#include "transport/shm/shm_transport.h"

namespace headrace::transport {
namespace {

class CountingWaker final : public Waker {
 public:
  void Wake() override {
    count_.fetch_add(1);
    count_.notify_all();
  }
  std::uint32_t count() const { return count_.load(); }
  // Sleeps until the count is no longer `seen`.
  void WaitBeyond(std::uint32_t seen) const { count_.wait(seen); }

 private:
  std::atomic<std::uint32_t> count_{0};
};

class ShmSubject final : public Subject {
 public:
  explicit ShmSubject(std::uint32_t threads) : transport_(threads, waker_) {}

  Transport& transport() override { return transport_; }
  TimeNs Now() override { return MonotonicNow(); }

  void Step(std::vector<Completion>& completions) override {
    const std::uint32_t seen = waker_.count();
    const std::size_t before = completions.size();
    const bool again = transport_.DoWork(Now(), completions);
    // After false without a completion the only thing left to happen is a helper's end.
    if (!again && completions.size() == before) waker_.WaitBeyond(seen);
  }

 private:
  CountingWaker waker_;
  ShmTransport transport_;
};

class LoopbackSubject final : public Subject {
 public:
  explicit LoopbackSubject(const LoopbackOptions& options) : transport_(options) {}

  Transport& transport() override { return transport_; }
  TimeNs Now() override { return now_; }

  void Step(std::vector<Completion>& completions) override {
    if (!transport_.DoWork(now_, completions) && transport_.NextDue() != kNever) {
      now_ = transport_.NextDue();
    }
  }

 private:
  TimeNs now_ = 0;
  LoopbackTransport transport_;
};

SubjectKind Shm(std::uint32_t threads) {
  return {.name = "Shm" + std::to_string(threads),
          .make = [threads] { return std::make_unique<ShmSubject>(threads); }};
}

SubjectKind Loopback(std::string name, const LoopbackOptions& options) {
  return {.name = std::move(name),
          .make = [options] { return std::make_unique<LoopbackSubject>(options); }};
}

}  // namespace

std::vector<SubjectKind> AllSubjects() {
  return {Shm(1), Shm(2), Shm(3), Loopback("LoopbackInstant", {}),
          Loopback("LoopbackTimed", {.startup_ns = 5000, .ns_per_byte = 0.1, .jitter_share = 0.5})};
}

}  // namespace headrace::transport

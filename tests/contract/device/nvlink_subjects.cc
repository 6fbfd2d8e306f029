// The lane between GPUs, on the double of CUDA's driver and, where there is one, on real GPUs.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "ipc/base/check.h"
#include "tests/contract/device/staged_transport.h"
#include "tests/contract/subject.h"
#include "tests/support/cuda_double/doubled_driver.h"
#include "transport/nvlink/nvlink_transport.h"

namespace headrace::transport {
namespace {

// Small enough for transfers of many, and too few blocks of threads for each unit to have a thread.
const NvlinkOptions kOptions{.ctas = 2, .piece_size = std::size_t{64} << 10};

// Where tests/gpu/run says that the driver is.
std::string CudaLibrary() {
  const char* const named = std::getenv("HEADRACE_CUDA_LIBRARY");
  return named != nullptr ? named : std::string(kCudaLibrary);
}

std::ptrdiff_t ThreadsCount() {
  const std::filesystem::directory_iterator entries("/proc/self/task");
  return std::distance(begin(entries), end(entries));
}

class NvlinkSubject final : public Subject {
 public:
  NvlinkSubject(const Gpus& gpus, std::size_t gpus_count) {
    auto opened = NvlinkTransport::Open(gpus, kOptions);
    HR_CHECK(opened.ok(), opened.error().text());
    inner_ = std::move(*opened);
    staged_ = std::make_unique<StagedTransport>(gpus, gpus_count, *inner_);
  }

  Transport& transport() override { return *staged_; }
  TimeNs Now() override { return MonotonicNow(); }
  void Step(std::vector<Completion>& completions) override {
    if (staged_->DoWork(Now(), completions)) std::this_thread::yield();
  }
  // Also before what it staged is freed.
  ~NvlinkSubject() override { inner_.reset(); }

 private:
  std::unique_ptr<StagedTransport> staged_;
  std::unique_ptr<NvlinkTransport> inner_;
};

// Gives back what it took; another one may be there meanwhile.
class DoubledSubject final : public Subject {
 public:
  explicit DoubledSubject(std::size_t gpus_count) : threads_(ThreadsCount()), held_(Held()) {
    const cuda_double::Environment machine({{"DEVICES", std::to_string(gpus_count)}});
    if (std::ranges::all_of(held_, [](auto count) { return count == 0; })) {
      HR_CHECK(cuda_double::LoadDouble().restart() == 1, gpus_count);
    }
    auto gpus = Gpus::Open(cuda_double::LibraryPath());
    HR_CHECK(gpus.ok(), gpus.error().text());
    gpus_ = std::move(*gpus);
    HR_CHECK(gpus_->count() == gpus_count, gpus_->count());
    subject_ = std::make_unique<NvlinkSubject>(*gpus_, gpus_count);
  }
  ~DoubledSubject() override {
    subject_.reset();
    HR_CHECK(gpus_->driver().releases_failed() == 0, gpus_->driver().releases_failed());
    gpus_.reset();
    HR_CHECK(Held() == held_, "something was left behind");
    // The double's streams end a moment after their stream is destroyed.
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(5);
    while (ThreadsCount() > threads_ && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  Transport& transport() override { return subject_->transport(); }
  TimeNs Now() override { return subject_->Now(); }
  void Step(std::vector<Completion>& completions) override { subject_->Step(completions); }

 private:
  static std::vector<std::uint64_t> Held() {
    return cuda_double::CountsOf(cuda_double::LoadDouble());
  }

  std::ptrdiff_t threads_;
  std::vector<std::uint64_t> held_;
  std::unique_ptr<Gpus> gpus_;
  std::unique_ptr<Subject> subject_;
};

SubjectKind Doubled(std::size_t gpus_count) {
  return {.name = "NvlinkOf" + std::to_string(gpus_count),
          .make = [gpus_count] { return std::make_unique<DoubledSubject>(gpus_count); }};
}

// All tests share the driver and its contexts, which take long to make.
SubjectKind Real() {
  const auto gpus = std::make_shared<std::unique_ptr<Gpus>>();  // owners: the two functions
  return {.name = "NvlinkOnCuda",
          .make = [gpus] { return std::make_unique<NvlinkSubject>(**gpus, (*gpus)->count()); },
          .missing = [gpus]() -> std::string {
            if (*gpus) return "";
            auto opened = Gpus::Open(CudaLibrary());
            if (!opened) return opened.error().text();
            *gpus = std::move(*opened);
            return "";
          }};
}

}  // namespace

std::vector<SubjectKind> AllSubjects() { return {Doubled(1), Doubled(2), Doubled(4), Real()}; }

}  // namespace headrace::transport

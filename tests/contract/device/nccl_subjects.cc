// The lane over NCCL, on the doubles of CUDA's driver and of NCCL.
#include <chrono>
#include <filesystem>
#include <thread>

#include "ipc/base/check.h"
#include "tests/contract/device/staged_transport.h"
#include "tests/contract/subject.h"
#include "tests/support/cuda_double/doubled_driver.h"
#include "tests/support/nccl_double/doubled_nccl.h"
#include "transport/nccl/nccl_transport.h"

namespace headrace::transport {
namespace {

// As many as the contract's transfers have members, since each needs a GPU of its own.
constexpr std::size_t kGpusCount = 5;

std::ptrdiff_t ThreadsCount() {
  const std::filesystem::directory_iterator entries("/proc/self/task");
  return std::distance(begin(entries), end(entries));
}

class NcclSubject final : public Subject {
 public:
  NcclSubject()
      : threads_(ThreadsCount()),
        counts_(cuda_double::CountsOf(cuda_double::LoadDouble())),
        ranks_(nccl_double::LoadDouble().Counts().ranks) {
    const cuda_double::Environment machine({{"DEVICES", std::to_string(kGpusCount)}});
    // Does nothing beside another subject, which has the same machine.
    cuda_double::LoadDouble().restart();
    auto gpus = Gpus::Open(cuda_double::LibraryPath());
    HR_CHECK(gpus.ok(), gpus.error().text());
    gpus_ = std::move(*gpus);
    // Small enough for transfers of many pieces.
    auto opened = NcclTransport::Open(
        *gpus_, {.library = nccl_double::LibraryPath(), .piece_size = std::size_t{64} << 10});
    HR_CHECK(opened.ok(), opened.error().text());
    inner_ = std::move(*opened);
    staged_ = std::make_unique<StagedTransport>(*gpus_, kGpusCount, *inner_);
  }

  ~NcclSubject() override {
    inner_.reset();  // before what was staged is freed
    staged_.reset();
    HR_CHECK(gpus_->driver().releases_failed() == 0, gpus_->driver().releases_failed());
    gpus_.reset();
    HR_CHECK(cuda_double::CountsOf(cuda_double::LoadDouble()) == counts_,
             "something was left behind");
    HR_CHECK(nccl_double::LoadDouble().Counts().ranks == ranks_, "a rank was left behind");
    // Threads of the doubles end a moment after what they are for.
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(5);
    while (ThreadsCount() > threads_ && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  Transport& transport() override { return *staged_; }
  TimeNs Now() override { return MonotonicNow(); }
  void Step(std::vector<Completion>& completions) override {
    if (staged_->DoWork(Now(), completions)) std::this_thread::yield();
  }

 private:
  // What there was before this.
  std::ptrdiff_t threads_;
  std::vector<std::uint64_t> counts_;
  std::uint64_t ranks_;
  std::unique_ptr<Gpus> gpus_;
  std::unique_ptr<NcclTransport> inner_;
  std::unique_ptr<StagedTransport> staged_;
};

}  // namespace

std::vector<SubjectKind> AllSubjects() {
  return {{.name = "NcclOf5", .make = [] { return std::make_unique<NcclSubject>(); }}};
}

}  // namespace headrace::transport

#include "tests/support/nccl_double/rank.h"

#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "ipc/base/check.h"
#include "tests/support/nccl_double/settings.h"

namespace headrace::nccl_double {
namespace {

using transport::CuResult;

constexpr std::chrono::microseconds kLaunchDelay(300);
constexpr const char* kKernel = "headrace_nccl_double_move";

// Ranks of equal host and GPU are two on one GPU.
std::uint64_t HostId() {
  const char* given = std::getenv("NCCL_HOSTID");
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  return std::hash<std::string>()(given != nullptr ? given : name.data());
}

}  // namespace

const Cuda& TheCuda() {
  static const Cuda* const cuda = [] {
    auto driver = transport::CudaDriver::Open(cuda_double::LibraryPath());
    HR_CHECK(driver.ok(), driver.error().text());
    auto made = std::make_unique<Cuda>(std::move(driver).value(), cuda_double::LoadDouble());
    return made.release();
  }();
  return *cuda;
}

// Owns itself from the launch until the kernel has run.
struct Rank::Standing {
  std::shared_ptr<Rank> rank;
  Call call;
};

Rank::Rank(transport::CuContext context, transport::CuDevice device, std::uint32_t number,
           std::uint32_t ranks_count)
    : context_(context),
      device_(device),
      number_(number),
      ranks_count_(ranks_count),
      host_(HostId()) {
  Settings::Get().Count(&NcclDoubleCounts::ranks, 1);
  thread_ = std::thread([this] { RunJobs(); });
}

Rank::~Rank() {
  HR_CHECK(!thread_.joinable());
  Settings::Get().Count(&NcclDoubleCounts::ranks, -1);
  Settings::Get().Count(&NcclDoubleCounts::reductions, -static_cast<std::int64_t>(scalars_.size()));
}

void Rank::Start(std::function<NcclResult()> job) {
  // An error of a collective stays, whatever is asked of the rank afterwards.
  NcclResult expected = NcclResult::kSuccess;
  state_.compare_exchange_strong(expected, NcclResult::kInProgress);
  const std::lock_guard lock(mutex_);
  jobs_.push_back(std::move(job));
  changed_.notify_all();
}

void Rank::RunJobs() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return aborted_ || leaves_ || !jobs_.empty(); });
    if (aborted_ || jobs_.empty()) return;
    const auto job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    const NcclResult result = job();
    lock.lock();
    // An error of a collective may have come meanwhile, and stays.
    NcclResult expected = NcclResult::kInProgress;
    state_.compare_exchange_strong(expected, result);
  }
}

void Rank::Form(std::string hub) {
  family_ = Family::Of(hub, host_);
  Start([this, hub = std::move(hub)] { return JoinHub(hub); });
}

NcclResult Rank::JoinHub(const std::string& hub) {
  std::optional<UniqueFd> socket = Connect(hub);
  if (!socket) return NcclResult::kSystemError;
  {
    const std::lock_guard lock(mutex_);
    if (aborted_) return NcclResult::kInternalError;
    socket_ = std::move(*socket);
  }
  Header hello{.says = Says::kHello};
  hello.rank = number_;
  hello.ranks_count = ranks_count_;
  hello.host = host_;
  transport::CuUuid uuid{};
  TheCuda().driver->call().device_get_uuid(&uuid, device_);
  std::memcpy(hello.gpu.data(), uuid.bytes.data(), hello.gpu.size());
  Message answer;
  const NcclResult met = Exchange(hello, {}, answer);
  if (met != NcclResult::kSuccess) return met;
  family_->Join(shared_from_this());
  formed_ = true;
  return LoadKernel();
}

NcclResult Rank::LoadKernel() {
  const transport::CudaDriver& driver = *TheCuda().driver;
  const std::size_t size = sizeof(void*);
  TheCuda().doubled.kernel(kKernel, &Rank::RunKernel, &size, 1);
  const transport::CurrentContext current(driver, context_);
  transport::CuModule module = nullptr;
  if (driver.call().module_load_data(&module, "// the double of NCCL") != CuResult::kSuccess) {
    return NcclResult::kUnhandledCudaError;
  }
  module_ = transport::CudaModule({&driver, context_, module});
  launch_order_ = LaunchOrder::Of(context_);
  transport::CuEvent event = nullptr;
  if (driver.call().event_create(&event, transport::kCuEventDisableTiming) != CuResult::kSuccess) {
    return NcclResult::kUnhandledCudaError;
  }
  finished_ = transport::CudaEvent({&driver, context_, event});
  return driver.call().module_get_function(&kernel_, module, kKernel) == CuResult::kSuccess
             ? NcclResult::kSuccess
             : NcclResult::kUnhandledCudaError;
}

void Rank::Launch(std::vector<Call> calls) {
  Start([this, calls = std::move(calls)] {
    // src/group.cc, groupLaunch: plans, and connects what the collective needs, before it launches.
    Settings::Get().Delay(kLaunchDelay);
    for (const Call& call : calls) {
      if (const NcclResult result = Put(call); result != NcclResult::kSuccess) return result;
    }
    return NcclResult::kSuccess;
  });
}

// In its place among the launches of the context, where they have an order.
NcclResult Rank::Put(const Call& call) {
  const transport::CudaFunctions& cuda = TheCuda().driver->call();
  const transport::CurrentContext current(*TheCuda().driver, context_);
  std::unique_lock<std::mutex> turn;
  if (launch_order_) {
    turn = std::unique_lock(launch_order_->mutex);
    const CuResult waits = cuda.stream_wait_event(call.stream, launch_order_->last.get().thing, 0);
    if (waits != CuResult::kSuccess) return NcclResult::kUnhandledCudaError;
  }
  if (const NcclResult put = PutKernel(call); put != NcclResult::kSuccess) return put;
  CuResult marked = cuda.event_record(finished_.get().thing, call.stream);
  if (launch_order_ && launch_order_->kind == LaunchOrder::Kind::kEnds) {
    marked = cuda.event_record(launch_order_->last.get().thing, call.stream);
  }
  return marked == CuResult::kSuccess ? NcclResult::kSuccess : NcclResult::kUnhandledCudaError;
}

NcclResult Rank::PutKernel(const Call& call) {
  auto standing = std::make_unique<Standing>(Standing{shared_from_this(), call});
  void* pointer = standing.get();
  void* parameter = &pointer;
  CudaDoubleLaunchAttribute attribute{};
  CudaDoubleLaunchConfig config{.grid = {1, 1, 1},
                                .block = {32, 1, 1},
                                .shared_size = 0,
                                .stream = call.stream,
                                .attributes = &attribute,
                                .attributes_count = 0};
  if (launch_order_ && launch_order_->kind == LaunchOrder::Kind::kBegins) {
    attribute.id = CudaDoubleLaunchAttribute::kLaunchCompletionEvent;
    attribute.event = launch_order_->last.get().thing;
    config.attributes_count = 1;
  }
  const CuResult result = TheCuda().doubled.launch_ex(&config, kernel_, &parameter, nullptr);
  if (result != CuResult::kSuccess) return NcclResult::kUnhandledCudaError;
  (void)standing.release();
  return NcclResult::kSuccess;
}

void Rank::RunKernel(const CudaDoubleLaunch* launch) {
  void* pointer = nullptr;
  std::memcpy(&pointer, launch->parameters[0], sizeof pointer);
  const std::unique_ptr<Standing> standing(static_cast<Standing*>(pointer));
  standing->rank->Move(launch->device, standing->call);
}

// On the stream's thread.
void Rank::Move(transport::CuDevice device, const Call& call) {
  const auto may_touch = [&](const void* memory, std::size_t size, bool writes) {
    return size == 0 ||
           TheCuda().doubled.may_touch(device, reinterpret_cast<transport::CuAddress>(memory), size,
                                       writes ? 1 : 0) != 0;
  };
  if (!may_touch(call.source, call.source_size, false)) return;
  if (!may_touch(call.target, call.target_size, true)) return;
  const std::lock_guard one_at_a_time(line_);
  if (Settings::Get().Enter("hang") != NcclResult::kSuccess) return AwaitAbort();
  Message answer;
  NcclResult result = Settings::Get().Enter("error");
  if (result == NcclResult::kSuccess) {
    Settings::Get().Count(&NcclDoubleCounts::waiting, 1);
    result = Exchange(call.header, {call.source, call.source_size}, answer);
    Settings::Get().Count(&NcclDoubleCounts::waiting, -1);
  }
  if (result != NcclResult::kSuccess) {
    // Told when somebody asks; the GPU goes on waiting until it is aborted.
    state_ = result;
    return AwaitAbort();
  }
  HR_CHECK(call.target_size == 0 || answer.bytes.size() == call.target_size, answer.bytes.size(),
           call.target_size);
  if (call.target_size != 0) std::memcpy(call.target, answer.bytes.data(), call.target_size);
}

NcclResult Rank::Exchange(const Header& header, std::span<const std::byte> bytes, Message& answer) {
  if (!Say(socket_.get(), header, bytes) || !Hear(socket_.get(), answer)) {
    return NcclResult::kRemoteError;
  }
  return answer.header.result;
}

void Rank::AwaitAbort() {
  Settings::Get().Count(&NcclDoubleCounts::hanging, 1);
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return aborted_; });
  Settings::Get().Count(&NcclDoubleCounts::hanging, -1);
}

void Rank::Finalize() {
  Start([this] {
    // Behind all that stands in its streams, which is one at a time.
    const std::lock_guard one_at_a_time(line_);
    Message answer;
    const NcclResult result = Exchange({.says = Says::kGoodbye}, {}, answer);
    finalized_ = result == NcclResult::kSuccess;
    return result;
  });
}

void Rank::Abort() {
  const std::lock_guard lock(mutex_);
  aborted_ = true;
  if (socket_) ::shutdown(socket_.get(), SHUT_RDWR);
  changed_.notify_all();
}

void Rank::Leave() {
  {
    const std::lock_guard lock(mutex_);
    leaves_ = true;
    changed_.notify_all();
  }
  thread_.join();
  // One that was never formed has no family to wait for.
  if (!formed_) return Free();
  for (const auto& rank : family_->Leave()) rank->Free();
}

// commDestroySync, then commCleanup, of src/init.cc.
void Rank::Free() {
  const transport::CurrentContext current(*TheCuda().driver, context_);
  // A context that is broken returns nothing but its error.
  if (finished_) (void)TheCuda().driver->call().event_synchronize(finished_.get().thing);
  launch_order_.reset();
  finished_.reset();
  module_.reset();
  socket_.reset();
}

NcclReduction Rank::MakeReduction(std::array<std::byte, 8> scalar) {
  Settings::Get().Count(&NcclDoubleCounts::reductions, 1);
  const std::lock_guard lock(mutex_);
  scalars_[next_reduction_] = scalar;
  return next_reduction_++;
}

bool Rank::DropReduction(NcclReduction reduction) {
  const std::lock_guard lock(mutex_);
  if (scalars_.erase(reduction) == 0) return false;
  Settings::Get().Count(&NcclDoubleCounts::reductions, -1);
  return true;
}

std::optional<std::array<std::byte, 8>> Rank::ScalarOf(NcclReduction reduction) {
  const std::lock_guard lock(mutex_);
  const auto found = scalars_.find(reduction);
  if (found == scalars_.end()) return std::nullopt;
  return found->second;
}

}  // namespace headrace::nccl_double

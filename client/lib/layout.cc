#include "client/lib/layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <numeric>
#include <utility>

#include "client/lib/handles.h"
#include "client/lib/requests.h"
#include "ipc/base/check.h"
#include "ipc/base/collective_text.h"
#include "ipc/layout_limits.h"

namespace headrace::client {
namespace {

Error Wrong(const std::string& what) { return Error(Code::kInvalidArgument, "layout: " + what); }

std::string NameOf(std::size_t index, std::string_view name) {
  if (name.empty()) return fmt::format("gradient {}", index);
  return fmt::format("gradient {} ({})", index, name);
}

std::string NameOf(std::span<const hr_tensor_spec> specs, std::size_t index) {
  return NameOf(index, specs[index].name == nullptr ? "" : specs[index].name);
}

// Each spec by itself is checked where tensors are registered; a size that would overflow here is
// refused there, so it only must not lead astray.
Status CheckOverlap(std::span<const hr_tensor_spec> specs) {
  std::vector<std::size_t> order(specs.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(),
            [specs](std::size_t a, std::size_t b) { return specs[a].offset < specs[b].offset; });
  for (std::size_t i = 1; i < order.size(); ++i) {
    const hr_tensor_spec& lower = specs[order[i - 1]];
    const hr_tensor_spec& upper = specs[order[i]];
    const std::size_t element = SizeOf(static_cast<DType>(lower.dtype));
    if (lower.count <= (upper.offset - lower.offset) / element) continue;
    return Wrong(fmt::format("{} ({} elements from byte {}) and {} (from byte {}) overlap",
                             NameOf(specs, order[i - 1]), lower.count, lower.offset,
                             NameOf(specs, order[i]), upper.offset));
  }
  return {};
}

Status CheckOptions(const hr_layout_options& options) {
  if (options.size != sizeof options) {
    return Wrong(
        fmt::format("hr_layout_options has size {}, this library ({}) knows {}: call "
                    "hr_layout_options_init first",
                    options.size, HEADRACE_VERSION, sizeof options));
  }
  if (options.reduction != HR_SUM && options.reduction != HR_AVERAGE) {
    return Wrong(fmt::format("reduction {}: gradients are averaged or summed",
                             static_cast<int>(options.reduction)));
  }
  const std::span policy(options.policy);
  if (std::find(policy.begin(), policy.end(), '\0') == policy.end()) {
    return Wrong("the policy's name does not end in NUL");
  }
  const std::span codec(options.codec);
  if (std::find(codec.begin(), codec.end(), '\0') == codec.end()) {
    return Wrong("the codec's name does not end in NUL");
  }
  return {};
}

}  // namespace

Status CheckLayout(std::span<const hr_tensor_spec> specs, const hr_layout_options& options) {
  if (Status status = CheckOptions(options); !status) return status;
  if (specs.empty() || specs.size() > ipc::kLayoutTensorsMax) {
    return Wrong(
        fmt::format("{} gradients: 1 to {} are possible", specs.size(), ipc::kLayoutTensorsMax));
  }
  for (std::size_t i = 0; i < specs.size(); ++i) {
    if (specs[i].segment != specs[0].segment) {
      return Wrong(NameOf(specs, i) + " lies in another segment than gradient 0");
    }
    if (!IsDType(static_cast<std::uint8_t>(specs[i].dtype))) {
      return Wrong(fmt::format("{}: {}", NameOf(specs, i),
                               UnknownDTypeText(static_cast<int>(specs[i].dtype))));
    }
  }
  return CheckOverlap(specs);
}

LayoutNotice NoticeOf(const hr_layout_options& options, std::size_t gradients_count) {
  LayoutNotice notice{.reduction = static_cast<Reduction>(options.reduction),
                      .policy = options.policy,
                      .codec = options.codec,
                      .codecs = {},
                      .compress_after = options.compress_after,
                      .residuals = options.residuals,
                      .residuals_segment = {},
                      .factors_rank = options.factors_rank,
                      .adaptive = options.adaptive != 0};
  if (options.residuals_segment != nullptr) {
    notice.residuals_segment = options.residuals_segment->id;
  }
  if (options.rows != nullptr) notice.rows.assign(options.rows, options.rows + gradients_count);
  if (options.codecs == nullptr) return notice;
  for (const char* const codec : std::span(options.codecs, gradients_count)) {
    notice.codecs.emplace_back(codec == nullptr ? "" : codec);
  }
  return notice;
}

Layout::Layout(Operations& operations, Shape shape)
    : operations_(operations),
      shape_(std::move(shape)),
      times_(shape_.gradients.size()),
      states_(shape_.gradients.size()) {}

std::string Layout::Named(std::size_t index) const {
  return NameOf(index, shape_.gradients[index].name);
}

Status Layout::CheckIndex(std::uint32_t index) const {
  if (index < states_.size()) return {};
  return Error(Code::kInvalidArgument,
               fmt::format("gradient {}: the layout has {}", index, states_.size()));
}

Status Layout::BeginBackward() {
  if (Status status = operations_.CheckThere(); !status) return status;
  std::lock_guard lock(mutex_);
  if (Status status = CheckWholeLocked(); !status) return status;
  // A pass that posted nothing, of a micro-batch for instance, is no iteration.
  const bool begins_iteration = iteration_ == 0 || posted_ != 0;
  if (begins_iteration) {
    ++iteration_;
    posted_ = 0;
  }
  times_.BeginBackward(MonotonicNow());
  return {};
}

Status Layout::CheckWholeLocked() const {
  if (posted_ == 0 || posted_ == states_.size()) return {};
  const auto missing = std::ranges::find_if(
      states_, [this](const State& state) { return state.iteration != iteration_; });
  HR_CHECK(missing != states_.end(), posted_, states_.size());
  return Error(Code::kInvalidArgument,
               fmt::format("{} was not posted in the last backward pass, {} of {} were: a gradient "
                           "without a value is set to zero and posted all the same",
                           Named(static_cast<std::size_t>(missing - states_.begin())), posted_,
                           states_.size()));
}

Result<std::uint64_t> Layout::PostBarrier() {
  {
    std::lock_guard lock(mutex_);
    if (Status status = CheckWholeLocked(); !status) return status.error();
  }
  ipc::Record record = RecordOf(Request{.kind = Collective::kBarrier}, DType::kUInt8, 0);
  record.flags = ipc::kRecordFollowsGradients;
  return operations_.Post(record);
}

Status Layout::ClaimLocked(std::uint32_t index, bool on_stream) {
  State& state = states_[index];
  const auto busy = [this, index](const char* why) {
    return Error(Code::kBusy, Named(index) + ": " + why);
  };
  if (iteration_ == 0) return busy("no backward pass has begun: call hr_layout_begin_backward");
  if (state.posting || state.iteration == iteration_) {
    return busy(
        "it was posted in this backward pass; each iteration has one post of it, after its "
        "hr_layout_begin_backward");
  }
  // A stream that comes to this post has waited for the last one's end before.
  if (state.operation != 0 && !(on_stream && state.awaited)) {
    const Result<bool> ended = operations_.HasEnded(state.operation);
    if (!ended) return ended.error();
    if (!*ended) return busy("its last operation has not ended: call hr_layout_wait first");
  }
  state.posting = true;
  return {};
}

ipc::GradientRecord Layout::RecordLocked(std::uint32_t index) const {
  HR_CHECK(states_[index].posting, index, iteration_);
  ipc::GradientRecord record;
  record.kind = static_cast<std::uint8_t>(Collective::kAllReduce);
  record.dtype = static_cast<std::uint8_t>(shape_.gradients[index].dtype);
  record.reduction = static_cast<std::uint8_t>(shape_.reduction);
  record.flags = ipc::kRecordIsGradient;
  record.tensor = shape_.first_tensor + index;
  record.forward_ns = times_.part(index).forward_ns;
  record.waited_ns = times_.part(index).waited_ns;
  record.backward_ns = static_cast<std::uint64_t>(times_.backward_ns());
  record.count = shape_.gradients[index].count;
  record.contributors = contributors_;
  return record;
}

Result<std::uint64_t> Layout::Post(std::uint32_t index, ReadySignal* signal) {
  if (Status status = CheckIndex(index); !status) return status.error();
  std::unique_lock lock(mutex_);
  if (Status status = ClaimLocked(index, signal != nullptr); !status) return status.error();
  const std::uint64_t last = states_[index].operation;
  if (signal != nullptr && last != 0 && !*operations_.HasEnded(last)) {
    // The host is an iteration ahead of the GPU, and the service knows one post of a gradient at a
    // time. The GPU has that iteration's work before it, so it does not stand still meanwhile.
    lock.unlock();
    [[maybe_unused]] const Result<bool> ended = operations_.WaitForEnd(last, kNever);
    lock.lock();
  }
  const ipc::GradientRecord record = RecordLocked(index);
  lock.unlock();
  // Both kinds of record have the fields that Post fills in at the same place.
  const auto plain = std::bit_cast<ipc::Record>(record);
  const Result<std::uint64_t> posted =
      signal == nullptr ? operations_.Post(plain) : operations_.PostWhenReady(plain, *signal);
  lock.lock();
  State& state = states_[index];
  HR_CHECK(state.posting, index, iteration_);
  state.posting = false;
  if (!posted) return posted.error().Within(Named(index));
  state.operation = *posted;
  state.iteration = iteration_;
  state.awaited = false;
  ++posted_;
  HR_CHECK(posted_ <= states_.size(), posted_, iteration_);
  times_.Forget(index);
  return *posted;
}

Status Layout::Wait(std::uint32_t index, TimeNs timeout_ns) {
  if (Status status = CheckIndex(index); !status) return status;
  std::unique_lock lock(mutex_);
  const TimeNs begin = MonotonicNow();
  times_.Pause(begin);
  const State state = states_[index];
  // A gradient that this iteration's backward pass has still to post is no part of the next forward
  // pass: activations are being computed again.
  const bool counts = state.iteration == iteration_;
  const bool was_open = state.operation != 0 && !*operations_.HasEnded(state.operation);
  if (!was_open) {
    if (counts) times_.Reach(index, begin, 0);
    lock.unlock();
    return state.operation == 0 ? Status() : OutcomeOf(index, state.operation);
  }
  lock.unlock();
  const Result<bool> ended = operations_.WaitForEnd(state.operation, timeout_ns);
  const bool is_there = ended && *ended;
  lock.lock();
  const TimeNs now = MonotonicNow();
  if (counts && is_there) times_.Reach(index, now, now - begin);
  if (counts && !is_there) times_.LoseTime(index, now - begin);
  lock.unlock();
  if (is_there) return OutcomeOf(index, state.operation);
  if (!ended) return ended.error();
  return Error(Code::kTimeout, fmt::format("{} is still open after {} ms of waiting", Named(index),
                                           timeout_ns / kMillisecond));
}

Status Layout::WaitOnStream(std::uint32_t index, GpuWords& words, transport::CuStream stream) {
  if (Status status = CheckIndex(index); !status) return status;
  std::unique_lock lock(mutex_);
  const TimeNs now = MonotonicNow();
  times_.Pause(now);
  const std::uint64_t operation = states_[index].operation;
  if (states_[index].iteration == iteration_) times_.Reach(index, now, 0);
  lock.unlock();
  if (operation == 0) return {};
  if (*operations_.HasEnded(operation)) return OutcomeOf(index, operation);
  if (Status status = words.AwaitEnd(stream, operations_.NumberInChannel(operation)); !status) {
    return status;
  }
  lock.lock();
  if (states_[index].operation == operation) states_[index].awaited = true;
  return {};
}

Status Layout::OutcomeOf(std::uint32_t index, std::uint64_t operation) const {
  const ipc::Outcome outcome = operations_.OutcomeOf(operation);
  if (outcome.code == Code::kOk) return {};
  return Error(outcome.code, Named(index) + ": " + outcome.text);
}

void Layout::Renew(std::uint32_t first_tensor) {
  std::lock_guard lock(mutex_);
  shape_.first_tensor = first_tensor;
  times_ = LayoutTimes(states_.size());
  std::fill(states_.begin(), states_.end(), State{});
  iteration_ = 0;
  posted_ = 0;
  contributors_ = 0;
}

Status Layout::SetContributors(std::uint32_t count) {
  std::lock_guard lock(mutex_);
  if (count != 0 && shape_.reduction != Reduction::kAverage) {
    return Wrong(
        fmt::format("{} contributors: its gradients are summed, and nothing is divided", count));
  }
  if (posted_ != 0 && posted_ != states_.size()) {
    return Wrong(
        fmt::format("{} of {} gradients of the last backward pass were posted: the number "
                    "of contributors changes between two iterations",
                    posted_, states_.size()));
  }
  contributors_ = count;
  return {};
}

void Layout::EndForward() {
  std::lock_guard lock(mutex_);
  times_.EndForward(MonotonicNow());
}

}  // namespace headrace::client

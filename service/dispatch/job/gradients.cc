#include "service/dispatch/job/gradients.h"

#include <algorithm>
#include <utility>

#include "ipc/base/check.h"

namespace headrace::service {

Gradients::Gradients(std::shared_ptr<const Layout> layout, std::uint32_t world_size)
    : layout_(std::move(layout)),
      world_size_(world_size),
      gradients_(layout_->tensors.size()),
      records_(layout_->tensors.size() * world_size) {
  ended_.reserve(layout_->tensors.size());
  for (const LayoutTensor& tensor : layout_->tensors) {
    bytes_ = std::max(bytes_, tensor.End());
  }
}

void Gradients::Post(std::uint32_t rank, std::uint32_t tensor, std::uint64_t record, bool awaits,
                     TimeNs now, TimeNs deadline_ns) {
  Posts& posts = gradients_[tensor].posts;
  HR_CHECK(!IsOpen(rank, tensor), rank, tensor);
  HR_CHECK(rank < world_size_, rank);
  if (posts.ranks == 0) {
    posts.opened_ns = now;
    ++open_count_;
    HR_CHECK(open_count_ <= gradients_.size(), open_count_);
  }
  posts.ranks |= Bit(rank);
  if (awaits) posts.awaited |= Bit(rank);
  posts.deadline_ns = std::min(posts.deadline_ns, deadline_ns);
  records_[std::size_t{tensor} * world_size_ + rank] = record;
}

bool Gradients::SetContributors(std::uint64_t iteration, std::uint32_t contributors) {
  Contributors& known = contributors_[iteration % contributors_.size()];
  if (known.iteration == iteration) return known.count == contributors;
  known = {.iteration = iteration, .count = contributors};
  return true;
}

std::uint64_t Gradients::IterationsOf(std::uint32_t rank) const {
  std::uint64_t iterations = UINT64_MAX;
  for (std::uint32_t tensor = 0; tensor < count(); ++tensor) {
    const std::uint64_t posted = gradients_[tensor].ended + (IsOpen(rank, tensor) ? 1 : 0);
    iterations = std::min(iterations, posted);
  }
  return iterations;
}

std::uint64_t Gradients::Offer(std::shared_ptr<const WirePlan> plan, std::uint64_t slack) {
  const std::uint64_t begun = next_ > 0 ? iteration_ : iteration_ - 1;
  offered_ = std::move(plan);
  next_from_ = 0;
  held_from_ = begun + slack;
  return begun;
}

bool Gradients::AcceptSwitch(std::uint32_t version, std::uint64_t from_iteration,
                             std::uint64_t iterations_before) {
  const bool begun = from_iteration < iteration_ || (from_iteration == iteration_ && next_ > 0);
  if (!offered_ || offered_->plan->version != version || begun) return false;
  next_from_ = from_iteration;
  iterations_before_ = iterations_before;
  held_from_ = 0;
  return true;
}

bool Gradients::SwitchIfDue() {
  if (next_ != 0 || !offered_ || next_from_ == 0 || iteration_ < next_from_) return false;
  plan_ = std::exchange(offered_, nullptr);
  plan_from_ = std::exchange(next_from_, 0);
  return true;
}

std::optional<std::uint32_t> Gradients::Missing(RankMask ranks) {
  HR_CHECK(plan_ != nullptr && next_ < plan_->blocks.size(), next_);
  const WireBlock& head = plan_->blocks[next_];
  for (; checked_ < head.tensors.size(); ++checked_) {
    const Gradient& gradient = gradients_[head.tensors[checked_]];
    // A gradient whose last iteration is not over has not begun this one.
    if (gradient.ended + 1 != iteration_ || (gradient.posts.ready() & ranks) != ranks) {
      return head.tensors[checked_];
    }
  }
  return std::nullopt;
}

bool Gradients::WaitsFor(std::uint32_t rank) const {
  const WireBlock* const head = Head();
  if (head == nullptr || operations_open_ > 0) return false;
  return std::ranges::any_of(head->tensors, [this, rank](std::uint32_t tensor) {
    const Gradient& gradient = gradients_[tensor];
    return gradient.ended + 1 == iteration_ && (gradient.posts.ready() & Bit(rank)) == 0;
  });
}

Operation* Gradients::Begin() {
  const WireBlock& head = plan_->blocks[next_];
  Operation& operation = operations_[(kPlannedSequence | (number_ + 1)) % kPlannedOpenMax];
  Iteration& iteration = iterations_[iteration_ % iterations_.size()];
  if (operation.state != Operation::State::kFree) return nullptr;
  if (iteration.blocks_left > 0 && iteration.number != iteration_) return nullptr;
  if (iteration.number != iteration_) {
    iteration = {.number = iteration_, .blocks_left = plan_->blocks.size()};
  }
  operation = Operation{};
  operation.state = Operation::State::kWaiting;
  operation.spec.sequence = kPlannedSequence | ++number_;
  operation.spec.kind = Collective::kAllReduce;
  operation.spec.half = head.kind;
  operation.spec.dtype = head.dtype;
  operation.spec.reduction = layout_->reduction;
  operation.spec.count = head.count;
  const Contributors& contributors = contributors_[iteration_ % contributors_.size()];
  if (contributors.iteration == iteration_) operation.spec.contributors = contributors.count;
  operation.plan = plan_;
  operation.index = next_;
  operation.iteration = iteration_;
  ++operations_open_;
  if (head.kind == Collective::kReduceScatter) ++scatters_open_;
  HR_CHECK(operations_open_ <= kPlannedOpenMax, operations_open_);
  for (const std::uint32_t tensor : head.tensors) {
    Gradient& gradient = gradients_[tensor];
    if (gradient.begun == iteration_) continue;
    gradient.begun = iteration_;
    gradient.blocks_left = plan_->blocks_of[tensor];
  }
  checked_ = 0;
  if (++next_ == plan_->blocks.size()) {
    next_ = 0;
    ++iteration_;
  }
  return &operation;
}

Gradients::Ended Gradients::End(const Operation& operation) {
  HR_CHECK(operation.open() && operation.planned(), operation.spec.sequence);
  const bool barrier = operation.plan->plan->barrier;
  Iteration& iteration = iterations_[operation.iteration % iterations_.size()];
  HR_CHECK(iteration.number == operation.iteration && iteration.blocks_left > 0,
           operation.iteration);
  const bool last = --iteration.blocks_left == 0;
  ended_.clear();
  for (const std::uint32_t tensor : operation.wire().tensors) {
    HR_CHECK(gradients_[tensor].blocks_left > 0, tensor);
    if (--gradients_[tensor].blocks_left == 0 && !barrier) ended_.push_back(tensor);
  }
  // The forward pass waits for the last block: all end with it.
  for (std::uint32_t tensor = 0; barrier && last && tensor < count(); ++tensor) {
    ended_.push_back(tensor);
  }
  return {.gradients = ended_, .iteration = last};
}

void Gradients::Free(Operation& operation) {
  HR_CHECK(operation.state != Operation::State::kFree && operations_open_ > 0,
           operation.spec.sequence);
  if (operation.spec.half == Collective::kReduceScatter) --scatters_open_;
  operation.state = Operation::State::kFree;
  operation.plan.reset();
  --operations_open_;
}

void Gradients::Close(std::uint32_t tensor) {
  Refuse(tensor);
  ++gradients_[tensor].ended;
}

void Gradients::Refuse(std::uint32_t tensor) {
  HR_CHECK(gradients_[tensor].posts.ranks != 0, tensor);
  HR_CHECK(open_count_ > 0, tensor);
  gradients_[tensor].posts = {};
  --open_count_;
}

std::uint64_t Gradients::LastIteration() const {
  std::uint64_t last = 0;
  for (const Gradient& gradient : gradients_) {
    last = std::max(last, gradient.ended + (gradient.posts.ranks != 0 ? 1 : 0));
  }
  return last;
}

std::uint64_t Gradients::IterationsEnded() const {
  std::uint64_t ended = UINT64_MAX;
  for (const Gradient& gradient : gradients_) ended = std::min(ended, gradient.ended);
  return ended;
}

void Gradients::PostponeDeadlines(TimeNs by_ns) {
  for (Gradient& gradient : gradients_) gradient.posts.Postpone(by_ns);
}

}  // namespace headrace::service

#include "service/dispatch/iteration_times.h"

#include <algorithm>
#include <utility>

#include "ipc/base/check.h"

namespace headrace::service {
namespace {

double MedianOf(std::vector<double>& values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

// A client's word: what cannot be counts as nothing.
double Seconds(std::uint64_t from_ns, std::uint64_t to_ns) {
  constexpr std::uint64_t kLongest = 1000 * static_cast<std::uint64_t>(kSecond);
  if (to_ns <= from_ns || to_ns - from_ns > kLongest) return 0;
  return static_cast<double>(to_ns - from_ns) / static_cast<double>(kSecond);
}

TimeNs Nanoseconds(double seconds) {
  return static_cast<TimeNs>(seconds * static_cast<double>(kSecond));
}

}  // namespace

IterationTimes::IterationTimes(std::size_t tensors_count, std::size_t ranks_count)
    : tensors_count_(tensors_count), ranks_count_(ranks_count), columns_(kWindow) {
  for (Column& column : columns_) {
    column.samples.resize(tensors_count * ranks_count);
    column.waited_ns.resize(ranks_count);
  }
}

IterationTimes::Column& IterationTimes::ColumnOf(std::uint64_t iteration) {
  Column& column = columns_[iteration % columns_.size()];
  if (column.iteration != iteration) {
    column.iteration = iteration;
    column.ended = false;
    column.posts = 0;
    column.begin_ns = 0;
    column.previous_ns = 0;
    column.moving_ns = 0;
    std::ranges::fill(column.waited_ns, 0);
  }
  return column;
}

void IterationTimes::Post(std::size_t rank, std::uint32_t tensor, std::uint64_t iteration,
                          const ipc::GradientRecord& record) {
  HR_CHECK(rank < ranks_count_ && tensor < tensors_count_, rank, tensor);
  Column& column = ColumnOf(iteration);
  column.begin_ns = std::max(column.begin_ns, static_cast<TimeNs>(record.backward_ns));
  ++column.posts;
  column.waited_ns[rank] += record.waited_ns;
  column.samples[rank * tensors_count_ + tensor] = {
      .release_s = static_cast<float>(Seconds(record.backward_ns, record.posted_ns)),
      .forward_s = static_cast<float>(record.forward_ns) / static_cast<float>(kSecond)};
}

void IterationTimes::ResizeBlocks(std::uint64_t iteration, std::size_t blocks_count) {
  ColumnOf(iteration).blocks.assign(blocks_count, {});
}

IterationTimes::Span& IterationTimes::block(std::uint64_t iteration, std::uint32_t index) {
  return ColumnOf(iteration).blocks.at(index);
}

std::span<const IterationTimes::Span> IterationTimes::blocks(std::uint64_t iteration) const {
  return ColumnOf(iteration).blocks;
}

void IterationTimes::BlockMoves(TimeNs now) {
  if (moving_count_++ == 0) moving_since_ns_ = now;
}

void IterationTimes::BlockRests(TimeNs now) {
  HR_CHECK(moving_count_ > 0);
  if (--moving_count_ == 0) moving_ns_ += now - moving_since_ns_;
}

void IterationTimes::EndIteration(std::uint64_t iteration) {
  Column& column = ColumnOf(iteration);
  // Posts that came before this began to count leave holes.
  column.ended = column.posts == samples_count();
  column.moving_ns = std::exchange(moving_ns_, 0);
  const Column& before = std::as_const(*this).ColumnOf(iteration - 1);
  if (before.iteration + 1 == iteration && before.ended) column.previous_ns = before.begin_ns;
  last_ended_ = std::max(last_ended_, iteration);
  if (!column.ended || column.previous_ns <= 0) return;
  ++sums_.count;
  sums_.iterations_ns += Nanoseconds(Seconds(static_cast<std::uint64_t>(column.previous_ns),
                                             static_cast<std::uint64_t>(column.begin_ns)));
  sums_.waited_ns += static_cast<TimeNs>(*std::ranges::max_element(column.waited_ns));
  sums_.moving_ns += column.moving_ns;
}

TimeNs IterationTimes::BackwardBegin(std::uint64_t iteration) const {
  return ColumnOf(iteration).begin_ns;
}

std::vector<const IterationTimes::Column*> IterationTimes::Ended(std::uint64_t count) const {
  std::vector<const Column*> ended;
  for (const Column& column : columns_) {
    if (column.ended && column.iteration + count > last_ended_) ended.push_back(&column);
  }
  return ended;
}

NodeTimes IterationTimes::Median(std::uint64_t iterations_count) const {
  const std::vector<const Column*> columns = Ended(iterations_count);
  NodeTimes times{.iteration = last_ended_,
                  .release_s = std::vector<double>(tensors_count_, 0),
                  .forward_s = std::vector<double>(tensors_count_, 0)};
  std::vector<double> tails(tensors_count_, 0);
  std::vector<double> values;
  const auto median = [&](std::size_t sample, auto field) {
    values.clear();
    for (const Column* column : columns) values.push_back(column->samples[sample].*field);
    return MedianOf(values);
  };
  for (std::size_t rank = 0; rank < ranks_count_; ++rank) {
    double tail = 0;
    for (std::size_t tensor = tensors_count_; tensor-- > 0;) {
      const std::size_t sample = rank * tensors_count_ + tensor;
      times.release_s[tensor] =
          std::max(times.release_s[tensor], median(sample, &Sample::release_s));
      tail += median(sample, &Sample::forward_s);
      tails[tensor] = std::max(tails[tensor], tail);
    }
  }
  for (std::size_t tensor = 0; tensor < tensors_count_; ++tensor) {
    const double after = tensor + 1 < tensors_count_ ? tails[tensor + 1] : 0;
    times.forward_s[tensor] = std::max(0.0, tails[tensor] - after);
  }
  values.clear();
  for (const Column* column : columns) {
    if (column->previous_ns > 0) {
      values.push_back(Seconds(static_cast<std::uint64_t>(column->previous_ns),
                               static_cast<std::uint64_t>(column->begin_ns)));
    }
  }
  times.iteration_s = MedianOf(values);
  return times;
}

IterationTimes::Totals IterationTimes::MedianTotals(std::uint64_t iterations_count) const {
  const NodeTimes times = Median(iterations_count);
  Totals totals{.iteration = last_ended_, .iteration_ns = Nanoseconds(times.iteration_s)};
  double forward_s = 0;
  for (const double each : times.forward_s) forward_s += each;
  totals.forward_ns = Nanoseconds(forward_s);
  totals.backward_ns = Nanoseconds(*std::ranges::max_element(times.release_s));
  std::vector<double> waited;
  std::vector<double> moving;
  for (const Column* column : Ended(iterations_count)) {
    waited.push_back(static_cast<double>(*std::ranges::max_element(column->waited_ns)));
    moving.push_back(static_cast<double>(column->moving_ns));
  }
  totals.waited_ns = static_cast<TimeNs>(MedianOf(waited));
  totals.moving_ns = static_cast<TimeNs>(MedianOf(moving));
  return totals;
}

}  // namespace headrace::service

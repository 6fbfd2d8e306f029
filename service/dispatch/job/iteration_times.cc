#include "service/dispatch/job/iteration_times.h"

#include <algorithm>
#include <array>
#include <utility>

#include "ipc/base/check.h"

namespace headrace::service {
namespace {

// A client's word: what cannot be counts as nothing.
double Seconds(std::uint64_t from_ns, std::uint64_t to_ns) {
  constexpr std::uint64_t kLongest = 7 * 86400 * static_cast<std::uint64_t>(kSecond);
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
    column.elsewhere_ns = 0;
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
  HR_CHECK(index < ColumnOf(iteration).blocks.size(), iteration, index);
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
  column.elsewhere_ns = ElsewhereOf(column, before);
  ++sums_.count;
  sums_.iterations_ns += Nanoseconds(Seconds(static_cast<std::uint64_t>(column.previous_ns),
                                             static_cast<std::uint64_t>(column.begin_ns)));
  sums_.waited_ns += static_cast<TimeNs>(*std::ranges::max_element(column.waited_ns));
  sums_.moving_ns += column.moving_ns;
}

// Between two backward passes' begins lie the first of them, the forward pass and its waits, which
// the second one's posts tell of. Who has the most left over may have waited for others there.
TimeNs IterationTimes::ElsewhereOf(const Column& column, const Column& before) const {
  const double iteration_s = Seconds(static_cast<std::uint64_t>(column.previous_ns),
                                     static_cast<std::uint64_t>(column.begin_ns));
  double most_s = 0;  // within the passes
  for (std::size_t rank = 0; rank < ranks_count_; ++rank) {
    double backward_s = 0;
    double passes_s = static_cast<double>(column.waited_ns[rank]) / static_cast<double>(kSecond);
    for (std::size_t tensor = 0; tensor < tensors_count_; ++tensor) {
      const std::size_t sample = rank * tensors_count_ + tensor;
      backward_s = std::max<double>(backward_s, before.samples[sample].release_s);
      passes_s += column.samples[sample].forward_s;
    }
    most_s = std::max(most_s, passes_s + backward_s);
  }
  return Nanoseconds(std::max(0.0, iteration_s - most_s));
}

TimeNs IterationTimes::BackwardBegin(std::uint64_t iteration) const {
  return ColumnOf(iteration).begin_ns;
}

struct IterationTimes::Columns {
  std::array<const Column*, kWindow> columns;
  std::size_t count = 0;

  std::span<const Column* const> all() const { return {columns.data(), count}; }
};

struct IterationTimes::Values {
  std::array<double, kWindow> values;
  std::size_t count = 0;

  void Add(double value) { values[count++] = value; }
  double Median() {
    if (count == 0) return 0;
    const auto end = values.begin() + static_cast<std::ptrdiff_t>(count);
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>(count / 2);
    std::nth_element(values.begin(), middle, end);
    return *middle;
  }
};

IterationTimes::Columns IterationTimes::Ended(std::uint64_t count) const {
  Columns ended;
  for (const Column& column : columns_) {
    if (!column.ended || column.iteration + count <= last_ended_) continue;
    HR_CHECK(ended.count < ended.columns.size(), ended.count);
    ended.columns[ended.count++] = &column;
  }
  return ended;
}

NodeTimes IterationTimes::Median(std::uint64_t iterations_count) const {
  NodeTimes times;
  Median(iterations_count, times);
  return times;
}

void IterationTimes::Median(std::uint64_t iterations_count, NodeTimes& times) const {
  const Columns columns = Ended(iterations_count);
  times.iteration = last_ended_;
  times.release_s.assign(tensors_count_, 0);
  // First what each tensor and those after it take together, of the slowest rank.
  times.forward_s.assign(tensors_count_, 0);
  const auto median = [&](std::size_t sample, auto field) {
    Values values;
    for (const Column* column : columns.all()) values.Add(column->samples[sample].*field);
    return values.Median();
  };
  for (std::size_t rank = 0; rank < ranks_count_; ++rank) {
    double tail = 0;
    for (std::size_t tensor = tensors_count_; tensor-- > 0;) {
      const std::size_t sample = rank * tensors_count_ + tensor;
      times.release_s[tensor] =
          std::max(times.release_s[tensor], median(sample, &Sample::release_s));
      tail += median(sample, &Sample::forward_s);
      times.forward_s[tensor] = std::max(times.forward_s[tensor], tail);
    }
  }
  for (std::size_t tensor = 0; tensor + 1 < tensors_count_; ++tensor) {
    times.forward_s[tensor] = std::max(0.0, times.forward_s[tensor] - times.forward_s[tensor + 1]);
  }
  Values iterations;
  for (const Column* column : columns.all()) {
    if (column->previous_ns <= 0) continue;
    iterations.Add(Seconds(static_cast<std::uint64_t>(column->previous_ns),
                           static_cast<std::uint64_t>(column->begin_ns)));
  }
  times.iteration_s = iterations.Median();
  Values running;
  for (const Column* column : columns.all()) {
    if (column->previous_ns <= 0) continue;
    const auto waited_ns = static_cast<double>(*std::ranges::max_element(column->waited_ns));
    running.Add(Seconds(static_cast<std::uint64_t>(column->previous_ns),
                        static_cast<std::uint64_t>(column->begin_ns)) -
                waited_ns / static_cast<double>(kSecond));
  }
  times.running_s = std::max(0.0, running.Median());
}

IterationTimes::Totals IterationTimes::MedianTotals(std::uint64_t iterations_count) {
  NodeTimes& times = totals_of_;
  Median(iterations_count, times);
  Totals totals{.iteration = last_ended_, .iteration_ns = Nanoseconds(times.iteration_s)};
  double forward_s = 0;
  for (const double each : times.forward_s) forward_s += each;
  totals.forward_ns = Nanoseconds(forward_s);
  totals.backward_ns = Nanoseconds(*std::ranges::max_element(times.release_s));
  Values waited;
  Values moving;
  Values elsewhere;
  const Columns columns = Ended(iterations_count);
  for (const Column* column : columns.all()) {
    waited.Add(static_cast<double>(*std::ranges::max_element(column->waited_ns)));
    moving.Add(static_cast<double>(column->moving_ns));
    if (column->previous_ns > 0) elsewhere.Add(static_cast<double>(column->elsewhere_ns));
  }
  totals.waited_ns = static_cast<TimeNs>(waited.Median());
  totals.moving_ns = static_cast<TimeNs>(moving.Median());
  totals.elsewhere_ns = static_cast<TimeNs>(elsewhere.Median());
  return totals;
}

}  // namespace headrace::service

#include "service/dispatch/job/iteration_times.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <utility>

#include "ipc/base/check.h"

namespace headrace::service {
namespace {

// The iterations before and after one say when it began and how its forward pass went.
constexpr std::size_t kBeside = 2;

constexpr std::uint64_t kLongest = 7 * 86400 * static_cast<std::uint64_t>(kSecond);
// The largest time of a client's clock: a difference of two such times fits in TimeNs.
constexpr std::uint64_t kClockMax = INT64_MAX / 2;

// A client's word: what cannot be counts as nothing.
double Seconds(std::uint64_t from_ns, std::uint64_t to_ns) {
  if (to_ns <= from_ns || to_ns - from_ns > kLongest) return 0;
  return static_cast<double>(to_ns - from_ns) / static_cast<double>(kSecond);
}

std::uint64_t Believed(std::uint64_t claimed_ns) { return claimed_ns <= kLongest ? claimed_ns : 0; }

// From one time of one clock to another, either way.
double SecondsBetween(TimeNs from_ns, TimeNs to_ns) {
  return static_cast<double>(to_ns - from_ns) / static_cast<double>(kSecond);
}

TimeNs Nanoseconds(double seconds) {
  return static_cast<TimeNs>(seconds * static_cast<double>(kSecond));
}

// Whether clients' words make an iteration that can have been: their clocks may say anything.
bool CanBe(const SeenIteration& seen) {
  constexpr double kMost = static_cast<double>(kLongest) / static_cast<double>(kSecond);
  const auto can_be = [](double seconds) { return seconds >= 0 && seconds <= kMost; };
  return can_be(seen.offset_s) && can_be(seen.forward_begin_s) &&
         std::ranges::all_of(seen.release_s, can_be) && std::ranges::all_of(seen.forward_s, can_be);
}

}  // namespace

IterationTimes::IterationTimes(std::size_t tensors_count, std::size_t ranks_count)
    : tensors_count_(tensors_count),
      ranks_count_(ranks_count),
      columns_(kKept + kBeside),
      contention_(2 * tensors_count * ranks_count) {
  for (Column& column : columns_) {
    column.samples.resize(tensors_count * ranks_count);
    column.waited_ns.resize(ranks_count);
    column.begins_ns.resize(ranks_count);
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
  const auto begin_ns = static_cast<TimeNs>(std::min(record.backward_ns, kClockMax));
  column.begin_ns = std::max(column.begin_ns, begin_ns);
  column.begins_ns[rank] = begin_ns;
  ++column.posts;
  const std::uint64_t waited_ns = Believed(record.waited_ns);
  column.waited_ns[rank] += waited_ns;
  column.samples[rank * tensors_count_ + tensor] = {
      .release_s = static_cast<float>(Seconds(record.backward_ns, record.posted_ns)),
      .forward_s = static_cast<float>(Seconds(0, record.forward_ns)),
      .waited_s = static_cast<float>(Seconds(0, waited_ns))};
}

void IterationTimes::ResizeBlocks(std::uint64_t iteration, std::size_t blocks_count) {
  ColumnOf(iteration).blocks.assign(blocks_count, {});
}

IterationTimes::BlockTimes& IterationTimes::block(std::uint64_t iteration, std::uint32_t index) {
  HR_CHECK(index < ColumnOf(iteration).blocks.size(), iteration, index);
  return ColumnOf(iteration).blocks.at(index);
}

std::span<const IterationTimes::BlockTimes> IterationTimes::blocks(std::uint64_t iteration) const {
  return ColumnOf(iteration).blocks;
}

void IterationTimes::OnBlockStarted(TimeNs now) {
  if (moving_count_++ == 0) moving_since_ns_ = now;
}

void IterationTimes::OnBlockIdle(TimeNs now) {
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
  AddTime(sums_.iterations_ns, Believed(static_cast<std::uint64_t>(column.begin_ns) -
                                        static_cast<std::uint64_t>(column.previous_ns)));
  AddTime(sums_.waited_ns, *std::ranges::max_element(column.waited_ns));
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

// Medians of neighbouring samples over several iterations. A sorting network orders the iterations
// of all of them at once, which compilers turn into vector instructions: a job of 64 ranks and 768
// tensors has 49152 samples, and they are sorted on the thread that dispatches blocks.
class IterationTimes::SampleMedians {
 public:
  static constexpr std::size_t kSamplesMax = 16;

  explicit SampleMedians(std::span<const Column* const> columns)
      : columns_(columns), size_(std::bit_ceil(columns.size())) {
    HR_CHECK(!columns.empty() && size_ <= kWindow, columns.size());
  }

  // Finds those of samples first, first + 1, ...
  void Find(std::size_t first, std::size_t count) {
    HR_CHECK(count <= kSamplesMax, count);
    for (std::size_t i = 0; i < size_; ++i) {
      if (i < columns_.size()) {
        std::memcpy(rows_[i].data(), &columns_[i]->samples[first], count * sizeof(Sample));
      } else {
        rows_[i].fill(std::numeric_limits<float>::infinity());  // sorted behind all times
      }
    }
    SortRows();
  }
  // That of sample `first + index`.
  Sample At(std::size_t index) const {
    const float* const fields = &rows_[columns_.size() / 2][kFields * index];
    return {.release_s = fields[0], .forward_s = fields[1], .waited_s = fields[2]};
  }

 private:
  static constexpr std::size_t kFields = 3;
  static_assert(sizeof(Sample) == kFields * sizeof(float));
  using Row = std::array<float, kFields * kSamplesMax>;

  // Batcher's merge exchange sort: the same comparisons whatever the values are.
  void SortRows() {
    for (std::size_t sorted = 1; sorted < size_; sorted *= 2) {
      for (std::size_t apart = sorted; apart > 0; apart /= 2) {
        for (std::size_t low = apart % sorted; low + apart < size_; ++low) {
          const bool merged_together = low / (2 * sorted) == (low + apart) / (2 * sorted);
          const bool first_of_pair = (low - apart % sorted) / apart % 2 == 0;
          if (merged_together && first_of_pair) Order(rows_[low], rows_[low + apart]);
        }
      }
    }
  }
  static void Order(Row& low, Row& high) {
    for (std::size_t i = 0; i < low.size(); ++i) {
      const float less = high[i] < low[i] ? high[i] : low[i];
      high[i] = high[i] < low[i] ? low[i] : high[i];
      low[i] = less;
    }
  }

  std::span<const Column* const> columns_;
  std::size_t size_;  // rows that are sorted, a power of two
  std::array<Row, kWindow> rows_{};
};

IterationTimes::Columns IterationTimes::Ended(std::uint64_t count) const {
  Columns ended;
  for (const Column& column : columns_) {
    if (!column.ended || column.iteration + std::min(count, kWindow) <= last_ended_) continue;
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
  times.iteration_s = 0;
  times.running_s = 0;
  if (columns.count == 0) return;
  SampleMedians medians(columns.all());
  for (std::size_t rank = 0; rank < ranks_count_; ++rank) {
    double tail = 0;
    for (std::size_t end = tensors_count_; end > 0;) {
      const std::size_t begin = end - std::min(end, SampleMedians::kSamplesMax);
      medians.Find(rank * tensors_count_ + begin, end - begin);
      for (std::size_t tensor = end; tensor-- > begin;) {
        const Sample median = medians.At(tensor - begin);
        times.release_s[tensor] =
            std::max(times.release_s[tensor], static_cast<double>(median.release_s));
        tail += static_cast<double>(median.forward_s);
        times.forward_s[tensor] = std::max(times.forward_s[tensor], tail);
      }
      end = begin;
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
  return MedianTotals(iterations_count, totals_of_);
}

IterationTimes::Totals IterationTimes::MedianTotals(std::uint64_t iterations_count,
                                                    NodeTimes& times) const {
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

double IterationTimes::Worked(std::size_t part, double begin_s, double end_s, bool compares) {
  const auto busy_s = BusyWithin(begin_s, end_s);
  if (compares) contention_.Add(part, end_s - begin_s, busy_s);
  return WorkedBeside(begin_s, end_s, busy_s);
}

double IterationTimes::WorkedBeside(double begin_s, double end_s,
                                    const std::array<double, plan::kLanePlaces>& busy_s) const {
  double worked_s = end_s - begin_s;
  for (std::size_t place = 0; place < plan::kLanePlaces; ++place) {
    worked_s -= contention_.shares()[place] * busy_s[place];
  }
  return std::max(0.0, worked_s);
}

std::array<double, plan::kLanePlaces> IterationTimes::BusyWithin(double begin_s, double end_s) {
  std::array<double, plan::kLanePlaces> busy_s{};
  for (std::size_t place = 0; place < plan::kLanePlaces; ++place) {
    busy_s[place] = busy_[place].Within(begin_s, end_s);
  }
  return busy_s;
}

// Whatever else the loop does counts before the forward pass, where it hides gradients: most loops
// load data and clear gradients there.
void IterationTimes::RecordRank(const Column& column, const Column& next, std::size_t rank,
                                bool compares) {
  const std::size_t first = rank * tensors_count_;
  const double offset_s = SecondsBetween(column.begin_ns, column.begins_ns[rank]);
  double worked_s = offset_s;
  double now_s = offset_s;
  for (BusyTimes& busy : busy_) busy.Rewind();
  for (std::size_t tensor = tensors_count_; tensor-- > 0;) {
    const double until_s =
        std::max<double>(now_s, offset_s + column.samples[first + tensor].release_s);
    worked_s += Worked(first + tensor, now_s, until_s, compares);
    now_s = until_s;
    rank_.release_s[tensor] = worked_s;
  }
  double passes_s = 0;
  for (std::size_t tensor = 0; tensor < tensors_count_; ++tensor) {
    passes_s += next.samples[first + tensor].forward_s + next.samples[first + tensor].waited_s;
  }
  const double end_s = SecondsBetween(column.begin_ns, next.begins_ns[rank]);
  const double begin_s = std::max(now_s, end_s - passes_s);
  worked_s += WorkedBeside(now_s, begin_s, BusyWithin(now_s, begin_s));
  now_s = begin_s;
  for (std::size_t tensor = 0; tensor < tensors_count_; ++tensor) {
    const Sample& sample = next.samples[first + tensor];
    now_s += sample.waited_s;
    rank_.tail_s[tensor] =
        Worked(samples_count() + first + tensor, now_s, now_s + sample.forward_s, compares);
    now_s += sample.forward_s;
  }
  for (std::size_t tensor = tensors_count_ - 1; tensor-- > 0;) {
    rank_.tail_s[tensor] += rank_.tail_s[tensor + 1];
  }
  rank_.whole_s = worked_s + rank_.tail_s[0];
}

void IterationTimes::RecordOne(const Column& before, const Column& column, const Column& next,
                               SeenIteration* seen) {
  for (BusyTimes& busy : busy_) busy.Reset();
  for (const BlockTimes& block : column.blocks) {
    for (std::size_t stage = 0; stage < block.stages.size(); ++stage) {
      const StageTimes& times = block.stages[stage];
      if (times.begin_ns == 0) continue;
      const auto place =
          stage == kBetweenNodesStage ? plan::LanePlace::kBetweenNodes : plan::LanePlace::kInNode;
      busy_[plan::PlaceIndex(place)].Add(SecondsBetween(column.begin_ns, times.begin_ns),
                                         SecondsBetween(column.begin_ns, times.end_ns));
    }
  }
  for (BusyTimes& busy : busy_) busy.Seal();
  rank_.release_s.resize(tensors_count_);
  rank_.tail_s.resize(tensors_count_);
  if (seen == nullptr) {
    for (std::size_t rank = 0; rank < ranks_count_; ++rank) RecordRank(column, next, rank, true);
    return;
  }
  TimeNs last_end_ns = 0;
  for (const BlockTimes& block : before.blocks) last_end_ns = std::max(last_end_ns, block.end_ns);
  seen->iteration = column.iteration;
  seen->offset_s = std::max(0.0, SecondsBetween(last_end_ns, column.begin_ns));
  seen->release_s.assign(tensors_count_, 0);
  seen->forward_s.assign(tensors_count_, 0);
  double whole_s = 0;
  for (std::size_t rank = 0; rank < ranks_count_; ++rank) {
    RecordRank(column, next, rank, false);
    whole_s = std::max(whole_s, rank_.whole_s);
    for (std::size_t tensor = 0; tensor < tensors_count_; ++tensor) {
      float& release_s = seen->release_s[tensor];
      release_s = std::max(release_s, static_cast<float>(rank_.release_s[tensor]));
      float& tail_s = seen->forward_s[tensor];
      tail_s = std::max(tail_s, static_cast<float>(rank_.tail_s[tensor]));
    }
  }
  seen->forward_begin_s = std::max(0.0, whole_s - static_cast<double>(seen->forward_s[0]));
  for (std::size_t tensor = 0; tensor + 1 < tensors_count_; ++tensor) {
    seen->forward_s[tensor] = std::max(0.0F, seen->forward_s[tensor] - seen->forward_s[tensor + 1]);
  }
}

void IterationTimes::Record(NodeTimes& times) {
  times.iterations.clear();
  const auto& columns = std::as_const(*this);
  const std::uint64_t newest = last_ended_;
  const std::uint64_t oldest = newest > kKept + 1 ? newest - kKept : 2;
  for (const bool compares : {true, false}) {
    for (std::uint64_t number = oldest; number < newest; ++number) {
      const Column& before = columns.ColumnOf(number - 1);
      const Column& column = columns.ColumnOf(number);
      const Column& next = columns.ColumnOf(number + 1);
      const bool kept = before.iteration + 1 == number && column.iteration == number &&
                        next.iteration == number + 1;
      if (!kept || !column.ended || !next.ended || before.blocks.empty()) continue;
      RecordOne(before, column, next, compares ? nullptr : &times.iterations.emplace_back());
      if (!compares && !CanBe(times.iterations.back())) times.iterations.pop_back();
    }
    if (compares) contention_.Update();
  }
  times.contention = contention_.shares();
}

IterationTimes::Spread IterationTimes::MeasuredSpread() const {
  std::array<TimeNs, kKept> times_ns{};
  std::size_t count = 0;
  const auto collect = [&](bool running, TimeNs running_max_ns) {
    count = 0;
    for (const Column& column : columns_) {
      const TimeNs whole_ns = column.begin_ns - column.previous_ns;
      const TimeNs running_ns =
          whole_ns - static_cast<TimeNs>(*std::ranges::max_element(column.waited_ns));
      // A clock that ran back, as a client may claim, measures nothing.
      const bool counts = column.ended && column.previous_ns > 0 && whole_ns > 0 &&
                          column.iteration + kKept > last_ended_ && running_ns <= running_max_ns;
      if (!counts) continue;
      HR_CHECK(count < times_ns.size(), count);
      times_ns[count++] = running ? running_ns : whole_ns;
    }
  };
  collect(true, INT64_MAX);
  if (count == 0) return {};
  const auto middle = times_ns.begin() + static_cast<std::ptrdiff_t>(count / 2);
  std::nth_element(times_ns.begin(), middle, times_ns.begin() + static_cast<std::ptrdiff_t>(count));
  collect(false, 2 * *middle);
  if (count == 0) return {};
  double sum_ns = 0;  // of clients' words, which a TimeNs might not hold
  for (std::size_t i = 0; i < count; ++i) sum_ns += static_cast<double>(times_ns[i]);
  // The same rank among them as in plan::ForecastOf.
  const auto ninth = times_ns.begin() + static_cast<std::ptrdiff_t>((9 * count + 9) / 10 - 1);
  std::nth_element(times_ns.begin(), ninth, times_ns.begin() + static_cast<std::ptrdiff_t>(count));
  return {.mean_ns = static_cast<TimeNs>(sum_ns / static_cast<double>(count)), .p90_ns = *ninth};
}

}  // namespace headrace::service

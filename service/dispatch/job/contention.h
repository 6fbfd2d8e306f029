// How much slower a rank computes while blocks of its job are under way, in the node and between
// nodes: measured from what is recorded anyway, the times of gradients' parts of both passes and
// those of the blocks' stages.
//
// Each part of a pass (one tensor's, on one rank) is compared with itself in other iterations, in
// which stages were under way for another share of it. Plain data.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "service/plan/recording.h"

namespace headrace::service {

// The times at which at least one block is in a stage of one place. Asked in any order of growing
// times.
class BusyTimes {
 public:
  // Blocks in any order; those that have not ended are left out. Keeps its memory.
  void Reset() { spans_.clear(), at_ = 0; }
  void Add(double begin_s, double end_s);
  // After the last Add: puts spans in order and makes one of those that overlap.
  void Seal();
  // From here on earlier times may be asked for again.
  void Rewind() { at_ = 0; }
  // How long something was under way between these; not before what was asked for last.
  double Within(double begin_s, double end_s);

 private:
  struct Interval {
    double begin_s = 0;
    double end_s = 0;
  };
  std::vector<Interval> spans_;
  std::size_t at_ = 0;
};

class Contention {
 public:
  // `parts_count`: parts of passes that are told apart.
  explicit Contention(std::size_t parts_count) : parts_(parts_count) {}

  // The part took `seconds`, and for `busy_s` of it a stage was under way in each plan::LanePlace.
  void Add(std::size_t part, double seconds, const std::array<double, plan::kLanePlaces>& busy_s);
  // Takes what was added since the last call into the estimate.
  void Update();
  // The shares of its rate that computing loses; each 0 until it is known, and never more than
  // plan::kContentionMax in sum.
  const plan::ContentionShares& shares() const { return shares_; }

 private:
  using Pair = std::array<double, plan::kLanePlaces>;
  struct PassPart {
    double count = 0;
    Pair busy{};      // sums, over iterations, of the busy shares x by place,
    double rate = 0;  // of 1 / seconds,
    Pair busy_busy{};
    double busy_both = 0;  // of the product of both shares,
    Pair busy_rate{};      // and of each with the rate
  };
  // Of all parts, each with its own mean taken off and weighing as much as it lasts.
  struct Normal {
    Pair variance_s{};
    double both_s = 0;
    Pair covariance_s{};
    Pair busy_s{};  // variances times mean shares
  };
  Normal Collect();
  static Pair Slopes(const Normal& normal);

  std::vector<PassPart> parts_;
  plan::ContentionShares shares_{};
  Pair known_{};  // how much each estimate rests on
};

}  // namespace headrace::service

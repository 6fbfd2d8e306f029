// How much slower a rank computes while blocks of its job are under way: computed from times that
// are recorded anyway, those of gradients' parts of both passes and those of the blocks.
//
// Each part of a pass (one tensor's, on one rank) is compared with itself in other iterations, in
// which blocks were under way for another share of it. Plain data.
#pragma once

#include <cstddef>
#include <vector>

namespace headrace::service {

// The times at which at least one block is under way. Asked in any order of growing times.
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

  // The part took `seconds`, and for `busy_s` of it a block was under way.
  void Add(std::size_t part, double seconds, double busy_s);
  // Takes what was added since the last call into the estimate.
  void Update();
  // The share of its rate that computing loses; 0 until that is known.
  double share() const { return share_; }

 private:
  struct PassPart {
    double count = 0;
    double busy = 0;  // sums, over iterations, of the busy share x,
    double rate = 0;  // of 1 / seconds,
    double busy_busy = 0;
    double busy_rate = 0;  // and of their products
  };

  std::vector<PassPart> parts_;
  double share_ = 0;
  double known_ = 0;  // how much the estimate rests on
};

}  // namespace headrace::service

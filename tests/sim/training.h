// One rank's part in the iterations of its job: hands in the layout, posts each gradient of each
// iteration in an order of its own, looks at what comes of them and at the memory around.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "service/plan/plan.h"
#include "service/session/layout.h"
#include "tests/sim/rank.h"

namespace headrace::sim {

// Codecs that people ask for while a job runs.
inline constexpr Codec kSteeredCodecs[] = {Codec::kNone, Codec::kInt8, Codec::kFloat8E4M3,
                                           Codec(Codec::kPowerSgd, 2)};

// What all ranks of a job train.
struct Model {
  std::shared_ptr<const service::Layout> layout;  // shared with the ranks, which only read it
  std::optional<plan::Policy> policy{};           // that its ranks ask for
  // Its ranks post a gradient as soon as the last one has ended; else all of them must have.
  bool eager = false;
};
// A few small gradients with gaps between them, in memory in another order than in the forward
// pass.
Model AnyModel(Dice& dice);
// The same but for one thing, so that the ranks which hand in this one and that one disagree.
Model Another(const Model& model);

// The all-reduce of one of a layout's gradients, whose ranks have such values.
Planned PlannedOf(const service::Layout& layout, std::uint32_t number, Values values);

class Training {
 public:
  // All of them outlive this. `nonsense`: it tells times that cannot be.
  Training(support::HandDrivenNode& node, CompletionChecker& checker, Rank& rank, bool nonsense);

  // Registers the gradients in a segment of their own and hands them in.
  void HandIn(const Model& model);
  bool has_handed_in() const { return model_.layout != nullptr; }

  enum class Manner : std::uint8_t { kHonest, kBadRecord };
  // Posts a gradient of the iteration, which is the next one when this one's are all posted; false
  // when that must wait.
  bool Post(Manner manner, std::uint32_t timeout_ms, TimeNs now, Dice& dice);
  std::optional<std::string> CheckEnded();
  std::optional<std::string> CheckAtEnd() const;

  std::size_t open() const { return open_.size(); }
  // The last iteration of which something is posted, and whether all of it is.
  std::uint64_t begun() const { return iteration_; }
  bool HasPostedAll() const { return next_ == order_.size(); }
  bool HasDone(std::uint64_t iterations) const;

 private:
  struct Open {
    std::uint64_t record = 0;
    std::uint64_t iteration = 0;
    std::uint32_t tensor = 0;
    bool again = false;  // the same gradient is open already: this must not end well
  };
  struct Ended {
    std::uint64_t record = 0;
    std::uint64_t word = 0;
  };

  bool IsOpen(std::uint32_t tensor) const;
  std::span<std::byte> Memory(std::uint32_t tensor) const;
  std::uint64_t Word(std::uint64_t record) const;
  ipc::GradientRecord RecordOf(std::uint32_t tensor, TimeNs now, Dice& dice) const;
  void Spoil(ipc::GradientRecord& record, Dice& dice) const;
  void PostAgain(std::uint32_t timeout_ms, TimeNs now, Dice& dice);
  void BeginIteration(TimeNs now, Dice& dice);
  std::optional<std::string> CheckOperation(const Open& open);

  support::HandDrivenNode& node_;
  CompletionChecker& checker_;
  Rank& rank_;
  bool nonsense_;
  Model model_;
  std::vector<std::byte> shadow_;     // what the segment holds, but for gradients that are open
  std::vector<std::uint32_t> order_;  // of the iteration's posts
  std::size_t next_ = 0;              // those before are posted
  std::uint64_t iteration_ = 0;
  TimeNs backward_ns_ = 0;
  std::vector<Open> open_;
  std::vector<Ended> ended_;
};

}  // namespace headrace::sim

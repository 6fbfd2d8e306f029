// Scripts, run with words in the place of numbers: who ends with the sum of whom, in what order.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "transport/exchange/collective_schedule.h"

namespace headrace::transport {
namespace {

constexpr std::uint32_t kCounts[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 16};

// One piece on all nodes. A value is a list of the members in it, in the order they were added, and
// "!" where the last reduction was done.
class Rehearsal {
 public:
  Rehearsal(PieceSpec spec, std::uint32_t servers_count) : spec_(spec) {
    for (std::uint32_t self = 0; self < spec.data_count + servers_count; ++self) {
      spec.self = self;
      const bool plays = self < spec.data_count || self == spec.owner;
      scripts_.push_back(plays ? MakeSchedule(spec) : CollectiveSchedule{});
      memory_.push_back(self < spec.data_count ? "[" + std::to_string(self) + "]" : "");
    }
    output_.resize(scripts_.size());
    rounds_.resize(scripts_.size());
    sent_.resize(scripts_.size());
  }

  // Until nobody can go on. Returns whether all schedules ended and every message was received.
  bool Run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (std::uint32_t node = 0; node < scripts_.size(); ++node) moved = Go(node) || moved;
    }
    for (std::uint32_t node = 0; node < scripts_.size(); ++node) {
      if (rounds_[node] != scripts_[node].rounds_count) return false;
    }
    return messages_.empty();
  }

  const std::string& memory(std::uint32_t node) const { return memory_[node]; }
  const std::string& output(std::uint32_t node) const { return output_[node]; }
  std::size_t bytes_sent(std::uint32_t node) const {
    return bytes_sent_.contains(node) ? bytes_sent_.at(node) : 0;
  }

 private:
  using Key = std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>;  // round, from, to

  bool Go(std::uint32_t node) {
    const CollectiveSchedule& schedule = scripts_[node];
    if (rounds_[node] == schedule.rounds_count) return false;
    const Round& round = schedule.rounds[rounds_[node]];
    if (!sent_[node]) {
      for (const auto peer : schedule.Sends(round)) {
        const bool fresh =
            messages_.emplace(Key{round.number, node, peer}, round.empty ? "" : memory_[node])
                .second;
        EXPECT_TRUE(fresh) << "the same message twice";
        if (!round.empty) ++bytes_sent_[node];
      }
      sent_[node] = true;
    }
    for (const auto peer : schedule.Receives(round)) {
      if (!messages_.contains(Key{round.number, peer, node})) return false;
    }
    EndRound(node, round);
    ++rounds_[node];
    sent_[node] = false;
    return true;
  }

  void EndRound(std::uint32_t node, const Round& round) {
    std::map<std::uint32_t, std::string> inputs;
    for (const auto peer : scripts_[node].Receives(round)) {
      inputs[peer] = messages_.extract(Key{round.number, peer, node}).mapped();
    }
    std::string& target = spec_.kind == Collective::kReduce && node < spec_.data_count
                              ? output_[node]
                              : memory_[node];
    if (round.staged) {
      if (node < spec_.data_count) inputs[node] = memory_[node];
      std::string sum;
      for (const auto& [member, value] : inputs) sum += value;
      target = sum + (round.last ? "!" : "");
    } else if (!round.empty && !inputs.empty()) {
      ASSERT_EQ(inputs.size(), 1U);
      target = inputs.begin()->second;
    }
  }

  PieceSpec spec_;
  std::vector<CollectiveSchedule> scripts_;
  std::vector<std::string> memory_;
  std::vector<std::string> output_;
  std::vector<std::size_t> rounds_;
  std::vector<bool> sent_;
  std::map<Key, std::string> messages_;
  std::map<std::uint32_t, std::size_t> bytes_sent_;
};

std::string InOrder(std::uint32_t count) {
  std::string text;
  for (std::uint32_t i = 0; i < count; ++i) text += "[" + std::to_string(i) + "]";
  return text + "!";
}

// Whether each member is in it once, and the last reduction was done once, at the end.
bool HasEachOnce(const std::string& value, std::uint32_t count) {
  std::size_t size = 1;
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::string name = "[" + std::to_string(i) + "]";
    if (value.find(name) == std::string::npos) return false;
    size += name.size();
  }
  return value.size() == size && value.find('!') == value.size() - 1;
}

TEST(CollectiveSchedule, OfEveryAllReduceGivesAllNodesTheSameSumOfEachMemberOnce) {
  for (const Pattern pattern :
       {Pattern::kExchange, Pattern::kDoubling, Pattern::kScatter, Pattern::kRing}) {
    for (const std::uint32_t count : kCounts) {
      for (std::uint32_t owner = 0; owner < count; ++owner) {
        Rehearsal rehearsal({.pattern = pattern,
                             .kind = Collective::kAllReduce,
                             .data_count = count,
                             .owner = owner},
                            0);
        ASSERT_TRUE(rehearsal.Run()) << static_cast<int>(pattern) << " " << count << " " << owner;
        for (std::uint32_t node = 0; node < count; ++node) {
          ASSERT_EQ(rehearsal.memory(node), rehearsal.memory(0));
        }
        ASSERT_TRUE(HasEachOnce(rehearsal.memory(0), count)) << rehearsal.memory(0);
      }
    }
  }
}

TEST(CollectiveSchedule, OfHalvesSumsAtTheOwnerAndThenGivesItsPieceToAll) {
  for (const std::uint32_t count : kCounts) {
    for (std::uint32_t owner = 0; owner < count; ++owner) {
      PieceSpec spec{.pattern = Pattern::kScatter,
                     .kind = Collective::kReduceScatter,
                     .data_count = count,
                     .owner = owner};
      Rehearsal scatter(spec, 0);
      ASSERT_TRUE(scatter.Run());
      EXPECT_EQ(scatter.memory(owner), InOrder(count));
      spec.kind = Collective::kAllGather;
      Rehearsal gather(spec, 0);
      ASSERT_TRUE(gather.Run());
      for (std::uint32_t node = 0; node < count; ++node) {
        EXPECT_EQ(gather.memory(node), "[" + std::to_string(owner) + "]");
        EXPECT_EQ(scatter.bytes_sent(node) + gather.bytes_sent(node),
                  node == owner ? count - 1 : 1);
      }
    }
  }
}

TEST(CollectiveSchedule, AddsInMemberOrderExceptInARing) {
  for (const Pattern pattern : {Pattern::kExchange, Pattern::kDoubling, Pattern::kScatter}) {
    Rehearsal rehearsal(
        {.pattern = pattern, .kind = Collective::kAllReduce, .data_count = 7, .owner = 3}, 0);
    ASSERT_TRUE(rehearsal.Run());
    EXPECT_EQ(rehearsal.memory(5), InOrder(7));
  }
}

TEST(CollectiveSchedule, OfServersSumsThereAndGivesItToAllOrToTheRoot) {
  for (const std::uint32_t count : kCounts) {
    for (const std::uint32_t server : {count, count + 1}) {
      Rehearsal all({.pattern = Pattern::kServed,
                     .kind = Collective::kAllReduce,
                     .data_count = count,
                     .owner = server},
                    2);
      ASSERT_TRUE(all.Run());
      for (std::uint32_t node = 0; node < count; ++node) {
        ASSERT_EQ(all.memory(node), InOrder(count));
        ASSERT_EQ(all.bytes_sent(node), 1U);
      }
      for (std::uint32_t root = 0; root < count; ++root) {
        Rehearsal one({.pattern = Pattern::kServed,
                       .kind = Collective::kReduce,
                       .data_count = count,
                       .root = root,
                       .owner = server},
                      2);
        ASSERT_TRUE(one.Run());
        for (std::uint32_t node = 0; node < count; ++node) {
          ASSERT_EQ(one.memory(node), "[" + std::to_string(node) + "]");
          ASSERT_EQ(one.output(node), node == root ? InOrder(count) : "");
        }
      }
    }
  }
}

TEST(CollectiveSchedule, OfAReduceLeavesTheMembersAndGivesTheRootTheSum) {
  for (const std::uint32_t count : kCounts) {
    for (std::uint32_t root = 0; root < count; ++root) {
      Rehearsal rehearsal({.pattern = Pattern::kToRoot,
                           .kind = Collective::kReduce,
                           .data_count = count,
                           .root = root},
                          0);
      ASSERT_TRUE(rehearsal.Run());
      for (std::uint32_t node = 0; node < count; ++node) {
        ASSERT_EQ(rehearsal.memory(node), "[" + std::to_string(node) + "]");
        ASSERT_EQ(rehearsal.output(node), node == root ? InOrder(count) : "");
      }
    }
  }
}

TEST(CollectiveSchedule, OfEveryBroadcastGivesAllNodesTheRootsPiece) {
  for (const Pattern pattern : {Pattern::kFromRoot, Pattern::kFromRootByOwners}) {
    for (const std::uint32_t count : kCounts) {
      for (std::uint32_t root = 0; root < count; ++root) {
        const std::uint32_t owner = (root + 1) % count;
        Rehearsal rehearsal({.pattern = pattern,
                             .kind = Collective::kBroadcast,
                             .data_count = count,
                             .root = root,
                             .owner = owner},
                            0);
        ASSERT_TRUE(rehearsal.Run());
        for (std::uint32_t node = 0; node < count; ++node) {
          ASSERT_EQ(rehearsal.memory(node), "[" + std::to_string(root) + "]");
        }
        if (pattern == Pattern::kFromRootByOwners && count > 1) {
          EXPECT_EQ(rehearsal.bytes_sent(root), 1U);
        }
      }
    }
  }
}

// Each node must have heard of every other's coming before it goes.
TEST(CollectiveSchedule, OfABarrierLetsNobodyGoBeforeAllHaveCome) {
  for (const std::uint32_t count : kCounts) {
    std::vector<std::vector<bool>> heard(count, std::vector<bool>(count));
    for (std::uint32_t node = 0; node < count; ++node) heard[node][node] = true;
    PieceSpec spec{.pattern = Pattern::kBarrier, .kind = Collective::kBarrier, .data_count = count};
    const std::size_t rounds = MakeSchedule(spec).rounds_count;
    for (std::size_t r = 0; r < rounds; ++r) {
      const auto before = heard;
      for (spec.self = 0; spec.self < count; ++spec.self) {
        const CollectiveSchedule schedule = MakeSchedule(spec);
        for (const auto peer : schedule.Receives(schedule.rounds[r])) {
          for (std::uint32_t i = 0; i < count; ++i) {
            if (before[peer][i]) heard[spec.self][i] = true;
          }
        }
      }
    }
    for (const auto& node : heard) {
      ASSERT_EQ(std::ranges::count(node, true), static_cast<std::ptrdiff_t>(count));
    }
    Rehearsal rehearsal(spec, 0);
    ASSERT_TRUE(rehearsal.Run());
  }
}

TEST(CollectiveSchedule, HasRoomForTheMostNodes) {
  for (std::uint32_t owner = 0; owner < kNodesMax; ++owner) {
    for (const Pattern pattern :
         {Pattern::kExchange, Pattern::kDoubling, Pattern::kScatter, Pattern::kRing}) {
      Rehearsal rehearsal({.pattern = pattern,
                           .kind = Collective::kAllReduce,
                           .data_count = kNodesMax - owner % 2,
                           .owner = owner / 2},
                          0);
      ASSERT_TRUE(rehearsal.Run());
    }
  }
}

}  // namespace
}  // namespace headrace::transport

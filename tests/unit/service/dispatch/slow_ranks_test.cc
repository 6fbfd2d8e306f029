// Ranks that are slow for longer than their job allows are named, and evicted where it says so.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "service/dispatch/slow_ranks.h"
#include "tests/support/expect_text.h"
#include "tests/support/hand_driven_cluster.h"
#include "tests/unit/service/dispatch/expect.h"
#include "tests/unit/service/dispatch/planned.h"

namespace headrace::support {
namespace {

using service::OwnShare;
using service::SlowBound;
using service::SlowRank;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr std::uint32_t kBoundS = 8;
// More rounds than fit in the time that does not count and in the bound.
constexpr int kIterationsMany = 24;

service::SteerJob Say(SteeringKind kind, std::uint64_t value, const std::string& node = {}) {
  return {JobId{1}, {.kind = kind, .value = value, .uid = 1000, .node = node}};
}

// Ranks of one node that all-reduce once an iteration, and each take a time of their own before.
struct SlowNode {
  explicit SlowNode(std::uint32_t world_size, SlowBound bound = {.seconds = kBoundS},
                    const JobSpec& spec = {.name = "bert", .timeout_ms = 600'000}) {
    JobSpec job = spec;
    job.world_size = world_size;
    for (std::uint32_t rank = 0; rank < world_size; ++rank)
      ranks.push_back(&node.Attach(job, rank));
    node.Settle();
    if (bound.seconds != 0) node.Send(Say(SteeringKind::kSlowBound, bound.Value()));
    node.Settle();
  }

  // One iteration: each rank posts when its own time is over, and has waited until the last did.
  void Iterate(const std::vector<TimeNs>& own_ns) {
    std::map<TimeNs, std::vector<std::size_t>> by_time;
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) by_time[own_ns[rank]].push_back(rank);
    TimeNs reached_ns = 0;
    for (const auto& [at_ns, posting] : by_time) {
      node.Advance(at_ns - reached_ns);
      reached_ns = at_ns;
      for (const std::size_t rank : posting) ranks[rank]->PostApart(kSum);
      node.Settle();
    }
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      Wait(rank, static_cast<std::uint64_t>(reached_ns - own_ns[rank]));
    }
    Obey();
  }
  void Wait(std::size_t rank, std::uint64_t waited_ns) {
    ranks[rank]->layout().header.client_waited_ns.fetch_add(waited_ns);
  }
  // What dispatch asks of the job comes back to it, as peers sends it on.
  void Obey() {
    const auto asked = node.peers().Of<service::SteerJob>();
    for (; obeyed < asked.size(); ++obeyed) node.Send(service::SteerJob(*asked[obeyed]));
    node.Settle();
  }
  void IterateMany(const std::vector<TimeNs>& own_ns, int count = kIterationsMany) {
    for (int i = 0; i < count; ++i) Iterate(own_ns);
  }
  std::vector<SlowRank> Said() {
    std::vector<SlowRank> said;
    for (const auto* each : node.peers().Of<service::SteerJob>()) {
      if (each->steering.kind == SteeringKind::kSlowRank) {
        said.push_back(SlowRank::Of(each->steering.value));
      }
    }
    return said;
  }
  std::vector<service::SessionBroken> Evicted() {
    std::vector<service::SessionBroken> evicted;
    for (const auto* each : node.rpc().Of<service::SessionBroken>()) evicted.push_back(*each);
    return evicted;
  }
  const std::vector<std::string>& events() { return node.watch_tap().events; }
  std::string JobText() { return std::string(ipc::GetText(node.JobRow(JobId{1})->failure)); }

  HandDrivenNode node;
  std::vector<ClientEnd*> ranks;
  std::size_t obeyed = 0;
};

constexpr TimeNs kQuick = kSecond / 2;
constexpr TimeNs kSlow = kSecond;

TEST(SlowRanks, NamesTheOneForWhichOthersWaitOnceAndSaysWhenItKeepsUpAgain) {
  SlowNode slow(4);
  slow.IterateMany({kQuick, kQuick, kSlow, kQuick});
  ASSERT_EQ(slow.Said().size(), 1U);
  EXPECT_EQ(slow.Said()[0].rank, 2U);
  EXPECT_EQ(slow.Said()[0].percent, 200U);
  EXPECT_GE(slow.Said()[0].seconds, kBoundS);
  ASSERT_EQ(slow.events().size(), 1U);
  EXPECT_TEXT(slow.events()[0], "rank 2", "pid 1002", "2.0 times", "job bert");
  EXPECT_THAT(slow.JobText(), HasSubstr("rank 2"));
  EXPECT_EQ(slow.node.Counters().slow_reports, 1U);
  EXPECT_THAT(slow.Evicted(), IsEmpty()) << "the job did not ask for it";
  slow.IterateMany({kQuick, kQuick, kQuick, kQuick});
  ASSERT_EQ(slow.Said().size(), 2U);
  EXPECT_EQ(slow.Said()[1], (SlowRank{.rank = 2}));
  EXPECT_EQ(slow.events().size(), 2U);
  EXPECT_EQ(slow.JobText(), "");
}

TEST(SlowRanks, LooksForNobodyWithoutABound) {
  SlowNode slow(2, {});
  slow.IterateMany({kQuick, 4 * kSlow});
  EXPECT_THAT(slow.Said(), IsEmpty());
}

// The bound after the begin, and the bound.
TEST(SlowRanks, CountsNothingForAsLongAsTheBoundIsAfterTheBegin) {
  SlowNode slow(3);
  slow.IterateMany({kSlow, kQuick, kQuick}, 2 * kBoundS);
  EXPECT_THAT(slow.Said(), IsEmpty());
  slow.IterateMany({kSlow, kQuick, kQuick}, 4);
  EXPECT_EQ(slow.Said().size(), 1U);
}

TEST(SlowRanks, FindsTwoThatAreSlowTogether) {
  SlowNode slow(5);
  slow.IterateMany({kQuick, kSlow, kQuick, kSlow, kQuick});
  ASSERT_EQ(slow.Said().size(), 2U);
  EXPECT_EQ(slow.Said()[0].rank, 1U);
  EXPECT_EQ(slow.Said()[1].rank, 3U);
}

TEST(SlowRanks, LeavesAloneWhoIsALittleSlower) {
  SlowNode slow(3);
  slow.IterateMany({kSlow * 7 / 5, kSlow, kSlow});
  EXPECT_THAT(slow.Said(), IsEmpty());
}

// Where all wait for the network, half as long again may be next to nothing.
TEST(SlowRanks, LeavesAloneWhoCostsTheOthersLittle) {
  SlowNode slow(3);
  for (int i = 0; i < kIterationsMany; ++i) {
    slow.Iterate({kSecond / 10, kSecond / 20, kSecond / 20});
    slow.node.Advance(kSecond);
    for (std::size_t rank = 0; rank < 3; ++rank) slow.Wait(rank, kSecond);
  }
  EXPECT_THAT(slow.Said(), IsEmpty());
}

TEST(SlowRanks, LeavesAloneWhoTakesLongOnceInAWhile) {
  SlowNode slow(3);
  for (int i = 0; i < 8; ++i) {
    slow.IterateMany({kQuick, kQuick, kQuick}, 3);
    slow.Iterate({kQuick, kBoundS * kSecond - kSecond, kQuick});
    slow.IterateMany({kQuick, kQuick, kQuick}, 3);
  }
  EXPECT_THAT(slow.Said(), IsEmpty());
}

TEST(SlowRanks, HasTheSlowestEvictedOnceAndSaysWhyAndHowToComeAgain) {
  SlowNode slow(4, {.seconds = kBoundS, .least_world = 2});
  slow.IterateMany({kQuick, kSlow, 2 * kSlow, kQuick}, 2 * kIterationsMany);
  const auto evicted = slow.Evicted();
  ASSERT_EQ(evicted.size(), 1U) << "the job fails by it, and goes on in another epoch";
  EXPECT_EQ(evicted[0].session, slow.ranks[2]->id());
  EXPECT_TRUE(evicted[0].evicted);
  EXPECT_EQ(evicted[0].error.code(), Code::kPeerLost);
  EXPECT_TEXT(evicted[0].error.text(), "evicted", "4.0 times", "8 s", "HEADRACE_ROLE=join");
}

TEST(SlowRanks, EvictsNobodyWhereTooFewWouldBeLeft) {
  SlowNode slow(3, {.seconds = kBoundS, .least_world = 3});
  slow.IterateMany({kQuick, kSlow, kQuick});
  EXPECT_EQ(slow.Said().size(), 1U);
  EXPECT_THAT(slow.Evicted(), IsEmpty());
}

TEST(SlowRanks, EvictsNobodyWhileThePlanChangesAndThenDoes) {
  SlowNode slow(2, {.seconds = kBoundS, .least_world = 1});
  const auto layout = PackedLayout({8});
  for (ClientEnd* rank : slow.ranks) HandIn(slow.node, *rank, layout);
  Adopt(slow.node, JobId{1}, PlanOf({{{0, 0, 8}}}));
  slow.node.Settle();
  slow.node.Send(service::PlanOffer{
      .job = JobId{1}, .plan = PlanOf({{{0, 0, 4}}, {{0, 4, 4}}}, 2), .hash = 2});
  slow.IterateMany({kQuick, kSlow});
  EXPECT_EQ(slow.Said().size(), 1U);
  EXPECT_THAT(slow.Evicted(), IsEmpty());
}

TEST(SlowRanks, EvictsNobodyOfAJobThatIsPaused) {
  SlowNode slow(2, {.seconds = kBoundS, .least_world = 1});
  slow.IterateMany({kQuick, kSlow}, 2 * kBoundS);
  slow.node.Send(Say(SteeringKind::kPause, 0));
  slow.node.Settle();
  for (int i = 0; i < 10; ++i) {
    slow.node.Send(Say(SteeringKind::kOwnShare, OwnShare{.rank = 0, .share = 100}.Value()));
    slow.node.Send(Say(SteeringKind::kOwnShare, OwnShare{.rank = 1, .share = 900}.Value()));
    slow.node.Advance(kSecond);
  }
  slow.Obey();
  EXPECT_EQ(slow.Said().size(), 1U);
  EXPECT_THAT(slow.Evicted(), IsEmpty());
}

// So that what comes now counts.
void PassBegin(SlowNode& slow) {
  slow.IterateMany(std::vector<TimeNs>(slow.ranks.size(), kQuick), 2 * kBoundS + 2);
}

void Stand(SlowNode& slow, const std::vector<std::size_t>& posting, TimeNs time_ns) {
  for (const std::size_t rank : posting) slow.ranks[rank]->PostApart(kSum);
  for (TimeNs passed_ns = 0; passed_ns < time_ns; passed_ns += kSecond) {
    slow.node.Advance(kSecond);
    slow.Obey();
  }
}

TEST(StalledRanks, OneThatStandsStillIsNamedAndEvictedAfterTheBound) {
  SlowNode slow(4, {.seconds = kBoundS, .least_world = 2});
  PassBegin(slow);
  Stand(slow, {0, 1, 3}, (kBoundS - 1) * kSecond);
  EXPECT_THAT(slow.Said(), IsEmpty());
  Stand(slow, {}, 3 * kSecond);
  const auto said = slow.Said();
  ASSERT_EQ(said.size(), 2U);
  EXPECT_EQ(said[0].rank, 2U);
  EXPECT_TRUE(said[0].stalled);
  EXPECT_FALSE(said[0].evicted);
  EXPECT_GE(said[0].seconds, kBoundS);
  EXPECT_TRUE(said[1].evicted);
  const auto evicted = slow.Evicted();
  ASSERT_EQ(evicted.size(), 1U);
  EXPECT_EQ(evicted[0].session, slow.ranks[2]->id());
  EXPECT_TRUE(evicted[0].evicted);
  EXPECT_EQ(evicted[0].error.code(), Code::kPeerLost);
  EXPECT_TEXT(evicted[0].error.text(), "evicted", "standing still", "posted nothing", "8 s",
              "HEADRACE_ROLE=join");
  EXPECT_EQ(slow.node.Counters().slow_reports, 1U);
}

TEST(StalledRanks, RankZeroIsEvictedLikeAnyOther) {
  SlowNode slow(3, {.seconds = kBoundS, .least_world = 1});
  PassBegin(slow);
  Stand(slow, {1, 2}, (kBoundS + 2) * kSecond);
  const auto evicted = slow.Evicted();
  ASSERT_EQ(evicted.size(), 1U);
  EXPECT_EQ(evicted[0].session, slow.ranks[0]->id());
}

TEST(StalledRanks, OfTwoBothAreNamedAndTheOneThatStoodStillFirstIsEvicted) {
  SlowNode slow(4, {.seconds = kBoundS, .least_world = 1});
  PassBegin(slow);
  slow.ranks[1]->PostApart(kSum);
  Stand(slow, {3}, 2 * kSecond);
  slow.ranks[1]->Post(Barrier());  // it waits for that now, and has done more than rank 2
  slow.ranks[3]->Post(Barrier());
  Stand(slow, {0}, 2 * kBoundS * kSecond);
  const auto said = slow.Said();
  ASSERT_EQ(said.size(), 2U) << "rank 0 has posted one of two, and waits for it";
  EXPECT_EQ(said[0].rank, 2U);

  SlowNode two(4, {.seconds = kBoundS, .least_world = 1});
  PassBegin(two);
  Stand(two, {0}, 2 * kSecond);
  two.Wait(1, 1);  // it has done something since
  Stand(two, {3}, 2 * kBoundS * kSecond);
  const auto both = two.Said();
  ASSERT_EQ(both.size(), 3U);
  EXPECT_EQ(both[0].rank + both[1].rank, 3U);
  EXPECT_TRUE(both[2].evicted);
  EXPECT_EQ(both[2].rank, 2U);
  EXPECT_EQ(two.Evicted().size(), 1U) << "one for each epoch";
}

TEST(StalledRanks, OneThatGoesOnIsNamedNoLonger) {
  SlowNode slow(3);
  PassBegin(slow);
  Stand(slow, {0, 1}, 2 * kBoundS * kSecond);
  ASSERT_EQ(slow.Said().size(), 1U);
  EXPECT_THAT(slow.JobText(), HasSubstr("rank 2 (pid 1002) stands still"));
  EXPECT_THAT(slow.Evicted(), IsEmpty()) << "the job did not ask for it";
  Stand(slow, {2}, kSecond);
  ASSERT_EQ(slow.Said().size(), 2U);
  EXPECT_EQ(slow.Said()[1], (SlowRank{.rank = 2}));
  EXPECT_EQ(slow.JobText(), "");
}

TEST(StalledRanks, NobodyIsWhereAllAreIdleAndTheServiceSleeps) {
  SlowNode slow(3, {.seconds = kBoundS, .least_world = 1});
  PassBegin(slow);
  Stand(slow, {}, 4 * kBoundS * kSecond);
  EXPECT_THAT(slow.Said(), IsEmpty());
  // The timeouts of what has ended, of 600 s, are forgotten only when they come.
  EXPECT_GT(slow.node.dispatch().NextDeadline(), slow.node.now + 100 * kSecond);
  Stand(slow, {0, 1}, kSecond);
  EXPECT_LE(slow.node.dispatch().NextDeadline(), slow.node.now + kSecond) << "it looks again";
  Stand(slow, {}, (kBoundS + 2) * kSecond);
  EXPECT_EQ(slow.Evicted().size(), 1U) << "those that wait are waited with for a bound";
}

TEST(StalledRanks, NobodyIsOfAJobThatIsPaused) {
  SlowNode slow(3, {.seconds = kBoundS, .least_world = 1});
  PassBegin(slow);
  slow.node.Send(Say(SteeringKind::kPause, 0));
  Stand(slow, {0, 1}, 4 * kBoundS * kSecond);
  EXPECT_THAT(slow.Said(), IsEmpty());
  slow.node.Send(Say(SteeringKind::kResume, 0));
  Stand(slow, {}, (kBoundS - 2) * kSecond);
  EXPECT_THAT(slow.Said(), IsEmpty()) << "its time begins when the job goes on";
  Stand(slow, {}, 5 * kSecond);
  EXPECT_EQ(slow.Evicted().size(), 1U);
}

TEST(StalledRanks, NobodyIsForWhatTheServiceStoodStill) {
  SlowNode slow(3, {.seconds = kBoundS, .least_world = 1});
  PassBegin(slow);
  Stand(slow, {0, 1}, 2 * kSecond);
  slow.node.Stall(4 * kBoundS * kSecond);
  slow.Obey();
  Stand(slow, {}, (kBoundS - 4) * kSecond);
  EXPECT_THAT(slow.Said(), IsEmpty());
}

// A rank that has posted a part of its gradients waits for itself.
TEST(StalledRanks, OneThatStandsStillInItsBackwardPassIsEvicted) {
  SlowNode slow(3, {.seconds = kBoundS, .least_world = 1});
  const auto layout = PackedLayout({8, 8});
  for (ClientEnd* rank : slow.ranks) HandIn(slow.node, *rank, layout);
  Adopt(slow.node, JobId{1}, PlanOf({{{0, 0, 8}, {1, 0, 8}}}));
  PassBegin(slow);
  // Offered, and put in force before no iteration that begins.
  slow.node.Send(service::PlanOffer{.job = JobId{1}, .plan = PlanOf({{{0, 0, 8}}}, 2), .hash = 2});
  for (ClientEnd* rank : slow.ranks) PostGradient(*rank, *layout, 1);
  for (const std::size_t rank : {0U, 2U}) PostGradient(*slow.ranks[rank], *layout, 0);
  Stand(slow, {}, (kBoundS + 2) * kSecond);
  const auto evicted = slow.Evicted();
  ASSERT_EQ(evicted.size(), 1U);
  EXPECT_EQ(evicted[0].session, slow.ranks[1]->id());
}

// A process that is in another job besides says what it waits there: this job's own operations say
// nothing, however long they rest.
TEST(StalledRanks, OneForWhichOthersWaitInAnotherJobIsEvicted) {
  SlowNode slow(3, {.seconds = kBoundS, .least_world = 1});
  const auto waits = [&slow](std::size_t rank, std::uint32_t threads) {
    slow.ranks[rank]->layout().header.client_waits_elsewhere.store(1 + threads);
  };
  for (std::size_t rank = 0; rank < 3; ++rank) waits(rank, 0);
  PassBegin(slow);
  Stand(slow, {}, 3 * kBoundS * kSecond);
  EXPECT_THAT(slow.Said(), IsEmpty());
  for (int i = 0; i < 2 * static_cast<int>(kBoundS); ++i) {
    for (std::size_t rank = 0; rank < 3; ++rank) slow.Wait(rank, kMillisecond);
    Stand(slow, {}, kSecond);
  }
  EXPECT_THAT(slow.Said(), IsEmpty());
  waits(0, 1);
  waits(2, 2);
  Stand(slow, {}, (kBoundS - 1) * kSecond);
  EXPECT_THAT(slow.Said(), IsEmpty()) << "they have only begun to wait";
  Stand(slow, {}, 4 * kSecond);
  const auto evicted = slow.Evicted();
  ASSERT_EQ(evicted.size(), 1U);
  EXPECT_EQ(evicted[0].session, slow.ranks[1]->id());
}

TEST(StalledRanks, AJobWhoseOperationsTimeOutBeforeIsTold) {
  const auto told = [](std::uint32_t timeout_ms, SlowBound bound) {
    SlowNode slow(2, bound, {.name = "bert", .timeout_ms = timeout_ms});
    return slow.events();
  };
  const SlowBound evicts{.seconds = kBoundS, .least_world = 1};
  const auto events = told(kBoundS * 1000, evicts);
  ASSERT_EQ(events.size(), 1U);
  EXPECT_TEXT(events[0], "HEADRACE_SLOW=8:evict", "within 10 s", "after 8 s",
              "HEADRACE_TIMEOUT_MS");
  EXPECT_THAT(told(60'000, evicts), IsEmpty());
  EXPECT_THAT(told(kBoundS * 1000, {.seconds = kBoundS}), IsEmpty());
}

TEST(SlowRanks, BelievesNoClientThatItHasWaitedForLongerThanThereWasTime) {
  SlowNode slow(3);
  for (int i = 0; i < kIterationsMany; ++i) {
    slow.Iterate({kSlow, kSlow, kSlow});
    slow.Wait(0, UINT64_MAX / 3);
  }
  EXPECT_THAT(slow.Said(), IsEmpty()) << "one that says it only waits makes nobody else slow";
  slow.node.Settle();
}

// Each rank is on a node of its own: a, b, c.
struct SlowNodes {
  explicit SlowNodes(std::uint32_t count) : cluster({.nodes_count = count}) {
    job.world_size = count;
    std::vector<std::vector<std::uint32_t>> ranks;
    for (std::uint32_t rank = 0; rank < count; ++rank) {
      ranks.push_back({rank});
      clients.push_back(&cluster.node(rank).Attach(job, rank));
    }
    cluster.Form(job, ranks);
    cluster.Advance(kMillisecond);
  }
  void Send(std::size_t node, SteeringKind kind, std::uint64_t value, const std::string& from) {
    cluster.node(node).Send(Say(kind, value, from));
    cluster.Advance(kMillisecond);
  }
  void SayShare(std::uint32_t rank, std::uint32_t share, const std::string& from) {
    Send(0, SteeringKind::kOwnShare, OwnShare{.rank = rank, .share = share}.Value(), from);
  }
  std::vector<service::Steering> SaidBy(std::size_t node) {
    std::vector<service::Steering> said;
    for (const auto* each : cluster.node(node).peers().Of<service::SteerJob>()) {
      said.push_back(each->steering);
    }
    return said;
  }

  JobSpec job{.name = "bert", .timeout_ms = 600'000, .rendezvous = "a:7733"};
  HandDrivenCluster cluster;
  std::vector<ClientEnd*> clients;
};

TEST(SlowRankNodes, AreComparedWhereRankZeroIsByWhatTheirOwnNodesSay) {
  SlowNodes slow(3);
  slow.Send(0, SteeringKind::kSlowBound, SlowBound{.seconds = 5, .least_world = 2}.Value(), "");
  for (int i = 0; i < 20; ++i) {
    slow.SayShare(0, 500, "");
    slow.SayShare(1, 1000, "c");  // speaks for another
    slow.SayShare(2, 500, "c");
    slow.cluster.Advance(kSecond);
  }
  EXPECT_THAT(slow.SaidBy(0), IsEmpty());
  for (int i = 0; i < 8; ++i) {
    slow.SayShare(0, 500, "");
    slow.SayShare(1, 1000, "b");
    slow.SayShare(2, 500, "c");
    slow.cluster.Advance(kSecond);
  }
  const auto said = slow.SaidBy(0);
  ASSERT_EQ(said.size(), 2U);
  EXPECT_EQ(SlowRank::Of(said[0].value).rank, 1U);
  EXPECT_FALSE(SlowRank::Of(said[0].value).evicted);
  EXPECT_TRUE(SlowRank::Of(said[1].value).evicted);
}

TEST(SlowRankNodes, SayHowTheirOwnRanksAreAndObeyOnlyTheNodeOfRankZero) {
  SlowNodes slow(2);
  const auto iterate = [&slow](int count) {
    for (int i = 0; i < count; ++i) {
      for (ClientEnd* rank : slow.clients) rank->PostApart(kSum);
      slow.cluster.Advance(kSecond);
    }
  };
  const auto bound = SlowBound{.seconds = 1, .least_world = 1}.Value();
  slow.Send(1, SteeringKind::kSlowBound, bound, "");  // its own word does not count
  iterate(10);
  EXPECT_THAT(slow.SaidBy(1), IsEmpty());
  slow.Send(1, SteeringKind::kSlowBound, bound, "a");
  iterate(10);
  ASSERT_FALSE(slow.SaidBy(1).empty());
  for (const service::Steering& each : slow.SaidBy(1)) {
    EXPECT_EQ(each.kind, SteeringKind::kOwnShare);
    EXPECT_EQ(OwnShare::Of(each.value), (OwnShare{.rank = 1, .share = 1000}));
  }
  const SlowRank named{.rank = 1, .percent = 300, .seconds = 2};
  SlowRank evicted = named;
  evicted.evicted = true;
  const auto broken = [&slow] {
    return slow.cluster.node(1).rpc().Of<service::SessionBroken>().size();
  };
  for (const char* const from : {"", "b"}) {
    slow.Send(1, SteeringKind::kSlowRank, named.Value(), from);
    slow.Send(1, SteeringKind::kSlowRank, evicted.Value(), from);
  }
  slow.Send(1, SteeringKind::kSlowRank, evicted.Value(), "a");  // it was not named before
  EXPECT_EQ(broken(), 0U);
  slow.Send(1, SteeringKind::kSlowRank, named.Value(), "a");
  EXPECT_EQ(broken(), 0U);
  slow.Send(1, SteeringKind::kSlowRank, evicted.Value(), "a");
  EXPECT_EQ(broken(), 1U);
}

TEST(SlowRankNodes, OneThatStandsStillIsFoundByWhatItsOwnNodeSays) {
  SlowNodes slow(3);
  const auto bound = SlowBound{.seconds = 5, .least_world = 2}.Value();
  slow.Send(0, SteeringKind::kSlowBound, bound, "");
  slow.Send(1, SteeringKind::kSlowBound, bound, "a");
  using Kind = service::RankState::Kind;
  const auto say = [&slow](std::uint32_t rank, Kind kind, const std::string& from) {
    slow.Send(0, SteeringKind::kRankState,
              service::RankState{.rank = rank, .kind = kind, .seconds = 6}.Value(), from);
  };
  for (ClientEnd* rank : slow.clients) rank->PostApart(kSum);
  slow.cluster.Advance(6 * kSecond);
  slow.clients[0]->PostApart(kSum);
  slow.clients[2]->PostApart(kSum);
  slow.cluster.Advance(8 * kSecond);
  say(1, Kind::kStalled, "c");  // speaks for another
  say(2, Kind::kWaits, "c");
  EXPECT_THAT(slow.SaidBy(0), IsEmpty());
  const auto states = slow.SaidBy(1);
  ASSERT_EQ(states.size(), 1U) << "once";
  EXPECT_EQ(states[0].kind, SteeringKind::kRankState);
  const auto state = service::RankState::Of(states[0].value);
  EXPECT_EQ(state.rank, 1U);
  EXPECT_EQ(state.kind, Kind::kStalled);
  EXPECT_GE(state.seconds, 5U);
  say(1, Kind::kStalled, "b");
  const auto said = slow.SaidBy(0);
  ASSERT_EQ(said.size(), 2U);
  EXPECT_EQ(SlowRank::Of(said[0].value).rank, 1U);
  EXPECT_TRUE(SlowRank::Of(said[0].value).stalled);
  EXPECT_TRUE(SlowRank::Of(said[1].value).evicted);
  slow.clients[1]->PostApart(kSum);
  slow.cluster.Advance(kMillisecond);
  ASSERT_EQ(slow.SaidBy(1).size(), 2U);
  EXPECT_EQ(service::RankState::Of(slow.SaidBy(1)[1].value), (service::RankState{.rank = 1}));
}

// Whoever leads a job of one rank may say anything.
TEST(SlowRankNodes, OfOneRankAreNeverSlow) {
  SlowNode slow(1, {.seconds = 1, .least_world = 1});
  slow.node.Send(Say(SteeringKind::kOwnShare, OwnShare{.rank = 0, .share = 1000}.Value()));
  slow.IterateMany({kSlow});
  EXPECT_THAT(slow.Said(), IsEmpty());
}

TEST(SlowRankValues, AreCheckedWhereTheyComeIn) {
  const auto check = [](SteeringKind kind, std::uint64_t value) {
    return service::CheckSlowSteering(kind, value).ok();
  };
  EXPECT_TRUE(check(SteeringKind::kSlowBound, SlowBound{.seconds = 86'400}.Value()));
  EXPECT_FALSE(check(SteeringKind::kSlowBound, SlowBound{.seconds = 86'401}.Value()));
  EXPECT_FALSE(check(SteeringKind::kSlowBound, SlowBound{.seconds = 0, .least_world = 1}.Value()));
  EXPECT_FALSE(check(SteeringKind::kSlowBound, SlowBound{.seconds = 1, .least_world = 65}.Value()));
  EXPECT_TRUE(check(SteeringKind::kOwnShare, OwnShare{.rank = 63, .share = 1000}.Value()));
  EXPECT_FALSE(check(SteeringKind::kOwnShare, OwnShare{.rank = 64, .share = 1000}.Value()));
  EXPECT_FALSE(check(SteeringKind::kOwnShare, OwnShare{.rank = 63, .share = 1001}.Value()));
  const SlowRank slow{.rank = 63, .evicted = true, .percent = 100'000, .seconds = 86'400};
  EXPECT_TRUE(check(SteeringKind::kSlowRank, slow.Value()));
  EXPECT_EQ(SlowRank::Of(slow.Value()), slow);
  EXPECT_FALSE(check(SteeringKind::kSlowRank, SlowRank{.rank = 64, .percent = 200}.Value()));
  EXPECT_FALSE(check(SteeringKind::kSlowRank, SlowRank{.rank = 1, .percent = 100'001}.Value()));
  EXPECT_FALSE(check(SteeringKind::kSlowRank, SlowRank{.rank = 1, .evicted = true}.Value()));
  EXPECT_FALSE(check(SteeringKind::kSlowRank, slow.Value() | 1U << 10U)) << "unused bits";
  EXPECT_FALSE(check(SteeringKind::kSlowRank, SlowRank{.rank = 1, .stalled = true}.Value()));
  using service::RankState;
  const RankState state{.rank = 63, .kind = RankState::Kind::kStalled, .seconds = 172'800};
  EXPECT_TRUE(check(SteeringKind::kRankState, state.Value()));
  EXPECT_EQ(RankState::Of(state.Value()), state);
  EXPECT_FALSE(check(SteeringKind::kRankState, RankState{.rank = 64}.Value()));
  EXPECT_FALSE(check(SteeringKind::kRankState, state.Value() + (1U << 8U))) << "unknown kind";
  EXPECT_FALSE(check(SteeringKind::kRankState, state.Value() | 1U << 16U)) << "unused bits";
  EXPECT_FALSE(check(SteeringKind::kRankState, RankState{.rank = 1, .seconds = 172'801}.Value()));
}

}  // namespace
}  // namespace headrace::support

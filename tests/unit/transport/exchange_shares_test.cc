// Jobs that share links: who gets how much of what the wire carries, in virtual time.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>

#include "tests/unit/transport/exchange_fleet.h"

namespace headrace::transport {
namespace {

constexpr double kBytesASecond = 1e9 / kNsPerByte;

struct Job {
  std::uint32_t group = 1;
  Share share{};
  std::size_t bytes = 4 << 20;  // of a transfer
  std::uint32_t depth = 2;      // transfers that are open at a time
  std::vector<std::uint32_t> nodes{0, 1};
  std::uint32_t servers_count = 0;  // the last of the nodes
  Algorithm algorithm = Algorithm::kAuto;
  std::vector<std::uint32_t> absent{};  // never post
};

FleetOptions Links(std::uint32_t nodes) {
  FleetOptions options{.data_count = nodes, .opens_group = false};
  options.exchange = {};
  options.network.ns_per_byte = kNsPerByte;
  options.network.eager_size = std::size_t{128} << 10;
  return options;
}

// Nodes whose jobs always have something to send.
class Load {
 public:
  Load(const FleetOptions& options, std::vector<Job> jobs)
      : fleet_(options), jobs_(std::move(jobs)) {
    for (const Job& job : jobs_) Open(job);
    for (const Job& job : jobs_) {
      for (const std::uint32_t node : Posting(job)) {
        for (std::uint32_t i = 0; i < job.depth; ++i) Post(job, node);
      }
    }
  }

  // Counts from now on.
  void Run(TimeNs time_ns) {
    const TimeNs end = fleet_.network().now() + time_ns;
    before_.clear();
    for (const Job& job : jobs_) before_[job.group] = AllOf(job.group);
    while (fleet_.network().now() < end) {
      ASSERT_TRUE(fleet_.Step());
      for (std::uint32_t node = 0; node < fleet_.nodes_count(); ++node) {
        for (const Completion& completion : fleet_.completions(node)) {
          ASSERT_EQ(completion.code, Code::kOk) << completion.cause;
          const auto job = std::ranges::find(jobs_, completion.token, &Job::group);
          Post(*job, node);
        }
      }
      fleet_.ClearCompletions();
    }
  }

  // Bytes of the job that went from one node to another in the last run.
  double Bytes(std::uint32_t group, std::uint32_t from, std::uint32_t to) {
    return static_cast<double>(BytesAtAll(group, from, to) - before_.at(group)[from][to]);
  }
  double BytesFrom(std::uint32_t group, std::uint32_t from) {
    double bytes = 0;
    for (std::uint32_t to = 0; to < fleet_.nodes_count(); ++to) bytes += Bytes(group, from, to);
    return bytes;
  }
  Fleet& fleet() { return fleet_; }

 private:
  using Table = std::array<std::array<std::uint64_t, 6>, 6>;

  static std::vector<std::uint32_t> Posting(const Job& job) {
    std::vector<std::uint32_t> posting(job.nodes.begin(), job.nodes.end() - job.servers_count);
    std::erase_if(posting, [&job](std::uint32_t node) {
      return std::ranges::find(job.absent, node) != job.absent.end();
    });
    return posting;
  }
  std::uint64_t BytesAtAll(std::uint32_t group, std::uint32_t from, std::uint32_t to) {
    return fleet_.network().BytesOf(Fleet::NameOf(from), Fleet::NameOf(to), KeyOf(group));
  }
  Table AllOf(std::uint32_t group) {
    Table table{};
    for (std::uint32_t from = 0; from < fleet_.nodes_count(); ++from) {
      for (std::uint32_t to = 0; to < fleet_.nodes_count(); ++to) {
        table[from][to] = BytesAtAll(group, from, to);
      }
    }
    return table;
  }

  void Open(const Job& job) {
    GroupOptions options{.group = job.group,
                         .key = KeyOf(job.group),
                         .members = {},
                         .servers_count = job.servers_count,
                         .algorithm = job.algorithm};
    for (const std::uint32_t node : job.nodes) {
      options.members.push_back({Fleet::NameOf(node), "simulated:" + Fleet::NameOf(node)});
    }
    for (const std::uint32_t node : job.nodes) {
      ASSERT_TRUE(fleet_.node(node).OpenGroup(options).ok());
      fleet_.node(node).SetShare(job.group, job.share);
      memory_[{job.group, node}].resize(job.bytes);
      ++options.self;
    }
  }

  void Post(const Job& job, std::uint32_t node) {
    const auto self = std::ranges::find(job.nodes, node) - job.nodes.begin();
    Transfer transfer{
        .token = job.group,
        .kind = Collective::kAllReduce,
        .count = job.bytes,
        .group = job.group,
        .position = positions_[{job.group, node}]++,
        .members_count = static_cast<std::uint32_t>(job.nodes.size()) - job.servers_count};
    transfer.members[static_cast<std::size_t>(self)] = memory_.at({job.group, node}).data();
    ASSERT_EQ(fleet_.node(node).Post(transfer, fleet_.network().now()), PostResult::kAccepted);
  }

  Fleet fleet_;
  std::vector<Job> jobs_;
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::vector<std::byte>> memory_;
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint64_t> positions_;
  std::map<std::uint32_t, Table> before_;
};

// After the first transfers have found their pace.
void Settle(Load& load) { load.Run(200 * kMillisecond); }

constexpr TimeNs kRun = kSecond;
constexpr double kWhole = kBytesASecond * static_cast<double>(kRun) / kSecond;

TEST(ExchangeShares, LetAJobAloneHaveTheWholeLink) {
  for (const Share& share : {Share{}, Share{.weight = 7, .priority = 3}}) {
    Load load(Links(2), {{.share = share}});
    Settle(load);
    load.Run(kRun);
    EXPECT_GT(load.Bytes(1, 0, 1), 0.97 * kWhole);
    EXPECT_GT(load.Bytes(1, 1, 0), 0.97 * kWhole);
  }
}

TEST(ExchangeShares, GiveEqualJobsEqualBytesAndWasteNone) {
  Load load(Links(2), {{.group = 1}, {.group = 2}});
  Settle(load);
  load.Run(kRun);
  EXPECT_NEAR(load.Bytes(1, 0, 1) / load.Bytes(2, 0, 1), 1, 0.05);
  EXPECT_GT(load.Bytes(1, 0, 1) + load.Bytes(2, 0, 1), 0.97 * kWhole);
}

// One has many times as much outstanding as the other.
TEST(ExchangeShares, GiveAJobThatFloodsNoMoreThanAnother) {
  Load load(Links(2), {{.group = 1, .bytes = 1 << 20, .depth = 1}, {.group = 2, .depth = 20}});
  Settle(load);
  load.Run(kRun);
  EXPECT_NEAR(load.Bytes(1, 0, 1) / load.Bytes(2, 0, 1), 1, 0.05);
}

TEST(ExchangeShares, GiveThreeTimesAsMuchForThreeTimesTheWeight) {
  for (const std::uint32_t nodes : {2U, 4U}) {
    const std::vector<std::uint32_t> all =
        nodes == 2 ? std::vector<std::uint32_t>{0, 1} : std::vector<std::uint32_t>{0, 1, 2, 3};
    for (const Algorithm algorithm : {Algorithm::kDirectScatter, Algorithm::kRing}) {
      FleetOptions links = Links(nodes);
      if (nodes > 2) links.network = {.ns_per_byte_out = kNsPerByte, .eager_size = 128 << 10};
      Load load(links, {{.group = 1, .share = {.weight = 3}, .nodes = all, .algorithm = algorithm},
                        {.group = 2, .nodes = all, .algorithm = algorithm}});
      Settle(load);
      load.Run(kRun);
      for (std::uint32_t node = 0; node < nodes; ++node) {
        EXPECT_NEAR(load.BytesFrom(1, node) / load.BytesFrom(2, node), 3, 0.15)
            << nodes << " nodes, node " << node;
        EXPECT_GT(load.BytesFrom(1, node) + load.BytesFrom(2, node), 0.95 * kWhole);
      }
    }
  }
}

// Pieces of 96 KiB, of 16 and of 8.
TEST(ExchangeShares, LookAtBytesWhateverTheSizesOfPieces) {
  Load load(Links(2), {{.group = 1},
                       {.group = 2, .bytes = 64 << 10, .depth = 30},
                       {.group = 3, .bytes = 8 << 10, .depth = 30}});
  Settle(load);
  load.Run(kRun);
  const double first = load.Bytes(1, 0, 1);
  EXPECT_NEAR(load.Bytes(2, 0, 1) / first, 1, 0.05);
  // A message costs 128 bytes beside its own.
  EXPECT_NEAR(load.Bytes(3, 0, 1) / first, 1, 0.05);
}

// What they share is the node's way out.
TEST(ExchangeShares, CountWhatGoesToAllMembers) {
  FleetOptions links = Links(4);
  links.network = {.ns_per_byte_out = kNsPerByte, .eager_size = 128 << 10};
  Load load(links, {{.group = 1}, {.group = 2, .nodes = {0, 1, 2, 3}}});
  Settle(load);
  load.Run(kRun);
  EXPECT_NEAR(load.BytesFrom(1, 0) / load.BytesFrom(2, 0), 1, 0.05);
  EXPECT_GT(load.BytesFrom(1, 0) + load.BytesFrom(2, 0), 0.95 * kWhole);
}

TEST(ExchangeShares, HoldForTheSumsOfServers) {
  Load load(Links(3), {{.group = 1, .share = {.weight = 3}, .nodes = {0, 1, 2}, .servers_count = 1},
                       {.group = 2, .nodes = {0, 1, 2}, .servers_count = 1}});
  Settle(load);
  load.Run(kRun);
  EXPECT_NEAR(load.Bytes(1, 2, 0) / load.Bytes(2, 2, 0), 3, 0.15);
  EXPECT_NEAR(load.Bytes(1, 0, 2) / load.Bytes(2, 0, 2), 3, 0.15);
}

TEST(ExchangeShares, ChangeWhenTheyAreSet) {
  Load load(Links(2), {{.group = 1}, {.group = 2}});
  Settle(load);
  for (std::uint32_t node = 0; node < 2; ++node) load.fleet().node(node).SetShare(1, {.weight = 3});
  Settle(load);
  load.Run(kRun);
  EXPECT_NEAR(load.Bytes(1, 0, 1) / load.Bytes(2, 0, 1), 3, 0.15);
  for (std::uint32_t node = 0; node < 2; ++node) load.fleet().node(node).SetShare(9, {.weight = 3});
}

TEST(ExchangeShares, GiveTheBetterClassAllItCanUse) {
  Load load(Links(2), {{.group = 1}, {.group = 2, .share = {.weight = 1, .priority = 1}}});
  Settle(load);
  load.Run(kRun);
  EXPECT_GT(load.Bytes(2, 0, 1), 0.95 * kWhole);
}

// And no worse: a piece for it goes each second, each way.
TEST(ExchangeShares, LetNobodyStarveBehindABetterClass) {
  Load load(Links(2), {{.group = 1}, {.group = 2, .share = {.weight = 1, .priority = 1}}});
  Settle(load);
  for (int i = 0; i < 4; ++i) {
    load.Run(kSecond + 100 * kMillisecond);
    EXPECT_GT(load.Bytes(1, 0, 1), 0) << "second " << i;
    EXPECT_GT(load.Bytes(1, 1, 0), 0) << "second " << i;
  }
}

// Small transfers, one behind the other: most of the time there is nothing of them to send.
TEST(ExchangeShares, LeaveToOthersWhatAJobDoesNotUse) {
  Load load(Links(2),
            {{.group = 1}, {.group = 2, .share = {.weight = 50}, .bytes = 1000, .depth = 1}});
  Settle(load);
  load.Run(kRun);
  EXPECT_GT(load.Bytes(1, 0, 1), 0.9 * kWhole);
  EXPECT_GT(load.Bytes(1, 0, 1) + load.Bytes(2, 0, 1), 0.97 * kWhole);
}

TEST(ExchangeShares, LoseNothingToAJobWhoseOtherNodeNeverPosts) {
  for (const std::size_t eager_size : {std::size_t{128} << 10, std::size_t{0}}) {
    FleetOptions links = Links(2);
    links.network.eager_size = eager_size;
    Load alone(links, {{.group = 2}});
    Settle(alone);
    alone.Run(kRun);
    Load load(links, {{.group = 1, .depth = 20, .absent = {1}}, {.group = 2}});
    Settle(load);
    load.Run(kRun);
    EXPECT_GT(load.Bytes(2, 0, 1), 0.98 * alone.Bytes(2, 0, 1)) << eager_size;
    EXPECT_EQ(load.Bytes(1, 0, 1), 0) << eager_size;
  }
}

// Node c does not even read.
TEST(ExchangeShares, LoseNothingToAPeerThatTakesNothing) {
  for (const std::vector<std::uint32_t>& stuck : {std::vector<std::uint32_t>{0, 2}, {0, 1, 2}}) {
    Load load(Links(3), {{.group = 1, .depth = 20, .nodes = stuck}, {.group = 2}});
    Settle(load);
    load.fleet().network().Dam("a", "c");
    Settle(load);
    load.Run(kRun);
    EXPECT_GT(load.Bytes(2, 0, 1), 0.97 * kWhole);
    EXPECT_GT(load.Bytes(2, 1, 0), 0.97 * kWhole);
    // When it reads again all goes on.
    load.fleet().network().LetFlow("a", "c");
    Settle(load);
    load.Run(kRun);
    EXPECT_GT(load.Bytes(1, 0, 2), 0.2 * kWhole);
  }
}

// A group that ends while it has much at the pacer leaves nothing of itself there.
TEST(ExchangeShares, AreWholeAgainWhenAJobEnds) {
  Load load(Links(2), {{.group = 1, .share = {.weight = 1, .priority = 0}}});
  Fleet& fleet = load.fleet();
  GroupOptions options{
      .group = 2, .key = KeyOf(2), .members = {{"a", "simulated:a"}, {"b", "simulated:b"}}};
  std::vector<std::byte> memory(8 << 20);
  for (options.self = 0; options.self < 2; ++options.self) {
    ASSERT_TRUE(fleet.node(options.self).OpenGroup(options).ok());
    fleet.node(options.self).SetShare(2, {.weight = 1, .priority = 1});
    Transfer transfer{.token = 2,
                      .kind = Collective::kAllReduce,
                      .count = memory.size() / 2,
                      .group = 2,
                      .members_count = 2};
    transfer.members[options.self] = memory.data() + options.self * memory.size() / 2;
    ASSERT_EQ(fleet.node(options.self).Post(transfer, 0), PostResult::kAccepted);
  }
  for (int i = 0; i < 40; ++i) fleet.Step();
  for (std::uint32_t node = 0; node < 2; ++node) fleet.node(node).CloseGroup(2, "the job ended");
  std::vector<std::uint32_t> ended;
  while (ended.size() < 2) {
    ASSERT_TRUE(fleet.Step());
    for (std::uint32_t node = 0; node < 2; ++node) {
      for (const Completion& completion : fleet.completions(node)) {
        ASSERT_EQ(completion.token, 2U) << "the other job cannot be so far";
        EXPECT_EQ(completion.code, Code::kCancelled);
        ended.push_back(node);
      }
    }
    fleet.ClearCompletions();
  }
  load.Run(kRun);
  EXPECT_GT(load.Bytes(1, 0, 1), 0.95 * kWhole);
}

}  // namespace
}  // namespace headrace::transport

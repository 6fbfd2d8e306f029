#include "transport/shm/shm_transport.h"

#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "tests/contract/members.h"

namespace headrace::transport {
namespace {

class CountingWaker final : public Waker {
 public:
  void Wake() override { count.fetch_add(1); }
  std::atomic<int> count{0};
};

// How often the worker pool's threads of this process went to sleep so far, as the kernel counts
// it.
long CrewSleeps() {
  long sleeps = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream name_file(task.path() / "comm");
    std::string name;
    std::getline(name_file, name);
    if (name != "hr-shm-pool") continue;
    std::ifstream status(task.path() / "status");
    for (std::string word; status >> word;) {
      long value = 0;
      if (word == "voluntary_ctxt_switches:" && status >> value) sleeps += value;
    }
  }
  return sleeps;
}

// Once a worker pool is created its threads run to their first sleep; until then the count still
// moves.
long SettledCrewSleeps(long crew_size) {
  while (CrewSleeps() < crew_size) std::this_thread::yield();
  return CrewSleeps();
}

Transfer SumOver(std::uint64_t token, const Members& members) {
  Transfer transfer{.token = token, .kind = Collective::kAllReduce};
  members.Describe(transfer);
  return transfer;
}

TEST(ShmTransport, LetsTheCrewSleepThroughSmallTransfers) {
  CountingWaker waker;
  ShmTransport transport(3, waker);
  Members members(DType::kFloat32, 1000, 4);
  members.Fill(1);
  const long before = SettledCrewSleeps(2);
  std::vector<Completion> completions;
  for (std::uint64_t token = 0; token < 1000; ++token) {
    ASSERT_EQ(transport.Post(SumOver(token, members), 0), PostResult::kAccepted);
    transport.DoWork(0, completions);
  }
  EXPECT_EQ(completions.size(), 1000U);
  // A thread that was still starting may sleep once more; woken for each, they would 1000 times.
  EXPECT_LT(CrewSleeps(), before + 10);
  EXPECT_EQ(waker.count.load(), 0);
}

TEST(ShmTransport, CompletesInTheOrderOfPosts) {
  CountingWaker waker;
  ShmTransport transport(2, waker);
  std::vector<Members> memories;
  for (std::uint64_t token = 0; token < 20; ++token) {
    memories.emplace_back(DType::kFloat32, token % 3 == 0 ? 500'000 : 100, 2).Fill(token);
    ASSERT_EQ(transport.Post(SumOver(token, memories.back()), 0), PostResult::kAccepted);
  }
  std::vector<Completion> completions;
  while (completions.size() < 20) transport.DoWork(0, completions);
  for (std::uint64_t token = 0; token < 20; ++token) EXPECT_EQ(completions[token].token, token);
}

TEST(ShmTransport, DoesASmallTransferInOneCall) {
  CountingWaker waker;
  ShmTransport transport(2, waker);
  Members members(DType::kFloat32, 1000, 2);
  members.Fill(1);
  ASSERT_EQ(transport.Post(SumOver(9, members), 0), PostResult::kAccepted);
  std::vector<Completion> completions;
  EXPECT_FALSE(transport.DoWork(0, completions));
  ASSERT_EQ(completions.size(), 1U);
  EXPECT_LT(completions[0].begin_ns, completions[0].end_ns);  // measured, not taken from `now`
}

}  // namespace
}  // namespace headrace::transport

// How transfers are taken, ended and reported.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <random>

#include "tests/contract/members.h"
#include "tests/contract/subject.h"
#include "tests/support/loopback/reference.h"

namespace headrace::transport {
namespace {

constexpr std::uint64_t kPiecesCount = 10;

class TransportFlow : public TransportContract {
 protected:
  Transport& transport() { return subject_->transport(); }

  std::uint64_t ManyPieces() {
    return kPiecesCount * transport().capabilities().piece_size / SizeOf(DType::kFloat32);
  }

  static Transfer AllReduce(std::uint64_t token, const Members& members) {
    Transfer transfer{.token = token, .kind = Collective::kAllReduce, .reduction = Reduction::kSum};
    members.Describe(transfer);
    return transfer;
  }

  static std::vector<std::vector<std::byte>> Expected(const Members& filled) {
    Members copy = filled.Copy();
    ReferenceMove(AllReduce(0, copy), 0, filled.count());
    return copy.Contents();
  }

  // Nothing is left to report, now or later.
  void ExpectQuiet() {
    std::vector<Completion> completions;
    for (int i = 0; i < 10; ++i) EXPECT_FALSE(transport().DoWork(subject_->Now(), completions));
    EXPECT_TRUE(completions.empty());
  }
};

TEST_P(TransportFlow, SaysWhatItCanDo) {
  const Capabilities& can = transport().capabilities();
  EXPECT_FALSE(can.name.empty());
  EXPECT_GE(can.transfers_max, 1U);
  EXPECT_GE(can.threads, 1U);
  EXPECT_GE(can.piece_size, 64U);
  EXPECT_TRUE(can.Supports(Collective::kAllReduce));
}

TEST_P(TransportFlow, HasNothingToDoBeforeThePost) { ExpectQuiet(); }

TEST_P(TransportFlow, ReportsOneCompletionWithItsTimes) {
  Members members(DType::kFloat32, ManyPieces(), 2);
  members.Fill(1);
  const TimeNs before = subject_->Now();
  const Completion completion = subject_->Run(AllReduce(7, members));
  EXPECT_EQ(completion.token, 7U);
  EXPECT_GE(completion.begin_ns, before);
  EXPECT_GE(completion.end_ns, completion.begin_ns);
  EXPECT_LE(completion.end_ns, subject_->Now());
  ExpectQuiet();
}

TEST_P(TransportFlow, AnswersBusyAndTakesNothingWhenFull) {
  const std::uint32_t transfers_max = transport().capabilities().transfers_max;
  std::vector<Members> memories;
  for (std::uint32_t i = 0; i <= transfers_max; ++i) {
    memories.emplace_back(DType::kFloat32, 10 + i, 2).Fill(i);
  }
  for (std::uint32_t i = 0; i < transfers_max; ++i) subject_->Post(AllReduce(i, memories[i]));
  const auto refused = memories.back().Contents();
  EXPECT_EQ(transport().Post(AllReduce(transfers_max, memories.back()), subject_->Now()),
            PostResult::kBusy);

  std::vector<Completion> completions = subject_->Collect(1);
  EXPECT_EQ(memories.back().Contents(), refused);
  subject_->Post(AllReduce(transfers_max, memories.back()));  // there is room again
  const auto rest = subject_->Collect(transfers_max + 1 - completions.size());
  completions.insert(completions.end(), rest.begin(), rest.end());
  std::vector<std::uint64_t> tokens;
  for (const Completion& completion : completions) tokens.push_back(completion.token);
  std::ranges::sort(tokens);
  for (std::uint32_t i = 0; i <= transfers_max; ++i) EXPECT_EQ(tokens[i], i);
  EXPECT_EQ(tokens.size(), transfers_max + 1);
  EXPECT_NE(memories.back().Contents(), refused);
  ExpectQuiet();
}

TEST_P(TransportFlow, LeavesMemoryAloneBeforePostAndAfterCompletion) {
  Members idle(DType::kFloat32, 1000, 3);
  idle.Fill(1);
  const auto idle_before = idle.Contents();
  Members done(DType::kFloat32, ManyPieces(), 3);
  done.Fill(2);
  ASSERT_EQ(subject_->Run(AllReduce(1, done)).code, Code::kOk);
  std::memset(done.Member(0), 0x5A, 1000);  // its owner writes again
  const auto done_after = done.Contents();
  for (std::uint64_t token = 2; token < 6; ++token) {
    const Members other = done.Copy();
    ASSERT_EQ(subject_->Run(AllReduce(token, other)).code, Code::kOk);
  }
  EXPECT_EQ(done.Contents(), done_after);
  EXPECT_EQ(idle.Contents(), idle_before);
}

// With more threads the others may do all of it during the first call.
TEST_P(TransportFlow, MovesAboutOnePiecePerCall) {
  if (transport().capabilities().threads > 1) GTEST_SKIP() << "pieces are shared among threads";
  Members members(DType::kFloat32, ManyPieces(), 2);
  members.Fill(1);
  subject_->Post(AllReduce(1, members));
  std::vector<Completion> completions;
  std::uint64_t calls = 0;
  for (; completions.empty(); ++calls) subject_->Step(completions);
  EXPECT_GE(calls, kPiecesCount);
}

TEST_P(TransportFlow, EndsExactlyOnceWhenCancelledAtAnyPoint) {
  Members filled(DType::kFloat32, ManyPieces(), 2);
  filled.Fill(1);
  const auto expected = Expected(filled);
  for (std::uint64_t steps = 0; steps < 2 * kPiecesCount; ++steps) {
    const Members members = filled.Copy();
    subject_->Post(AllReduce(steps, members));
    std::vector<Completion> completions;
    for (std::uint64_t i = 0; i < steps && completions.empty(); ++i) subject_->Step(completions);
    transport().Cancel(steps);
    transport().Cancel(steps);  // once more changes nothing
    while (completions.empty()) subject_->Step(completions);
    ASSERT_EQ(completions.size(), 1U);
    EXPECT_EQ(completions[0].token, steps);
    EXPECT_LE(completions[0].begin_ns, completions[0].end_ns);
    if (completions[0].code == Code::kOk) {
      ASSERT_EQ(members.Contents(), expected);
    } else {
      ASSERT_EQ(completions[0].code, Code::kCancelled);
    }
    if (steps == 0) {
      EXPECT_EQ(completions[0].code, Code::kCancelled);
    }
    const auto left = members.Contents();
    ExpectQuiet();
    ASSERT_EQ(members.Contents(), left);
  }
}

TEST_P(TransportFlow, CancelsOneInTheQueueAndFinishesTheOthers) {
  Members first(DType::kFloat32, ManyPieces(), 2);
  first.Fill(1);
  const Members second = first.Copy();
  const Members third = first.Copy();
  const auto first_expected = Expected(first);
  const auto second_before = second.Contents();
  const auto third_expected = Expected(third);
  subject_->Post(AllReduce(1, first));
  subject_->Post(AllReduce(2, second));
  subject_->Post(AllReduce(3, third));
  transport().Cancel(2);
  std::map<std::uint64_t, Code> codes;
  for (const Completion& completion : subject_->Collect(3)) {
    EXPECT_TRUE(codes.emplace(completion.token, completion.code).second);
  }
  EXPECT_EQ(codes,
            (std::map<std::uint64_t, Code>{{1, Code::kOk}, {2, Code::kCancelled}, {3, Code::kOk}}));
  EXPECT_EQ(first.Contents(), first_expected);
  EXPECT_EQ(second.Contents(), second_before);
  EXPECT_EQ(third.Contents(), third_expected);
  ExpectQuiet();
}

TEST_P(TransportFlow, IgnoresCancelsOfUnknownAndEndedTransfers) {
  Members members(DType::kFloat32, 100, 2);
  members.Fill(1);
  transport().Cancel(1);
  ASSERT_EQ(subject_->Run(AllReduce(1, members)).code, Code::kOk);
  transport().Cancel(1);
  ExpectQuiet();
  EXPECT_EQ(subject_->Run(AllReduce(1, members)).code, Code::kOk);
}

// A seeded mix of kinds, sizes, posts, cancels and steps.
TEST_P(TransportFlow, EndsEveryAcceptedTransferExactlyOnceInARandomMix) {
  constexpr std::uint64_t kTransfers = 300;
  constexpr Collective kKinds[] = {Collective::kAllReduce, Collective::kBroadcast,
                                   Collective::kReduceScatter, Collective::kAllGather,
                                   Collective::kBarrier};
  std::mt19937_64 random(5);
  std::vector<Completion> completions;
  std::vector<Members> memories;
  while (memories.size() < kTransfers) {
    const auto token = static_cast<std::uint64_t>(memories.size());
    Transfer transfer{.token = token, .kind = kKinds[random() % 5]};
    const auto members_count = static_cast<std::uint32_t>(1 + random() % 4);
    const std::uint64_t parts = random() % 20 == 0 ? 100000 : random() % 500;
    const bool barrier = transfer.kind == Collective::kBarrier;
    Members members(DType::kUInt8, barrier ? 0 : parts * members_count, members_count);
    members.Fill(token);
    members.Describe(transfer);
    if (transport().Post(transfer, subject_->Now()) == PostResult::kBusy) {
      subject_->Step(completions);
      continue;
    }
    memories.push_back(std::move(members));
    if (random() % 4 == 0) transport().Cancel(random() % memories.size());
    if (random() % 2 == 0) transport().DoWork(subject_->Now(), completions);
  }
  while (completions.size() < kTransfers) subject_->Step(completions);
  std::vector<int> ends(kTransfers);
  for (const Completion& completion : completions) ++ends.at(completion.token);
  EXPECT_EQ(ends, std::vector<int>(kTransfers, 1));
  ExpectQuiet();
  for (const Members& members : memories) EXPECT_TRUE(members.GuardsAreWhole());
}

INSTANTIATE_TEST_SUITE_P(Over, TransportFlow, ::testing::ValuesIn(AllSubjects()), SubjectName);

}  // namespace
}  // namespace headrace::transport

// What a transfer leaves in its members' memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "tests/contract/members.h"
#include "tests/contract/subject.h"
#include "tests/support/loopback/reference.h"

namespace headrace::transport {
namespace {

constexpr Collective kKinds[] = {Collective::kAllReduce,     Collective::kBroadcast,
                                 Collective::kReduceScatter, Collective::kAllGather,
                                 Collective::kBarrier,       Collective::kReduce};

std::string Describe(const Transfer& transfer) {
  return std::string(Name(transfer.kind)) + " " + std::string(Name(transfer.dtype)) + " " +
         std::string(Name(transfer.reduction)) + " count " + std::to_string(transfer.count) +
         " members " + std::to_string(transfer.members_count) + " divisor " +
         std::to_string(transfer.divisor);
}

class TransportResult : public TransportContract {
 protected:
  // Runs one transfer over `parts * members_count` awkward elements per member and compares with
  // the scalar reference.
  void ExpectReferenceResult(Collective kind, DType dtype, Reduction reduction, std::uint64_t parts,
                             std::uint32_t members_count, std::uint32_t divisor = 0) {
    const std::uint64_t count = kind == Collective::kBarrier ? 0 : parts * members_count;
    Members members(dtype, count, members_count);
    members.Fill(count + 7);
    const Members expected = members.Copy();
    Transfer transfer{.token = 42,
                      .kind = kind,
                      .reduction = reduction,
                      .root = members_count - 1,
                      .divisor = divisor};
    expected.Describe(transfer);
    transfer.output = expected.Member(transfer.root);
    ReferenceMove(transfer, 0, transfer.count);
    members.Describe(transfer);
    transfer.output = members.Member(transfer.root);
    const Completion completion = subject_->Run(transfer);
    ASSERT_EQ(completion.token, 42U);
    ASSERT_EQ(completion.code, Code::kOk);
    ASSERT_EQ(members.Contents(), expected.Contents()) << Describe(transfer);
    ASSERT_TRUE(members.GuardsAreWhole()) << Describe(transfer);
  }
};

TEST_P(TransportResult, IsTheReferencesForEveryKindAndType) {
  for (const Collective kind : kKinds) {
    for (const DType dtype : kDTypes) {
      for (const std::uint32_t members_count : {1U, 2U, 3U, 5U}) {
        for (const std::uint64_t parts : {0U, 1U, 13U, 700U}) {
          ASSERT_NO_FATAL_FAILURE(
              ExpectReferenceResult(kind, dtype, Reduction::kSum, parts, members_count));
        }
      }
    }
  }
}

TEST_P(TransportResult, IsTheReferencesForEveryReduction) {
  for (const Reduction reduction : kReductions) {
    for (const DType dtype : kDTypes) {
      ASSERT_NO_FATAL_FAILURE(
          ExpectReferenceResult(Collective::kAllReduce, dtype, reduction, 333, 4));
      ASSERT_NO_FATAL_FAILURE(
          ExpectReferenceResult(Collective::kReduceScatter, dtype, reduction, 333, 4));
    }
  }
}

// A member may stand for several ranks, also one alone.
TEST_P(TransportResult, DividesAveragesByTheGivenDivisor) {
  for (const Collective kind :
       {Collective::kAllReduce, Collective::kReduceScatter, Collective::kReduce}) {
    for (const DType dtype : kDTypes) {
      for (const std::uint32_t members_count : {1U, 2U, 3U, 4U}) {
        ASSERT_NO_FATAL_FAILURE(
            ExpectReferenceResult(kind, dtype, Reduction::kAverage, 333, members_count, 7));
      }
    }
  }
}

TEST_P(TransportResult, OfAReduceMayLieOutsideAllMembers) {
  Members members(DType::kFloat32, 1000, 3);
  members.Fill(1);
  const auto before = members.Contents();
  const Members expected = members.Copy();
  const Members output(DType::kFloat32, 1000, 1);
  Transfer transfer{.kind = Collective::kReduce};
  expected.Describe(transfer);
  transfer.output = expected.Member(0);
  ReferenceMove(transfer, 0, transfer.count);
  members.Describe(transfer);
  transfer.output = output.Member(0);
  ASSERT_EQ(subject_->Run(transfer).code, Code::kOk);
  EXPECT_EQ(output.Content(0), expected.Content(0));
  EXPECT_EQ(members.Contents(), before);
}

// Each other member's part goes elsewhere, or all parts do; `parts` elements each.
void ExpectPartsElsewhere(Subject& subject, DType dtype, Reduction reduction, std::uint64_t parts,
                          std::uint32_t members_count, std::uint32_t every) {
  Members members(dtype, parts * members_count, members_count);
  members.Fill(parts + 3);
  const Members expected = members.Copy();
  Members outputs(dtype, parts, members_count);
  outputs.Fill(parts + 4);
  const Members expected_outputs = outputs.Copy();
  const auto post_to = [&](Transfer& transfer, const Members& memory, const Members& elsewhere) {
    memory.Describe(transfer);
    for (std::uint32_t i = 0; i < members_count; i += every) {
      transfer.outputs[i] = elsewhere.Member(i);
    }
  };
  Transfer transfer{.token = 7, .kind = Collective::kReduceScatter, .reduction = reduction};
  post_to(transfer, expected, expected_outputs);
  ReferenceMove(transfer, 0, transfer.count);
  post_to(transfer, members, outputs);
  ASSERT_EQ(subject.Run(transfer).code, Code::kOk);
  ASSERT_EQ(members.Contents(), expected.Contents()) << Describe(transfer);
  ASSERT_EQ(outputs.Contents(), expected_outputs.Contents()) << Describe(transfer);
  ASSERT_TRUE(members.GuardsAreWhole() && outputs.GuardsAreWhole()) << Describe(transfer);
}

TEST_P(TransportResult, OfAReduceScatterMayLieOutsideAllMembers) {
  for (const DType dtype : kDTypes) {
    for (const std::uint32_t members_count : {1U, 2U, 3U, 5U}) {
      for (const std::uint64_t parts : {0U, 1U, 13U, 704U}) {
        for (const std::uint32_t every : {1U, 2U}) {
          ASSERT_NO_FATAL_FAILURE(
              ExpectPartsElsewhere(*subject_, dtype, Reduction::kSum, parts, members_count, every));
        }
      }
    }
    for (const Reduction reduction : kReductions) {
      ASSERT_NO_FATAL_FAILURE(ExpectPartsElsewhere(*subject_, dtype, reduction, 333, 4, 1));
    }
    const std::uint64_t many = 4 * subject_->transport().capabilities().piece_size / SizeOf(dtype);
    ASSERT_NO_FATAL_FAILURE(
        ExpectPartsElsewhere(*subject_, dtype, Reduction::kSum, many / 3 + 1, 3, 1));
  }
}

// Of a reduce to other memory of the root's GPU, which the root may write itself.
TEST_P(TransportResult, OfAReduceMayLieElsewhereOnTheRootsGpu) {
  Members members(DType::kFloat32, 5000, 3);
  members.Fill(1);
  const auto before = members.Contents();
  const Members expected = members.Copy();
  const Members output(DType::kFloat32, 5000, 1);
  Transfer transfer{.kind = Collective::kReduce, .root = 1};
  expected.Describe(transfer);
  transfer.output = expected.Member(1);
  ReferenceMove(transfer, 0, transfer.count);
  members.Describe(transfer);
  transfer.output = output.Member(0);
  transfer.output_on_root_gpu = true;
  ASSERT_EQ(subject_->Run(transfer).code, Code::kOk);
  EXPECT_EQ(output.Content(0), expected.Content(1));
  EXPECT_EQ(members.Contents(), before);
}

// Several times the piece size, so that transfers are cut, and for shm shared with the crew.
TEST_P(TransportResult, IsTheReferencesAcrossManyPieces) {
  const std::uint64_t pieces_size = 8 * subject_->transport().capabilities().piece_size;
  for (const Collective kind : kKinds) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kUInt8}) {
      const std::uint64_t parts = pieces_size / SizeOf(dtype) / 3 + 1;
      ASSERT_NO_FATAL_FAILURE(ExpectReferenceResult(kind, dtype, Reduction::kSum, parts, 3));
    }
  }
}

TEST_P(TransportResult, IsTheReferencesForTheMostMembers) {
  ASSERT_NO_FATAL_FAILURE(ExpectReferenceResult(Collective::kAllReduce, DType::kFloat32,
                                                Reduction::kSum, 3, kMembersMax));
  ASSERT_NO_FATAL_FAILURE(ExpectReferenceResult(Collective::kReduceScatter, DType::kInt64,
                                                Reduction::kMax, 3, kMembersMax));
}

TEST_P(TransportResult, IsTheSameOnEveryMemberAndFromRunToRun) {
  const std::uint64_t count = 6 * subject_->transport().capabilities().piece_size / 4 + 5;
  Members filled(DType::kFloat32, count, 4);
  filled.Fill(99);
  std::vector<std::byte> first;
  for (int run = 0; run < 5; ++run) {
    const Members members = filled.Copy();
    Transfer transfer{.kind = Collective::kAllReduce, .reduction = Reduction::kAverage};
    members.Describe(transfer);
    ASSERT_EQ(subject_->Run(transfer).code, Code::kOk);
    if (run == 0) first = members.Content(0);
    for (std::uint32_t i = 0; i < 4; ++i) ASSERT_EQ(members.Content(i), first) << "member " << i;
  }
}

// The reference and a transport could share a misunderstanding of the kinds: these are by hand.
class TransportByHand : public TransportContract {
 protected:
  std::vector<std::vector<int>> Run(Collective kind, std::vector<std::vector<int>> values,
                                    std::uint32_t root = 0) {
    Transfer transfer{.kind = kind,
                      .dtype = DType::kInt32,
                      .reduction = Reduction::kSum,
                      .root = root,
                      .count = values[0].size(),
                      .members_count = static_cast<std::uint32_t>(values.size())};
    for (std::size_t i = 0; i < values.size(); ++i) {
      transfer.members[i] = reinterpret_cast<std::byte*>(values[i].data());
    }
    transfer.output = transfer.members[root];
    EXPECT_EQ(subject_->Run(transfer).code, Code::kOk);
    return values;
  }
};

using Values = std::vector<std::vector<int>>;

TEST_P(TransportByHand, AllReduceGivesEveryMemberTheSum) {
  EXPECT_EQ(Run(Collective::kAllReduce, {{1, 2, 3}, {10, 20, 30}}),
            (Values{{11, 22, 33}, {11, 22, 33}}));
}

TEST_P(TransportByHand, ReduceScatterGivesEachMemberItsPart) {
  EXPECT_EQ(Run(Collective::kReduceScatter, {{1, 2, 3, 4}, {10, 20, 30, 40}}),
            (Values{{11, 22, 3, 4}, {10, 20, 33, 44}}));
}

TEST_P(TransportByHand, AllGatherGivesEveryMemberAllParts) {
  EXPECT_EQ(Run(Collective::kAllGather, {{1, 0, 0}, {0, 2, 0}, {0, 0, 3}}),
            (Values{{1, 2, 3}, {1, 2, 3}, {1, 2, 3}}));
}

TEST_P(TransportByHand, ReduceGivesTheOutputTheSumAndLeavesTheOthers) {
  EXPECT_EQ(Run(Collective::kReduce, {{1, 2}, {10, 20}, {100, 200}}, 1),
            (Values{{1, 2}, {111, 222}, {100, 200}}));
}

TEST_P(TransportByHand, BroadcastGivesEveryMemberTheRoots) {
  EXPECT_EQ(Run(Collective::kBroadcast, {{1, 1}, {2, 2}, {3, 3}}, 1),
            (Values{{2, 2}, {2, 2}, {2, 2}}));
}

INSTANTIATE_TEST_SUITE_P(Over, TransportResult, ::testing::ValuesIn(AllSubjects()), SubjectName);
INSTANTIATE_TEST_SUITE_P(Over, TransportByHand, ::testing::ValuesIn(AllSubjects()), SubjectName);

}  // namespace
}  // namespace headrace::transport

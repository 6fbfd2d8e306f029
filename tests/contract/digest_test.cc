// Transfers that move nothing and say what the members hold.
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "tests/contract/members.h"
#include "tests/contract/scattered.h"
#include "tests/contract/subject.h"
#include "transport/digest.h"

namespace headrace::transport {
namespace {

// More than one piece, and a last one that is not whole.
constexpr std::uint64_t kCount = 5 * kDigestPieceSize / sizeof(float) + 17;

class TransportDigests : public TransportContract {
 protected:
  // All members hold what the first one does.
  static Members Alike(std::uint64_t count, std::uint32_t members_count, std::uint64_t seed) {
    Members members(DType::kFloat32, count, members_count);
    members.Fill(seed);
    for (std::uint32_t i = 1; i < members_count; ++i) {
      std::memcpy(members.Member(i), members.Member(0), count * sizeof(float));
    }
    return members;
  }
  Completion DigestOf(const Members& members) {
    Transfer transfer{.token = 1, .kind = Collective::kBroadcast, .digest = true};
    members.Describe(transfer);
    return subject_->Run(transfer);
  }
};

TEST_P(TransportDigests, AreEqualWhereTheBytesAre) {
  for (const std::uint32_t members_count : {1U, 2U, 5U}) {
    const Completion completion = DigestOf(Alike(kCount, members_count, 3));
    ASSERT_EQ(completion.code, Code::kOk);
    EXPECT_EQ(completion.differing, 0U);
    EXPECT_EQ(completion.digest, DigestOf(Alike(kCount, 3, 3)).digest);
    EXPECT_NE(completion.digest, DigestOf(Alike(kCount, 3, 4)).digest);
  }
}

TEST_P(TransportDigests, NameTheMembersThatHoldSomethingElse) {
  const std::size_t size = kCount * sizeof(float);
  for (const std::size_t at : {std::size_t{0}, kDigestPieceSize - 1, kDigestPieceSize, size - 1}) {
    const Members members = Alike(kCount, 4, 3);
    const std::uint64_t before = DigestOf(members).digest;
    members.Member(1)[at] ^= std::byte{0x10};
    members.Member(3)[at] ^= std::byte{0x10};
    Completion completion = DigestOf(members);
    EXPECT_EQ(completion.differing, 0b1010U) << at;
    EXPECT_EQ(completion.digest, before) << "that of member 0";
    members.Member(0)[at] ^= std::byte{0x10};
    completion = DigestOf(members);
    EXPECT_EQ(completion.differing, 0b0100U) << at;
    EXPECT_NE(completion.digest, before) << at;
  }
}

TEST_P(TransportDigests, TellPiecesInAnotherOrderApart) {
  const Members members = Alike(kCount, 2, 3);
  std::vector<std::byte> piece(kDigestPieceSize);
  std::byte* const memory = members.Member(1);
  std::memcpy(piece.data(), memory, kDigestPieceSize);
  std::memcpy(memory, memory + kDigestPieceSize, kDigestPieceSize);
  std::memcpy(memory + kDigestPieceSize, piece.data(), kDigestPieceSize);
  EXPECT_EQ(DigestOf(members).differing, 0b10U);
}

TEST_P(TransportDigests, LeaveTheMemoryAsItWas) {
  Members members(DType::kFloat32, kCount, 3);
  members.Fill(5);
  const auto before = members.Contents();
  EXPECT_EQ(DigestOf(members).differing, 0b110U);
  EXPECT_TRUE(members.Contents() == before);
  EXPECT_TRUE(members.GuardsAreWhole());
}

TEST_P(TransportDigests, AreThoseOfTheElementsWhereverTheyLie) {
  const Members whole = Alike(kCount, 1, 3);
  const std::uint64_t expected = DigestOf(whole).digest;
  std::vector<std::uint64_t> counts = {1, kCount / 3, 7};
  counts.push_back(kCount - counts[0] - counts[1] - counts[2]);
  const Scattered place(DType::kFloat32, counts, 11);
  Members members(DType::kFloat32, place.extent(), 2);
  members.Fill(9);
  for (std::uint32_t i = 0; i < 2; ++i) place.Scatter(whole.Content(0), members.Member(i));
  Transfer transfer{.token = 1, .kind = Collective::kBroadcast, .digest = true};
  members.Describe(transfer);
  transfer.count = kCount;
  transfer.runs = place.runs();
  const Completion completion = subject_->Run(transfer);
  EXPECT_EQ(completion.differing, 0U);
  EXPECT_EQ(completion.digest, expected);
}

INSTANTIATE_TEST_SUITE_P(Of, TransportDigests, ::testing::ValuesIn(AllSubjects()), SubjectName);

}  // namespace
}  // namespace headrace::transport

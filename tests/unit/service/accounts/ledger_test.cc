#include "service/accounts/ledger.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "ipc/sealed_memory.h"

namespace headrace::service {
namespace {

constexpr std::uint64_t kPage = ipc::kPageSize;

Tensor In(std::uint32_t segment, std::uint64_t offset, std::uint64_t count,
          DType dtype = DType::kFloat32) {
  return {.name = "weight",
          .segment = SegmentId{segment},
          .offset = offset,
          .count = count,
          .dtype = dtype,
          .order = 0};
}

SegmentId Mapped(Ledger& ledger, std::uint64_t size) {
  const SegmentId id = ledger.ReserveSegment(size).value();
  ledger.ConfirmSegment(id);
  return id;
}

void ExpectRefused(const Result<TensorId>& answer, Code code, const std::string& part) {
  ASSERT_FALSE(answer.ok());
  EXPECT_EQ(answer.error().code(), code);
  EXPECT_NE(answer.error().text().find(part), std::string::npos) << answer.error().text();
}

TEST(Ledger, NumbersSegmentsFromTheLowestFree) {
  Ledger ledger;
  EXPECT_EQ(Mapped(ledger, kPage).value, 0U);
  EXPECT_EQ(Mapped(ledger, 2 * kPage).value, 1U);
  EXPECT_EQ(ledger.segment_bytes(), 3 * kPage);
  ledger.EraseSegment(SegmentId{0});
  EXPECT_EQ(ledger.segment_bytes(), 2 * kPage);
  EXPECT_EQ(Mapped(ledger, kPage).value, 0U);
}

TEST(Ledger, RefusesSegmentsThatCannotBe) {
  Ledger ledger;
  EXPECT_EQ(ledger.ReserveSegment(0).error().code(), Code::kInvalidArgument);
  EXPECT_EQ(ledger.ReserveSegment(kPage + 1).error().code(), Code::kInvalidArgument);
  ASSERT_TRUE(ledger.ReserveSegment(ipc::kSegmentSizeMax).ok());
  EXPECT_EQ(ledger.ReserveSegment(kPage).error().code(), Code::kExhausted);
  EXPECT_EQ(ledger.ReserveSegment(UINT64_MAX - kPage + 1).error().code(), Code::kExhausted);
}

TEST(Ledger, HasALimitOnSegments) {
  Ledger ledger;
  for (std::size_t i = 0; i < kSegmentsMax; ++i) Mapped(ledger, kPage);
  EXPECT_EQ(ledger.ReserveSegment(kPage).error().code(), Code::kExhausted);
}

TEST(Ledger, LetsTensorsOnlyIntoSegmentsThatAreMapped) {
  Ledger ledger;
  const SegmentId id = ledger.ReserveSegment(kPage).value();
  ExpectRefused(ledger.AddTensors(std::vector{In(id.value, 0, 1)}), Code::kNotFound, "segment 0");
  ledger.ConfirmSegment(id);
  EXPECT_TRUE(ledger.AddTensors(std::vector{In(id.value, 0, 1)}).ok());
  ASSERT_TRUE(ledger.BeginRelease(id).ok());
  EXPECT_FALSE(ledger.BeginRelease(id).ok());
  ExpectRefused(ledger.AddTensors(std::vector{In(id.value, 0, 1)}), Code::kNotFound, "segment 0");
  ledger.CancelRelease(id);
  EXPECT_TRUE(ledger.AddTensors(std::vector{In(id.value, 0, 1)}).ok());
}

TEST(Ledger, TakesTensorsThatEndWithTheirSegment) {
  Ledger ledger;
  Mapped(ledger, kPage);
  EXPECT_TRUE(ledger.AddTensors(std::vector{In(0, 0, kPage / 4)}).ok());
  EXPECT_TRUE(ledger.AddTensors(std::vector{In(0, kPage - 1, 1, DType::kUInt8)}).ok());
  ExpectRefused(ledger.AddTensors(std::vector{In(0, 4, kPage / 4)}), Code::kInvalidArgument,
                "offset 4 with count 1024 of float32 reaches beyond segment 0 of 4096 bytes");
  ExpectRefused(ledger.AddTensors(std::vector{In(0, kPage, 1)}), Code::kInvalidArgument, "beyond");
}

TEST(Ledger, IsNotFooledByNumbersThatOverflow) {
  Ledger ledger;
  Mapped(ledger, kPage);
  for (const Tensor& tensor :
       {In(0, 0, std::uint64_t{1} << 62), In(0, 8, (std::uint64_t{1} << 62) - 2),
        In(0, UINT64_MAX - 3, 1), In(0, UINT64_MAX - 3, UINT64_MAX), In(0, 4, UINT64_MAX)}) {
    ExpectRefused(ledger.AddTensors(std::vector{tensor}), Code::kInvalidArgument, "beyond");
  }
  EXPECT_EQ(ledger.tensors_count(), 0U);
}

TEST(Ledger, NamesTheTensorAndTheField) {
  Ledger ledger;
  Mapped(ledger, kPage);
  std::vector<Tensor> tensors{In(0, 0, 4), In(0, 0, 4), In(0, 12, 1, DType::kFloat64)};
  ExpectRefused(ledger.AddTensors(tensors), Code::kInvalidArgument,
                "tensor 2 (weight): offset 12 is not a multiple of 8, the size of float64");
  tensors[2] = In(0, 0, 0);
  ExpectRefused(ledger.AddTensors(tensors), Code::kInvalidArgument,
                "tensor 2 (weight): count is 0");
  tensors[2] = In(9, 0, 1);
  ExpectRefused(ledger.AddTensors(tensors), Code::kNotFound,
                "tensor 2 (weight): this session has "
                "no segment 9");
  tensors[2] = In(0, 0, 1, static_cast<DType>(8));
  ExpectRefused(ledger.AddTensors(tensors), Code::kInvalidArgument, "dtype 8");
  tensors[2] = In(0, 0, 1);
  tensors[2].name = std::string(256, 'x');
  ExpectRefused(ledger.AddTensors(tensors), Code::kInvalidArgument, "tensor 2: name has 256 bytes");
  tensors[2].name = "two\nlines";
  ExpectRefused(ledger.AddTensors(tensors), Code::kInvalidArgument, "tensor 2: name has control");
  EXPECT_EQ(ledger.tensors_count(), 0U) << "all or none";
  ExpectRefused(ledger.AddTensors({}), Code::kInvalidArgument, "no tensors");
}

TEST(Ledger, UsesTensorNumbersAgain) {
  Ledger ledger;
  Mapped(ledger, kPage);
  const std::vector<Tensor> half(kTensorsMax / 2, In(0, 0, 1));
  EXPECT_EQ(ledger.AddTensors(half)->value, 0U);
  EXPECT_EQ(ledger.AddTensors(half)->value, kTensorsMax / 2);
  ExpectRefused(ledger.AddTensors(std::vector{In(0, 0, 1)}), Code::kExhausted, "262144");
  ASSERT_TRUE(ledger.RemoveTensors(TensorId{10}, 5).ok());
  ExpectRefused(ledger.AddTensors(std::vector(6, In(0, 0, 1))), Code::kExhausted, "6 tensors");
  ASSERT_TRUE(ledger.RemoveTensors(TensorId{20}, 1).ok());
  ExpectRefused(ledger.AddTensors(std::vector(6, In(0, 0, 1))), Code::kExhausted, "in a row");
  EXPECT_EQ(ledger.AddTensors(std::vector(5, In(0, 0, 1)))->value, 10U);
}

TEST(Ledger, RemovesOnlyRangesThatAreRegistered) {
  Ledger ledger;
  Mapped(ledger, kPage);
  ASSERT_TRUE(ledger.AddTensors(std::vector(4, In(0, 0, 1))).ok());
  EXPECT_EQ(ledger.RemoveTensors(TensorId{2}, 3).error().code(), Code::kNotFound);
  EXPECT_EQ(ledger.RemoveTensors(TensorId{UINT32_MAX}, UINT32_MAX).error().code(), Code::kNotFound);
  EXPECT_EQ(ledger.RemoveTensors(TensorId{0}, 0).error().code(), Code::kInvalidArgument);
  EXPECT_EQ(ledger.tensors_count(), 4U);
  ASSERT_TRUE(ledger.RemoveTensors(TensorId{2}, 2).ok());
  EXPECT_EQ(ledger.tensors_count(), 2U);
  ledger.RestoreTensors(TensorId{2}, 2);
  EXPECT_EQ(ledger.tensors_count(), 4U);
  EXPECT_TRUE(ledger.RemoveTensors(TensorId{0}, 4).ok());
}

}  // namespace
}  // namespace headrace::service

#include "service/accounts/memory_accounting.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "ipc/sealed_memory.h"
#include "tests/support/expect_text.h"

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

SegmentId Mapped(MemoryAccounting& memory, std::uint64_t size) {
  const SegmentId id = memory.ReserveSegment(size).value();
  memory.ConfirmSegment(id);
  return id;
}

void ExpectRefused(const Result<TensorId>& answer, Code code, const std::string& part) {
  ASSERT_FALSE(answer.ok());
  EXPECT_EQ(answer.error().code(), code);
  EXPECT_TEXT(answer.error().text(), part);
}

TEST(MemoryAccounting, ResidualsLieBehindTheGradientsWithinTheirSegment) {
  MemoryAccounting memory;
  Mapped(memory, 2 * kPage);
  ASSERT_TRUE(memory.AddTensors(std::vector<Tensor>{In(0, 64, 16), In(0, 128, 16)}).ok());
  const Layout layout = memory.MakeLayout(TensorId{0}, 2, Reduction::kSum).value();
  EXPECT_EQ(EndOf(layout), 128U);
  for (const std::uint64_t offset : {std::uint64_t{192}, 2 * kPage - 128}) {
    EXPECT_TRUE(memory.CheckResiduals(TensorId{0}, layout, {{}, offset}).ok()) << offset;
  }
  for (const std::uint64_t offset : {std::uint64_t{64}, std::uint64_t{128}, std::uint64_t{200},
                                     2 * kPage - 64, 2 * kPage, 4 * kPage, UINT64_MAX - 63}) {
    const Status status = memory.CheckResiduals(TensorId{0}, layout, {{}, offset});
    ASSERT_FALSE(status.ok()) << offset;
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
  }
}

TEST(MemoryAccounting, RightFactorsLieBehindTheResiduals) {
  MemoryAccounting memory;
  Mapped(memory, 2 * kPage);
  ASSERT_TRUE(memory.AddTensors(std::vector<Tensor>{In(0, 0, 60), In(0, 240, 24)}).ok());
  Layout layout = memory.MakeLayout(TensorId{0}, 2, Reduction::kSum).value();
  layout.tensors[0].rows = 10;  // of 6 columns
  layout.tensors[1].rows = 2;   // of 12; the room of rank 1 is enough
  EXPECT_EQ(EndOf(layout), 336U);
  EXPECT_EQ(RightFactorOffsets(layout, 0), (std::vector<std::uint64_t>{336, 336, 336}));
  // The residuals end at the next multiple of 64.
  EXPECT_EQ(RightFactorOffsets(layout, 3), (std::vector<std::uint64_t>{384, 456, 504}));
  const auto check = [&](std::uint64_t offset, std::uint32_t rank) {
    return memory.CheckResiduals(TensorId{0}, layout, {{}, offset, rank});
  };
  EXPECT_TRUE(check(2 * kPage - 512, 3).ok());
  EXPECT_TRUE(check(2 * kPage - 384, 0).ok());
  for (const auto& [offset, rank] : {std::pair(2 * kPage - 448, 3U),
                                     {2 * kPage - 512, 4U},
                                     {1024, kRankMax + 1U},
                                     {1024, UINT32_MAX}}) {
    const Status status = check(offset, rank);
    ASSERT_FALSE(status.ok()) << offset << " rank " << rank;
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
  }
  EXPECT_TEXT(check(1024, 33).error().text(), "rank 33", "0 to 32");
}

TEST(MemoryAccounting, ResidualsOfGpusGradientsLieInASegmentOfTheHosts) {
  MemoryAccounting memory;
  const SegmentId gradients =
      memory.ReserveSegment(kPage, kPage, MemoryAccounting::Kind::kDevice).value();
  memory.ConfirmSegment(gradients);
  const SegmentId host = Mapped(memory, kPage);
  ASSERT_TRUE(memory.AddTensors(std::vector<Tensor>{In(gradients.value, 64, 16)}).ok());
  const Layout layout = memory.MakeLayout(TensorId{0}, 1, Reduction::kSum).value();
  for (const std::uint64_t offset : {std::uint64_t{0}, kPage - 64}) {
    EXPECT_TRUE(memory.CheckResiduals(TensorId{0}, layout, {host, offset}).ok()) << offset;
  }
  const auto refused = [&](const service::ResidualsPlace& place, Code code) {
    const Status status = memory.CheckResiduals(TensorId{0}, layout, place);
    EXPECT_EQ(status.code(), code) << place.offset;
    return status.ok() ? std::string() : status.error().text();
  };
  refused({host, kPage}, Code::kInvalidArgument);
  refused({host, 32}, Code::kInvalidArgument);
  refused({SegmentId{7}, 0}, Code::kNotFound);
  EXPECT_TEXT(refused({{}, 128}, Code::kInvalidArgument), "segment 0", "GPU", "residuals_segment");
  EXPECT_TEXT(refused({gradients, 0}, Code::kInvalidArgument), "GPU");
}

TEST(MemoryAccounting, NumbersSegmentsFromTheLowestFree) {
  MemoryAccounting memory;
  EXPECT_EQ(Mapped(memory, kPage).value, 0U);
  EXPECT_EQ(Mapped(memory, 2 * kPage).value, 1U);
  EXPECT_EQ(memory.segment_bytes(), 3 * kPage);
  memory.EraseSegment(SegmentId{0});
  EXPECT_EQ(memory.segment_bytes(), 2 * kPage);
  EXPECT_EQ(Mapped(memory, kPage).value, 0U);
}

TEST(MemoryAccounting, RefusesSegmentsThatCannotBe) {
  MemoryAccounting memory;
  EXPECT_EQ(memory.ReserveSegment(0).error().code(), Code::kInvalidArgument);
  EXPECT_EQ(memory.ReserveSegment(kPage + 1).error().code(), Code::kInvalidArgument);
  ASSERT_TRUE(memory.ReserveSegment(ipc::kSegmentSizeMax).ok());
  EXPECT_EQ(memory.ReserveSegment(kPage).error().code(), Code::kExhausted);
  EXPECT_EQ(memory.ReserveSegment(UINT64_MAX - kPage + 1).error().code(), Code::kExhausted);
}

TEST(MemoryAccounting, HasALimitOnSegments) {
  MemoryAccounting memory;
  for (std::size_t i = 0; i < kSegmentsMax; ++i) Mapped(memory, kPage);
  EXPECT_EQ(memory.ReserveSegment(kPage).error().code(), Code::kExhausted);
}

TEST(MemoryAccounting, LetsTensorsOnlyIntoSegmentsThatAreMapped) {
  MemoryAccounting memory;
  const SegmentId id = memory.ReserveSegment(kPage).value();
  ExpectRefused(memory.AddTensors(std::vector{In(id.value, 0, 1)}), Code::kNotFound, "segment 0");
  memory.ConfirmSegment(id);
  EXPECT_TRUE(memory.AddTensors(std::vector{In(id.value, 0, 1)}).ok());
  ASSERT_TRUE(memory.BeginRelease(id).ok());
  EXPECT_FALSE(memory.BeginRelease(id).ok());
  ExpectRefused(memory.AddTensors(std::vector{In(id.value, 0, 1)}), Code::kNotFound, "segment 0");
  memory.CancelRelease(id);
  EXPECT_TRUE(memory.AddTensors(std::vector{In(id.value, 0, 1)}).ok());
}

TEST(MemoryAccounting, TakesTensorsThatEndWithTheirSegment) {
  MemoryAccounting memory;
  Mapped(memory, kPage);
  EXPECT_TRUE(memory.AddTensors(std::vector{In(0, 0, kPage / 4)}).ok());
  EXPECT_TRUE(memory.AddTensors(std::vector{In(0, kPage - 1, 1, DType::kUInt8)}).ok());
  ExpectRefused(memory.AddTensors(std::vector{In(0, 4, kPage / 4)}), Code::kInvalidArgument,
                "offset 4");
  ExpectRefused(memory.AddTensors(std::vector{In(0, kPage, 1)}), Code::kInvalidArgument, "beyond");
}

TEST(MemoryAccounting, IsNotFooledByNumbersThatOverflow) {
  MemoryAccounting memory;
  Mapped(memory, kPage);
  for (const Tensor& tensor :
       {In(0, 0, std::uint64_t{1} << 62), In(0, 8, (std::uint64_t{1} << 62) - 2),
        In(0, UINT64_MAX - 3, 1), In(0, UINT64_MAX - 3, UINT64_MAX), In(0, 4, UINT64_MAX)}) {
    ExpectRefused(memory.AddTensors(std::vector{tensor}), Code::kInvalidArgument, "beyond");
  }
  EXPECT_EQ(memory.tensors_count(), 0U);
}

TEST(MemoryAccounting, NamesTheTensorAndTheField) {
  MemoryAccounting memory;
  Mapped(memory, kPage);
  std::vector<Tensor> tensors{In(0, 0, 4), In(0, 0, 4), In(0, 12, 1, DType::kFloat64)};
  ExpectRefused(memory.AddTensors(tensors), Code::kInvalidArgument, "tensor 2");
  tensors[2] = In(0, 0, 0);
  ExpectRefused(memory.AddTensors(tensors), Code::kInvalidArgument, "tensor 2");
  tensors[2] = In(9, 0, 1);
  ExpectRefused(memory.AddTensors(tensors), Code::kNotFound, "tensor 2");
  tensors[2] = In(0, 0, 1, static_cast<DType>(8));
  ExpectRefused(memory.AddTensors(tensors), Code::kInvalidArgument, "dtype 8");
  tensors[2] = In(0, 0, 1);
  tensors[2].name = std::string(256, 'x');
  ExpectRefused(memory.AddTensors(tensors), Code::kInvalidArgument, "tensor 2");
  tensors[2].name = "two\nlines";
  ExpectRefused(memory.AddTensors(tensors), Code::kInvalidArgument, "tensor 2");
  EXPECT_EQ(memory.tensors_count(), 0U) << "all or none";
  ExpectRefused(memory.AddTensors({}), Code::kInvalidArgument, "no tensors");
}

TEST(MemoryAccounting, UsesTensorNumbersAgain) {
  MemoryAccounting memory;
  Mapped(memory, kPage);
  const std::vector<Tensor> half(kTensorsMax / 2, In(0, 0, 1));
  EXPECT_EQ(memory.AddTensors(half)->value, 0U);
  EXPECT_EQ(memory.AddTensors(half)->value, kTensorsMax / 2);
  ExpectRefused(memory.AddTensors(std::vector{In(0, 0, 1)}), Code::kExhausted, "262144");
  ASSERT_TRUE(memory.RemoveTensors(TensorId{10}, 5).ok());
  ExpectRefused(memory.AddTensors(std::vector(6, In(0, 0, 1))), Code::kExhausted, "6 tensors");
  ASSERT_TRUE(memory.RemoveTensors(TensorId{20}, 1).ok());
  ExpectRefused(memory.AddTensors(std::vector(6, In(0, 0, 1))), Code::kExhausted, "in a row");
  EXPECT_EQ(memory.AddTensors(std::vector(5, In(0, 0, 1)))->value, 10U);
}

TEST(MemoryAccounting, RemovesOnlyRangesThatAreRegistered) {
  MemoryAccounting memory;
  Mapped(memory, kPage);
  ASSERT_TRUE(memory.AddTensors(std::vector(4, In(0, 0, 1))).ok());
  EXPECT_EQ(memory.RemoveTensors(TensorId{2}, 3).error().code(), Code::kNotFound);
  EXPECT_EQ(memory.RemoveTensors(TensorId{UINT32_MAX}, UINT32_MAX).error().code(), Code::kNotFound);
  EXPECT_EQ(memory.RemoveTensors(TensorId{0}, 0).error().code(), Code::kInvalidArgument);
  EXPECT_EQ(memory.tensors_count(), 4U);
  ASSERT_TRUE(memory.RemoveTensors(TensorId{2}, 2).ok());
  EXPECT_EQ(memory.tensors_count(), 2U);
  EXPECT_TRUE(memory.CheckRemoval(TensorId{0}, 2).ok());
  EXPECT_EQ(memory.tensors_count(), 2U);
  EXPECT_TRUE(memory.RemoveTensors(TensorId{0}, 2).ok());
}

TEST(MemoryAccounting, CountsWhatTensorsMakeTheServiceHold) {
  MemoryAccounting memory;
  Mapped(memory, kPage);
  EXPECT_EQ(memory.HeldBytes(), 0U);
  Tensor plain = In(0, 0, 1);
  plain.name.clear();
  Tensor named = plain;
  named.name = std::string(200, 'n');
  const std::vector<Tensor> some(3, named);
  const std::uint64_t expected = memory.HeldBytesWith(some);
  EXPECT_EQ(expected, 2 * 3 * (sizeof(Tensor) + 200));
  ASSERT_TRUE(memory.AddTensors(some).ok());
  EXPECT_EQ(memory.HeldBytes(), expected);
  ASSERT_TRUE(memory.RemoveTensors(TensorId{1}, 2).ok());
  EXPECT_EQ(memory.HeldBytes(), expected - 2 * 2 * 200) << "places stay, names go";
  EXPECT_EQ(memory.HeldBytesWith(std::vector(2, plain)), memory.HeldBytes());
  // Numbers that were released before their tensors came.
  const TensorId first = memory.NumberTensors(2).value();
  ASSERT_TRUE(memory.RemoveTensors(first, 2).ok());
  memory.PlaceTensors(first, std::vector(2, named));
  ASSERT_TRUE(memory.AddTensors(std::vector(2, plain)).ok());
  EXPECT_EQ(memory.HeldBytes(), expected - 2 * 2 * 200);
}

}  // namespace
}  // namespace headrace::service

// Arbitrary bytes as what a client writes into its channel: what the ring reader gives out and the
// record checker lets through must be safe to carry out.
//
// The first byte chooses: even, the bytes are the ring as it is, commit words and all; odd, each 64
// bytes are a record whose commit word the harness puts right, so that the checker is reached.
#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "ipc/base/check.h"
#include "ipc/ring_reader.h"
#include "service/dispatch/intake/part_checks.h"
#include "service/dispatch/intake/record_checks.h"

namespace {

using namespace headrace;  // NOLINT: this program has no names of its own

constexpr std::size_t kSegmentSize = 64 * ipc::kPageSize;
constexpr std::uint32_t kWorldSize = 3;
constexpr TensorId kFirstGradient{2};

// One attached rank with one segment, two tensors, the second at its end, and a layout of two
// others.
class Rank {
 public:
  Rank()
      : channel_(ipc::Channel::Create().value()),
        session_({.id = SessionId{1}, .world_size = kWorldSize, .timeout_ms = 1000},
                 ipc::Channel::Open(channel_.fd.get()).value(),
                 UniqueFd(::eventfd(0, EFD_CLOEXEC))) {
    session_.AddSegment(SegmentId{0},
                        ipc::CreateSealedMemory("headrace-fuzz", kSegmentSize).value().mapping);
    session_.AddTensors(
        TensorId{0},
        {{.name = "first", .count = 99, .dtype = DType::kFloat32},
         {.name = "last", .offset = kSegmentSize - 66, .count = 33, .dtype = DType::kBFloat16}});
    const auto layout = std::make_shared<const service::Layout>(service::Layout{
        .reduction = Reduction::kAverage,
        .tensors = {{.name = "weight", .offset = 0, .count = 33},
                    {.name = "bias", .offset = 256, .count = 7, .dtype = DType::kFloat16}}});
    session_.AddTensors(
        kFirstGradient,
        {{.name = "weight", .offset = 1024, .count = 33, .dtype = DType::kFloat32},
         {.name = "bias", .offset = 1280, .count = 7, .dtype = DType::kFloat16, .order = 1}});
    HR_CHECK(session_.SetLayout(kFirstGradient, layout).ok());
  }

  // Where records say that their parts tables are.
  std::span<std::byte> tables() const { return session_.FindSegment(SegmentId{0}).subspan(4096); }
  ipc::ChannelLayout& layout() { return channel_.channel.layout(); }
  const service::Session& session() const { return session_; }

 private:
  ipc::Channel::Created channel_;
  service::Session session_;
};

void ExpectSafe(const service::OperationSpec& posted, const service::Session& session) {
  HR_CHECK(posted.timeout_ms > 0 && posted.timeout_ms <= service::kTimeoutMsMax, posted.timeout_ms);
  HR_CHECK(posted.root < kWorldSize, posted.root);
  if (posted.kind == Collective::kBarrier) {
    HR_CHECK(posted.count == 0 && posted.data == nullptr, posted.count);
    return;
  }
  if (ipc::IsSendOrReceive(posted.kind)) {
    HR_CHECK(posted.source != posted.target, posted.source);
    HR_CHECK(posted.target < kWorldSize, posted.target);
    HR_CHECK(posted.source < kWorldSize || posted.source == ipc::kAnyRank, posted.source);
    HR_CHECK(posted.kind == ipc::kReceive || posted.source == session.identity().rank,
             posted.source);
  }
  const std::span<std::byte> memory = session.FindSegment(posted.segment);
  HR_CHECK(!memory.empty(), posted.segment.value);
  HR_CHECK(posted.count <= memory.size() / SizeOf(posted.dtype), posted.count);
  HR_CHECK(posted.data >= memory.data(), posted.sequence);
  HR_CHECK(posted.data + posted.Bytes() <= memory.data() + memory.size(), posted.count);
  // Segments begin at a page, so this is the alignment of the element.
  HR_CHECK(reinterpret_cast<std::uintptr_t>(posted.data) % SizeOf(posted.dtype) == 0, posted.count);
  const bool divided =
      posted.kind == Collective::kReduceScatter || posted.kind == Collective::kAllGather;
  HR_CHECK(!posted.uneven || divided, posted.count);
  HR_CHECK(!divided || posted.uneven || posted.count % kWorldSize == 0, posted.count);
}

// The rows of parts of unequal sizes follow each other and are the record's memory, all of it.
void ExpectWhole(const service::OperationSpec& posted, std::span<const ipc::PartRow> rows,
                 const service::Session& session) {
  std::uint64_t end = 0;
  const ipc::PartRow& own = rows[session.identity().rank];
  for (const ipc::PartRow& row : rows) {
    const bool is_result = posted.result != nullptr && &row == &own;
    HR_CHECK(row.received_count == (is_result ? row.sent_count : 0), row.received_count);
    HR_CHECK(is_result || row.received_offset == 0, row.received_offset);
    HR_CHECK(row.sent_offset == end && row.sent_count <= posted.count - end, row.sent_offset, end);
    end += row.sent_count;
  }
  HR_CHECK(end == posted.count, end);
  if (posted.result == nullptr || own.sent_count == 0) return;
  const std::byte* const result_end = posted.result + own.sent_count * SizeOf(posted.dtype);
  HR_CHECK(result_end <= posted.data || posted.result >= posted.data + posted.Bytes(), end);
  bool is_inside = false;
  for (std::uint32_t id = 0; id < service::kSegmentsMax; ++id) {
    const std::span<std::byte> memory = session.FindSegment(SegmentId{id});
    is_inside = is_inside || (!memory.empty() && posted.result >= memory.data() &&
                              result_end <= memory.data() + memory.size());
  }
  HR_CHECK(is_inside, own.received_offset);
}

// Whatever rows are let through, all that they name is the record's, and nothing is written twice.
void ExpectSafe(const service::OperationSpec& posted, std::span<const ipc::PartRow> rows) {
  std::vector<bool> written(static_cast<std::size_t>(posted.count));
  for (const ipc::PartRow& row : rows) {
    HR_CHECK(row.sent_offset <= posted.count && row.sent_count <= posted.count - row.sent_offset,
             row.sent_offset, row.sent_count);
    for (std::uint64_t i = 0; i < row.received_count; ++i) {
      HR_CHECK(row.received_offset + i < posted.count && !written[row.received_offset + i], i);
      written[row.received_offset + i] = true;
    }
  }
  for (const ipc::PartRow& row : rows) {
    for (std::uint64_t i = 0; i < row.sent_count; ++i) HR_CHECK(!written[row.sent_offset + i], i);
  }
  HR_CHECK(rows[0] == ipc::PartRow{}, rows.size());  // that of the rank itself
}

// What is let through as a gradient is one of the layout's, whole.
void ExpectSafe(std::uint32_t gradient, const ipc::GradientRecord& record) {
  HR_CHECK(gradient < 2 && record.tensor == kFirstGradient.value + gradient, record.tensor);
  HR_CHECK(record.count == (gradient == 0 ? 33 : 7), record.count);
  HR_CHECK(record.timeout_ms <= service::kTimeoutMsMax, record.timeout_ms);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  static Rank rank;
  if (size == 0) return 0;
  ipc::ChannelLayout& layout = rank.layout();
  std::memset(static_cast<void*>(layout.records), 0, sizeof layout.records);
  const std::size_t copied = std::min(size - 1, sizeof layout.records - sizeof(ipc::Record));
  // Operation 1 has slot 1.
  std::memcpy(static_cast<void*>(&layout.records[1]), bytes + 1, copied);
  const std::span<std::byte> tables = rank.tables().first(ipc::kPageSize);
  std::ranges::fill(tables, std::byte{0});
  std::memcpy(tables.data(), bytes + 1, std::min(size - 1, tables.size()));
  const bool mend = bytes[0] % 2 == 1;
  ipc::RingReader reader(layout);
  for (std::uint64_t sequence = 1; sequence <= 2 * ipc::kOperationsMax; ++sequence) {
    if (mend && sequence <= copied / sizeof(ipc::Record))
      layout.records[sequence].commit = sequence;
    const Result<std::optional<ipc::Record>> read = reader.Read();
    if (!read) {
      HR_CHECK(read.error().code() == Code::kCorrupt, read.error().text());
      return 0;
    }
    if (!read->has_value()) return 0;
    HR_CHECK((*read)->commit == sequence, (*read)->commit);
    const auto gradient_record = std::bit_cast<ipc::GradientRecord>(**read);
    const Result<std::uint32_t> gradient = service::CheckGradient(gradient_record, rank.session());
    if (gradient) ExpectSafe(*gradient, gradient_record);
    Result<service::OperationSpec> posted = service::CheckRecord(**read, rank.session());
    HR_CHECK(!posted || !gradient, sequence);  // it is one or the other
    if (!posted) continue;
    ExpectSafe(*posted, rank.session());
    if (!posted->has_parts) continue;
    const bool divided = posted->uneven;
    std::array<ipc::PartRow, kWorldSize> rows{};
    if (!service::CheckParts(**read, rank.session(), *posted, rows).ok()) continue;
    if (divided) {
      ExpectWhole(*posted, rows, rank.session());
    } else {
      ExpectSafe(*posted, rows);
    }
  }
  return 0;
}

#include "tests/sim/rank.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "ipc/base/check.h"

namespace headrace::sim {
namespace {

constexpr std::size_t kSegmentSize = kSlots * kSlotSize;
constexpr std::size_t kTableSize = kSlotSize - kTableOffset;
constexpr std::uint32_t kTables = 2;  // the segment of parts tables, where the others are a GPU's

}  // namespace

Rank::Rank(support::HandDrivenNode& node, CompletionChecker& checker, const support::JobSpec& job,
           std::uint32_t rank, std::uint64_t seed, JobId known_as, int device)
    : node_(node),
      checker_(checker),
      seed_(seed),
      job_(known_as == JobId{} ? job.id : known_as),
      several_nodes_(!job.rendezvous.empty()),
      world_size_(job.world_size),
      device_(device),
      client_(device == transport::kHost ? node.Attach(job, rank, kSegmentSize)
                                         : node.AttachOnGpu(job, rank, device, kSegmentSize)),
      slot_used_(2 * kSlots),
      shadow_(2 * kSegmentSize) {
  if (device == transport::kHost) {
    node.AddSegment(client_, kSegmentSize);
  } else {
    node.AddDeviceSegment(client_, device, kSegmentSize);
    const SegmentId tables = node.AddSegment(client_, 2 * kSlots * kTableSize);
    HR_CHECK(tables == SegmentId{kTables}, tables.value);
  }
  for (std::uint32_t slot = 0; slot < kSlots; ++slot) {
    node.AddTensor(client_, TensorId{slot},
                   {.name = fmt::format("layer{}", slot),
                    .segment = SegmentId{0},
                    .offset = slot * kSlotSize,
                    .count = kSlotSize / sizeof(float),
                    .dtype = DType::kFloat32});
  }
}

std::string Rank::Name() const { return fmt::format("job {} rank {}", job_.value, client_.rank()); }

Planned Rank::Plan(std::uint64_t sequence) const {
  Planned planned = several_nodes_ ? PlanBetweenNodes(seed_, job_, world_size_, sequence)
                                   : PlanOf(seed_, job_, world_size_, sequence);
  // Between nodes they are not of GPUs' memory.
  if (device_ != transport::kHost && MovesInMessages(planned.kind)) {
    planned.kind = Collective::kBroadcast;
  }
  return planned;
}

void Rank::PutResultElsewhere(const Planned& planned, std::vector<ipc::PartRow>& rows,
                              ipc::Record& record, Open& open) const {
  const std::size_t size = SizeOf(planned.dtype);
  const std::size_t begin = (planned.Bytes() + 7) / 8 * 8;
  ipc::PartRow& own = rows[client_.rank()];
  if (begin + own.sent_count * size > kTableOffset) return;
  own.received_offset = (*open.slot % kSlots * kSlotSize + begin) / size;
  own.received_count = own.sent_count;
  record.flags |= ipc::kRecordHasResult;
  record.root = *open.slot / kSlots;
  open.result = begin;
  open.part = own.sent_offset * size;
  const std::span<std::byte> part = Slot(*open.slot).subspan(open.part, own.sent_count * size);
  open.part_bytes.assign(part.begin(), part.end());
}

// Behind what the slot holds, or, where that is memory of a GPU, in memory of the host.
void Rank::PutTable(std::uint32_t slot, const std::vector<ipc::PartRow>& rows,
                    ipc::Record& record) const {
  const bool on_gpu = device_ != transport::kHost;
  record.parts = on_gpu ? kTables : slot / kSlots;
  record.tag = on_gpu ? slot * kTableSize : slot % kSlots * kSlotSize + kTableOffset;
  std::memcpy(client_.Memory(record.parts).data() + record.tag, rows.data(),
              rows.size() * sizeof(ipc::PartRow));
}

std::optional<std::vector<std::byte>> Rank::AsInPlace(const Open& open,
                                                      std::vector<std::byte> memory) const {
  if (open.result == 0) return memory;
  const std::span<std::byte> part = std::span(memory).subspan(open.part, open.part_bytes.size());
  if (!std::ranges::equal(part, open.part_bytes)) return std::nullopt;
  std::ranges::copy(Slot(*open.slot).subspan(open.result, part.size()), part.begin());
  return memory;
}

bool Rank::Post(Manner manner, std::uint32_t timeout_ms, Dice& dice) {
  if (open_.size() >= kOpenMax || !client_.HasRoom()) return false;
  const std::optional<std::uint32_t> slot = TakeSlot(dice);
  if (!slot) return false;
  const std::uint64_t sequence = ++posted_;
  const Planned planned = Plan(sequence);
  const std::span<std::byte> memory = Slot(*slot);
  FillElements(planned, values, memory, dice);
  ipc::Record record = RecordOf(planned);
  const bool by_tensor = *slot < kSlots && planned.dtype == DType::kFloat32 && dice.Chance(50);
  record.tensor = by_tensor ? *slot : ipc::kNoTensor;
  record.segment = *slot / kSlots;
  record.offset = by_tensor ? 0 : *slot % kSlots * kSlotSize;
  record.timeout_ms = timeout_ms;
  Open open{.sequence = sequence, .slot = slot, .size = planned.Bytes(), .timeout_ms = timeout_ms};
  if (planned.HasParts()) {
    std::vector<ipc::PartRow> rows = PartsOf(planned, world_size_, client_.rank());
    record.flags = ipc::kRecordHasParts;
    if (planned.kind == Collective::kReduceScatter && dice.Chance(50)) {
      PutResultElsewhere(planned, rows, record, open);
    }
    PutTable(*slot, rows, record);
  }
  if (manner == Manner::kDisagrees) Disagree(record, world_size_, dice);
  if (manner == Manner::kBadRecord) Spoil(record, world_size_, dice);
  checker_.Post(job_, sequence, client_.rank(), planned, manner == Manner::kHonest,
                {memory.begin(), memory.begin() + static_cast<std::ptrdiff_t>(planned.Bytes())});
  const bool awaits_word = device_ != transport::kHost && dice.Chance(50);
  if (awaits_word) record.flags |= ipc::kRecordAwaitsWord;
  const std::uint64_t number = client_.Post(record);
  if (awaits_word) {
    const std::span<std::byte> gradient = memory.first(planned.Bytes());
    stream_.push_back({number, gradient, {gradient.begin(), gradient.end()}});
    std::ranges::fill(gradient, std::byte{0xee});
  }
  open.record = number;
  open_.push_back(std::move(open));
  return true;
}

void Rank::PostMessage(Messages& messages, bool spoiled, std::uint32_t timeout_ms, Dice& dice) {
  const auto is_message = [](const Open& open) { return open.messages != nullptr; };
  if (world_size_ == 1 || std::ranges::count_if(open_, is_message) >= kMessagesOpenMax) return;
  const bool sends = dice.Chance(50);
  auto other = static_cast<std::uint32_t>(dice.Below(world_size_ - 1));
  if (other >= client_.rank()) ++other;
  if (!sends && dice.Chance(30)) other = ipc::kAnyRank;
  PostMessage(messages, sends, other, dice.Below(kTagsCount), spoiled, timeout_ms, dice);
}

std::optional<Rank::OtherSide> Rank::FirstOtherSide() const {
  for (const Open& open : open_) {
    if (open.messages == nullptr) continue;
    const Messages::Triple& triple = open.triple;
    if (open.sends) {
      return OtherSide{false, triple.target, triple.source, triple.tag, open.record};
    }
    const std::uint32_t source =
        triple.source == ipc::kAnyRank ? (triple.target + 1) % world_size_ : triple.source;
    return OtherSide{true, source, triple.target, triple.tag, open.record};
  }
  return std::nullopt;
}

void Rank::Answer(Messages& messages, const OtherSide& side, std::uint32_t timeout_ms, Dice& dice) {
  PostMessage(messages, side.sends, side.other, side.tag, false, timeout_ms, dice);
}

void Rank::PostMessage(Messages& messages, bool sends, std::uint32_t other, std::uint64_t tag,
                       bool spoiled, std::uint32_t timeout_ms, Dice& dice) {
  if (open_.size() >= kOpenMax || !client_.HasRoom()) return;
  const std::optional<std::uint32_t> slot = TakeSlot(dice);
  if (!slot) return;
  const std::uint32_t own = client_.rank();
  const Messages::Triple triple =
      sends ? Messages::Triple{job_, own, other, tag} : Messages::Triple{job_, other, own, tag};
  Open open{.slot = slot,
            .size = MessageCount(tag) * sizeof(std::int32_t),
            .timeout_ms = timeout_ms,
            .messages = &messages,
            .sends = sends,
            .triple = triple};
  if (sends) open.message = messages.Send(triple, Slot(*slot).first(open.size));
  ipc::Record record = support::OnSegment(sends ? ipc::kSend : ipc::kReceive, DType::kInt32,
                                          MessageCount(tag), *slot % kSlots * kSlotSize);
  record.segment = *slot / kSlots;
  record.root = other;
  record.tag = tag;
  record.timeout_ms = timeout_ms;
  if (spoiled && dice.Chance(50)) {
    record.count += 1;
  } else if (spoiled) {
    record.parts = 1;
  }
  open.record = client_.Post(record);
  open_.push_back(open);
}

std::optional<std::string> Rank::CheckMessage(const Open& open, std::span<const std::byte> result) {
  const ipc::Outcome outcome = client_.Read(open.record);
  if (open.sends) return open.messages->SendEnded(open.message, outcome);
  return open.messages->ReceiveEnded(open.triple, outcome, client_.SourceOf(open.record),
                                     open.record, result);
}

void Rank::ReachWords(Dice& dice) {
  for (std::uint64_t left = dice.Between(1, 4); left > 0 && !stream_.empty(); --left) {
    const StreamWork& work = stream_.front();
    std::ranges::copy(work.gradient, work.memory.begin());
    client_.layout().ready[work.record % ipc::kOperationsMax].store(work.record,
                                                                    std::memory_order_release);
    stream_.pop_front();
  }
}

void Rank::ReachAllWords(Dice& dice) {
  while (!stream_.empty()) ReachWords(dice);
}

std::optional<std::string> Rank::CheckEnded() {
  for (std::size_t i = 0; i < open_.size();) {
    if (!client_.HasEnded(open_[i].record)) {
      ++i;
      continue;
    }
    if (auto wrong = CheckOperation(open_[i])) return wrong;
    open_.erase(open_.begin() + static_cast<std::ptrdiff_t>(i));
  }
  // The last ones still have the words they ended with.
  const std::size_t first = ended_.size() > 4 ? ended_.size() - 4 : 0;
  for (std::size_t i = first; i < ended_.size(); ++i) {
    if (Word(ended_[i].record) != ended_[i].word) {
      return fmt::format("{}: the operation of record {} ended twice", Name(), ended_[i].record);
    }
  }
  return std::nullopt;
}

std::optional<std::string> Rank::CheckOperation(const Open& open) {
  const auto due = std::ranges::find(stream_, open.record, &StreamWork::record);
  // What comes before it in the stream is still to write its input.
  const bool is_early = due != stream_.end();
  if (is_early) due->gradient.clear();
  const std::span<std::byte> memory = Slot(*open.slot);
  const std::span<const std::byte> segment = node_.ServiceMemory(client_, *open.slot / kSlots);
  if (!segment.empty() && node_.Uses(segment.subspan(*open.slot % kSlots * kSlotSize, kSlotSize))) {
    return fmt::format("{}: operation {} has ended while the lane uses its memory", Name(),
                       open.sequence);
  }
  std::optional<std::vector<std::byte>> result{
      {memory.begin(), memory.begin() + static_cast<std::ptrdiff_t>(open.size)}};
  if (!is_early) result = AsInPlace(open, std::move(*result));
  if (!result) {
    return fmt::format("{}: operation {} has written to its input", Name(), open.sequence);
  }
  if (open.messages != nullptr) {
    if (auto wrong = CheckMessage(open, *result)) return Name() + ": " + *wrong;
  } else if (auto wrong = checker_.End(job_, open.sequence, client_.rank(),
                                       client_.Read(open.record), *result)) {
    return wrong;
  }
  ended_.push_back({open.record, Word(open.record)});
  std::ranges::copy(memory, shadow_.begin() + static_cast<std::ptrdiff_t>(*open.slot * kSlotSize));
  slot_used_[*open.slot] = false;
  return std::nullopt;
}

std::optional<std::string> Rank::CheckAtEnd() const {
  for (const Ended& ended : ended_) {
    // Later ones may have come into the slots of earlier ones.
    if (ended.record + ipc::kOperationsMax <= client_.posted()) continue;
    if (Word(ended.record) != ended.word) {
      return fmt::format("{}: the operation of record {} ended twice", Name(), ended.record);
    }
  }
  if (!garbled && !IsUntouched())
    return Name() + ": memory was written to that nothing had a right to";
  return std::nullopt;
}

void Rank::PostRudely(std::uint64_t count) {
  garbled = true;
  // What it can see of its own operations has no meaning any more.
  open_.clear();
  ended_.clear();
  // No plan of several ranks has this count.
  const ipc::Record rude = support::OnSegment(Collective::kAllReduce, DType::kUInt8, 1999);
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::uint64_t sequence = ++posted_;
    const Planned planned = Plan(sequence);
    checker_.Post(job_, sequence, client_.rank(), planned, false, {});
    client_.Post(rude, true);
  }
}

void Rank::MarkRead(TimeNs now) {
  for (Open& open : open_) open.read_ns = std::min(open.read_ns, now);
}

std::size_t Rank::OpenAndRead() const {
  return static_cast<std::size_t>(
      std::ranges::count_if(open_, [](const Open& open) { return open.read_ns != kNever; }));
}

std::optional<std::string> Rank::Overdue(TimeNs now) const {
  for (const Open& open : open_) {
    if (open.read_ns == kNever || now - open.read_ns < open.timeout_ms * kMillisecond) continue;
    return fmt::format("{}: operation {} is open {} ms after it was read, its timeout is {} ms",
                       Name(), open.sequence, (now - open.read_ns) / kMillisecond, open.timeout_ms);
  }
  return std::nullopt;
}

std::optional<std::uint32_t> Rank::TakeSlot(Dice& dice) {
  const std::uint32_t slots = has_second ? 2 * kSlots : kSlots;
  const auto first = static_cast<std::uint32_t>(dice.Below(slots));
  for (std::uint32_t i = 0; i < slots; ++i) {
    const std::uint32_t slot = (first + i) % slots;
    if (slot_used_[slot]) continue;
    slot_used_[slot] = true;
    return slot;
  }
  return std::nullopt;
}

std::span<std::byte> Rank::Slot(std::uint32_t slot) const {
  return client_.Memory(slot / kSlots).subspan(slot % kSlots * kSlotSize, kSlotSize);
}

std::uint64_t Rank::Word(std::uint64_t record) const {
  return client_.layout().words[record % ipc::kOperationsMax].load();
}

bool Rank::IsUntouched() const {
  for (std::uint32_t slot = 0; slot < 2 * kSlots; ++slot) {
    if (slot_used_[slot]) continue;
    if (!std::ranges::equal(Slot(slot), std::span(shadow_).subspan(slot * kSlotSize, kSlotSize))) {
      return false;
    }
  }
  return true;
}

}  // namespace headrace::sim

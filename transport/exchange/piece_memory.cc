#include "transport/exchange/piece_memory.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "transport/codec/seed.h"
#include "transport/exchange/message_tail.h"
#include "transport/reduce/reduce.h"

namespace headrace::transport {
namespace {

using GpuEncoding = OpenPiece::GpuEncoding;

std::uint32_t DivisorOf(const CollectiveSpec& spec) {
  return spec.reduction == Reduction::kAverage ? spec.divisor : 1;
}

constexpr std::size_t kCacheLine = 64;
constexpr std::size_t kPageSize = 4096;

constexpr std::size_t RoundedUp(std::size_t size, std::size_t unit) {
  return (size + unit - 1) / unit * unit;
}

// An average is a sum until the last addition; factors are divided as the product that they make.
Reduction ReductionOf(const CollectiveSpec& spec, const Round& round) {
  if (spec.factored()) return Reduction::kSum;
  return spec.reduction == Reduction::kAverage && !round.last ? Reduction::kSum : spec.reduction;
}

// The elements that an encoded piece stands for: rows of a left factor for those of the matrix, and
// a right factor for none besides.
std::uint64_t PlainCount(const OpenCollective& collective, const OpenPiece& piece) {
  const CollectiveSpec& spec = collective.spec;
  if (!spec.factored()) return piece.range.count;
  if (piece.number >= collective.partition.left_pieces_count()) return 0;
  return piece.range.count / spec.codec.parameter * (spec.count / spec.rows);
}

}  // namespace

PieceMemory::PieceMemory(const GroupOptions& options, bool is_server, ServerSums& server_sums,
                         std::shared_ptr<DeviceCodec> device_codec)
    : options_(options),
      is_server_(is_server),
      server_sums_(server_sums),
      device_codec_(std::move(device_codec)) {
  if (is_server_) server_sums_.residuals().Open(options_.group);
}

PieceMemory::~PieceMemory() {
  if (is_server_) server_sums_.residuals().Close(options_.group);
}

// GPUs encode and decode losslessly with a table behind each message. Slots are whole cache lines,
// and all of them whole pages, which can be pinned.
std::size_t PieceMemory::StagingSize(std::size_t message_size, std::uint32_t slots_count) const {
  if (device_codec_ == nullptr || is_server_) return message_size * slots_count;
  return RoundedUp(SlotSize(message_size) * slots_count, kPageSize);
}

std::size_t PieceMemory::SlotSize(std::size_t message_size) const {
  if (device_codec_ == nullptr || is_server_) return message_size;
  const std::size_t table = LosslessTableCount(message_size / sizeof(float));
  return RoundedUp(message_size + table * sizeof(std::uint32_t), kCacheLine);
}

void PieceMemory::SetStaging(std::span<std::byte> memory, std::size_t message_size,
                             std::uint32_t slots_count) {
  staging_ = Staging(memory, SlotSize(message_size), slots_count);
  table_at_ = message_size;
}

void PieceMemory::Begin(OpenCollective& collective, OpenPiece& piece) {
  for (std::size_t i = 0; i < piece.schedule.staged_max; ++i) piece.slots[i] = staging_.Acquire();
  if (piece.has_own_slot) piece.own_slot = staging_.Acquire();
  if (collective.residual != nullptr && !Loses(collective.spec.codec)) {
    if (collective.on_gpu()) {
      AwaitCodec(collective, piece,
                 device_codec_->AddResidual(collective.device, RangeOnGpu(collective, piece)));
    } else {
      AddResidual(EncodedRangeOf(collective, piece));
    }
  }
  if (piece.gathered) Gather(collective, piece);
  if (collective.spec.factored()) {
    // A server sums them as they are.
    if (is_server_ || piece.number >= collective.partition.left_pieces_count()) return;
    return collective.factors.Project(piece.range.begin, piece.range.count, collective.codec);
  }
  // An owner keeps its own part as it is until the sum is there.
  if (Loses(collective.spec.codec) && piece.schedule.rounds[0].sends_count > 0) {
    Encode(collective, piece);
  }
}

void PieceMemory::Release(const OpenPiece& piece) {
  for (std::size_t i = 0; i < piece.schedule.staged_max; ++i) staging_.Release(piece.slots[i]);
  if (piece.has_own_slot) staging_.Release(piece.own_slot);
}

void PieceMemory::PrepareRound(OpenCollective& collective, OpenPiece& piece) {
  if (!collective.on_gpu() || !collective.spec.lossless()) return;
  if (piece.awaits_codec || piece.round == piece.schedule.rounds_count) return;
  const Round& round = piece.schedule.rounds[piece.round];
  if (round.sends_count == 0 || round.empty) return;
  if (std::exchange(piece.gpu_encoding, GpuEncoding::kNone) == GpuEncoding::kDone) return;
  std::byte* const out = staging_.At(piece.own_slot);
  auto* const table = reinterpret_cast<std::byte*>(TableOf(out));
  piece.gpu_encoding = lossless_.Tries(s_per_byte_) ? GpuEncoding::kTried : GpuEncoding::kCopied;
  AwaitCodec(collective, piece,
             device_codec_->EncodeLossless(collective.device, RangeOnGpu(collective, piece),
                                           piece.gpu_encoding == GpuEncoding::kCopied, OnGpus(out),
                                           reinterpret_cast<std::uint32_t*>(OnGpus(table))));
}

void PieceMemory::BeginRound(OpenCollective& collective, OpenPiece& piece, const Round& round) {
  piece.sent_size = static_cast<std::uint32_t>(piece.MessageSize(collective.spec, round));
  CodecUse& use = collective.codec;
  const CollectiveSpec& spec = collective.spec;
  if (round.sends_count == 0 || round.empty) return;
  if (is_server_) {
    if (spec.lossless()) piece.sent_size = piece.served_size;
    return;
  }
  if (spec.lossless()) EncodeLossless(collective, piece);
  if (collective.sends_tails()) {
    std::byte* const end = staging_.At(piece.own_slot) + piece.sent_size;
    const bool keeps = collective.residual != nullptr;
    piece.sent_size += static_cast<std::uint32_t>(
        WriteTail(collective.seed, collective.residual_walk, piece.range, keeps, end));
  }
  if (!spec.encoded()) return;
  use.plain_bytes += round.sends_count * PlainCount(collective, piece) * sizeof(float);
  use.sent_bytes += std::uint64_t{round.sends_count} * piece.sent_size;
}

void PieceMemory::EncodeLossless(OpenCollective& collective, OpenPiece& piece) {
  if (collective.on_gpu()) {
    piece.sent_size = EncodedLosslessSize(piece);
    return;
  }
  const EncodedRange range = EncodedRangeOf(collective, piece);
  std::byte* const out = staging_.At(piece.own_slot);
  if (!lossless_.Tries(s_per_byte_)) {
    piece.sent_size = static_cast<std::uint32_t>(CopyRange(range, out));
    return;
  }
  const TimeNs begin = MonotonicNow();
  piece.sent_size = static_cast<std::uint32_t>(EncodeLosslessRange(range, out));
  const TimeNs took_ns = MonotonicNow() - begin;
  collective.codec.encode_ns += took_ns;
  lossless_.OnEncoded(took_ns, piece.range.count * sizeof(float) - piece.sent_size);
}

std::byte* PieceMemory::ReceivedBytes(const OpenCollective& collective, const OpenPiece& piece,
                                      const Round& round, std::size_t receive) const {
  if (round.staged) return staging_.At(piece.slots[receive]);
  return piece.encoded ? staging_.At(piece.own_slot) : Target(collective, piece);
}

// What goes to a server may have a tail, or must.
bool PieceMemory::MayReceive(const OpenCollective& collective, const OpenPiece& piece,
                             const Round& round, std::size_t size) const {
  const CollectiveSpec& spec = collective.spec;
  const std::size_t most = piece.MessageSize(spec, round);
  const bool has_tail = is_server_ && collective.may_have_tails();
  if (spec.lossless() && !round.empty) {
    const std::size_t tail = has_tail ? kTailSizeMin : 0;
    return size >= tail && size - tail <= most + (has_tail ? kTailSizeMax - kTailSizeMin : 0) &&
           (most == 0 || size > tail);
  }
  if (!has_tail || round.empty) return size == most;
  return (size == most && !spec.encoded()) || (size > most && MayBeTail(size - most));
}

std::optional<PieceFault> PieceMemory::EndRound(OpenCollective& collective, OpenPiece& piece,
                                                const Round& round) {
  if (is_server_ && round.staged && collective.may_have_tails()) {
    return SumServed(collective, piece, round);
  }
  if (collective.spec.lossless()) {
    if (round.receives_count == 0 || round.empty) return std::nullopt;
    return ReduceLossless(collective, piece, round);
  }
  if (round.staged) {
    piece.encoded ? SumEncoded(collective, piece, round) : Sum(collective, piece, round);
  } else if (piece.encoded && round.receives_count > 0) {
    DecodeResult(collective, piece);
  }
  return std::nullopt;
}

// In the order of members, whatever came first. `own` is what this node has for the sum; null:
// nothing.
std::size_t PieceMemory::InputsOf(const OpenPiece& piece, const Round& round, const std::byte* own,
                                  std::array<const std::byte*, kNodesMax>& inputs) const {
  std::size_t inputs_count = 0;
  bool own_is_in = own == nullptr;
  const auto senders = piece.schedule.Receives(round);
  for (std::size_t i = 0; i < senders.size(); ++i) {
    if (!own_is_in && senders[i] > options_.self) {
      inputs[inputs_count++] = own;
      own_is_in = true;
    }
    inputs[inputs_count++] = staging_.At(piece.slots[i]);
  }
  if (!own_is_in) inputs[inputs_count++] = own;
  return inputs_count;
}

// Encoded ones, or such that come with what was left out of others before.
std::optional<PieceFault> PieceMemory::SumServed(const OpenCollective& collective, OpenPiece& piece,
                                                 const Round& round) {
  const CollectiveSpec& spec = collective.spec;
  std::array<std::span<std::byte>, kNodesMax> messages{};
  bool has_tails = spec.encoded();
  for (std::size_t i = 0; i < round.receives_count; ++i) {
    messages[i] = {staging_.At(piece.slots[i]), piece.received_sizes[i]};
    has_tails = has_tails || messages[i].size() > piece.MessageSize(spec, round);
  }
  const ServedPiece served{.group = options_.group,
                           .self = options_.self,
                           .spec = spec,
                           .range = piece.range,
                           .messages = {messages.data(), round.receives_count}};
  if (spec.encoded()) {
    std::size_t size = 0;
    auto fault = server_sums_.Sum(served, lossless_, s_per_byte_, size);
    piece.served_size = static_cast<std::uint32_t>(size);
    return fault;
  }
  if (has_tails) {
    if (auto fault = server_sums_.AddLeftOut(served)) return fault;
  }
  Sum(collective, piece, round);
  return std::nullopt;
}

void PieceMemory::Sum(const OpenCollective& collective, const OpenPiece& piece,
                      const Round& round) {
  const CollectiveSpec& spec = collective.spec;
  std::array<const std::byte*, kNodesMax> inputs{};
  const std::byte* const own = is_server_ ? nullptr : Own(collective, piece);
  const std::size_t inputs_count = InputsOf(piece, round, own, inputs);
  std::byte* const output = is_server_ ? Source(collective, piece) : Target(collective, piece);
  ReduceInto(spec.dtype, ReductionOf(spec, round), {inputs.data(), inputs_count}, {&output, 1}, 0,
             static_cast<std::size_t>(piece.range.count), spec.divisor);
}

// Everybody writes what was encoded and not what it had: so all have the same. Where the owner
// alone sums, what it adds to is its own part, and the sum is encoded once more for all.
void PieceMemory::SumEncoded(OpenCollective& collective, OpenPiece& piece, const Round& round) {
  const bool owner_sums = collective.pattern == Pattern::kScatter;
  std::array<const std::byte*, kNodesMax> inputs{};
  const std::byte* const own = owner_sums ? nullptr : staging_.At(piece.own_slot);
  const std::size_t inputs_count = InputsOf(piece, round, own, inputs);
  const std::uint32_t divisor = owner_sums ? 1 : DivisorOf(collective.spec);
  DecodeSum(collective, piece, {inputs.data(), inputs_count}, owner_sums, divisor);
  if (!owner_sums) return;
  Encode(collective, piece);
  DecodeResult(collective, piece);
}

// Into the piece's own slot.
void PieceMemory::Encode(OpenCollective& collective, OpenPiece& piece) {
  std::byte* const out = staging_.At(piece.own_slot);
  if (collective.on_gpu()) {
    return AwaitCodec(
        collective, piece,
        device_codec_->Encode(collective.device, RangeOnGpu(collective, piece), OnGpus(out)));
  }
  const EncodedRange range = EncodedRangeOf(collective, piece);
  const TimeNs begin = MonotonicNow();
  EncodeRange(range, out);
  collective.codec.encode_ns += MonotonicNow() - begin;
  NoteEncoded(collective, piece);
}

void PieceMemory::DecodeSum(OpenCollective& collective, OpenPiece& piece,
                            std::span<const std::byte* const> inputs, bool onto,
                            std::uint32_t divisor) {
  if (collective.on_gpu()) {
    std::array<const std::byte*, kNodesMax> on_gpus{};
    for (std::size_t i = 0; i < inputs.size(); ++i) on_gpus[i] = OnGpus(inputs[i]);
    return AwaitCodec(collective, piece,
                      device_codec_->DecodeSum(collective.device, {on_gpus.data(), inputs.size()},
                                               onto, divisor, RangeOnGpu(collective, piece)));
  }
  const TimeNs begin = MonotonicNow();
  DecodeSumRange(inputs, onto, divisor, EncodedRangeOf(collective, piece));
  collective.codec.decode_ns += MonotonicNow() - begin;
}

// What was started, in one round of a piece, is done in this order.
void PieceMemory::AwaitCodec(const OpenCollective& collective, OpenPiece& piece,
                             const Status& started) {
  if (!started && !device_error_) device_error_ = started.error();
  if (!piece.awaits_codec) piece.codec_begin_ns = MonotonicNow();
  piece.awaits_codec = true;
  piece.codec_ticket = device_codec_->TicketOf(collective.device);
}

bool PieceMemory::EndCodec(OpenCollective& collective, OpenPiece& piece,
                           std::optional<PieceFault>& fault) {
  const std::optional<Status> ended = device_codec_->Ended(collective.device, piece.codec_ticket);
  if (!ended) return false;
  piece.awaits_codec = false;
  if (!*ended && !device_error_) device_error_ = ended->error();
  if (device_error_) {
    const Error error = device_error_->Within("GPU " + std::to_string(collective.device));
    fault = PieceFault{.message = std::nullopt, .code = error.code(), .what = error.text()};
    return true;
  }
  const TimeNs took_ns =
      gpu_times_.OnEnded(collective.device, piece.codec_begin_ns, MonotonicNow());
  if (collective.spec.lossless()) {
    EndLossless(collective, piece, took_ns);
    return true;
  }
  const bool is_first = piece.round == 0;
  const bool encodes_sum = !is_first && collective.pattern == Pattern::kScatter &&
                           piece.schedule.rounds[piece.round - std::size_t{1}].staged;
  CodecUse& use = collective.codec;
  use.encode_ns += is_first ? took_ns : encodes_sum ? took_ns / 2 : 0;
  use.decode_ns += is_first ? 0 : encodes_sum ? took_ns - took_ns / 2 : took_ns;
  if (is_first || encodes_sum) NoteEncoded(collective, piece);
  return true;
}

void PieceMemory::EndLossless(OpenCollective& collective, OpenPiece& piece, TimeNs took_ns) {
  const bool tried = piece.gpu_encoding == GpuEncoding::kTried;
  if (tried || piece.gpu_encoding == GpuEncoding::kCopied) {
    piece.gpu_encoding = GpuEncoding::kDone;
    if (!tried) return;
    collective.codec.encode_ns += took_ns;
    lossless_.OnEncoded(took_ns, piece.range.count * sizeof(float) - EncodedLosslessSize(piece));
  } else if (piece.round == 0) {
    collective.codec.encode_ns += took_ns;  // what had been left out was added
  } else {
    NoteReduced(collective, piece, piece.schedule.rounds[piece.round - std::size_t{1}], took_ns);
  }
}

// Reads what this processor can read of a GPU's, too: the values are those that were encoded and
// what is left out of them.
void PieceMemory::NoteEncoded(OpenCollective& collective, const OpenPiece& piece) {
  const Codec codec = collective.spec.codec;
  const std::byte* const encoded = staging_.At(piece.own_slot);
  CodecUse& use = collective.codec;
  use.not_finite_blocks += NotFiniteBlocks(codec, encoded, CodecBlocks(piece.range.count));
  EncodedRange sample = EncodedRangeOf(collective, piece);
  sample.range.count = std::min<std::uint64_t>(sample.range.count, kCodecBlock);
  if (sample.residual == nullptr || sample.range.count == 0) return;
  std::array<float, kCodecBlock> values{};
  sample.memory = reinterpret_cast<std::byte*>(values.data());
  SampleEncoded(sample, encoded, use);
}

void PieceMemory::MakeReady(const OpenCollective& collective) {
  if (!collective.on_gpu()) return;
  HR_CHECK(HasBlocks(collective.spec.codec) || collective.spec.lossless(), collective.token);
  HR_CHECK((collective.residual == nullptr) == (collective.residual_on_gpus == nullptr));
  pin_.Want();
}

std::optional<Error> PieceMemory::OnStaging(const Result<std::byte*>& on_gpus) {
  pin_.OnPinned(on_gpus ? *on_gpus : nullptr);
  if (on_gpus) return std::nullopt;
  return Error(on_gpus.error().code(),
               on_gpus.error().text() + "; encode on the host instead: set gpu_codecs = off");
}

// In the order of members, as Sum does.
std::optional<PieceFault> PieceMemory::ReduceLossless(OpenCollective& collective, OpenPiece& piece,
                                                      const Round& round) {
  const CollectiveSpec& spec = collective.spec;
  const auto senders = piece.schedule.Receives(round);
  std::array<std::span<const std::byte>, kNodesMax> messages{};
  for (std::size_t i = 0; i < senders.size(); ++i) {
    const std::uint16_t slot = round.staged ? piece.slots[i] : piece.own_slot;
    messages[i] = {staging_.At(slot), piece.received_sizes[i]};
  }
  const auto own = round.staged
                       ? static_cast<std::size_t>(std::ranges::count_if(
                             senders, [this](std::uint8_t each) { return each < options_.self; }))
                       : kNowhere;
  const Reduction reduction = round.staged ? ReductionOf(spec, round) : Reduction::kSum;
  const std::span<const std::span<const std::byte>> received(messages.data(), senders.size());
  std::optional<std::size_t> wrong;
  if (collective.on_gpu()) {
    const std::uint32_t divisor = reduction == Reduction::kAverage ? spec.divisor : 1;
    wrong = ReduceLosslessOnGpu(collective, piece, received, own, divisor);
  } else {
    const TimeNs begin = MonotonicNow();
    wrong = ReduceLosslessRange(received, own, reduction, spec.divisor,
                                EncodedRangeOf(collective, piece));
    NoteReduced(collective, piece, round, MonotonicNow() - begin);
  }
  if (!wrong) return std::nullopt;
  return PieceFault{.message = wrong, .what = "what cannot be decoded"};
}

void PieceMemory::NoteReduced(OpenCollective& collective, const OpenPiece& piece,
                              const Round& round, TimeNs took_ns) {
  collective.codec.decode_ns += took_ns;
  // Messages as they are would have been summed as well.
  const bool coded =
      std::any_of(piece.received_sizes.begin(), piece.received_sizes.begin() + round.receives_count,
                  [&](std::uint32_t size) { return size < piece.range.count * sizeof(float); });
  if (coded) lossless_.OnDecoded(took_ns);
}

// The host finds where blocks begin, as it checks what came.
std::optional<std::size_t> PieceMemory::ReduceLosslessOnGpu(
    OpenCollective& collective, OpenPiece& piece,
    std::span<const std::span<const std::byte>> messages, std::size_t own, std::uint32_t divisor) {
  const std::uint64_t count = piece.range.count;
  std::array<LosslessMessage, kNodesMax> on_gpus{};
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const std::span<const std::byte> message = messages[i];
    on_gpus[i].in = OnGpus(message.data());
    if (message.size() == count * sizeof(float)) continue;
    std::uint32_t* const table = TableOf(message.data());
    if (!FindLosslessBlocks(message, count, {table, LosslessBeginsCount(count)})) return i;
    on_gpus[i].table =
        reinterpret_cast<std::uint32_t*>(OnGpus(reinterpret_cast<std::byte*>(table)));
  }
  AwaitCodec(collective, piece,
             device_codec_->DecodeLossless(collective.device, {on_gpus.data(), messages.size()},
                                           own, divisor, RangeOnGpu(collective, piece)));
  return std::nullopt;
}

void PieceMemory::DecodeResult(OpenCollective& collective, OpenPiece& piece) {
  const std::byte* const result = staging_.At(piece.own_slot);
  DecodeSum(collective, piece, {&result, 1}, false, DivisorOf(collective.spec));
}

EncodedRange PieceMemory::RangeOnGpu(const OpenCollective& collective,
                                     const OpenPiece& piece) const {
  EncodedRange range = EncodedRangeOf(collective, piece);
  range.residual = collective.residual_on_gpus;
  return range;
}

EncodedRange PieceMemory::EncodedRangeOf(const OpenCollective& collective,
                                         const OpenPiece& piece) const {
  return {.codec = collective.spec.codec,
          .walk = piece.walk,
          .residual_walk = collective.residual_walk,
          .range = piece.range,
          .memory = collective.memory,
          .residual = collective.residual,
          .seed = SeedOf(collective)};
}

// Places are the same on all nodes; what is rounded by chance is not, lest errors of nodes that
// have equal values add up. Neither epoch nor position counts: another run has others.
std::uint64_t PieceMemory::SeedOf(const OpenCollective& collective) const {
  const std::uint64_t node = collective.spec.codec.kind == Codec::kRandomK ? 0 : options_.self + 1;
  return MixedSeed(collective.seed, node);
}

// A piece of several runs is one message all the same: a copy of all of them moves in its place.
void PieceMemory::Gather(const OpenCollective& collective, const OpenPiece& piece) {
  const std::size_t size = SizeOf(collective.spec.dtype);
  const std::uint64_t begin = piece.range.begin;
  ForEachStretch(piece.walk, begin, begin + piece.range.count,
                 [&](std::uint64_t element, std::uint64_t offset, std::uint64_t count) {
                   std::memcpy(staging_.At(piece.own_slot) + (element - begin) * size,
                               collective.memory + offset, static_cast<std::size_t>(count) * size);
                 });
}

// Where this node gets a result, it is in the copy now.
void PieceMemory::Scatter(const OpenCollective& collective, const OpenPiece& piece) {
  const bool is_root = options_.self == collective.spec.root;
  if (collective.spec.kind == Collective::kReduce && !is_root) return;
  if (collective.spec.kind == Collective::kBroadcast && is_root) return;
  const bool owns = options_.self == collective.partition.Owner(piece.number);
  if (collective.spec.kind == Collective::kReduceScatter && !owns) return;
  if (collective.spec.kind == Collective::kAllGather && owns) return;
  const std::size_t size = SizeOf(collective.spec.dtype);
  const std::uint64_t begin = piece.range.begin;
  std::byte* const memory = collective.Result();
  ForEachStretch(piece.walk, begin, begin + piece.range.count,
                 [&](std::uint64_t element, std::uint64_t offset, std::uint64_t count) {
                   std::memcpy(memory + offset,
                               staging_.At(piece.own_slot) + (element - begin) * size,
                               static_cast<std::size_t>(count) * size);
                 });
}

std::byte* PieceMemory::Own(const OpenCollective& collective, const OpenPiece& piece) const {
  if (piece.gathered) return staging_.At(piece.own_slot);
  return collective.memory + piece.walk.OffsetOf(piece.range.begin);
}

// Where the result belongs on a node with data.
std::byte* PieceMemory::Target(const OpenCollective& collective, const OpenPiece& piece) const {
  if (piece.gathered) return staging_.At(piece.own_slot);
  return collective.Result() + piece.walk.OffsetOf(piece.range.begin);
}

// What is sent. A server's sum takes the place of the first of its inputs.
std::byte* PieceMemory::Source(const OpenCollective& collective, const OpenPiece& piece) const {
  if (is_server_) return staging_.At(piece.slots[0]);
  return piece.encoded ? staging_.At(piece.own_slot) : Own(collective, piece);
}

}  // namespace headrace::transport

// What a node that lies may put into the bytes of an encoded message: every decoder reads them,
// and nothing else. The first byte chooses the codec, the second how many elements, the third how
// many messages are summed. Also what is behind them where servers sum.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <vector>

#include "ipc/base/check.h"
#include "ipc/base/codecs.h"
#include "transport/codec/codec.h"
#include "transport/codec/lossless.h"
#include "transport/exchange/message_tail.h"
#include "transport/exchange/served_residuals.h"

namespace {

using namespace headrace;             // NOLINT: this program has no names of its own
using namespace headrace::transport;  // NOLINT

constexpr std::size_t kInputsMax = 3;
constexpr std::array kFixedCodecs = {
    Codec(Codec::kBFloat16),       Codec(Codec::kFloat16),        Codec(Codec::kInt8),
    Codec(Codec::kInt4),           Codec(Codec::kFloat8E4M3),     Codec(Codec::kFloat8E5M2),
    Codec(Codec::kInt8Stochastic), Codec(Codec::kInt4Stochastic), Codec(Codec::kSign),
    Codec(Codec::kTopK),           Codec(Codec::kTopK, kKeptMax), Codec(Codec::kRandomK)};

// In memory of its own, so that nothing lies behind it that may be read.
std::vector<std::byte> Sized(std::span<const std::uint8_t> input, std::size_t size) {
  std::vector<std::byte> bytes(size);
  if (!input.empty()) std::memcpy(bytes.data(), input.data(), std::min(size, input.size()));
  return bytes;
}

void Decode(Codec codec, std::span<const std::uint8_t> input, std::size_t count,
            std::size_t inputs_count) {
  const std::size_t size = EncodedSize(codec, count);
  std::vector<std::vector<std::byte>> messages;
  std::vector<const std::byte*> inputs;
  for (std::size_t i = 0; i < inputs_count; ++i) {
    messages.push_back(Sized(input.subspan(std::min(i * size, input.size())), size));
    inputs.push_back(messages.back().data());
  }
  std::vector<float> values(count, 1.0F);
  DecodeSum(codec, inputs, count, inputs_count > 1, 2, values.data(), {.seed = count});
}

void DecodeWhatIsLossless(std::span<const std::uint8_t> input, std::size_t count) {
  const std::vector<std::byte> bytes = Sized(input, input.size());
  LosslessReader reader{.in = bytes};
  std::vector<float> values(count);
  DecodeLossless(reader, count, values.data());
  const bool makes_sense = reader.makes_sense && reader.in.empty();
  std::vector<std::uint32_t> begins(LosslessBeginsCount(count));
  HR_CHECK(FindLosslessBlocks(bytes, count, begins) == makes_sense, count, bytes.size());
  if (!makes_sense || count == 0) return;
  // What makes sense comes back, if in other bytes.
  std::vector<std::byte> again(count * sizeof(float) + count / kCodecBlock);
  LosslessWriter writer{.out = again.data(), .size_max = again.size()};
  EncodeLossless(values.data(), count, writer);
  if (!writer.fits) return;
  LosslessReader second{.in = {again.data(), writer.size}};
  std::vector<float> same(count);
  DecodeLossless(second, count, same.data());
  HR_CHECK(second.makes_sense && second.in.empty(), count);
  HR_CHECK(std::memcmp(same.data(), values.data(), count * sizeof(float)) == 0, count);
}

// What makes sense is of as many elements as the piece has, and is written as it was read.
void ReadWhatIsBehind(std::span<const std::uint8_t> input, std::size_t count) {
  const std::vector<std::byte> bytes = Sized(input, input.size());
  const std::optional<MessageTail> tail = ReadTail(bytes, count);
  if (!tail) return;
  HR_CHECK(tail->Size() <= bytes.size(), tail->Size(), bytes.size());
  std::uint64_t elements = 0;
  for (const Run& run : tail->Runs()) elements += run.count;
  HR_CHECK(elements == count || tail->runs_count == 0, elements, count);
  std::vector<float> values(count, 1.0F);
  ServedResiduals residuals(std::uint64_t{4} << 20);
  residuals.Open(1);
  const Status kept = residuals.Store(1, tail->Runs(), values.data());
  HR_CHECK(residuals.KeepsAny(1, tail->Runs()) == (kept.ok() && tail->runs_count > 0), count);
  residuals.Load(1, tail->Runs(), values.data());
  residuals.Close(1);
  HR_CHECK(residuals.bytes() == 0, residuals.bytes());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  if (size < 3) return 0;
  const std::span<const std::uint8_t> input(bytes + 3, size - 3);
  const std::size_t codec = bytes[0] % (kFixedCodecs.size() + 2);
  const std::size_t count = 1 + std::size_t{bytes[1]} * 5;
  if (codec == kFixedCodecs.size()) {
    DecodeWhatIsLossless(input, count);
  } else if (codec > kFixedCodecs.size()) {
    ReadWhatIsBehind(input, count);
  } else {
    Decode(kFixedCodecs[codec], input, count, 1 + bytes[2] % kInputsMax);
  }
  return 0;
}

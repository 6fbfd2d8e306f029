#include "service/plan/canonical.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <optional>
#include <span>

#include "service/plan/recording.h"

namespace headrace::plan {
namespace {

// About eleven days; up to here doubles hold every nanosecond, so that texts read back as they
// were.
constexpr std::uint64_t kNanosecondsMax = 1'000'000'000'000'000;
// A byte takes less than a nanosecond on a fast lane: femtoseconds count it.
constexpr double kSlow = 1e6;
constexpr std::string_view kFirstLine = "headrace-plan/1";

std::uint64_t Nanoseconds(double seconds) {
  const double nanoseconds = std::min(seconds * 1e9, static_cast<double>(kNanosecondsMax));
  return static_cast<std::uint64_t>(std::floor(nanoseconds + 0.5));
}

double Seconds(std::uint64_t nanoseconds) { return static_cast<double>(nanoseconds) / 1e9; }

std::uint64_t Number(auto enumerator) { return static_cast<std::uint64_t>(enumerator); }

void Line(std::string& text, std::string_view word, std::initializer_list<std::uint64_t> numbers) {
  text += word;
  for (const std::uint64_t number : numbers) {
    text += ' ';
    text += std::to_string(number);
  }
  text += '\n';
}

// Walks over the lines of a canonical form.
class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  // Reads the next line if it is `word` and as many numbers as `numbers` holds.
  bool ReadLine(std::string_view word, std::span<std::uint64_t> numbers) {
    const std::size_t end = text_.find('\n', at_);
    if (end == std::string_view::npos) return false;
    std::string_view line = text_.substr(at_, end - at_);
    if (!line.starts_with(word)) return false;
    line.remove_prefix(word.size());
    for (std::uint64_t& number : numbers) {
      if (line.empty() || line.front() != ' ') return false;
      line.remove_prefix(1);
      const auto [rest, error] = std::from_chars(line.data(), line.data() + line.size(), number);
      if (error != std::errc()) return false;
      const auto digits = static_cast<std::size_t>(rest - line.data());
      if (digits > 1 && line.front() == '0') return false;
      line.remove_prefix(digits);
    }
    if (!line.empty()) return false;
    at_ = end + 1;
    ++line_;
    return true;
  }

  bool ReadNumber(std::string_view word, std::uint64_t& number, std::uint64_t most) {
    return ReadLine(word, std::span(&number, 1)) && (number <= most || RefuseLast());
  }
  // For a line that was read and then found wrong; it is the one to name.
  bool RefuseLast() {
    --line_;
    return false;
  }
  bool AtEnd() const { return at_ == text_.size(); }
  Error Refuse(std::string_view expected) const {
    return {Code::kInvalidArgument,
            "plan: line " + std::to_string(line_) + ": expected " + std::string(expected)};
  }

 private:
  std::string_view text_;
  std::size_t at_ = 0;
  std::size_t line_ = 1;
};

Result<Policy> ReadPolicy(Reader& reader) {
  for (const Policy policy : kPolicies) {
    if (reader.ReadLine("policy " + std::string(Name(policy)), {})) return policy;
  }
  return reader.Refuse("a known policy");
}

std::optional<PlanCandidate> CandidateOf(std::uint64_t policy, std::uint64_t variant) {
  const auto* const known = std::ranges::find(
      kPolicies, policy, [](Policy each) { return static_cast<std::uint64_t>(each); });
  if (known == kPolicies.end() || variant >= kVariantNames.size()) return std::nullopt;
  return PlanCandidate{*known, static_cast<Variant>(variant)};
}

// Whether what stands there is a choice, or none.
bool ReadChoice(Reader& reader, Choice& choice) {
  std::array<std::uint64_t, 7> numbers{};
  if (!reader.ReadLine("chosen", numbers)) return true;
  const auto [iterations, p90, policy, variant, next_policy, next_variant, next] = numbers;
  const std::optional<PlanCandidate> chosen = CandidateOf(policy, variant);
  const std::optional<PlanCandidate> next_best = CandidateOf(next_policy, next_variant);
  const bool right = chosen && next_best && iterations > 0 && iterations <= kRecordedMax &&
                     std::max(p90, next) <= kNanosecondsMax;
  if (!right) return reader.RefuseLast();
  choice = {.iterations = static_cast<std::uint32_t>(iterations),
            .p90_s = Seconds(p90),
            .chosen = *chosen,
            .next = *next_best,
            .next_s = Seconds(next)};
  return true;
}

// Whether what stands there are the codecs of some tensors, or none: runs as CodecRunsOf has them.
bool ReadCodecs(Reader& reader, std::vector<CodecRun>& runs) {
  std::array<std::uint64_t, 4> numbers{};
  while (reader.ReadLine("codec", numbers)) {
    const auto [kind, parameter, first, count] = numbers;
    if (std::max({first, count}) > UINT32_MAX / 2 || count == 0) return reader.RefuseLast();
    const std::optional<Codec> codec =
        parameter <= UINT8_MAX ? CodecOfValue(kind | parameter << 8U) : std::nullopt;
    if (!codec || *codec == Codec::kNone || kind > UINT8_MAX) return reader.RefuseLast();
    if (!runs.empty()) {
      const CodecRun& before = runs.back();
      const bool joins = before.end() == first && before.codec == *codec;
      if (first < before.end() || joins) return reader.RefuseLast();
    }
    runs.push_back({*codec, static_cast<std::uint32_t>(first), static_cast<std::uint32_t>(count)});
  }
  return true;
}

constexpr double kMillion = 1e6;

// Whether what stands there is a verdict, or none.
bool ReadVerdict(Reader& reader, CodecVerdict& verdict) {
  std::array<std::uint64_t, 8> numbers{};
  if (!reader.ReadLine("codec_tried", numbers)) return true;
  const auto [kind, parameter, pays, plain, coded, share, encode, decode] = numbers;
  if (kind > UINT8_MAX || parameter > UINT8_MAX || pays > 1) return reader.RefuseLast();
  const std::optional<Codec> codec = CodecOfValue(kind | parameter << 8U);
  if (!codec || std::max({plain, coded, encode, decode}) > kNanosecondsMax) {
    return reader.RefuseLast();
  }
  verdict = {.cost = {.codec = *codec,
                      .share = static_cast<double>(share) / kMillion,
                      .encode_s_per_byte = Seconds(encode) / kSlow,
                      .decode_s_per_byte = Seconds(decode) / kSlow},
             .pays = pays == 1,
             .plain_s = Seconds(plain),
             .coded_s = Seconds(coded)};
  return IsCodecCost(verdict.cost) || reader.RefuseLast();
}

bool ReadHead(Reader& reader, Plan& plan, std::uint64_t& blocks) {
  std::uint64_t barrier = 0;
  std::uint64_t in_flight_max = 0;
  std::uint64_t predicted = 0;
  std::uint64_t bound = 0;
  if (!reader.ReadNumber("barrier", barrier, 1)) return false;
  if (!reader.ReadNumber("in_flight_max", in_flight_max, UINT32_MAX)) return false;
  if (!reader.ReadNumber("predicted_ns", predicted, kNanosecondsMax)) return false;
  if (!reader.ReadNumber("lower_bound_ns", bound, kNanosecondsMax)) return false;
  std::array<std::uint64_t, 4> made_for{};
  if (!reader.ReadLine("made_for", made_for)) return false;
  if (*std::ranges::max_element(made_for) > kNanosecondsMax) return reader.RefuseLast();
  plan.made_for = {.backward_s = Seconds(made_for[0]),
                   .forward_s = Seconds(made_for[1]),
                   .startup_s = Seconds(made_for[2]),
                   .s_per_byte = Seconds(made_for[3]) / kSlow};
  if (!ReadChoice(reader, plan.choice) || !ReadCodecs(reader, plan.codecs)) return false;
  if (!ReadVerdict(reader, plan.verdict)) return false;
  plan.barrier = barrier == 1;
  plan.in_flight_max = static_cast<std::uint32_t>(in_flight_max);
  plan.predicted_s = Seconds(predicted);
  plan.lower_bound_s = Seconds(bound);
  return reader.ReadNumber("blocks", blocks, UINT32_MAX);
}

std::string_view WordFor(Collective kind) { return IsHalf(kind) ? headrace::Name(kind) : "block"; }

bool ReadBlock(Reader& reader, std::uint64_t place, Plan& plan) {
  std::array<std::uint64_t, 3> head{};
  PlannedBlock block;
  bool found = false;
  for (const Collective kind :
       {Collective::kAllReduce, Collective::kReduceScatter, Collective::kAllGather}) {
    if (found || !reader.ReadLine(WordFor(kind), head)) continue;
    found = true;
    block.kind = kind;
  }
  if (!found) return false;
  if (head[0] != place || std::max(head[1], head[2]) > kNanosecondsMax) return reader.RefuseLast();
  block.begin_s = Seconds(head[1]);
  block.end_s = Seconds(head[2]);
  std::array<std::uint64_t, 3> part{};
  while (reader.ReadLine("part", part)) {
    if (part[0] > UINT32_MAX) return reader.RefuseLast();
    block.ranges.push_back({static_cast<std::uint32_t>(part[0]), part[1], part[2]});
    block.bytes += part[2];
  }
  plan.blocks.push_back(std::move(block));
  return true;
}

}  // namespace

std::string Canonical(const Plan& plan) {
  std::string text(kFirstLine);
  text += '\n';
  Line(text, "version", {plan.version});
  Line(text, "policy " + std::string(Name(plan.policy)), {});
  Line(text, "barrier", {plan.barrier ? 1u : 0u});
  Line(text, "in_flight_max", {plan.in_flight_max});
  Line(text, "predicted_ns", {Nanoseconds(plan.predicted_s)});
  Line(text, "lower_bound_ns", {Nanoseconds(plan.lower_bound_s)});
  Line(text, "made_for",
       {Nanoseconds(plan.made_for.backward_s), Nanoseconds(plan.made_for.forward_s),
        Nanoseconds(plan.made_for.startup_s), Nanoseconds(plan.made_for.s_per_byte * kSlow)});
  const Choice& choice = plan.choice;
  if (choice.iterations > 0) {
    Line(text, "chosen",
         {choice.iterations, Nanoseconds(choice.p90_s), Number(choice.chosen.policy),
          Number(choice.chosen.variant), Number(choice.next.policy), Number(choice.next.variant),
          Nanoseconds(choice.next_s)});
  }
  for (const CodecRun& run : plan.codecs) {
    Line(text, "codec", {run.codec.kind, run.codec.parameter, run.first, run.count});
  }
  if (const CodecVerdict& tried = plan.verdict; tried.exists()) {
    const double share = std::max(1.0, std::floor(tried.cost.share * kMillion + 0.5));
    Line(text, "codec_tried",
         {tried.cost.codec.kind, tried.cost.codec.parameter, tried.pays ? 1u : 0u,
          Nanoseconds(tried.plain_s), Nanoseconds(tried.coded_s), static_cast<std::uint64_t>(share),
          Nanoseconds(tried.cost.encode_s_per_byte * kSlow),
          Nanoseconds(tried.cost.decode_s_per_byte * kSlow)});
  }
  Line(text, "blocks", {plan.blocks.size()});
  for (std::size_t index = 0; index < plan.blocks.size(); ++index) {
    const PlannedBlock& block = plan.blocks[index];
    Line(text, WordFor(block.kind), {index, Nanoseconds(block.begin_s), Nanoseconds(block.end_s)});
    for (const TensorRange& range : block.ranges) {
      Line(text, "part", {range.tensor, range.offset_bytes, range.bytes});
    }
  }
  Line(text, "end", {});
  return text;
}

std::uint64_t HashOf(std::string_view canonical) {
  std::uint64_t hash = 0xCBF29CE484222325u;
  for (const char byte : canonical) {
    hash ^= static_cast<unsigned char>(byte);
    hash *= 0x100000001B3u;
  }
  return hash;
}

std::uint64_t HashOf(const Plan& plan) { return HashOf(Canonical(plan)); }

Result<Plan> ParseCanonical(std::string_view text) {
  Reader reader(text);
  Plan plan;
  if (!reader.ReadLine(kFirstLine, {})) return reader.Refuse(kFirstLine);
  std::uint64_t version = 0;
  if (!reader.ReadNumber("version", version, UINT32_MAX)) {
    return reader.Refuse("a version");
  }
  plan.version = static_cast<std::uint32_t>(version);
  Result<Policy> policy = ReadPolicy(reader);
  if (!policy) return policy.error();
  plan.policy = *policy;
  std::uint64_t blocks = 0;
  if (!ReadHead(reader, plan, blocks)) return reader.Refuse("the numbers of the head");
  for (std::uint64_t place = 0; place < blocks; ++place) {
    if (!ReadBlock(reader, place, plan)) return reader.Refuse("the next block and its parts");
  }
  if (!reader.ReadLine("end", {}) || !reader.AtEnd()) return reader.Refuse("the end");
  return plan;
}

}  // namespace headrace::plan

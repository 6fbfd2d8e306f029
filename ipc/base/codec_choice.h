// A setting for how gradients cross between nodes: in one codec ("int8"), or in the fastest of
// several, or none, as the job's plan finds ("auto:int8,bf16").
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ipc/base/codecs.h"

namespace headrace {

// Codecs among which, and none, a plan chooses: at most kMax, none twice, in the order of their
// names.
struct AllowedCodecs {
  static constexpr std::size_t kMax = 3;

  // SteeringValue of the first; of each further one 16 bits higher; 0 behind the last.
  std::uint64_t value = 0;

  bool empty() const { return value == 0; }
  std::vector<Codec> List() const;
  // Behind the others: not none, not one of them, and there is room for it.
  void Add(const Codec& codec);

  friend bool operator==(const AllowedCodecs&, const AllowedCodecs&) = default;
};

// Whether that is the value of some, or of nothing.
bool AreAllowedCodecs(std::uint64_t value);

struct CodecChoice {
  Codec codec;  // none where the plan chooses
  AllowedCodecs allowed{};

  CodecChoice() = default;
  // Implicit: a codec is the choice of that one.
  CodecChoice(Codec of) : codec(of) {}                  // NOLINT(google-explicit-constructor)
  CodecChoice(Codec::Kind of_kind) : codec(of_kind) {}  // NOLINT(google-explicit-constructor)
  explicit CodecChoice(AllowedCodecs of) : allowed(of) {}

  bool is_none() const { return codec == Codec::kNone && allowed.empty(); }

  friend bool operator==(const CodecChoice&, const CodecChoice&) = default;
};

// The value of SteeringKind::kCompress, and back; nothing where that is none.
std::uint64_t ChoiceValue(const CodecChoice& choice);
std::optional<CodecChoice> ChoiceOfValue(std::uint64_t value);

// "int8", "auto:int8,topk:8", and back; nothing where a codec has no such name, is named twice, or
// where more than AllowedCodecs::kMax are.
std::string ChoiceName(const CodecChoice& choice);
std::optional<CodecChoice> ChoiceNamed(std::string_view name);

// For errors: the names of all codecs, and how some of them are left to the plan.
std::string KnownCodecs();

}  // namespace headrace

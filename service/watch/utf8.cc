#include "service/watch/utf8.h"

#include <cstddef>
#include <cstdint>

namespace headrace::service {
namespace {

struct Form {
  std::uint8_t mask;    // of the first byte
  std::uint8_t mark;    // that it has under the mask
  std::size_t size;     // of the sequence
  std::uint32_t least;  // smaller numbers have a shorter sequence
};
constexpr Form kForms[] = {
    {0x80, 0x00, 1, 0}, {0xe0, 0xc0, 2, 0x80}, {0xf0, 0xe0, 3, 0x800}, {0xf8, 0xf0, 4, 0x10000}};

bool IsCharacter(std::uint32_t number, std::uint32_t least) {
  const bool surrogate = number >= 0xd800 && number <= 0xdfff;
  return number >= least && number <= 0x10ffff && !surrogate;
}

// Size of the well-formed sequence at the front of `text`; 0: there is none.
std::size_t SequenceAt(std::string_view text) {
  const auto byte = [text](std::size_t at) { return static_cast<std::uint8_t>(text[at]); };
  for (const Form& form : kForms) {
    if ((byte(0) & form.mask) != form.mark) continue;
    if (text.size() < form.size) return 0;
    std::uint32_t number = byte(0) & static_cast<std::uint8_t>(~form.mask);
    for (std::size_t at = 1; at < form.size; ++at) {
      if ((byte(at) & 0xc0U) != 0x80) return 0;
      number = number << 6U | (byte(at) & 0x3fU);
    }
    return IsCharacter(number, form.least) ? form.size : 0;
  }
  return 0;
}

}  // namespace

std::string ValidUtf8(std::string_view text) {
  std::string valid;
  valid.reserve(text.size());
  while (!text.empty()) {
    const std::size_t size = SequenceAt(text);
    if (size == 0) {
      valid += "\xef\xbf\xbd";
    } else {
      valid += text.substr(0, size);
    }
    text.remove_prefix(size == 0 ? 1 : size);
  }
  return valid;
}

}  // namespace headrace::service

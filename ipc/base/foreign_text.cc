#include "ipc/base/foreign_text.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

namespace headrace {
namespace {

constexpr std::size_t kSizeMax = 300;
constexpr int kErrorsMax = 133;  // numbers of Linux's errors end here

// The longest one, since "Permission denied" may stand within another's words.
std::string SystemCauseIn(std::string_view text) {
  std::string longest;
  for (int number = 1; number <= kErrorsMax; ++number) {
    const std::string cause = ::strerror(number);
    if (cause.size() > longest.size() && text.find(cause) != std::string_view::npos) {
      longest = cause;
    }
  }
  return longest;
}

// kj appends "; name = value" for each of the values that it was given.
std::string_view ValueIn(std::string_view text, std::string_view name) {
  const std::size_t at = text.find(name);
  if (at == std::string_view::npos) return {};
  text.remove_prefix(at + name.size());
  return text.substr(0, text.find("; "));
}

// Without the values, and without what remote ends and failed checks are introduced by.
std::string_view SentenceIn(std::string_view text) {
  constexpr std::string_view kRemote = "remote exception: ";
  while (text.starts_with(kRemote)) text.remove_prefix(kRemote.size());
  for (std::size_t at = text.find("; "); at != std::string_view::npos;
       at = text.find("; ", at + 1)) {
    const std::string_view rest = text.substr(at + 2);
    const std::size_t equals = rest.find(" = ");
    if (equals == std::string_view::npos || rest.substr(0, equals).find(' ') < equals) continue;
    return text.substr(0, at);
  }
  return text;
}

// Bytes of the control character that `text` begins with; 0: it begins with none.
std::size_t ControlAt(std::string_view text) {
  const auto byte = [text](std::size_t i) -> unsigned {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U;
  };
  const unsigned first = byte(0);
  if (first < 0x20 || first == 0x7f) return 1;
  if (first == 0xc2 && byte(1) >= 0x80 && byte(1) <= 0x9f) return 2;  // C1
  if (first != 0xe2) return 0;
  // What turns the direction of writing: U+200E, 200F, 202A to 202E, 2066 to 2069.
  const bool turns = (byte(1) == 0x80 && (byte(2) == 0x8e || byte(2) == 0x8f ||
                                          (byte(2) >= 0xaa && byte(2) <= 0xae))) ||
                     (byte(1) == 0x81 && byte(2) >= 0xa6 && byte(2) <= 0xa9);
  return turns ? 3 : 0;
}

}  // namespace

std::string Printable(std::string_view text, std::size_t size_max) {
  text = text.substr(0, size_max);
  std::string printable;
  printable.reserve(text.size());
  while (!text.empty()) {
    const std::size_t control = ControlAt(text);
    printable += control != 0 ? '?' : text.front();
    text.remove_prefix(std::max<std::size_t>(control, 1));
  }
  return printable;
}

bool HasControls(std::string_view text) {
  for (; !text.empty(); text.remove_prefix(1)) {
    if (ControlAt(text) != 0) return true;
  }
  return false;
}

std::string CauseInForeignText(std::string_view description) {
  std::string cause;
  if (const std::string_view why = ValueIn(description, "gai_strerror(status) = "); !why.empty()) {
    cause = std::string("the name cannot be resolved: ").append(why);
  } else if (cause = SystemCauseIn(description); cause.empty()) {
    cause = SentenceIn(description);
    // The caller goes on with ": " or "; ".
    if (cause.ends_with('.') && !cause.ends_with("..")) cause.pop_back();
  }
  return Printable(cause, kSizeMax);
}

}  // namespace headrace

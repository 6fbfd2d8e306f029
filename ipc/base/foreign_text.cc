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

}  // namespace

std::string Printable(std::string_view text, std::size_t size_max) {
  std::string printable(text.substr(0, size_max));
  std::replace_if(
      printable.begin(), printable.end(),
      [](char byte) { return static_cast<unsigned char>(byte) < 0x20 || byte == 0x7f; }, '?');
  return printable;
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
  cause.resize(cause.size() < kSizeMax ? cause.size() : kSizeMax);
  for (char& letter : cause) {
    if (static_cast<unsigned char>(letter) < ' ' || letter == 0x7f) letter = '?';
  }
  return cause;
}

}  // namespace headrace

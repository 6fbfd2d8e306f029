#include "service/loop/text.h"

#include <cstdint>

namespace headrace::service {

std::string Printable(std::string_view text, std::size_t size_max) {
  std::string printable(text.substr(0, size_max));
  for (char& letter : printable) {
    if (static_cast<unsigned char>(letter) < ' ' || letter == 0x7f) letter = '?';
  }
  return printable;
}

void Refuse(schema::Refusal::Builder refusal, const Error& error) {
  refusal.setCode(static_cast<std::uint8_t>(error.code()));
  refusal.setText(error.text());
}

}  // namespace headrace::service

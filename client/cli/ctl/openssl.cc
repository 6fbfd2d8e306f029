#include "client/cli/ctl/openssl.h"

#include <fmt/format.h>
#include <openssl/err.h>

#include <array>
#include <ctime>
#include <string>

namespace headrace::ctl {

Error OpensslError(Code code, std::string_view doing) {
  std::string reasons;
  std::array<char, 256> text{};
  while (const unsigned long number = ERR_get_error()) {
    ERR_error_string_n(number, text.data(), text.size());
    const char* reason = ERR_reason_error_string(number);
    if (!reasons.empty()) reasons += ", ";
    reasons += reason != nullptr ? reason : text.data();
  }
  return Error(code, fmt::format("{}: {}", doing, reasons.empty() ? "no reason given" : reasons));
}

std::int64_t UnixSeconds(const ASN1_TIME* time) {
  std::tm parts{};
  return ASN1_TIME_to_tm(time, &parts) == 1 ? ::timegm(&parts) : 0;
}

}  // namespace headrace::ctl

// The contents of a certificate, for people and programs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "client/cli/ctl/views.h"
#include "ipc/base/result.h"

namespace headrace::ctl {

struct CertificateText {
  std::string path;
  std::string name;       // the common name: of the node, or of the authority
  std::string signed_by;  // the issuer's
  bool authority = false;
  std::vector<std::string> names;  // alternative names
  std::int64_t from_unix_s = 0;
  std::int64_t until_unix_s = 0;
  std::string fingerprint;  // SHA-256, hexadecimal

  bool ValidAt(std::int64_t unix_s) const { return from_unix_s <= unix_s && unix_s < until_unix_s; }
};

Result<CertificateText> ReadCertificateText(const std::string& path);
std::string CertificateTable(const CertificateText& certificate, std::int64_t now_unix_s);
Json CertificateJson(const CertificateText& certificate, std::int64_t now_unix_s);

}  // namespace headrace::ctl

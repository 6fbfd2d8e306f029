// This node's key and certificate and the authority that it believes, read and checked at start.
#pragma once

#include <kj/compat/tls.h>

#include <cstdint>
#include <memory>
#include <string>

#include "ipc/base/result.h"
#include "service/control/tls.h"

namespace headrace::service {

struct TlsFiles {
  kj::TlsKeypair keypair;
  kj::TlsCertificate authority;
  std::string authority_name;  // of the certificate, for errors
  std::int64_t until_unix_s = 0;
};

// Reads what the options name and has OpenSSL verify it as another node would.
Result<std::unique_ptr<TlsFiles>> ReadTlsFiles(const PeerSecurityOptions& options);

// "2027-01-31" in UTC.
std::string DateText(std::int64_t unix_s);

}  // namespace headrace::service

// This node's key and certificate and the authority that it trusts, read and checked at start.
#pragma once

#include <kj/compat/tls.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ipc/base/result.h"
#include "service/peers/tls_options.h"

namespace headrace::service {

struct TlsFiles {
  kj::TlsKeypair keypair;
  std::vector<kj::TlsCertificate> authorities;
  std::string authority_name;  // of the authorities, for errors: `a" or "b` where there are several
  std::int64_t from_unix_s = 0;
  std::int64_t until_unix_s = 0;
  // The period in which all certificates that signed this one, up to the authority's, are valid.
  std::int64_t authority_from_unix_s = 0;
  std::int64_t authority_until_unix_s = 0;
};

// Reads what the options name and has OpenSSL verify it as another node would. The authority's file
// may hold several, one of which has signed; the node's certificate may be followed by those
// between it and the authority, as cert-manager writes them. Keys may be PKCS#1, PKCS#8 or SEC 1.
Result<std::unique_ptr<TlsFiles>> ReadTlsFiles(const PeerSecurityOptions& options);

// "2027-01-31" in UTC.
std::string DateText(std::int64_t unix_s);

}  // namespace headrace::service

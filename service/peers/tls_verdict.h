// OpenSSL's objections to a certificate, as texts that say what to do.
#pragma once

#include <openssl/x509.h>
#include <openssl/x509_vfy.h>

#include <string>
#include <string_view>
#include <vector>

namespace headrace::service {

// How certificates are verified, beside OpenSSL's defaults: who is named as authority is one, even
// when another authority has signed it, as issuers between a root and the nodes are.
inline constexpr unsigned long kVerifyFlags = X509_V_FLAG_PARTIAL_CHAIN;

// A name's common name, fit for a log line; empty when there is none.
std::string CommonName(const X509_NAME* name);

// The nodes that a certificate speaks for: its common name, which comes first where there is one,
// and its DNS names but the service's. Fit for a log line.
std::vector<std::string> NodeNames(const X509& certificate);

struct Verdict {
  int error = X509_V_OK;
  int depth = 0;     // in the chain of signatures; 0: the peer's own certificate
  std::string name;  // of the peer's own certificate
  std::string signed_by;

  // Takes the verdict that has just been found.
  void Note(X509_STORE_CTX& judge);
  // "the certificate of "b" has expired: ..."; `authority` is the name of the one believed here.
  std::string Text(const std::string& authority) const;
  // The same without the names in the certificate, which nobody has vouched for: any local user may
  // have named the address.
  std::string TextWithoutNames(const std::string& authority) const;
};

// The reason in a kj exception about OpenSSL: "tlsv1 alert unknown ca".
std::string ReasonIn(std::string_view description);
// What it means that the other side ended the handshake with that alert, and what helps.
std::string AlertText(const std::string& reason);

}  // namespace headrace::service

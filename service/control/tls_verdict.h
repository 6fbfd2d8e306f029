// What OpenSSL holds against a certificate, in words for the person who has to put it right.
#pragma once

#include <openssl/x509.h>

#include <string>
#include <string_view>

namespace headrace::service {

// A name's common name, fit for a log line; empty when there is none.
std::string CommonName(const X509_NAME* name);

struct Verdict {
  int error = X509_V_OK;
  int depth = 0;     // in the chain of signatures; 0: the peer's own certificate
  std::string name;  // of the peer's own certificate
  std::string signed_by;

  // Takes the verdict that has just been found.
  void Note(X509_STORE_CTX& judge);
  // "the certificate of node b has expired: ..."; `authority` is the name of the one believed here.
  std::string Text(const std::string& authority) const;
};

// The reason in a kj exception about OpenSSL: "tlsv1 alert unknown ca".
std::string ReasonIn(std::string_view description);
// What it means that the other side ended the handshake with that alert, and what helps.
std::string AlertText(const std::string& reason);

}  // namespace headrace::service

// One TLS handshake over kj-tls, and why it failed.
#pragma once

#include <kj/async-io.h>
#include <kj/refcount.h>

#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "service/peers/tls_files.h"
#include "service/peers/tls_verdict.h"

namespace headrace::service {

// Owned by the handshake and by the stream below TLS: whatever happens to one of them, the other
// may still look at it or write to it.
struct HandshakeRecord : public kj::Refcounted {
  Verdict verdict;
  std::vector<std::string> node_names;  // of the peer's certificate, once it was believed
  std::array<char, 8> first{};          // bytes that the peer sent, to tell what it speaks
  std::size_t first_count = 0;

  std::string_view First() const { return {first.data(), first_count}; }
};

// Something for the service's log.
using LogLine = std::function<void(const std::string& text)>;

// The stream of a peer that has shown the right certificate, and the names in it; at least one.
struct EncryptedPeer {
  kj::Own<kj::AsyncIoStream> stream;
  std::vector<std::string> node_names;
};

// Resolves when the peer's certificate has been believed here. Errors say what is wrong with the
// peer, without naming it: "showed no certificate: ...". `files` outlives the promise. Who was
// dialled may have been named by any local user, so that what its certificate says goes to `log`
// alone.
kj::Promise<Result<EncryptedPeer>> ShakeHands(const TlsFiles& files,
                                              kj::Own<kj::AsyncIoStream> stream, bool accepted,
                                              LogLine log);

// Why a stream failed, for whoever knows more than kj's description says.
Error ExplainFailure(const HandshakeRecord& record, const kj::Exception& exception,
                     const std::string& authority_name);

}  // namespace headrace::service

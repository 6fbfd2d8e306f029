#include "service/peers/tls_handshake.h"

#include <fmt/format.h>
#include <kj/compat/tls.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

#include <algorithm>
#include <cstring>

#include "ipc/base/check.h"

namespace headrace::service {
namespace {

// kj-tls 0.9.2 says of a certificate only that its verification failed; which certificate and why
// is known to OpenSSL's callback alone, and kj offers no way to set one. An explicit instantiation
// may name a private member, so this reads the handle, and does not compile with a kj that keeps it
// elsewhere.
void* NativeOf(kj::TlsContext& context);
template <void* kj::TlsContext::*Member>
struct Reach {
  friend void* NativeOf(kj::TlsContext& context) { return context.*Member; }
};
template struct Reach<&kj::TlsContext::ctx>;

int NoteVerdict(int believed, X509_STORE_CTX* judge) {
  auto* ssl =
      static_cast<SSL*>(X509_STORE_CTX_get_ex_data(judge, SSL_get_ex_data_X509_STORE_CTX_idx()));
  HR_CHECK(ssl != nullptr);
  auto* record = static_cast<HandshakeRecord*>(SSL_CTX_get_app_data(SSL_get_SSL_CTX(ssl)));
  HR_CHECK(record != nullptr, believed);
  if (believed == 1) {
    // Called for each certificate of the chain; kj can tell of the common name alone.
    record->node_names = NodeNames(*X509_STORE_CTX_get0_cert(judge));
    return 1;
  }
  record->verdict.Note(*judge);
  return 0;
}

// A context of its own for each handshake, because the callback knows no other way to its record.
// The connection keeps what it needs of it.
kj::Own<kj::TlsContext> MakeContext(const TlsFiles& files, HandshakeRecord& record) {
  kj::TlsContext::Options options;
  options.useSystemTrustStore = false;
  options.verifyClients = true;
  options.trustedCertificates = kj::arrayPtr(files.authorities.data(), files.authorities.size());
  options.defaultKeypair = files.keypair;
  options.minVersion = kj::TlsVersion::TLS_1_2;
  auto context = kj::heap<kj::TlsContext>(kj::mv(options));
  auto* native = static_cast<SSL_CTX*>(NativeOf(*context));
  // Every peer is a service of ours and can do 1.3, which hides the certificates on the way.
  HR_CHECK(SSL_CTX_set_min_proto_version(native, TLS1_3_VERSION) == 1);
  // kj has the side that connects check the name; the side that accepts does so too.
  HR_CHECK(X509_VERIFY_PARAM_set1_host(SSL_CTX_get0_param(native), kGreeting.data(),
                                       kGreeting.size()) == 1);
  HR_CHECK(X509_VERIFY_PARAM_set_flags(SSL_CTX_get0_param(native), kVerifyFlags) == 1);
  SSL_CTX_set_verify(native, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NoteVerdict);
  HR_CHECK(SSL_CTX_set_app_data(native, &record) == 1);
  // Nobody resumes a session here.
  SSL_CTX_set_session_cache_mode(native, SSL_SESS_CACHE_OFF);
  HR_CHECK(SSL_CTX_set_num_tickets(native, 0) == 1);
  return context;
}

// A fatal alert, RFC 8446, 6: protocol_version. OpenSSL says nothing at all to what is no TLS; this
// tells a service of ours that speaks plain text why the connection ends.
constexpr std::string_view kAlert("\x15\x03\x03\x00\x02\x02\x46", 7);

// Passes everything on, and keeps the first bytes that come in.
class Tap final : public kj::AsyncIoStream {
 public:
  Tap(kj::Own<kj::AsyncIoStream> inner, kj::Own<HandshakeRecord> record)
      : inner_(kj::mv(inner)), record_(kj::mv(record)) {}

  kj::Promise<std::size_t> tryRead(void* buffer, std::size_t least, std::size_t most) override {
    auto read = inner_->tryRead(buffer, least, most);
    return read.then([this, buffer](std::size_t count) -> kj::Promise<std::size_t> {
      HandshakeRecord& record = *record_;
      HR_CHECK(record.first_count <= record.first.size(), record.first_count);
      const std::size_t kept = std::min(count, record.first.size() - record.first_count);
      std::memcpy(record.first.data() + record.first_count, buffer, kept);
      record.first_count += kept;
      if (kept == 0 || record.First() != kGreeting) return count;
      return inner_->write(kAlert.data(), kAlert.size()).then([count] { return count; });
    });
  }
  kj::Promise<void> write(const void* buffer, std::size_t size) override {
    return inner_->write(buffer, size);
  }
  kj::Promise<void> write(kj::ArrayPtr<const kj::ArrayPtr<const kj::byte>> pieces) override {
    return inner_->write(pieces);
  }
  kj::Promise<void> whenWriteDisconnected() override { return inner_->whenWriteDisconnected(); }
  void shutdownWrite() override { inner_->shutdownWrite(); }
  void abortRead() override { inner_->abortRead(); }
  void getsockopt(int level, int option, void* value, kj::uint* length) override {
    inner_->getsockopt(level, option, value, length);
  }
  void setsockopt(int level, int option, const void* value, kj::uint length) override {
    inner_->setsockopt(level, option, value, length);
  }
  void getsockname(sockaddr* address, kj::uint* length) override {
    inner_->getsockname(address, length);
  }
  void getpeername(sockaddr* address, kj::uint* length) override {
    inner_->getpeername(address, length);
  }

 private:
  kj::Own<kj::AsyncIoStream> inner_;
  kj::Own<HandshakeRecord> record_;
};

bool LooksLikeTls(std::string_view first) {
  // A record's kind (21 alert, 22 handshake) and the major version, RFC 8446, 5.1.
  return !first.empty() && (first[0] == 0x15 || first[0] == 0x16) &&
         (first.size() == 1 || first[1] == 0x03);
}

Result<EncryptedPeer> Judge(HandshakeRecord& record, kj::AuthenticatedStream authenticated) {
  auto& identity = kj::downcast<kj::TlsPeerIdentity>(*authenticated.peerIdentity);
  // kj takes an end of the connection in the middle of accepting for the end of the handshake.
  if (!identity.hasCertificate()) {
    return Error(Code::kUnavailable,
                 "closed the connection during the TLS handshake: its log says why");
  }
  if (record.node_names.empty()) {
    return Error(Code::kPermissionDenied,
                 "is refused: its certificate names no node, neither as common name nor as DNS "
                 "name: make one with `headracectl certs node`");
  }
  return EncryptedPeer{.stream = kj::mv(authenticated.stream),
                       .node_names = std::move(record.node_names)};
}

}  // namespace

Error ExplainFailure(const HandshakeRecord& record, const kj::Exception& exception,
                     const std::string& authority_name) {
  if (record.verdict.error != X509_V_OK) {
    return Error(Code::kPermissionDenied, "is refused: " + record.verdict.Text(authority_name));
  }
  const std::string_view first = record.First();
  if (first == kGreeting) {
    return Error(Code::kPermissionDenied,
                 "is refused: it speaks plain text, and this node has TLS: set tls_authority, "
                 "tls_certificate and tls_key there too (`headracectl certs node` makes them)");
  }
  if (!first.empty() && !LooksLikeTls(first)) {
    // Not what it said: who named the address as a rendezvous may be one who may not speak with it.
    return Error(Code::kCorrupt,
                 "is no Headrace service: it speaks neither TLS nor plain text of ours");
  }
  const std::string reason = ReasonIn(exception.getDescription().cStr());
  if (reason.find("did not return a certificate") != std::string::npos) {
    return Error(Code::kPermissionDenied,
                 "is refused: it showed no certificate: make one with `headracectl certs node`");
  }
  if (reason.find(" alert ") != std::string::npos) {
    return Error(Code::kPermissionDenied, AlertText(reason));
  }
  const bool ended = exception.getType() == kj::Exception::Type::DISCONNECTED || first.empty() ||
                     reason.find("unexpected eof") != std::string::npos ||
                     reason.find("no certificate") != std::string::npos;
  if (ended) {
    return Error(Code::kUnavailable,
                 "closed the connection during the TLS handshake: its log says why");
  }
  return Error(Code::kUnavailable, "failed in the TLS handshake: " + reason);
}

kj::Promise<Result<EncryptedPeer>> ShakeHands(const TlsFiles& files,
                                              kj::Own<kj::AsyncIoStream> stream, bool accepted,
                                              LogLine log) {
  auto record = kj::refcounted<HandshakeRecord>();
  auto context = MakeContext(files, *record);
  // Errors of others left in OpenSSL's queue would be taken for this connection's.
  ERR_clear_error();
  kj::AuthenticatedStream below{kj::heap<Tap>(kj::mv(stream), kj::addRef(*record)),
                                kj::UnknownPeerIdentity::newInstance()};
  auto wrapped = kj::evalNow([&] {
    return accepted ? context->wrapServer(kj::mv(below))
                    : context->wrapClient(kj::mv(below), kGreeting.data());
  });
  return wrapped
      .then(
          [&record = *record](kj::AuthenticatedStream authenticated) {
            return Judge(record, kj::mv(authenticated));
          },
          [&record = *record, &files, accepted,
           log = std::move(log)](kj::Exception&& exception) -> Result<EncryptedPeer> {
            if (accepted || record.verdict.error == X509_V_OK) {
              return ExplainFailure(record, exception, files.authority_name);
            }
            log("is refused: " + record.verdict.Text(files.authority_name));
            return Error(
                Code::kPermissionDenied,
                fmt::format("is refused: {}; this service's log has the certificate's names",
                            record.verdict.TextWithoutNames(files.authority_name)));
          })
      .attach(kj::mv(record), kj::mv(context));
}

}  // namespace headrace::service

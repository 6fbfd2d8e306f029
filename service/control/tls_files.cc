#include "service/control/tls_files.h"

#include <fmt/format.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <array>
#include <ctime>
#include <string_view>

#include "ipc/base/file.h"
#include "ipc/base/unique_handle.h"
#include "service/control/tls_verdict.h"

namespace headrace::service {
namespace {

constexpr std::string_view kWhatNot = "neither key nor certificate";

template <typename T, void (*Free)(T*)>
struct OpensslTraits {
  using Value = T*;
  static Value None() { return nullptr; }
  static void Release(Value value) { Free(value); }
};
void FreeBio(BIO* bio) { BIO_free(bio); }
using UniqueBio = UniqueHandle<OpensslTraits<BIO, FreeBio>>;
using UniqueCertificate = UniqueHandle<OpensslTraits<X509, X509_free>>;
using UniqueKey = UniqueHandle<OpensslTraits<EVP_PKEY, EVP_PKEY_free>>;
using UniqueStore = UniqueHandle<OpensslTraits<X509_STORE, X509_STORE_free>>;
using UniqueJudge = UniqueHandle<OpensslTraits<X509_STORE_CTX, X509_STORE_CTX_free>>;

Error Wrong(std::string text) { return Error(Code::kInvalidArgument, std::move(text)); }

UniqueBio BioOf(const std::string& text) {
  return UniqueBio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

// A key with a password would make OpenSSL ask for it on the terminal.
int NoPassword(char*, int, int, void*) { return 0; }

Result<UniqueCertificate> ParseCertificate(const std::string& path, const std::string& text) {
  UniqueCertificate parsed(PEM_read_bio_X509(BioOf(text).get(), nullptr, NoPassword, nullptr));
  ERR_clear_error();
  if (!parsed) return Wrong(path + " holds no certificate in PEM form");
  return parsed;
}

Result<UniqueKey> ParseKey(const std::string& path, const std::string& text) {
  UniqueKey parsed(PEM_read_bio_PrivateKey(BioOf(text).get(), nullptr, NoPassword, nullptr));
  ERR_clear_error();
  if (!parsed) return Wrong(path + " holds no key in PEM form without a password");
  return parsed;
}

// What another node will find; both as the side that listens and as the side that connects.
Status Verify(const PeerSecurityOptions& options, X509& certificate, X509& authority) {
  const std::string authority_name = CommonName(X509_get_subject_name(&authority));
  for (const int purpose : {X509_PURPOSE_SSL_SERVER, X509_PURPOSE_SSL_CLIENT}) {
    const UniqueStore store(X509_STORE_new());
    const UniqueJudge judge(X509_STORE_CTX_new());
    HR_CHECK(store && judge && X509_STORE_add_cert(store.get(), &authority) == 1);
    HR_CHECK(X509_STORE_CTX_init(judge.get(), store.get(), &certificate, nullptr) == 1);
    X509_STORE_CTX_set_purpose(judge.get(), purpose);
    X509_VERIFY_PARAM_set1_host(X509_STORE_CTX_get0_param(judge.get()), kGreeting.data(),
                                kGreeting.size());
    const bool believed = X509_verify_cert(judge.get()) == 1;
    ERR_clear_error();
    if (believed) continue;
    Verdict verdict;
    verdict.Note(*judge.get());
    return Wrong(fmt::format("{}: {}", options.certificate_path, verdict.Text(authority_name)));
  }
  return {};
}

Status Check(const PeerSecurityOptions& options, X509& certificate, EVP_PKEY& key,
             X509& authority) {
  const bool pair = X509_check_private_key(&certificate, &key) == 1;
  ERR_clear_error();
  if (!pair) {
    return Wrong(
        fmt::format("the key {} does not belong to the certificate {}: `headracectl certs "
                    "node` makes both at once",
                    options.key_path, options.certificate_path));
  }
  if (Status status = Verify(options, certificate, authority); !status) return status;
  const std::string name = CommonName(X509_get_subject_name(&certificate));
  if (name == options.node_name) return {};
  return Wrong(
      fmt::format("{} is the certificate of node {}, but this node is called {}: set "
                  "node_name to {}, or make a certificate with `headracectl certs node {}`",
                  options.certificate_path, name, options.node_name, name, options.node_name));
}

std::int64_t UntilOf(const X509& certificate) {
  std::tm parts{};
  return ASN1_TIME_to_tm(X509_get0_notAfter(&certificate), &parts) == 1 ? ::timegm(&parts) : 0;
}

}  // namespace

std::string DateText(std::int64_t unix_s) {
  const std::time_t seconds = unix_s;
  std::tm parts{};
  ::gmtime_r(&seconds, &parts);
  std::array<char, 24> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%d", &parts);
  return text.data();
}

Result<std::unique_ptr<TlsFiles>> ReadTlsFiles(const PeerSecurityOptions& options) {
  const Result<std::string> authority_text = ReadSmallFile(options.authority_path, kWhatNot);
  if (!authority_text) return authority_text.error().Within("tls_authority");
  const Result<std::string> text = ReadSmallFile(options.certificate_path, kWhatNot);
  if (!text) return text.error().Within("tls_certificate");
  const Result<std::string> key_text = ReadSmallFile(options.key_path, kWhatNot);
  if (!key_text) return key_text.error().Within("tls_key");
  const Result<UniqueCertificate> authority =
      ParseCertificate(options.authority_path, *authority_text);
  if (!authority) return authority.error().Within("tls_authority");
  const Result<UniqueCertificate> certificate = ParseCertificate(options.certificate_path, *text);
  if (!certificate) return certificate.error().Within("tls_certificate");
  const Result<UniqueKey> key = ParseKey(options.key_path, *key_text);
  if (!key) return key.error().Within("tls_key");
  if (Status status = Check(options, *certificate->get(), *key->get(), *authority->get());
      !status) {
    return status.error();
  }
  std::unique_ptr<TlsFiles> files;
  KJ_IF_MAYBE (exception, kj::runCatchingExceptions([&] {
                 files = std::make_unique<TlsFiles>(
                     TlsFiles{.keypair = {.privateKey = kj::TlsPrivateKey(key_text->c_str()),
                                          .certificate = kj::TlsCertificate(text->c_str())},
                              .authority = kj::TlsCertificate(authority_text->c_str()),
                              .authority_name = CommonName(X509_get_subject_name(authority->get())),
                              .until_unix_s = UntilOf(*certificate->get())});
               })) {
    return Wrong(
        fmt::format("{}: {}", options.certificate_path, exception->getDescription().cStr()));
  }
  return files;
}

}  // namespace headrace::service

#include "service/peers/tls_files.h"

#include <fmt/format.h>
#include <kj/common.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <limits>
#include <string_view>
#include <utility>
#include <vector>

#include "ipc/base/file.h"
#include "ipc/base/unique_handle.h"
#include "service/loop/text.h"
#include "service/peers/tls_verdict.h"

namespace headrace::service {
namespace {

constexpr std::string_view kWhatNot = "neither key nor certificate";
constexpr std::size_t kCertificatesMax = 32;  // of one file; kj takes chains of 10

template <typename T, void (*Free)(T*)>
struct OpensslTraits {
  using Value = T*;
  static Value None() { return nullptr; }
  static void Release(Value value) { Free(value); }
};
void FreeBio(BIO* bio) { BIO_free(bio); }
void FreeStack(STACK_OF(X509) * stack) { sk_X509_free(stack); }
using UniqueBio = UniqueHandle<OpensslTraits<BIO, FreeBio>>;
using UniqueCertificate = UniqueHandle<OpensslTraits<X509, X509_free>>;
using UniqueKey = UniqueHandle<OpensslTraits<EVP_PKEY, EVP_PKEY_free>>;
using UniqueStore = UniqueHandle<OpensslTraits<X509_STORE, X509_STORE_free>>;
using UniqueStack = UniqueHandle<OpensslTraits<STACK_OF(X509), FreeStack>>;
using UniqueJudge = UniqueHandle<OpensslTraits<X509_STORE_CTX, X509_STORE_CTX_free>>;

Error Wrong(std::string text) { return Error(Code::kInvalidArgument, std::move(text)); }

UniqueBio BioOf(const std::string& text) {
  UniqueBio bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
  HR_CHECK(bio, text.size());
  return bio;
}

// A key with a password would make OpenSSL ask for it on the terminal.
int NoPassword(char*, int, int, void*) { return 0; }

// All certificates of a file, in its order; at least one. What stands between them is no concern.
Result<std::vector<UniqueCertificate>> ParseCertificates(const std::string& path,
                                                         const std::string& text) {
  const UniqueBio bio = BioOf(text);
  std::vector<UniqueCertificate> parsed;
  while (UniqueCertificate next{PEM_read_bio_X509(bio.get(), nullptr, NoPassword, nullptr)}) {
    parsed.push_back(std::move(next));
    if (parsed.size() > kCertificatesMax) {
      return Wrong(
          fmt::format("{} holds more than {} certificates: a file of its own for this "
                      "cluster's authorities is asked for",
                      path, kCertificatesMax));
    }
  }
  const unsigned long error = ERR_peek_last_error();
  ERR_clear_error();
  if (parsed.empty()) return Wrong(path + " holds no certificate in PEM form");
  // The end of the file is the one error that is none: half a certificate is another.
  if (ERR_GET_REASON(error) == PEM_R_NO_START_LINE) return parsed;
  return Wrong(fmt::format("{} is damaged after its certificate number {}", path, parsed.size()));
}

Result<UniqueKey> ParseKey(const std::string& path, const std::string& text) {
  UniqueKey parsed(PEM_read_bio_PrivateKey(BioOf(text).get(), nullptr, NoPassword, nullptr));
  ERR_clear_error();
  if (!parsed) return Wrong(path + " holds no key in PEM form without a password");
  return parsed;
}

struct Pems {
  std::vector<UniqueCertificate> authorities;
  std::vector<UniqueCertificate>
      chain;  // this node's certificate, and those that lead to an authority
  UniqueKey key;

  X509& certificate() const { return *chain.front().get(); }
};

std::string AuthorityNames(const std::vector<UniqueCertificate>& authorities) {
  std::vector<std::string> names;
  for (const UniqueCertificate& each : authorities) {
    names.push_back(CommonName(X509_get_subject_name(each.get())));
  }
  return fmt::format("{}", fmt::join(names, "\" or \""));
}

std::int64_t SecondsOf(const ASN1_TIME* time) {
  std::tm parts{};
  return ASN1_TIME_to_tm(time, &parts) == 1 ? ::timegm(&parts) : 0;
}

// The narrowest time of those that signed; `signers` has the node's own certificate first.
void NoteSigners(const STACK_OF(X509) * signers, TlsFiles& files) {
  files.authority_from_unix_s = 0;
  files.authority_until_unix_s = std::numeric_limits<std::int64_t>::max();
  const int count = sk_X509_num(signers);
  HR_CHECK(count > 0, count);  // of a certificate that was believed
  for (int i = count == 1 ? 0 : 1; i < count; ++i) {
    const X509* signer = sk_X509_value(signers, i);
    const std::int64_t until_unix_s = SecondsOf(X509_get0_notAfter(signer));
    if (until_unix_s >= files.authority_until_unix_s) continue;
    files.authority_until_unix_s = until_unix_s;
    files.authority_from_unix_s = SecondsOf(X509_get0_notBefore(signer));
  }
}

// What another node will find; both as the side that listens and as the side that connects.
Status Verify(const PeerSecurityOptions& options, const Pems& pems, TlsFiles& files) {
  const UniqueStack between(sk_X509_new_null());
  HR_CHECK(between);
  for (const UniqueCertificate& each : pems.chain) {
    HR_CHECK(sk_X509_push(between.get(), each.get()) > 0);  // borrowed
  }
  for (const int purpose : {X509_PURPOSE_SSL_SERVER, X509_PURPOSE_SSL_CLIENT}) {
    const UniqueStore store(X509_STORE_new());
    const UniqueJudge judge(X509_STORE_CTX_new());
    HR_CHECK(store && judge);
    for (const UniqueCertificate& each : pems.authorities) {
      HR_CHECK(X509_STORE_add_cert(store.get(), each.get()) == 1);
    }
    HR_CHECK(X509_STORE_CTX_init(judge.get(), store.get(), &pems.certificate(), between.get()) ==
             1);
    // One that did not take hold would believe what other nodes refuse.
    HR_CHECK(X509_STORE_CTX_set_purpose(judge.get(), purpose) == 1, purpose);
    X509_VERIFY_PARAM* parameters = X509_STORE_CTX_get0_param(judge.get());
    HR_CHECK(X509_VERIFY_PARAM_set_flags(parameters, kVerifyFlags) == 1);
    HR_CHECK(X509_VERIFY_PARAM_set1_host(parameters, kGreeting.data(), kGreeting.size()) == 1);
    const bool believed = X509_verify_cert(judge.get()) == 1;
    ERR_clear_error();
    if (believed) {
      NoteSigners(X509_STORE_CTX_get0_chain(judge.get()), files);
      continue;
    }
    Verdict verdict;
    verdict.Note(*judge.get());
    return Wrong(
        fmt::format("{}: {}", options.certificate_path, verdict.Text(files.authority_name)));
  }
  return {};
}

Status CheckName(const PeerSecurityOptions& options, const X509& certificate) {
  const std::vector<std::string> names = NodeNames(certificate);
  if (std::ranges::find(names, options.node_name) != names.end()) return {};
  if (names.empty()) {
    return Wrong(
        fmt::format("{} names no node, neither as common name nor as DNS name: make a "
                    "certificate with `headracectl certs node {}`",
                    options.certificate_path, options.node_name));
  }
  return Wrong(
      fmt::format("{} is the certificate of node {}, but this node is called {}: set "
                  "node_name to {}, or make a certificate with `headracectl certs node {}`",
                  options.certificate_path, fmt::join(names, " or "), options.node_name,
                  names.front(), options.node_name));
}

Status Check(const PeerSecurityOptions& options, const Pems& pems, TlsFiles& files) {
  const bool pair = X509_check_private_key(&pems.certificate(), pems.key.get()) == 1;
  ERR_clear_error();
  if (!pair) {
    return Wrong(
        fmt::format("the key {} does not belong to the certificate {}: `headracectl certs "
                    "node` makes both at once",
                    options.key_path, options.certificate_path));
  }
  for (const UniqueCertificate& each : pems.authorities) {
    if (X509_check_ca(each.get()) != 0) continue;
    return Wrong(
        fmt::format("tls_authority: {} holds the certificate of \"{}\", which is no "
                    "authority and cannot sign others",
                    options.authority_path, CommonName(X509_get_subject_name(each.get()))));
  }
  if (Status status = Verify(options, pems, files); !status) return status;
  return CheckName(options, pems.certificate());
}

kj::TlsCertificate KjCertificate(const X509& certificate) {
  unsigned char* bytes = nullptr;
  const int size = i2d_X509(&certificate, &bytes);
  HR_CHECK(size > 0);
  const kj::ArrayPtr<const kj::byte> der(bytes, static_cast<std::size_t>(size));
  KJ_DEFER(OPENSSL_free(bytes));
  return kj::TlsCertificate(der);
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
  if (options.authority_path.empty() || options.certificate_path.empty() ||
      options.key_path.empty()) {
    return Wrong("tls_authority, tls_certificate and tls_key belong together: set all or none");
  }
  const Result<std::string> authority_text = ReadSmallFile(options.authority_path, kWhatNot);
  if (!authority_text) return authority_text.error().Within("tls_authority");
  const Result<std::string> text = ReadSmallFile(options.certificate_path, kWhatNot);
  if (!text) return text.error().Within("tls_certificate");
  const Result<std::string> key_text = ReadSmallFile(options.key_path, kWhatNot);
  if (!key_text) return key_text.error().Within("tls_key");
  Result<std::vector<UniqueCertificate>> authorities =
      ParseCertificates(options.authority_path, *authority_text);
  if (!authorities) return authorities.error().Within("tls_authority");
  Result<std::vector<UniqueCertificate>> chain = ParseCertificates(options.certificate_path, *text);
  if (!chain) return chain.error().Within("tls_certificate");
  Result<UniqueKey> key = ParseKey(options.key_path, *key_text);
  if (!key) return key.error().Within("tls_key");
  const Pems pems{.authorities = std::move(authorities).value(),
                  .chain = std::move(chain).value(),
                  .key = std::move(key).value()};
  std::unique_ptr<TlsFiles> files;
  KJ_IF_MAYBE (exception, kj::runCatchingExceptions([&] {
                 files = std::make_unique<TlsFiles>(
                     TlsFiles{.keypair = {.privateKey = kj::TlsPrivateKey(key_text->c_str()),
                                          .certificate = kj::TlsCertificate(text->c_str())},
                              .authorities = {},
                              .authority_name = AuthorityNames(pems.authorities),
                              .from_unix_s = SecondsOf(X509_get0_notBefore(&pems.certificate())),
                              .until_unix_s = SecondsOf(X509_get0_notAfter(&pems.certificate()))});
                 for (const UniqueCertificate& each : pems.authorities) {
                   files->authorities.push_back(KjCertificate(*each.get()));
                 }
               })) {
    return Wrong(fmt::format("{}: {}", options.certificate_path, CauseOf(*exception)));
  }
  if (Status status = Check(options, pems, *files); !status) return status.error();
  return files;
}

Status CheckTlsFiles(const PeerSecurityOptions& options) {
  if (!options.has_files()) return {};
  const Result<std::unique_ptr<TlsFiles>> files = ReadTlsFiles(options);
  return files ? Status() : Status(files.error());
}

}  // namespace headrace::service

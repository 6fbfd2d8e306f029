#include "client/cli/ctl/certs.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "client/cli/ctl/certs_files.h"
#include "client/cli/ctl/certs_host.h"
#include "client/cli/ctl/openssl.h"

namespace headrace::ctl {
namespace {

constexpr std::int64_t kDay = 24 * 3600;
// Clocks of nodes differ, and a certificate shall be good at once on all of them.
constexpr std::int64_t kBackdated = 3600;
constexpr int kSerialBits = 159;  // RFC 5280, 4.1.2.2: positive, at most 20 bytes
constexpr std::size_t kNodeNameMax = 63;
constexpr unsigned kKeyMode = 0600;
constexpr unsigned kCertificateMode = 0644;

Error Wrong(std::string text) { return Error(Code::kInvalidArgument, std::move(text)); }
Error Failed(std::string_view doing) { return OpensslError(Code::kInternal, doing); }

// As the service checks its node_name; a name that is a folder of its own is no file's either.
Status CheckName(std::string_view name) {
  const bool fits = !name.empty() && name.size() <= kNodeNameMax && name != "." && name != "..";
  const bool printable = std::all_of(name.begin(), name.end(), [](char letter) {
    return letter > ' ' && letter <= '~' && letter != ',' && letter != '=' && letter != '/';
  });
  if (fits && printable) return {};
  return Wrong(
      fmt::format("\"{}\" cannot name a node: 1 to {} bytes of printable ASCII without "
                  "blanks, \",\", \"=\" and \"/\" are possible",
                  name.substr(0, kNodeNameMax), kNodeNameMax));
}

Status CheckDays(int days) {
  if (days >= 1 && days <= kDaysMax) return {};
  return Wrong(fmt::format("{} days, 1 to {} are possible", days, kDaysMax));
}

Result<std::string> RandomHex() {
  UniqueNumber number(BN_new());
  if (!number || BN_rand(number.get(), 24, BN_RAND_TOP_ANY, BN_RAND_BOTTOM_ANY) != 1) {
    return Failed("draw a random number");
  }
  return fmt::format("{:06x}", static_cast<unsigned>(BN_get_word(number.get())));
}

Status SetSerial(X509& certificate) {
  UniqueNumber number(BN_new());
  const bool drawn =
      number && BN_rand(number.get(), kSerialBits, BN_RAND_TOP_ANY, BN_RAND_BOTTOM_ANY) == 1;
  if (!drawn || BN_to_ASN1_INTEGER(number.get(), X509_get_serialNumber(&certificate)) == nullptr) {
    return Failed("set a serial number");
  }
  return {};
}

Status SetName(X509_NAME* name, const std::string& common_name) {
  const auto* bytes = reinterpret_cast<const unsigned char*>(common_name.data());
  if (X509_NAME_add_entry_by_NID(name, NID_commonName, MBSTRING_UTF8, bytes,
                                 static_cast<int>(common_name.size()), -1, 0) != 1) {
    return Failed("set the name " + common_name);
  }
  return {};
}

// Everything that authority and nodes have in common. `until_unix_s` is the first second after.
Result<UniqueCertificate> Blank(EVP_PKEY& key, const std::string& common_name,
                                std::int64_t from_unix_s, std::int64_t until_unix_s) {
  UniqueCertificate certificate(X509_new());
  if (!certificate) return Failed("make a certificate");
  X509& made = *certificate.get();
  const bool filled = X509_set_version(&made, X509_VERSION_3) == 1 &&
                      X509_set_pubkey(&made, &key) == 1 &&
                      ASN1_TIME_set(X509_getm_notBefore(&made), from_unix_s) != nullptr &&
                      ASN1_TIME_set(X509_getm_notAfter(&made), until_unix_s) != nullptr;
  if (!filled) return Failed("fill a certificate in");
  if (Status status = SetSerial(made); !status) return status.error();
  if (Status status = SetName(X509_get_subject_name(&made), common_name); !status) {
    return status.error();
  }
  return certificate;
}

// Only with constant values: OpenSSL's small language for them knows commas and sections.
Status Extend(X509& certificate, X509& issuer, int kind, const char* value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, &issuer, &certificate, nullptr, nullptr, 0);
  const UniqueExtension extension(X509V3_EXT_conf_nid(nullptr, &context, kind, value));
  if (!extension || X509_add_ext(&certificate, extension.get(), -1) != 1) {
    return Failed(fmt::format("add the extension {}", OBJ_nid2sn(kind)));
  }
  return {};
}

Status Sign(X509& certificate, X509& issuer, EVP_PKEY& key) {
  const bool done = X509_set_issuer_name(&certificate, X509_get_subject_name(&issuer)) == 1 &&
                    X509_sign(&certificate, &key, EVP_sha256()) > 0;
  return done ? Status() : Failed("sign a certificate");
}

Status AddNames(X509& certificate, const NodeRequest& request) {
  std::vector<std::string> hosts = {std::string(kServiceName), request.name};
  hosts.insert(hosts.end(), request.hosts.begin(), request.hosts.end());
  const UniqueNames names(GENERAL_NAMES_new());
  if (!names) return Failed("make a list of names");
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    const auto here = hosts.begin() + static_cast<std::ptrdiff_t>(i);
    if (std::find(hosts.begin(), here, hosts[i]) != here) continue;
    if (Status status = AddHost(*names.get(), hosts[i]); !status) return status;
  }
  if (X509_add1_ext_i2d(&certificate, NID_subject_alt_name, names.get(), 0, 0) != 1) {
    return Failed("add the names");
  }
  return {};
}

// Asked before anything is made, so that a refusal leaves nothing behind.
Status CheckFree(const CertificatePaths& paths, bool force) {
  for (const std::string& path : {paths.certificate, paths.key}) {
    if (!force && ::access(path.c_str(), F_OK) == 0) {
      return Error(Code::kAlreadyExists,
                   path + " exists: choose another --out, or overwrite it with --force");
    }
  }
  return {};
}

Status WritePair(const CertificatePaths& paths, X509& certificate, EVP_PKEY& key, bool force,
                 const std::string& owner = {}) {
  const Result<std::string> key_text = PemOf(key);
  if (!key_text) return key_text.error();
  const Result<std::string> text = PemOf(certificate);
  if (!text) return text.error();
  if (Status status = WriteText(paths.key, *key_text, kKeyMode, force, owner); !status) {
    return status;
  }
  return WriteText(paths.certificate, *text, kCertificateMode, force, owner);
}

struct Authority {
  UniqueCertificate certificate;
  UniqueKey key;
  std::string text;  // of the certificate
  std::int64_t until_unix_s = 0;
};

Result<Authority> ReadAuthority(const NodeRequest& request) {
  const std::string path = request.authority + "/authority.crt";
  Result<UniqueCertificate> certificate = ReadCertificate(path);
  if (!certificate) {
    return certificate.error().Within("read the authority (made by `headracectl certs authority`)");
  }
  Result<UniqueKey> key = ReadKey(request.authority + "/authority.key");
  if (!key) return key.error();
  if (X509_check_ca(certificate->get()) != 1) {
    return Wrong(path + " is not an authority's certificate, and cannot sign others");
  }
  if (X509_check_private_key(certificate->get(), key->get()) != 1) {
    return OpensslError(
        Code::kInvalidArgument,
        fmt::format("{0}/authority.key does not belong to {0}/authority.crt", request.authority));
  }
  Result<std::string> text = PemOf(*certificate->get());
  if (!text) return text.error();
  const std::int64_t until = UnixSeconds(X509_get0_notAfter(certificate->get()));
  if (until <= request.now_unix_s) {
    return Error(Code::kUnavailable, path +
                                         " has expired: make a new authority, and new "
                                         "certificates for all nodes");
  }
  return Authority{.certificate = std::move(certificate).value(),
                   .key = std::move(key).value(),
                   .text = std::move(text).value(),
                   .until_unix_s = until};
}

Result<UniqueCertificate> SignNode(const NodeRequest& request, Authority& authority,
                                   EVP_PKEY& key) {
  Result<UniqueCertificate> certificate =
      Blank(key, request.name, request.now_unix_s - kBackdated,
            std::min(request.now_unix_s + request.days * kDay, authority.until_unix_s));
  if (!certificate) return certificate.error();
  X509& made = *certificate->get();
  X509& issuer = *authority.certificate.get();
  for (const auto& [kind, value] : {std::pair{NID_basic_constraints, "critical,CA:FALSE"},
                                    std::pair{NID_key_usage, "critical,digitalSignature"},
                                    std::pair{NID_ext_key_usage, "serverAuth,clientAuth"},
                                    std::pair{NID_subject_key_identifier, "hash"},
                                    std::pair{NID_authority_key_identifier, "keyid:always"}}) {
    if (Status status = Extend(made, issuer, kind, value); !status) return status.error();
  }
  if (Status status = AddNames(made, request); !status) return status.error();
  if (Status status = Sign(made, issuer, *authority.key.get()); !status) return status.error();
  return certificate;
}

// The authority's certificate beside the node's: the service needs all three files.
Status CopyAuthority(const std::string& path, const std::string& text, bool force) {
  const Result<std::string> there = ReadText(path);
  if (there && *there == text) return {};
  return WriteText(path, text, kCertificateMode, force);
}

}  // namespace

Result<CertificatePaths> MakeAuthority(const AuthorityRequest& request) {
  const CertificatePaths paths = {.authority = request.out + "/authority.crt",
                                  .certificate = request.out + "/authority.crt",
                                  .key = request.out + "/authority.key"};
  if (Status status = CheckDays(request.days); !status) return status.error();
  if (Status status = MakeFolder(request.out, 0700); !status) return status.error();
  if (Status status = CheckFree(paths, request.force); !status) return status.error();
  // Two authorities differ by name too, so that an error can say which one is meant.
  const Result<std::string> mark = RandomHex();
  if (!mark) return mark.error();
  const UniqueKey key(EVP_EC_gen("P-256"));
  if (!key) return Failed("make a key");
  const Result<UniqueCertificate> certificate =
      Blank(*key.get(), "Headrace authority " + *mark, request.now_unix_s - kBackdated,
            request.now_unix_s + request.days * kDay);
  if (!certificate) return certificate.error();
  X509& made = *certificate->get();
  for (const auto& [kind, value] : {std::pair{NID_basic_constraints, "critical,CA:TRUE,pathlen:0"},
                                    std::pair{NID_key_usage, "critical,keyCertSign,cRLSign"},
                                    std::pair{NID_subject_key_identifier, "hash"}}) {
    if (Status status = Extend(made, made, kind, value); !status) return status.error();
  }
  if (Status status = Sign(made, made, *key.get()); !status) return status.error();
  if (Status status = WritePair(paths, made, *key.get(), request.force); !status) {
    return status.error();
  }
  return paths;
}

Result<CertificatePaths> MakeNodeCertificate(const NodeRequest& request) {
  const CertificatePaths paths = {.authority = request.out + "/authority.crt",
                                  .certificate = request.out + "/" + request.name + ".crt",
                                  .key = request.out + "/" + request.name + ".key"};
  if (Status status = CheckName(request.name); !status) return status.error();
  if (Status status = CheckDays(request.days); !status) return status.error();
  if (request.name == "authority") {
    return Wrong("a node called authority would take the authority's files: call it otherwise");
  }
  if (request.hosts.size() > kHostsMax) {
    return Wrong(fmt::format("{} hosts, at most {} are possible", request.hosts.size(), kHostsMax));
  }
  Result<Authority> authority = ReadAuthority(request);
  if (!authority) return authority.error();
  if (Status status = MakeFolder(request.out, 0755); !status) return status.error();
  if (Status status = CheckFree(paths, request.force); !status) return status.error();
  const UniqueKey key(EVP_EC_gen("P-256"));
  if (!key) return Failed("make a key");
  const Result<UniqueCertificate> certificate = SignNode(request, *authority, *key.get());
  if (!certificate) return certificate.error();
  if (Status status = CopyAuthority(paths.authority, authority->text, request.force); !status) {
    return status.error();
  }
  if (Status status =
          WritePair(paths, *certificate->get(), *key.get(), request.force, request.owner);
      !status) {
    return status.error();
  }
  return paths;
}

}  // namespace headrace::ctl

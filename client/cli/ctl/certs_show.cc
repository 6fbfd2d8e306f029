#include "client/cli/ctl/certs_show.h"

#include <arpa/inet.h>
#include <fmt/format.h>

#include <array>
#include <ctime>

#include "client/cli/ctl/certs_files.h"
#include "client/cli/ctl/openssl.h"
#include "client/cli/ctl/table.h"
#include "ipc/base/foreign_text.h"

namespace headrace::ctl {
namespace {

std::string Utc(std::int64_t unix_s) {
  const std::time_t seconds = unix_s;
  std::tm parts{};
  ::gmtime_r(&seconds, &parts);
  std::array<char, 40> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M:%SZ", &parts);
  return text.data();
}

std::string TextOf(const ASN1_STRING* text) {
  return {reinterpret_cast<const char*>(ASN1_STRING_get0_data(text)),
          static_cast<std::size_t>(ASN1_STRING_length(text))};
}

std::string CommonName(X509_NAME* name) {
  const int place = X509_NAME_get_index_by_NID(name, NID_commonName, -1);
  if (place < 0) return "";
  return TextOf(X509_NAME_ENTRY_get_data(X509_NAME_get_entry(name, place)));
}

// As text; nothing for kinds of names that are neither hosts nor addresses.
std::string NameText(const GENERAL_NAME& name) {
  if (name.type == GEN_DNS) return TextOf(name.d.dNSName);
  if (name.type != GEN_IPADD) return "";
  const std::string bytes = TextOf(name.d.iPAddress);
  std::array<char, INET6_ADDRSTRLEN> text{};
  const int family = bytes.size() == 4 ? AF_INET : AF_INET6;
  if (bytes.size() != 4 && bytes.size() != 16) return "";
  return ::inet_ntop(family, bytes.data(), text.data(), text.size());
}

std::vector<std::string> NamesOf(const X509& certificate) {
  const UniqueNames names(static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(&certificate, NID_subject_alt_name, nullptr, nullptr)));
  std::vector<std::string> texts;
  if (!names) return texts;
  for (int i = 0; i < sk_GENERAL_NAME_num(names.get()); ++i) {
    std::string text = NameText(*sk_GENERAL_NAME_value(names.get(), i));
    if (!text.empty()) texts.push_back(std::move(text));
  }
  return texts;
}

Result<std::string> Fingerprint(const X509& certificate) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned size = 0;
  if (X509_digest(&certificate, EVP_sha256(), digest.data(), &size) != 1) {
    return OpensslError(Code::kInternal, "digest a certificate");
  }
  return fmt::format("{:02x}", fmt::join(digest.begin(), digest.begin() + size, ""));
}

std::string StateAt(const CertificateText& certificate, std::int64_t now_unix_s) {
  if (certificate.ValidAt(now_unix_s)) return "valid";
  return now_unix_s < certificate.from_unix_s ? "not valid yet" : "expired";
}

}  // namespace

Result<CertificateText> ReadCertificateText(const std::string& path) {
  const Result<UniqueCertificate> read = ReadCertificate(path);
  if (!read) return read.error();
  X509& certificate = *read->get();
  Result<std::string> fingerprint = Fingerprint(certificate);
  if (!fingerprint) return fingerprint.error();
  return CertificateText{.path = path,
                         .name = CommonName(X509_get_subject_name(&certificate)),
                         .signed_by = CommonName(X509_get_issuer_name(&certificate)),
                         .authority = X509_check_ca(&certificate) == 1,
                         .names = NamesOf(certificate),
                         .from_unix_s = UnixSeconds(X509_get0_notBefore(&certificate)),
                         .until_unix_s = UnixSeconds(X509_get0_notAfter(&certificate)),
                         .fingerprint = std::move(fingerprint).value()};
}

std::string CertificateTable(const CertificateText& certificate, std::int64_t now_unix_s) {
  std::vector<std::string> names;
  for (const std::string& name : certificate.names) names.push_back(Printable(name));
  Table table({{"KEY"}, {"VALUE"}});
  table.Add({"file", certificate.path});
  table.Add({certificate.authority ? "authority" : "node", Printable(certificate.name)});
  table.Add({"signed by", Printable(certificate.signed_by)});
  table.Add({"names", fmt::format("{}", fmt::join(names, ", "))});
  table.Add({"from", Utc(certificate.from_unix_s)});
  table.Add({"until", Utc(certificate.until_unix_s)});
  table.Add({"state", StateAt(certificate, now_unix_s)});
  table.Add({"sha256", certificate.fingerprint});
  return table.Render(false);
}

Json CertificateJson(const CertificateText& certificate, std::int64_t now_unix_s) {
  Json names = Json::array();
  for (const std::string& name : certificate.names) names.push_back(JsonText(name));
  return {{"file", JsonText(certificate.path)},
          {"name", JsonText(certificate.name)},
          {"authority", certificate.authority},
          {"signed_by", JsonText(certificate.signed_by)},
          {"names", names},
          {"from_unix_s", certificate.from_unix_s},
          {"until_unix_s", certificate.until_unix_s},
          {"state", StateAt(certificate, now_unix_s)},
          {"sha256", certificate.fingerprint}};
}

}  // namespace headrace::ctl

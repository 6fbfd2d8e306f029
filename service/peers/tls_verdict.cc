#include "service/peers/tls_verdict.h"

#include <fmt/format.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <memory>

#include "ipc/base/foreign_text.h"
#include "service/peers/tls_options.h"

namespace headrace::service {
namespace {

constexpr std::size_t kNameMax = 64;  // of a common name, by X.520
constexpr std::size_t kReasonMax = 200;
constexpr std::size_t kNodeNamesMax = 1024;  // of one certificate; more are not looked at

std::string TextOf(const ASN1_STRING* text) {
  return Printable({reinterpret_cast<const char*>(ASN1_STRING_get0_data(text)),
                    static_cast<std::size_t>(ASN1_STRING_length(text))},
                   kNameMax);
}

// How a certificate is spoken of.
struct Quoted {
  std::string whose;   // is wrong: the peer's, or one that signed it
  std::string own;     // of the peer
  std::string signer;  // of the peer's
  std::string node;    // whose certificate is to be made
};

std::string Explain(int error, int depth, const Quoted& quoted) {
  const std::string remedy =
      depth == 0 ? fmt::format("make one with `headracectl certs node {}`", quoted.node)
                 : "make a new authority and certificates for all nodes with `headracectl certs`";
  switch (error) {
    case X509_V_ERR_CERT_HAS_EXPIRED:
      return fmt::format("{} has expired: {}", quoted.whose, remedy);
    case X509_V_ERR_CERT_NOT_YET_VALID:
      return fmt::format("{} is not valid yet: compare the clocks of the nodes", quoted.whose);
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
    case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
    case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
    case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
    case X509_V_ERR_CERT_SIGNATURE_FAILURE:
      return fmt::format(
          "{} is signed by another authority, {}: give all nodes certificates of one authority "
          "(`headracectl certs node {}` makes one)",
          quoted.own, quoted.signer, quoted.node);
    case X509_V_ERR_HOSTNAME_MISMATCH:
      return fmt::format("{} is not that of a node, it lacks the name \"headrace\": {}", quoted.own,
                         remedy);
    default:
      return fmt::format("{} is not believed, {}: {}", quoted.whose,
                         X509_verify_cert_error_string(error), remedy);
  }
}

}  // namespace

std::string CommonName(const X509_NAME* name) {
  const int place = X509_NAME_get_index_by_NID(name, NID_commonName, -1);
  if (place < 0) return "";
  return TextOf(X509_NAME_ENTRY_get_data(X509_NAME_get_entry(name, place)));
}

std::vector<std::string> NodeNames(const X509& certificate) {
  std::vector<std::string> names;
  const auto add = [&names](std::string name) {
    const bool known =
        name.empty() || name == kGreeting || std::ranges::find(names, name) != names.end();
    if (!known && names.size() < kNodeNamesMax) names.push_back(std::move(name));
  };
  add(CommonName(X509_get_subject_name(&certificate)));
  const std::unique_ptr<GENERAL_NAMES, decltype(&GENERAL_NAMES_free)> others(
      static_cast<GENERAL_NAMES*>(
          X509_get_ext_d2i(&certificate, NID_subject_alt_name, nullptr, nullptr)),
      GENERAL_NAMES_free);
  const int count = others ? sk_GENERAL_NAME_num(others.get()) : 0;
  for (int i = 0; i < count; ++i) {
    const GENERAL_NAME* other = sk_GENERAL_NAME_value(others.get(), i);
    if (other->type == GEN_DNS) add(TextOf(other->d.dNSName));
  }
  return names;
}

void Verdict::Note(X509_STORE_CTX& judge) {
  error = X509_STORE_CTX_get_error(&judge);
  depth = X509_STORE_CTX_get_error_depth(&judge);
  const X509* certificate = X509_STORE_CTX_get0_cert(&judge);
  if (certificate == nullptr) return;
  // A certificate without a common name is named by the first node that it speaks for.
  name = CommonName(X509_get_subject_name(certificate));
  if (const auto names = NodeNames(*certificate); name.empty() && !names.empty())
    name = names.front();
  signed_by = CommonName(X509_get_issuer_name(certificate));
}

std::string Verdict::Text(const std::string& authority) const {
  const Quoted quoted{
      .whose = depth == 0 ? fmt::format("the certificate of \"{}\"", name)
                          : fmt::format("the certificate of \"{}\", which signed that of \"{}\",",
                                        signed_by, name),
      .own = fmt::format("the certificate of \"{}\"", name),
      .signer = fmt::format("\"{}\" and not \"{}\"", signed_by, authority),
      .node = name};
  return Explain(error, depth, quoted);
}

std::string Verdict::TextWithoutNames(const std::string& authority) const {
  const Quoted quoted{
      .whose = depth == 0 ? "its certificate" : "the certificate that signed its own",
      .own = "its certificate",
      .signer = fmt::format("not \"{}\"", authority),
      .node = "NAME"};
  return Explain(error, depth, quoted);
}

std::string ReasonIn(std::string_view description) {
  const std::size_t place = description.rfind("::");
  if (place != std::string_view::npos) description.remove_prefix(place + 2);
  return Printable(description.substr(0, description.find('\n')), kReasonMax);
}

std::string AlertText(const std::string& reason) {
  const auto says = [&reason](std::string_view part) {
    return reason.find(part) != std::string::npos;
  };
  if (says("unknown ca")) {
    return "does not believe this node's certificate, which is signed by another authority than "
           "its "
           "own: give both nodes certificates of one authority";
  }
  if (says("certificate expired")) {
    return "takes this node's certificate for expired: make one with `headracectl certs node`, and "
           "compare the clocks";
  }
  return fmt::format("refused this node's certificate (\"{}\"): its log says why", reason);
}

}  // namespace headrace::service

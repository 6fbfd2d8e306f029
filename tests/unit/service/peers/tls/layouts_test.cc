// Certificates as others make them: by openssl's own commands, in the encodings and layouts that
// cert-manager writes (ca.crt, tls.crt with those between it and the authority, tls.key).
#include <fmt/format.h>
#include <stdlib.h>

#include <fstream>

#include "tests/support/expect_text.h"
#include "tests/unit/service/peers/tls/tls_stand.h"

namespace headrace::service {
namespace {

constexpr const char* kNodeExtensions =
    "basicConstraints=critical,CA:FALSE\nkeyUsage=critical,digitalSignature,keyEncipherment\n"
    "extendedKeyUsage=serverAuth,clientAuth\n";

class TlsLayouts : public TlsStand {
 protected:
  TlsLayouts() { by_hand_ = true; }  // making certificates takes its time

  // One openssl command; what it says is shown when it fails.
  void Openssl(const std::string& arguments) const {
    const std::string command =
        fmt::format("cd {} && openssl {} >log 2>&1 || {{ cat log; exit 1; }}", folder_, arguments);
    HR_CHECK(::system(command.c_str()) == 0, command);
  }
  void Write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ + "/" + name) << text;
  }
  std::string Read(const std::string& name) const { return *ctl::ReadText(folder_ + "/" + name); }

  void MakeRoot(const std::string& name) const {
    Openssl(
        fmt::format("req -x509 -newkey rsa:2048 -nodes -keyout {0}.key -out {0}.crt -days 90 "
                    "-subj '/CN={0}' -addext keyUsage=critical,keyCertSign",
                    name));
  }
  // Signs `key`'s certificate; `names` is the value of subjectAltName.
  void Sign(const std::string& name, const std::string& issuer, const std::string& subject,
            const std::string& extensions) const {
    Openssl(fmt::format("req -new -key {0}.key -subj '{1}' -out {0}.csr", name, subject));
    Write(name + ".ext", extensions);
    Openssl(
        fmt::format("x509 -req -in {0}.csr -CA {1}.crt -CAkey {1}.key -CAcreateserial "
                    "-days 30 -sha256 -extfile {0}.ext -out {0}.crt",
                    name, issuer));
  }
  static std::string NodeExtensions(const std::string& names) {
    return fmt::format("{}subjectAltName={}\n", kNodeExtensions, names);
  }
  PeerSecurityOptions Files(const std::string& node, const std::string& name,
                            const std::string& authority) const {
    return {.node_name = node,
            .authority_path = folder_ + "/" + authority,
            .certificate_path = folder_ + "/" + name + ".crt",
            .key_path = folder_ + "/" + name + ".key"};
  }
  void ExpectToMeet(const PeerSecurityOptions& one, const PeerSecurityOptions& other) {
    const auto a = Make(one);
    const auto b = Make(other);
    auto [accepted, connected] = Handshake(*a, *b);
    ASSERT_TRUE(accepted.ok()) << accepted.error().text();
    ASSERT_TRUE(connected.ok()) << connected.error().text();
    EXPECT_TRUE(CheckPeerName(*accepted, other.node_name).ok());
    EXPECT_TRUE(CheckPeerName(*connected, one.node_name).ok());
  }
};

TEST_F(TlsLayouts, TakesKeysOfEveryKindAndEncoding) {
  MakeRoot("root");
  const std::vector<std::pair<std::string, std::string>> keys = {
      {"pkcs8-rsa", "genpkey -algorithm RSA -pkeyopt rsa_keygen_bits:2048 -out {0}.key"},
      {"pkcs1-rsa", "genrsa -traditional -out {0}.key 2048"},
      {"pkcs8-ec", "genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out {0}.key"},
      {"sec1-ec", "ecparam -name secp384r1 -genkey -noout -out {0}.key"},
      // With the curve in a block of its own before the key.
      {"sec1-ec-parameters", "ecparam -name prime256v1 -genkey -out {0}.key"},
      {"ed25519", "genpkey -algorithm ED25519 -out {0}.key"}};
  for (const auto& [name, command] : keys) {
    Openssl(fmt::format(fmt::runtime(command), name));
    Sign(name, "root", "/CN=" + name, NodeExtensions("DNS:headrace,DNS:" + name));
  }
  EXPECT_NE(Read("pkcs1-rsa.key").find("BEGIN RSA PRIVATE KEY"), std::string::npos);
  EXPECT_NE(Read("sec1-ec.key").find("BEGIN EC PRIVATE KEY"), std::string::npos);
  EXPECT_NE(Read("sec1-ec-parameters.key").find("BEGIN EC PARAMETERS"), std::string::npos);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const std::string& name = keys[i].first;
    const std::string& next = keys[(i + 1) % keys.size()].first;
    SCOPED_TRACE(name);
    ExpectToMeet(Files(name, name, "root.crt"), Files(next, next, "root.crt"));
  }
}

// cert-manager leaves the subject empty where a Certificate has no commonName.
TEST_F(TlsLayouts, KnowsANodeByItsDnsNamesWhereThereIsNoCommonName) {
  MakeRoot("root");
  for (const char* name : {"a", "b"}) {
    Openssl(
        fmt::format("genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out {}.key", name));
    Sign(name, "root", "/",
         NodeExtensions(
             fmt::format("critical,DNS:headrace,DNS:{},URI:spiffe://c/n/{}", name, name)));
  }
  ExpectToMeet(Files("a", "a", "root.crt"), Files("b", "b", "root.crt"));
  EXPECT_VARYING_TEXT(Refusal(Files("c", "a", "root.crt")), "node a");
}

// The pods of one job may share a certificate that names them all; no other node may use it.
TEST_F(TlsLayouts, LetsACertificateSpeakForEachNodeThatItNames) {
  MakeRoot("root");
  Openssl("genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out job.key");
  Sign("job", "root", "/CN=training",
       NodeExtensions("DNS:headrace,DNS:training-master-0,DNS:training-worker-0"));
  ExpectToMeet(Files("training-master-0", "job", "root.crt"),
               Files("training-worker-0", "job", "root.crt"));
  const std::string refusal = Refusal(Files("training-worker-1", "job", "root.crt"));
  EXPECT_VARYING_TEXT(refusal, "training-master-0", "training-worker-0");
  // "headrace" names the service and no node.
  EXPECT_VARYING_TEXT(Refusal(Files("headrace", "job", "root.crt")));
}

TEST_F(TlsLayouts, RefusesACertificateThatNamesNoNode) {
  MakeRoot("root");
  Openssl("genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out none.key");
  Sign("none", "root", "/", NodeExtensions("critical,DNS:headrace"));
  EXPECT_VARYING_TEXT(Refusal(Files("a", "none", "root.crt")));
  MakeRoot("other");
  Openssl("genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out a.key");
  Sign("a", "root", "/CN=a", NodeExtensions("DNS:headrace"));
  const auto a = Make(Files("a", "a", "root.crt"));
  const PeerSecurityOptions files = Files("", "none", "root.crt");
  kj::TlsContext::Options options;
  const kj::TlsCertificate believed(Read("root.crt").c_str());
  options.useSystemTrustStore = false;
  options.trustedCertificates = kj::arrayPtr(&believed, 1);
  const kj::TlsKeypair pair{.privateKey = kj::TlsPrivateKey(Read("none.key").c_str()),
                            .certificate = kj::TlsCertificate(Read("none.crt").c_str())};
  options.defaultKeypair = pair;
  kj::TlsContext context(kj::mv(options));
  ExpectRefused(
      AcceptOf(*a, [&](kj::AsyncIoStream& stream) { return ShakeAndStay(context, stream, false); }),
      Code::kPermissionDenied);
}

// An issuer between the root and the nodes: tls.crt has it behind the node's, and ca.crt is the
// root or, where the issuer's secret knows of no root, the issuer.
TEST_F(TlsLayouts, BelievesThroughAnIssuerBetween) {
  MakeRoot("root");
  Openssl("genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out issuer.key");
  Sign("issuer", "root", "/CN=issuer",
       "basicConstraints=critical,CA:TRUE,pathlen:0\nkeyUsage=critical,keyCertSign\n");
  for (const char* name : {"a", "b"}) {
    Openssl(
        fmt::format("genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out {}.key", name));
    Sign(name, "issuer", fmt::format("/CN={}", name), NodeExtensions("DNS:headrace"));
  }
  ExpectToMeet(Files("a", "a", "issuer.crt"), Files("b", "b", "issuer.crt"));
  EXPECT_VARYING_TEXT(Refusal(Files("a", "a", "root.crt")));
  for (const char* name : {"a", "b"}) {
    Write(fmt::format("{}.crt", name), Read(fmt::format("{}.crt", name)) + Read("issuer.crt"));
  }
  ExpectToMeet(Files("a", "a", "root.crt"), Files("b", "b", "root.crt"));
}

// While an authority is replaced, nodes believe the old one and the new one.
TEST_F(TlsLayouts, BelievesEveryAuthorityOfTheFile) {
  MakeRoot("old");
  MakeRoot("new");
  for (const char* name : {"old", "new"}) {
    const std::string node = std::string("of-") + name;
    Openssl(
        fmt::format("genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out {}.key", node));
    Sign(node, name, "/CN=" + node, NodeExtensions("DNS:headrace"));
  }
  Write("ca.crt", "# the old one and the new one\n" + Read("old.crt") + Read("new.crt"));
  ExpectToMeet(Files("of-old", "of-old", "ca.crt"), Files("of-new", "of-new", "ca.crt"));
  const auto narrow = Make(Files("of-old", "of-old", "old.crt"));
  const auto wide = Make(Files("of-new", "of-new", "ca.crt"));
  auto [accepted, connected] = Handshake(*narrow, *wide);
  ExpectRefused(accepted, Code::kPermissionDenied, {"\"new\""});
}

TEST_F(TlsLayouts, RefusesAnAuthorityThatIsNone) {
  const PeerSecurityOptions good = Node("a");
  PeerSecurityOptions wrong = good;
  wrong.authority_path = good.certificate_path;
  EXPECT_VARYING_TEXT(Refusal(wrong));
  const std::string whole = *ctl::ReadText(good.authority_path);
  Write("damaged.crt", whole + whole.substr(0, whole.size() / 2));
  wrong.authority_path = folder_ + "/damaged.crt";
  EXPECT_VARYING_TEXT(Refusal(wrong));
}

}  // namespace
}  // namespace headrace::service

#include "client/cli/ctl/certs_command.h"

#include <fmt/format.h>

#include <cstdio>
#include <ctime>
#include <filesystem>
#include <memory>

#include "client/cli/ctl/certs.h"
#include "client/cli/ctl/certs_show.h"
#include "client/cli/ctl/commands.h"

namespace headrace::ctl {
namespace {

int Refuse(const Error& error) {
  Complain(error.text());
  return kExitProblem;
}

std::string Absolute(const std::string& path) {
  std::error_code ignored;  // then the path as it was given is the best there is
  const std::filesystem::path whole = std::filesystem::absolute(path, ignored);
  return ignored ? path : whole.lexically_normal().string();
}

int Authority(AuthorityRequest request) {
  request.now_unix_s = std::time(nullptr);
  const Result<CertificatePaths> made = MakeAuthority(request);
  if (!made) return Refuse(made.error());
  fmt::print("{}\n{}\nkeep {} where only you make certificates: no node needs it\n",
             Absolute(made->certificate), Absolute(made->key),
             std::filesystem::path(made->key).filename().string());
  return kExitOk;
}

// Prints what goes into the service's configuration.
int Node(NodeRequest request) {
  request.now_unix_s = std::time(nullptr);
  const Result<CertificatePaths> made = MakeNodeCertificate(request);
  if (!made) return Refuse(made.error());
  fmt::print(
      "# for the configuration of the service on {0}\nnode_name = \"{0}\"\ntls_authority = "
      "\"{1}\"\ntls_certificate = \"{2}\"\ntls_key = \"{3}\"\n",
      request.name, Absolute(made->authority), Absolute(made->certificate), Absolute(made->key));
  return kExitOk;
}

int Show(const std::string& path, bool json) {
  const Result<CertificateText> certificate = ReadCertificateText(path);
  if (!certificate) return Refuse(certificate.error());
  const std::int64_t now_unix_s = std::time(nullptr);
  const std::string text = json ? CertificateJson(*certificate, now_unix_s).dump(2) + "\n"
                                : CertificateTable(*certificate, now_unix_s);
  fmt::print("{}", text);
  return certificate->ValidAt(now_unix_s) ? kExitOk : kExitProblem;
}

}  // namespace

void AddCertsCommand(CLI::App& app, const bool& json, int& exit_code) {
  CLI::App* certs = app.add_subcommand(
      "certs", "creates the cluster's certificate authority and node certificates");
  certs->set_help_flag("-h,--help", "print this help and exit");
  certs->require_subcommand(1);
  const auto add = [certs](const char* name, const char* help) {
    CLI::App* added = certs->add_subcommand(name, help);
    added->set_help_flag("-h,--help", "print this help and exit");
    return added;
  };

  // Owned by the callbacks, which live as long as the app.
  const auto authority = std::make_shared<AuthorityRequest>();
  CLI::App* make =
      add("authority", "creates the certificate authority (CA) that signs all node certificates");
  make->add_option("--out", authority->out,
                   "folder in which authority.key and authority.crt are written")
      ->required();
  CheckRange(
      make->add_option("--days", authority->days, "days that it is valid")->capture_default_str(),
      1, kDaysMax);
  make->add_flag("--force", authority->force, "overwrite existing files");
  AddExamples(*make, {"certs authority --out authority"});
  make->callback([authority, &exit_code] { exit_code = Authority(*authority); });

  const auto node = std::make_shared<NodeRequest>();
  CLI::App* sign = add("node", "creates a node's key and certificate, signed by the authority");
  sign->add_option("name", node->name, "name of the node: node_name of its service")->required();
  sign->add_option("--authority", node->authority, "folder with authority.key and authority.crt")
      ->required();
  sign->add_option("--out", node->out,
                   "folder in which NAME.key, NAME.crt and authority.crt are written")
      ->required();
  CheckRange(sign->add_option("--days", node->days,
                              "days that it is valid; it expires with the authority at the latest")
                 ->capture_default_str(),
             1, kDaysMax);
  sign->add_option("--host", node->hosts, "further name or address of the node; may be repeated")
      ->allow_extra_args(false);
  sign->add_option(
      "--owner", node->owner,
      "user that shall own key and certificate, such as headrace, the service's user; needs root");
  sign->add_flag("--force", node->force, "overwrite existing files");
  AddExamples(*sign, {"certs node node-a --authority authority --out node-a",
                      "certs node node-a --authority authority --out /etc/headrace/tls --owner "
                      "headrace"});
  sign->callback([node, &exit_code] { exit_code = Node(*node); });

  const auto path = std::make_shared<std::string>();
  CLI::App* show = add("show", "shows what a certificate contains");
  show->add_option("file", *path, "certificate file in PEM format")->required();
  AddExamples(*show, {"certs show /etc/headrace/tls/node-a.crt"});
  show->callback([path, &json, &exit_code] { exit_code = Show(*path, json); });
}

}  // namespace headrace::ctl

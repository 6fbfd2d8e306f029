#include "service/config/config_check.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <array>
#include <cerrno>
#include <string>
#include <string_view>
#include <vector>

#include "ipc/base/fd.h"
#include "service/config/config_address.h"

namespace headrace::service {
namespace {

Error Wrong(std::string text) { return Error(Code::kInvalidArgument, std::move(text)); }

struct TlsFile {
  std::string_view key;
  const std::string& path;
};

Status CheckTlsFile(const TlsFile& file, bool secret) {
  const std::string name = fmt::format("{} {}", file.key, file.path);
  const UniqueFd fd(::open(file.path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd) return SystemError("open " + name, errno);
  struct stat state {};
  if (::fstat(fd.get(), &state) != 0) return SystemError("stat " + name, errno);
  if (!S_ISREG(state.st_mode)) return Wrong(name + " is not a file");
  // A group may read, as with secrets that a pod mounts; it may not put a key of its own there.
  const auto excess = state.st_mode & (S_IRWXO | S_IWGRP | S_IXGRP);
  if (!secret || excess == 0) return {};
  return Error(Code::kPermissionDenied,
               fmt::format("{} has mode 0{:03o}, so that others than the service may use it: chmod "
                           "600 {}, and make a new key if others could have read this one",
                           name, state.st_mode & 0777U, file.path));
}

Status CheckTls(const Config& config) {
  const std::array<TlsFile, 3> files = {TlsFile{"tls_authority", config.tls_authority},
                                        TlsFile{"tls_certificate", config.tls_certificate},
                                        TlsFile{"tls_key", config.tls_key}};
  std::vector<std::string_view> missing;
  for (const TlsFile& file : files) {
    if (file.path.empty()) missing.push_back(file.key);
  }
  if (missing.size() == files.size()) return {};
  if (!missing.empty()) {
    return Wrong(
        fmt::format("{} not set: tls_authority, tls_certificate and tls_key belong "
                    "together; `headracectl certs` makes all three",
                    fmt::join(missing, " and ")));
  }
  if (config.plain_text) {
    return Wrong(
        "plain_text is on although tls_certificate is set: with TLS a peer in plain text "
        "is refused; unset one of them");
  }
  for (const TlsFile& file : files) {
    if (Status status = CheckTlsFile(file, file.key == "tls_key"); !status) return status;
  }
  return {};
}

// What says nothing, or something else than it seems, while there are no other nodes.
Status CheckWithoutNetwork(const Config& config) {
  struct Setting {
    std::string_view key;
    bool set;
  };
  const std::array<Setting, 7> settings = {
      Setting{"role", config.role == Role::kServer},
      Setting{"peers", !config.peers.empty()},
      Setting{"tls_certificate", !config.tls_key.empty()},
      Setting{"plain_text", config.plain_text},
      Setting{"rails", !config.rails.empty()},
      Setting{"network_transports", !config.network_transports.empty()},
      Setting{"gpu_network", config.gpu_network == GpuNetwork::kNccl}};
  for (const Setting& setting : settings) {
    if (!setting.set) continue;
    return Wrong(
        fmt::format("{} speaks of other nodes, but node_address is empty: set node_address "
                    "to where they reach this one, like 10.0.0.1:{}",
                    setting.key, kNodePort));
  }
  return {};
}

Status CheckGpuNetwork(const Config& config) {
  if (config.gpu_network != GpuNetwork::kNccl) return {};
  if (config.gpu == GpuUse::kOff) {
    return Wrong(
        "gpu_network is nccl, but gpu is off, so that there is no GPU to take memory from: set gpu "
        "to auto or on, or gpu_network to staged");
  }
  if (config.role == Role::kServer) {
    return Wrong(
        "gpu_network is nccl, but role is server, and servers sum in host memory: set gpu_network "
        "to staged here; jobs with servers take GPUs' memory through the host's");
  }
  return {};
}

Status CheckNetwork(const Config& config) {
  if (config.role == Role::kServer && config.rendezvous.empty()) {
    return Wrong(
        "role is server, but rendezvous is empty: set it to the host:port of the node whose "
        "jobs this server shall sum for");
  }
  Result<HostPort> address = ParseListenAddress(config.node_address);
  if (!address) return address.error().Within("node_address");
  const bool encrypted = !config.tls_certificate.empty();
  const bool for_others =
      address->host == "*" || (IsLiteral(address->host) && !IsLoopback(address->host));
  if (for_others && !encrypted && !config.plain_text) {
    return Wrong(
        fmt::format("node_address {} is for other hosts, and neither TLS nor plain_text is "
                    "set: make certificates with `headracectl certs` and set tls_authority, "
                    "tls_certificate and tls_key, or set plain_text on a network of which "
                    "you trust every host",
                    config.node_address));
  }
  return {};
}

}  // namespace

Status CheckConfig(const Config& config) {
  if (config.socket_path == config.board_path) {
    return Wrong("socket_path and board_path are both " + config.socket_path);
  }
  if (Status status = CheckTls(config); !status) return status;
  if (Status status = CheckGpuNetwork(config); !status) return status;
  return config.node_address.empty() ? CheckWithoutNetwork(config) : CheckNetwork(config);
}

}  // namespace headrace::service

#include "transport/ucx/options.h"

#include <fmt/format.h>

#include <array>
#include <string_view>

#include "transport/ucx/address.h"

namespace headrace::transport {
namespace {

struct Setting {
  const char* name;
  const char* value;
};

static_assert(kKeepaliveSeconds == 1 && kKeepaliveCount == 3, "as TCP_KEEP... below");
constexpr std::array kSettings{
    // Connect must not wait for a peer that does not answer.
    Setting{"TCP_CONN_NB", "y"},
    // With it, a peer writes to addresses that it names itself, and goes on doing so after the
    // receive was given up.
    Setting{"TCP_PUT_ENABLE", "n"},
    // Bytes of one system call. Between two network namespaces a GB in messages of 1 MiB cost both
    // ends together 1.3 s of CPU with UCX's 8K, 1.1 with 64K, 0.8 with 256K, 0.9 with 1M; iperf3
    // 0.65. UCX aborts on a segment longer than its RX_SEG_SIZE, so both ends must agree.
    Setting{"TCP_TX_SEG_SIZE", "256K"},
    Setting{"TCP_RX_SEG_SIZE", "256K"},
    // Several rails are several lanes of the service.
    Setting{"MAX_RNDV_RAILS", "1"},
    // A machine that vanished without a word, while nothing was on its way to it. The kernel looks
    // (kKeepaliveSeconds); UCX's own look would wake an idle lane each time.
    Setting{"TCP_KEEPIDLE", "1s"},
    Setting{"TCP_KEEPINTVL", "1s"},
    Setting{"TCP_KEEPCNT", "3"},
    Setting{"KEEPALIVE_INTERVAL", "inf"},
};

// UCX 1.13 takes the settings of its TCP transport without their "TCP_" (the environment wants it);
// later ones take them as the environment does.
std::string NameForUcx(std::string_view name) {
  unsigned major = 0;
  unsigned minor = 0;
  unsigned release = 0;
  ucp_get_version(&major, &minor, &release);
  const bool bare = major == 1 && minor <= 13;
  if (bare && name.starts_with("TCP_")) name.remove_prefix(4);
  return std::string(name);
}

}  // namespace

Result<UcxConfig> MakeUcxConfig(const UcxOptions& options) {
  ucp_config_t* raw = nullptr;
  if (const ucs_status_t status = ucp_config_read(nullptr, nullptr, &raw); status != UCS_OK) {
    return UcxError("read UCX's configuration from its defaults and the environment", status);
  }
  UcxConfig config(raw);
  std::vector<std::pair<std::string, std::string>> settings;
  for (const Setting& setting : kSettings) settings.emplace_back(setting.name, setting.value);
  settings.emplace_back("LOG_LEVEL", options.log_level);
  if (!options.net_devices.empty()) settings.emplace_back("NET_DEVICES", options.net_devices);
  if (!options.transports.empty()) settings.emplace_back("TLS", options.transports);
  settings.insert(settings.end(), options.settings.begin(), options.settings.end());
  for (const auto& [name, value] : settings) {
    const ucs_status_t status = ucp_config_modify(raw, NameForUcx(name).c_str(), value.c_str());
    if (status != UCS_OK) {
      return Error(Code::kInvalidArgument,
                   fmt::format("UCX takes no setting {}={}: it says \"{}\"; `ucx_info -cf` lists "
                               "what it takes",
                               name, value, ucs_status_string(status)));
    }
  }
  return config;
}

std::uint64_t SettingsSum(const UcxOptions& options) {
  std::string text;
  for (const Setting& setting : kSettings)
    text += fmt::format("{}={}\n", setting.name, setting.value);
  for (const auto& [name, value] : options.settings) text += fmt::format("{}={}\n", name, value);
  return ByteSum(text);
}

}  // namespace headrace::transport

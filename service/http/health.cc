#include "service/http/health.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "ipc/board_text.h"
#include "service/watch/utf8.h"

namespace headrace::service {
namespace {

constexpr const char* kRpc = "rpc";
constexpr const char* kDispatch = "dispatch";
constexpr const char* kLane = "lane ";

using Json = nlohmann::ordered_json;

Json UnixSeconds(std::int64_t unix_ns) {
  return unix_ns == 0 ? Json() : Json(static_cast<double>(unix_ns) / 1e9);
}

HttpPage Answer(bool ok, Json says) {
  Json whole = {{"status", ok ? "ok" : "unavailable"}};
  whole.update(says);
  return PageOf(ok ? 200 : 503, "application/json", whole.dump() + "\n");
}

}  // namespace

void Health::Update(const ProbeAnswer& answer, std::int64_t unix_ns) {
  const auto timeout = fmt::format("did not answer within {} s", kProbeTimeout / kSecond);
  const auto take = [&](const std::string& name, bool answered, TimeNs ns) {
    Record(name, answered, ns, answered ? "" : timeout, unix_ns);
  };
  for (const PartAnswer& component : answer.parts)
    take(component.name, component.answered, component.ns);
  // Nothing is known of those that it would have asked.
  const bool asked = answer.parts.empty() || answer.parts.front().name != kRpc;
  if (!asked) return;
  take(kRpc, true, 0);
  take(kDispatch, answer.dispatch_ns >= 0, answer.dispatch_ns);
  for (const LaneAnswer& lane : answer.lanes) {
    const bool well = lane.answered && lane.status.ok();
    std::string says = lane.answered ? "" : timeout;
    if (lane.answered && !well) says = ValidUtf8(lane.status.error().text());
    Record(ValidUtf8(std::string(kLane) + lane.name), well, lane.ns, std::move(says), unix_ns);
  }
}

void Health::Record(const std::string& name, bool answered, TimeNs ns, std::string says,
                    std::int64_t unix_ns) {
  Component& component = components_[name];
  if (answered) {
    component.answered_unix_ns = unix_ns;
    component.silent_since_unix_ns = 0;
  } else if (component.silent_since_unix_ns == 0) {
    component.silent_since_unix_ns = unix_ns;
  }
  component.answered = answered;
  component.ns = ns;
  component.says = std::move(says);
}

Json Health::Silent(bool with_lanes) const {
  Json silent = Json::array();
  for (const auto& [name, component] : components_) {
    if (component.answered || (!with_lanes && name.starts_with(kLane))) continue;
    silent.push_back({{"name", name},
                      {"says", component.says},
                      {"since_unix_s", UnixSeconds(component.silent_since_unix_ns)},
                      {"last_answered_unix_s", UnixSeconds(component.answered_unix_ns)}});
  }
  return silent;
}

HttpPage Health::Healthz() const {
  const auto dispatch = components_.find(kDispatch);
  Json silent = Silent(false);
  if (!silent.empty()) return Answer(false, {{"silent", std::move(silent)}});
  if (dispatch == components_.end()) return Answer(false, {{"says", "dispatch was not asked yet"}});
  return Answer(true, {{"dispatch_s", static_cast<double>(dispatch->second.ns) / 1e9}});
}

HttpPage Health::Readyz(ipc::ServiceState state) const {
  Json silent = Silent(true);
  Json answered = Json::object();
  for (const auto& [name, component] : components_) {
    if (component.answered) answered[name] = static_cast<double>(component.ns) / 1e9;
  }
  const bool ok = state == ipc::ServiceState::kRunning && silent.empty() && !components_.empty();
  return Answer(ok, {{"state", ipc::ServiceStateName(static_cast<std::uint32_t>(state))},
                     {"silent", std::move(silent)},
                     {"answered_s", std::move(answered)}});
}

}  // namespace headrace::service

#include "service/control/http/health.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "ipc/board_words.h"
#include "service/watch/utf8.h"

namespace headrace::service {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kDispatch = "dispatch";

Json UnixSeconds(std::int64_t unix_ns) {
  return unix_ns == 0 ? Json() : Json(static_cast<double>(unix_ns) / 1e9);
}

HttpPage Answer(bool ok, Json says) {
  Json whole = {{"status", ok ? "ok" : "unavailable"}};
  whole.update(says);
  return PageOf(ok ? 200 : 503, "application/json", whole.dump() + "\n");
}

}  // namespace

void Health::Take(const ProbeAnswer& answer, std::int64_t unix_ns) {
  const auto timeout = fmt::format("did not answer within {} s", kProbeTimeout / kSecond);
  const bool dispatch = answer.dispatch_ns >= 0;
  Take(kDispatch, dispatch, answer.dispatch_ns, dispatch ? "" : timeout, unix_ns);
  for (const LaneAnswer& lane : answer.lanes) {
    const bool well = lane.answered && lane.status.ok();
    std::string says = lane.answered ? "" : timeout;
    if (lane.answered && !well) says = ValidUtf8(lane.status.error().text());
    Take(ValidUtf8("lane " + lane.name), well, lane.ns, std::move(says), unix_ns);
  }
}

void Health::Take(const std::string& name, bool answered, TimeNs ns, std::string says,
                  std::int64_t unix_ns) {
  Part& part = parts_[name];
  if (answered) {
    part.answered_unix_ns = unix_ns;
    part.silent_since_unix_ns = 0;
  } else if (part.silent_since_unix_ns == 0) {
    part.silent_since_unix_ns = unix_ns;
  }
  part.answered = answered;
  part.ns = ns;
  part.says = std::move(says);
}

HttpPage Health::Healthz() const {
  const auto found = parts_.find(kDispatch);
  if (found == parts_.end()) return Answer(false, {{"says", "dispatch was not asked yet"}});
  const Part& part = found->second;
  if (part.answered) return Answer(true, {{"dispatch_s", static_cast<double>(part.ns) / 1e9}});
  return Answer(false, {{"silent",
                         {{{"name", kDispatch},
                           {"says", part.says},
                           {"since_unix_s", UnixSeconds(part.silent_since_unix_ns)},
                           {"last_answered_unix_s", UnixSeconds(part.answered_unix_ns)}}}}});
}

HttpPage Health::Readyz(ipc::ServiceState state) const {
  Json silent = Json::array();
  Json answered = Json::object();
  for (const auto& [name, part] : parts_) {
    if (part.answered) {
      answered[name] = static_cast<double>(part.ns) / 1e9;
      continue;
    }
    silent.push_back({{"name", name},
                      {"says", part.says},
                      {"since_unix_s", UnixSeconds(part.silent_since_unix_ns)},
                      {"last_answered_unix_s", UnixSeconds(part.answered_unix_ns)}});
  }
  const bool ok = state == ipc::ServiceState::kRunning && silent.empty() && !parts_.empty();
  return Answer(ok, {{"state", ipc::ServiceStateName(static_cast<std::uint32_t>(state))},
                     {"silent", std::move(silent)},
                     {"answered_s", std::move(answered)}});
}

}  // namespace headrace::service

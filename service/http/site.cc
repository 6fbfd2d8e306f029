#include "service/http/site.h"

#include <algorithm>
#include <string>

#include "ipc/base/check.h"
#include "ipc/base/clock.h"
#include "ipc/board.h"
#include "service/http/http_assets.h"
#include "service/watch/metrics.h"
#include "service/watch/status_json.h"

namespace headrace::service {
namespace {

HttpPage NotFound() {
  return PageOf(404, "text/plain; charset=utf-8",
                "There is nothing here. There are / (the status page), /status.json, /metrics, "
                "/healthz and /readyz.\n");
}

}  // namespace

kj::Promise<HttpPage> Site::Get(std::string_view path) {
  if (path == "/metrics") {
    return Fresh(metrics_, [this] {
      return PageOf(200, "text/plain; version=0.0.4; charset=utf-8",
                    WriteMetrics(ReadBoard(board_, MonotonicNow()), ReadProcess()));
    });
  }
  if (path == "/status.json") {
    return Fresh(status_, [this] {
      return PageOf(200, "application/json",
                    WriteStatus(ReadBoard(board_, MonotonicNow()), board_));
    });
  }
  if (path == "/healthz") return RequestProbe().then([this] { return health_.Healthz(); });
  if (path == "/readyz") return RequestProbe().then([this] { return health_.Readyz(State()); });
  const auto assets = HttpAssets();
  const auto found = std::find_if(assets.begin(), assets.end(),
                                  [path](const HttpAsset& asset) { return asset.path == path; });
  if (found == assets.end()) return NotFound();
  return PageOf(200, found->content_type, std::string(found->body));
}

template <typename Make>
HttpPage Site::Fresh(Made& made, const Make& make) {
  const TimeNs now = MonotonicNow();
  if (made.page.body == nullptr || now - made.at_ns >= kFreshNs) {
    made = {.at_ns = now, .page = make()};
  }
  HR_CHECK(made.page.body != nullptr, made.page.status);
  return made.page;
}

// Those who come while a probe is under way share its answer; those who come right after it have it
// too, so that asking in a hurry asks nobody more often.
kj::Promise<void> Site::RequestProbe() {
  if (asked_ns_ != 0 && MonotonicNow() - asked_ns_ < kFreshNs) return kj::READY_NOW;
  return ask_().then([this](const ProbeAnswer& answer) {
    asked_ns_ = MonotonicNow();
    health_.Update(answer, UnixNow());
  });
}

ipc::ServiceState Site::State() const {
  const std::optional<ipc::ServiceRow> row = ipc::ReadRow(board_.service);
  return row ? static_cast<ipc::ServiceState>(row->state) : ipc::ServiceState::kStarting;
}

}  // namespace headrace::service

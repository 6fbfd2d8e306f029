#include "service/http/http_listener.h"

#include <algorithm>
#include <utility>

#include "service/loop/listen.h"

namespace headrace::service {
namespace {

constexpr auto kShortageDelay = 100 * kj::MILLISECONDS;

}  // namespace

Result<kj::Own<HttpListener>> HttpListener::Create(const std::string& address,
                                                   const ipc::BoardLayout& board, Site::Ask ask,
                                                   kj::AsyncIoContext& io) {
  Result<kj::Own<kj::ConnectionReceiver>> port = ListenAt(io, "http_address", address);
  if (!port) return port.error();
  return kj::heap<HttpListener>(std::move(port).value(), board, std::move(ask),
                                io.provider->getTimer());
}

HttpListener::HttpListener(kj::Own<kj::ConnectionReceiver> port, const ipc::BoardLayout& board,
                           Site::Ask ask, kj::Timer& timer)
    : port_(kj::mv(port)),
      number_(port_->getPort()),
      site_(board, std::move(ask)),
      timer_(timer),
      table_(kj::HttpHeaderTable::Builder().build()),
      tasks_(*this) {
  tasks_.add(Accept());
}

HttpListener::~HttpListener() noexcept(false) = default;

kj::Promise<void> HttpListener::Accept() {
  return port_->accept()
      .then([this](kj::Own<kj::AsyncIoStream> client) -> kj::Promise<void> {
        LetIn(kj::mv(client));
        return timer_.afterDelay(pace_.Book(1, MonotonicNow()) * kj::NANOSECONDS);
      })
      // A shortage of descriptors is waited out, never retried at once.
      .catch_([this](kj::Exception&&) { return timer_.afterDelay(kShortageDelay); })
      .then([this] { return Accept(); });
}

void HttpListener::LetIn(kj::Own<kj::AsyncIoStream> client) {
  if (!MakeRoom()) return;
  const std::uint64_t number = ++accepted_count_;
  auto http = kj::heap<HttpConnection>(site_, timer_, *table_, pace_);
  // The end of a promise may not destroy it, so that somebody else does.
  auto served = http->Serve(kj::mv(client))
                    .then([this, number] {
                      tasks_.add(kj::evalLater([this, number] { connections_.erase(number); }));
                    })
                    .eagerlyEvaluate(nullptr);
  connections_.emplace(number, Connection{.http = kj::mv(http), .served = kj::mv(served)});
}

bool HttpListener::MakeRoom() {
  if (connections_.size() < kHttpConnectionsMax) return true;
  const TimeNs now = MonotonicNow();
  auto longest = connections_.end();
  for (auto each = connections_.begin(); each != connections_.end(); ++each) {
    const HttpConnection& http = *each->second.http;
    if (!http.idle() && now - http.since_ns() < kHttpAnswerKept) continue;
    if (longest == connections_.end() || http.since_ns() < longest->second.http->since_ns()) {
      longest = each;
    }
  }
  if (longest == connections_.end()) return false;
  connections_.erase(longest);
  return true;
}

// Nothing that is added fails.
void HttpListener::taskFailed(kj::Exception&&) {}

}  // namespace headrace::service

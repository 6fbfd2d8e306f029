#include "service/http/http_thread.h"

#include <kj/async-io.h>
#include <kj/debug.h>
#include <spdlog/spdlog.h>

#include <utility>
#include <variant>

#include "service/http/http_listener.h"
#include "service/loop/inbox_reader.h"
#include "service/loop/loop_thread.h"
#include "service/loop/text.h"
#include "service/loop/waiting.h"

namespace headrace::service {
namespace {

static_assert(kHttpDescriptorsMax == kHttpConnectionsMax);

// Longer than rpc waits for those it asks.
constexpr TimeNs kAnswerTimeout = kProbeTimeout + 500 * kMillisecond;

// Asks rpc for a probe. The http thread only.
class ProbeRequests {
 public:
  // Both outlive this.
  ProbeRequests(InboxWriter<RpcMessage>& rpc, kj::Timer& timer) : rpc_(rpc), timer_(timer) {}

  // Resolves within kAnswerTimeout, whatever rpc does.
  kj::Promise<ProbeAnswer> Ask() {
    const RequestToken token = ++last_token_;
    if (!rpc_.Send(AskProbe{token})) return Silent();
    return waiting_.Add(token).exclusiveJoin(
        timer_.afterDelay(kAnswerTimeout * kj::NANOSECONDS).then([] { return Silent(); }));
  }

  void Handle(ProbeEnded message) { waiting_.Fulfill(message.token, std::move(message.answer)); }

 private:
  static ProbeAnswer Silent() { return {.dispatch_ns = -1, .lanes = {}, .parts = {{"rpc"}}}; }

  InboxWriter<RpcMessage>& rpc_;
  kj::Timer& timer_;
  Waiting<ProbeAnswer> waiting_;
  RequestToken last_token_ = 0;
};

void Serve(const std::string& address, const HttpPorts& ports, kj::AsyncIoContext& io,
           kj::Promise<void> stop, const std::function<void(Status)>& started, unsigned& port) {
  ProbeRequests probes(ports.rpc, io.provider->getTimer());
  InboxReader<HttpMessage> reader(ports.inbox, io, [&probes](HttpMessage& message) {
    std::visit([&probes](auto& each) { probes.Handle(std::move(each)); }, message);
  });
  Result<kj::Own<HttpListener>> http = HttpListener::Create(
      address, ports.board, [&probes] { return probes.Ask(); }, io);
  if (!http) return started(http.error());
  port = (*http)->port();
  ports.log.info(
      "metrics, health and status page on http_address {} (port {}), for everyone "
      "who reaches it",
      address, port);
  started({});
  reader.Read()
      .exclusiveJoin(kj::mv(stop))
      .catch_([&ports](kj::Exception&& exception) {
        // HTTP only reads: the service goes on without it.
        ports.log.error("http: {}", CauseOf(exception));
      })
      .wait(io.waitScope);
}

}  // namespace

HttpThread::HttpThread() = default;
HttpThread::~HttpThread() = default;

Result<std::unique_ptr<HttpThread>> HttpThread::Start(const std::string& address, HttpPorts ports) {
  std::unique_ptr<HttpThread> made(new HttpThread);
  auto thread = LoopThread::Start("hr-http", [address, ports, port = &made->port_](
                                                 kj::AsyncIoContext& io, kj::Promise<void> stop,
                                                 const std::function<void(Status)>& started) {
    Serve(address, ports, io, kj::mv(stop), started, *port);
  });
  if (!thread) return thread.error();
  made->thread_ = std::move(thread).value();
  return made;
}

}  // namespace headrace::service

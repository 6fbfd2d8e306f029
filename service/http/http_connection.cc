#include "service/http/http_connection.h"

#include <kj/debug.h>
#include <strings.h>

#include <string>
#include <utility>

#include "ipc/base/check.h"

namespace headrace::service {
namespace {

// The page loads its own files, and nothing of what it shows can become a script.
constexpr kj::StringPtr kPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"_kj;

kj::HttpServerSettings SettingsOf(kj::HttpServerErrorHandler& handler,
                                  kj::HttpServerCallbacks& callbacks) {
  kj::HttpServerSettings settings;
  settings.headerTimeout = kHttpHeadersTime;
  settings.pipelineTimeout = kHttpIdleTime;
  settings.canceledUploadGracePeriod = 0 * kj::SECONDS;
  settings.canceledUploadGraceBytes = 0;
  settings.errorHandler = handler;
  settings.callbacks = callbacks;
  return settings;
}

std::size_t SizeOf(kj::StringPtr url, const kj::HttpHeaders& headers) {
  std::size_t size = url.size();
  headers.forEach(
      [&size](kj::StringPtr name, kj::StringPtr value) { size += name.size() + value.size(); });
  return size;
}

std::string_view PathOf(kj::StringPtr url) {
  const std::string_view whole(url.begin(), url.size());
  return whole.substr(0, whole.find('?'));
}

}  // namespace

std::string_view HttpReason(unsigned status) {
  switch (status) {
    case 200:
      return "OK";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 413:
      return "Payload Too Large";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 503:
      return "Service Unavailable";
    default:
      return "Bad Request";
  }
}

HttpConnection::HttpConnection(Site& site, kj::Timer& timer, const kj::HttpHeaderTable& table,
                               MessagePacer& pace)
    : site_(site),
      timer_(timer),
      table_(table),
      pace_(pace),
      since_ns_(MonotonicNow()),
      server_(timer, table, *this, SettingsOf(*this, *this)) {}

kj::Promise<void> HttpConnection::Serve(kj::Own<kj::AsyncIoStream> client) {
  auto closed = kj::newPromiseAndFulfiller<void>();
  closed_ = kj::mv(closed.fulfiller);
  // However it fails, and be it at once, it concerns this client alone, who knows or is gone.
  return kj::evalNow([&] { return server_.listenHttp(kj::mv(client)); })
      .exclusiveJoin(kj::mv(closed.promise))
      .catch_([](kj::Exception&&) {});
}

kj::Promise<void> HttpConnection::request(kj::HttpMethod method, kj::StringPtr url,
                                          const kj::HttpHeaders& headers,
                                          kj::AsyncInputStream& body, Response& response) {
  // kj says it in its answer too, and then waits for the client to go first.
  KJ_IF_MAYBE (connection, headers.get(kj::HttpHeaderId::CONNECTION)) {
    closing_ = ::strcasecmp(connection->cStr(), "close") == 0;
  }
  if (method != kj::HttpMethod::GET && method != kj::HttpMethod::HEAD) {
    return Refuse(405, "only GET and HEAD are answered", response);
  }
  if (SizeOf(url, headers) > kHttpHeadersMax) {
    return Refuse(431, "the headers are too long", response);
  }
  if (body.tryGetLength().orDefault(1) != 0) {
    return Refuse(413, "a body is not taken", response);
  }
  answering_ = true;
  since_ns_ = MonotonicNow();
  // Also when there is nothing to wait for: a timer fires only after the loop has looked for other
  // timers and connections.
  return timer_.afterDelay(pace_.Book(1, MonotonicNow()) * kj::NANOSECONDS)
      .then([this, path = std::string(PathOf(url))] { return site_.Get(path); })
      .then([this, &response](HttpPage&& page) { return Send(std::move(page), response); })
      .exclusiveJoin(timer_.afterDelay(kHttpAnswerTime).then([] {
        // Ends the connection: the client does not read.
        kj::throwFatalException(KJ_EXCEPTION(DISCONNECTED, "the answer took too long"));
      }))
      .attach(kj::defer([this] {
        answering_ = false;
        since_ns_ = MonotonicNow();
      }));
}

kj::Promise<void> HttpConnection::Send(HttpPage page, Response& response) {
  HR_CHECK(page.body != nullptr, page.status);
  kj::HttpHeaders headers(table_);
  headers.set(kj::HttpHeaderId::CONTENT_TYPE, kj::str(std::string(page.content_type).c_str()));
  headers.add("Cache-Control"_kj, "no-store"_kj);
  headers.add("Content-Security-Policy"_kj, kPolicy);
  headers.add("Referrer-Policy"_kj, "no-referrer"_kj);
  headers.add("X-Content-Type-Options"_kj, "nosniff"_kj);
  if (page.status == 405) headers.add("Allow"_kj, "GET, HEAD"_kj);
  const std::string reason(HttpReason(page.status));
  auto sink = response.send(page.status, kj::StringPtr(reason.c_str(), reason.size()), headers,
                            page.body->size());
  auto written = sink->write(page.body->data(), page.body->size());
  return written.attach(kj::mv(sink), std::move(page.body)).then([this] {
    if (closing_) closed_->fulfill();
  });
}

kj::Promise<void> HttpConnection::Refuse(unsigned status, std::string_view says,
                                         Response& response) {
  return Send(PageOf(status, "text/plain; charset=utf-8", std::string(says) + "\n"), response);
}

kj::Promise<void> HttpConnection::handleClientProtocolError(kj::HttpHeaders::ProtocolError error,
                                                            Response& response) {
  // 501 stands for a method that kj does not know.
  if (error.statusCode == 501) return Refuse(405, "only GET and HEAD are answered", response);
  return Refuse(error.statusCode, error.description.cStr(), response);
}

kj::Promise<void> HttpConnection::handleApplicationError(kj::Exception exception,
                                                         kj::Maybe<Response&> response) {
  KJ_IF_MAYBE (unanswered, response) {
    const bool overloaded = exception.getType() == kj::Exception::Type::OVERLOADED;
    return Refuse(overloaded ? 503 : 500, overloaded ? "too many ask" : "this failed", *unanswered);
  }
  return kj::READY_NOW;
}

}  // namespace headrace::service

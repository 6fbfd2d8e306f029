// One connection over HTTP: its allowed requests, and its time limits. The http thread only.
//
// GET and HEAD of a short line without a body; everything else is refused, and most of it closes
// the connection. It is also closed if the client does not read its answer.
#pragma once

#include <kj/async-io.h>
#include <kj/compat/http.h>
#include <kj/timer.h>

#include <cstddef>

#include "ipc/base/clock.h"
#include "service/http/site.h"
#include "service/loop/message_pacer.h"

namespace headrace::service {

inline constexpr std::size_t kHttpHeadersMax = 8192;  // bytes, the line that asks included
inline constexpr auto kHttpHeadersTime = 5 * kj::SECONDS;
inline constexpr auto kHttpIdleTime = 30 * kj::SECONDS;
inline constexpr auto kHttpAnswerTime = 10 * kj::SECONDS;

class HttpConnection final : private kj::HttpService,
                             private kj::HttpServerErrorHandler,
                             private kj::HttpServerCallbacks {
 public:
  // All outlive this. `pace` is that of all connections.
  HttpConnection(Site& site, kj::Timer& timer, const kj::HttpHeaderTable& table,
                 MessagePacer& pace);

  // Serves until the client leaves or is thrown out; neither is an error. Call it once.
  kj::Promise<void> Serve(kj::Own<kj::AsyncIoStream> client);

  // Whether it waits for the client to ask, and since when it does that or answers.
  bool idle() const { return !answering_; }
  TimeNs since_ns() const { return since_ns_; }

 private:
  kj::Promise<void> request(kj::HttpMethod method, kj::StringPtr url,
                            const kj::HttpHeaders& headers, kj::AsyncInputStream& body,
                            Response& response) override;
  kj::Promise<void> handleClientProtocolError(kj::HttpHeaders::ProtocolError error,
                                              Response& response) override;
  kj::Promise<void> handleApplicationError(kj::Exception exception,
                                           kj::Maybe<Response&> response) override;
  bool shouldClose() override { return closing_; }
  kj::Promise<void> Send(HttpPage page, Response& response);
  kj::Promise<void> Refuse(unsigned status, std::string_view says, Response& response);

  Site& site_;
  kj::Timer& timer_;
  const kj::HttpHeaderTable& table_;
  MessagePacer& pace_;
  bool answering_ = false;
  bool closing_ = false;  // the client asks for no more
  kj::Own<kj::PromiseFulfiller<void>> closed_;
  TimeNs since_ns_;
  kj::HttpServer server_;
};

}  // namespace headrace::service

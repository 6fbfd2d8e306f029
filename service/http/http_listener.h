// The port of metrics, health and status page. The http thread only.
//
// Whoever reaches it may read everything there; it changes nothing. It has a few dozen connections
// at most: beyond them the one makes room that has been idle longest, or has not read its answer
// for two seconds; when there is none, the newcomer is turned away. So no client, slow or silent,
// keeps others out for longer than that.
#pragma once

#include <kj/async-io.h>
#include <kj/async.h>
#include <kj/compat/http.h>
#include <kj/timer.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "ipc/base/result.h"
#include "service/http/http_connection.h"
#include "service/http/site.h"

namespace headrace::service {

inline constexpr std::size_t kHttpConnectionsMax = 32;
inline constexpr TimeNs kHttpAnswerKept = 2 * kSecond;  // also where others need the place
// The limit of all connections together; see message_pacer.h. One costs as much as a request.
inline constexpr TimeNs kHttpRequestsPerSecond = 500;
inline constexpr TimeNs kHttpRequestsBurst = 500;

class HttpListener final : private kj::TaskSet::ErrorHandler {
 public:
  // Binds `address`, "host:port" with "*" for every address of this host and port 0 for any free
  // one. The error names it and what to do. The board outlives the listener.
  static Result<kj::Own<HttpListener>> Create(const std::string& address,
                                              const ipc::BoardLayout& board, Site::Ask ask,
                                              kj::AsyncIoContext& io);

  HttpListener(kj::Own<kj::ConnectionReceiver> port, const ipc::BoardLayout& board, Site::Ask ask,
               kj::Timer& timer);
  ~HttpListener() noexcept(false);

  unsigned port() const { return number_; }
  std::size_t connections_count() const { return connections_.size(); }

 private:
  struct Connection {
    kj::Own<HttpConnection> http;
    kj::Promise<void> served;
  };

  kj::Promise<void> Accept();
  void LetIn(kj::Own<kj::AsyncIoStream> client);
  bool MakeRoom();
  void taskFailed(kj::Exception&& exception) override;

  kj::Own<kj::ConnectionReceiver> port_;
  unsigned number_;  // of the port
  Site site_;
  kj::Timer& timer_;
  kj::Own<kj::HttpHeaderTable> table_;
  MessagePacer pace_{kHttpRequestsPerSecond, kHttpRequestsBurst};
  std::uint64_t accepted_count_ = 0;
  std::map<std::uint64_t, Connection> connections_;
  kj::TaskSet tasks_;
};

}  // namespace headrace::service

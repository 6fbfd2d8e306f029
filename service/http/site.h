// The pages of the service over HTTP, by path. The http thread only.
//
// Expensive pages are made at most every kFreshNs, whatever the number of requests: a younger page
// is sent again.
#pragma once

#include <kj/async.h>

#include <functional>
#include <string_view>
#include <utility>

#include "ipc/board_layout.h"
#include "service/actor/probe_answer.h"
#include "service/http/health.h"
#include "service/http/http_page.h"

namespace headrace::service {

class Site {
 public:
  static constexpr TimeNs kFreshNs = 200 * kMillisecond;

  // Asks the threads that clients depend on. Resolves in bounded time, whatever they do.
  using Ask = std::function<kj::Promise<ProbeAnswer>()>;

  // The board outlives this.
  Site(const ipc::BoardLayout& board, Ask ask) : board_(board), ask_(std::move(ask)) {}

  // The page at `path`, without its query. Never fails: what is not there is a page with 404.
  kj::Promise<HttpPage> Get(std::string_view path);

 private:
  struct Made {
    TimeNs at_ns = 0;
    HttpPage page;
  };

  template <typename Make>
  HttpPage Fresh(Made& made, const Make& make);
  kj::Promise<void> RequestProbe();
  ipc::ServiceState State() const;

  const ipc::BoardLayout& board_;
  Ask ask_;
  Health health_;
  TimeNs asked_ns_ = 0;
  Made metrics_;
  Made status_;
};

}  // namespace headrace::service

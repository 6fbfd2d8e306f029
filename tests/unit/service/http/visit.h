// The HTTP listener alone, with a board written by hand and a data path that answers as it is told.
// Listener and visitors share one thread and its event loop.
#pragma once

#include <gtest/gtest.h>
#include <kj/async-io.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ipc/board.h"
#include "service/http/http_listener.h"

namespace headrace::service {

// An answer of HTTP, taken apart.
struct Visit {
  std::string head;  // status line and headers
  std::string body;
  int status() const;
  // The value of the header with that name; empty: there is none.
  std::string header(const std::string& name) const;
};

class HttpTest : public testing::Test {
 protected:
  HttpTest();
  ~HttpTest() noexcept override = default;

  // A connection of its own; it is open when this returns.
  kj::Own<kj::AsyncIoStream> Connect();
  // Sends that text and reads until the service closes.
  Visit Request(const std::string& text);
  // "GET path" that asks to close.
  Visit Get(const std::string& path);
  // Reads an answer with its body from a connection that stays open.
  Visit Read(kj::AsyncIoStream& client);
  // Lets the loop run until `done` says so, for ten seconds at most.
  template <typename Done>
  bool Until(const Done& done) {
    for (int round = 0; round < 1000; ++round) {
      if (done()) return true;
      io.provider->getTimer().afterDelay(10 * kj::MILLISECONDS).wait(io.waitScope);
    }
    return false;
  }

  kj::AsyncIoContext io;
  std::unique_ptr<ipc::BoardLayout> board;
  // What the data path answers at once; nothing: it stays silent until `probes` are fulfilled.
  std::optional<ProbeAnswer> answer;
  std::vector<kj::Own<kj::PromiseFulfiller<ProbeAnswer>>> probes;
  int asked = 0;
  kj::Own<HttpListener> listener;
};

// Dispatch and two lanes have answered.
ProbeAnswer AllWell();

}  // namespace headrace::service

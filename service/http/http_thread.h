// The http actor: metrics, health and the status page on an event loop and a thread of their own,
// so that HTTP clients cost other clients and services only a bounded share of the CPU.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "ipc/base/result.h"
#include "ipc/board_layout.h"
#include "service/actor/inbox.h"
#include "service/http/messages.h"
#include "service/loop/loop_inbox.h"
#include "service/rpc/messages.h"

namespace spdlog {
class logger;
}

namespace headrace::service {

class LoopThread;

// What its connections take of the process's descriptors at most.
inline constexpr std::uint64_t kHttpDescriptorsMax = 32;

// What http speaks to; all outlive it.
struct HttpPorts {
  LoopInbox<HttpMessage>& inbox;
  InboxWriter<RpcMessage>& rpc;
  const ipc::BoardLayout& board;
  spdlog::logger& log;
};

class HttpThread {
 public:
  // Listens at `address` ("host:port"; the error names it and what to do) and serves from then on.
  static Result<std::unique_ptr<HttpThread>> Start(const std::string& address, HttpPorts ports);
  ~HttpThread();

  unsigned port() const { return port_; }

 private:
  HttpThread();

  unsigned port_ = 0;
  std::unique_ptr<LoopThread> thread_;
};

}  // namespace headrace::service

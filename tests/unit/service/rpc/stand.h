// Rpc and peers alone, each on a thread of its own with real sockets: dispatch, mapping and watch
// are inboxes that record what they get and answer as they are told.
#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "ipc/base/clock.h"
#include "ipc/board_layout.h"
#include "service/accounts/quotas.h"
#include "service/loop/loop_inbox.h"
#include "service/mapping/messages.h"
#include "service/peers/peers_options.h"
#include "service/rpc/messages.h"
#include "service/session/segment_memory.h"

namespace headrace::service {
class PeersThread;
}

namespace headrace::support {

inline Result<service::SegmentMemory> ToSegmentMemory(Result<Mapping> mapping) {
  if (!mapping) return mapping.error();
  return service::SegmentMemory(std::move(mapping).value());
}

inline constexpr TimeNs kPatience = 10 * kSecond;

// An inbox that other threads may read.
template <typename Message>
class WatchedInbox final : public service::InboxWriter<Message> {
 public:
  using Answer = std::function<void(Message& message)>;

  // Called with each message before it is kept; may take things out of it.
  explicit WatchedInbox(Answer answer) : answer_(std::move(answer)) {}

  [[nodiscard]] bool Send(Message&& message) override {
    const std::lock_guard lock(mutex_);
    if (full_) return false;
    answer_(message);
    messages_.push_back(std::move(message));
    changed_.notify_all();
    return true;
  }

  void SetFull(bool full) {
    const std::lock_guard lock(mutex_);
    full_ = full;
  }

  // Waits until `count` messages of this kind have come; false after `patience`.
  template <typename Kind>
  bool WaitFor(std::size_t count, TimeNs patience = kPatience) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::nanoseconds(patience),
                             [this, count] { return CountOf<Kind>() >= count; });
  }
  template <typename Kind>
  std::size_t Count() {
    const std::lock_guard lock(mutex_);
    return CountOf<Kind>();
  }
  // Looks at the message of this kind that came as number `index`.
  template <typename Kind>
  void Visit(std::size_t index, const std::function<void(const Kind&)>& look) {
    const std::lock_guard lock(mutex_);
    for (const Message& message : messages_) {
      const Kind* kind = std::get_if<Kind>(&message);
      if (kind != nullptr && index-- == 0) return look(*kind);
    }
    look(Kind{});
  }
  // Frees what the messages carry.
  void Clear() {
    const std::lock_guard lock(mutex_);
    messages_.clear();
  }

 private:
  template <typename Kind>
  std::size_t CountOf() const {
    std::size_t count = 0;
    for (const Message& message : messages_) count += std::holds_alternative<Kind>(message);
    return count;
  }

  Answer answer_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool full_ = false;
  std::vector<Message> messages_;
};

// How the inboxes answer; changed before the calls that it is about.
struct StandOptions {
  bool map_segments = true;  // mapping maps; without, it never answers
  Status remove_answer;      // of dispatch to RemoveSegment
  bool discards = true;      // dispatch lets go of a session when its lease ends
  bool pong = true;
  bool drains = true;
  bool takes_plans = true;    // dispatch answers PlanOffer: no block of it has begun
  bool makes_plans = true;    // watch does
  bool watch_answers = true;  // to Ping
  bool lanes_answer = true;   // dispatch passes a Ping on, and all lanes answer
  Status lane_status{};       // with this
  std::uint32_t connections_max = 1024;
  std::string gpus_missing{};             // why no GPU memory is taken
  std::optional<Error> device_refusal{};  // of mapping to MapDeviceSegment
  service::QuotaLimits quotas{};
  TimeNs drain_timeout_ns = kSecond;
  TimeNs forming_ns = 60 * kSecond;
  // Other services: none without an address.
  service::PeerOptions peers{};
  std::size_t lanes_count = 1;  // between nodes; numbered from 1
  Status open_answer{};         // of the lanes to OpenGroup
  transport::CostLine cost{.startup_s = 1e-5, .s_per_byte = 1e-8};
  std::uint64_t hash_salt = 0;
};

class ControlStand {
 public:
  explicit ControlStand(StandOptions options = {});
  ~ControlStand();
  ControlStand(const ControlStand&) = delete;
  ControlStand& operator=(const ControlStand&) = delete;

  const std::string& socket_path() const { return socket_path_; }
  WatchedInbox<service::DispatchMessage>& dispatch() { return dispatch_; }
  WatchedInbox<service::WatchMessage>& watch() { return watch_; }
  WatchedInbox<service::MappingMessage>& mapping() { return mapping_; }
  WatchedInbox<service::LaneMessage>& lane(std::size_t place = 0) { return *lanes_[place]; }
  unsigned peer_port() const { return peer_port_; }
  // Where others meet it.
  std::string meeting() const { return "127.0.0.1:" + std::to_string(peer_port_); }
  // What dispatch, watch and lanes would send.
  service::LoopInbox<service::RpcMessage>& rpc() { return *rpc_inbox_; }
  service::LoopInbox<service::PeersMessage>& peers() { return *peers_inbox_; }
  ipc::ServiceRow BoardRow() const;
  // What the board shows of the uid; in_use 0: nothing.
  ipc::UserRow UserRow(std::uint32_t uid) const;

  void Signal(int number);
  // The service's threads stand still, and with them all of their answers, until Thaw.
  void Freeze();
  // Only that of the peers, or of rpc, does.
  void FreezePeers();
  void FreezeRpc();
  void Thaw();
  // Waits until Run has returned; its exit code. -1 when it does not within `patience`.
  int WaitForExit(TimeNs patience = kPatience);

 private:
  void Answer(service::DispatchMessage& message);
  void Answer(service::WatchMessage& message);
  void Answer(service::MappingMessage& message);
  void Answer(std::uint8_t lane, service::LaneMessage& message);
  std::vector<std::unique_ptr<WatchedInbox<service::LaneMessage>>> MakeLanes();
  void Serve();
  void StandStill(std::thread::native_handle_type thread);

  StandOptions options_;
  std::string directory_;
  std::string socket_path_;
  std::unique_ptr<service::LoopInbox<service::RpcMessage>> rpc_inbox_;
  std::unique_ptr<service::LoopInbox<service::PeersMessage>> peers_inbox_;
  WatchedInbox<service::DispatchMessage> dispatch_;
  WatchedInbox<service::WatchMessage> watch_;
  WatchedInbox<service::MappingMessage> mapping_;
  std::vector<std::unique_ptr<WatchedInbox<service::LaneMessage>>> lanes_;
  unsigned peer_port_ = 0;
  ipc::BoardSlot<ipc::ServiceRow> board_{};
  std::array<ipc::BoardSlot<ipc::UserRow>, 4> users_{};
  std::mutex mutex_;
  std::condition_variable changed_;
  bool serving_ = false;
  int exit_code_ = -1;
  bool frozen_ = false;
  std::unique_ptr<service::PeersThread> peers_;
  std::thread thread_;
};

}  // namespace headrace::support

// Two UCX wires in one process, over loopback TCP, driven by hand: what the tests of the wire
// share.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ipc/base/clock.h"
#include "transport/ucx/ucx_wire.h"

namespace headrace::transport {

// Waits are for the kernel's sockets, so tests see real time; this is how long a failure takes.
inline constexpr TimeNs kPatience = 20 * kSecond;
// Of what is told at once: more than a busy machine takes, and less than the four seconds after
// which the kernel misses a silent peer.
inline constexpr TimeNs kSoon = 3 * kSecond;

// Notes what a wire tells. By default it drops what is announced unless `on_announced` says more.
class Recorder final : public WireEvents {
 public:
  struct Announcement {
    MessageHeader header;
    std::size_t size = 0;
    ArrivalId arrival = 0;
  };

  void Announced(const MessageHeader& header, std::size_t size, ArrivalId arrival) override {
    announcements.push_back({header, size, arrival});
    if (on_announced) on_announced(announcements.back());
  }
  void Sent(std::uint64_t token, Code code) override {
    EXPECT_TRUE(sent.emplace(token, code).second) << "told twice: " << token;
  }
  void Received(std::uint64_t token, Code code) override {
    EXPECT_TRUE(received.emplace(token, code).second) << "told twice: " << token;
  }
  void LinkFailed(LinkId link, const std::string& cause) override {
    EXPECT_TRUE(failures.emplace(link, cause).second) << "failed twice: " << link;
  }

  std::function<void(const Announcement&)> on_announced;
  std::vector<Announcement> announcements;
  std::map<std::uint64_t, Code> sent;
  std::map<std::uint64_t, Code> received;
  std::map<LinkId, std::string> failures;
};

struct Side {
  explicit Side(const UcxOptions& options) {
    auto opened = UcxWire::Open(options);
    if (!opened) ADD_FAILURE() << opened.error().text();
    wire = std::move(*opened);
  }
  LinkId ConnectTo(const Side& other, std::uint64_t key = 1) {
    const Result<LinkId> link = wire->Connect(other.wire->address(), key, 0);
    if (!link) ADD_FAILURE() << link.error().text();
    return link ? *link : 0;
  }

  std::unique_ptr<UcxWire> wire;
  Recorder told;
};

inline UcxOptions Loopback() {
  UcxOptions options;
  options.net_devices = "lo";
  return options;
}

// Drives the sides until `done`; sleeps on their descriptors when there is nothing to do, so that a
// wire that does not wake its sleeper shows as a failure. False when patience ended.
inline bool DriveUntil(const std::vector<Side*>& sides, const std::function<bool()>& done,
                       TimeNs patience = kPatience) {
  const TimeNs end = MonotonicNow() + patience;
  while (!done()) {
    const TimeNs left = end - MonotonicNow();
    if (left <= 0) return false;
    bool busy = false;
    for (Side* side : sides) busy = side->wire->Progress(side->told) || busy;
    if (busy || done()) continue;
    std::vector<pollfd> fds;
    for (Side* side : sides) {
      busy = busy || !side->wire->PrepareToSleep();
      fds.push_back({side->wire->event_fd(), POLLIN, 0});
    }
    if (!busy) poll(fds.data(), fds.size(), static_cast<int>(left / kMillisecond) + 1);
  }
  return true;
}

inline std::vector<std::byte> Pattern(std::size_t size, std::uint32_t seed) {
  std::vector<std::byte> bytes(size);
  for (std::byte& byte : bytes) {
    seed = seed * 1664525U + 1013904223U;
    byte = static_cast<std::byte>(seed >> 24);
  }
  return bytes;
}

inline MessageHeader HeaderOf(std::uint64_t key, std::uint64_t position) {
  MessageHeader header;
  header.key = key;
  header.position = position;
  return header;
}

}  // namespace headrace::transport

// A client's socket with bounds on the message that is arriving: its size, its descriptors, its
// time, and for how long a connection without a session may be silent. A client that exceeds a
// bound loses the connection; an event names it.
//
// Relies on how Cap'n Proto reads a message: its first word with tryReadWithFds, the rest with
// tryRead. What is written passes through.
#pragma once

#include <kj/async-io.h>
#include <kj/timer.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "service/accounts/arrivals.h"

namespace headrace::service {

inline constexpr std::uint64_t kEarlyMessageBytesMax = 65536;  // before a session
// A message brings descriptors only while fewer calls of its connection are open: a library has
// three that wait for news, one that asks, and the one that brings them.
inline constexpr std::size_t kCallsWithDescriptorsMax = 6;
inline constexpr std::size_t kDescriptorsOfACall = 2;   // more are booked on the uid
inline constexpr auto kMessageTime = 10 * kj::SECONDS;  // from its first byte to its last
inline constexpr auto kIdleTimeWithoutSession = 60 * kj::SECONDS;

class BoundedStream final : public kj::AsyncCapabilityStream {
 public:
  // What the client may do now.
  struct Allowance {
    bool has_session = false;
    std::size_t descriptors = kDescriptorsOfACall;  // with one message
  };
  using Allowed = std::function<Allowance()>;
  // Closes the socket both ways; `why` is for people.
  using Disconnect = std::function<void(const std::string& why)>;

  // All references outlive this.
  BoundedStream(kj::AsyncCapabilityStream& inner, kj::Timer& timer, Arrivals& arrivals,
                std::uint32_t uid, Allowed allowed, Disconnect disconnect)
      : inner_(inner),
        timer_(timer),
        arrivals_(arrivals),
        uid_(uid),
        allowed_(std::move(allowed)),
        disconnect_(std::move(disconnect)) {}

  // The message that is under way, or was read last.
  std::uint64_t message_bytes() const { return message_bytes_; }

  kj::Promise<ReadResult> tryReadWithFds(void* buffer, size_t bytes_min, size_t bytes_max,
                                         kj::AutoCloseFd* fds, size_t fds_max) override;
  kj::Promise<size_t> tryRead(void* buffer, size_t bytes_min, size_t bytes_max) override;

  // Clients pass no streams.
  kj::Promise<ReadResult> tryReadWithStreams(void* buffer, size_t bytes_min, size_t bytes_max,
                                             kj::Own<AsyncCapabilityStream>* streams,
                                             size_t streams_max) override;
  kj::Promise<void> writeWithStreams(kj::ArrayPtr<const kj::byte> bytes,
                                     kj::ArrayPtr<const kj::ArrayPtr<const kj::byte>> more,
                                     kj::Array<kj::Own<AsyncCapabilityStream>> streams) override;

  kj::Promise<void> write(const void* buffer, size_t size) override {
    return inner_.write(buffer, size);
  }
  kj::Promise<void> write(kj::ArrayPtr<const kj::ArrayPtr<const kj::byte>> pieces) override {
    return inner_.write(pieces);
  }
  kj::Promise<void> writeWithFds(kj::ArrayPtr<const kj::byte> bytes,
                                 kj::ArrayPtr<const kj::ArrayPtr<const kj::byte>> more,
                                 kj::ArrayPtr<const int> fds) override {
    return inner_.writeWithFds(bytes, more, fds);
  }
  kj::Promise<void> whenWriteDisconnected() override { return inner_.whenWriteDisconnected(); }
  void shutdownWrite() override { inner_.shutdownWrite(); }
  void abortRead() override { inner_.abortRead(); }
  // Cap'n Proto asks for the size of the socket's buffer.
  void getsockopt(int level, int option, void* value, unsigned* length) override {
    inner_.getsockopt(level, option, value, length);
  }
  kj::Maybe<int> getFd() const override { return inner_.getFd(); }

 private:
  kj::Promise<ReadResult> ReadRest(ReadResult first, void* buffer, size_t bytes_min,
                                   size_t bytes_max, kj::AutoCloseFd* fds, size_t fds_max);
  kj::Promise<void> Idle();
  // The promise, or the end of the connection when the message has taken too long.
  template <typename T>
  kj::Promise<T> InTime(kj::Promise<T> promise);
  // Throws, which ends the connection.
  [[noreturn]] void Fail(const std::string& why);

  kj::AsyncCapabilityStream& inner_;
  kj::Timer& timer_;
  Arrivals& arrivals_;
  const std::uint32_t uid_;
  const Allowed allowed_;
  const Disconnect disconnect_;
  // The message that is under way, or was read last.
  Arrivals::Booking booking_;
  std::uint64_t message_bytes_ = 0;
  kj::TimePoint deadline_ = kj::origin<kj::TimePoint>();
};

}  // namespace headrace::service

#include "service/rpc/bounded_stream.h"

#include <fmt/format.h>
#include <kj/debug.h>
#include <kj/io.h>

#include <algorithm>

#include "ipc/base/check.h"

namespace headrace::service {

kj::Promise<kj::AsyncCapabilityStream::ReadResult> BoundedStream::tryReadWithFds(
    void* buffer, size_t bytes_min, size_t bytes_max, kj::AutoCloseFd* fds, size_t fds_max) {
  // The message before has been read and handed on.
  booking_ = Arrivals::Booking();
  message_bytes_ = 0;
  kj::Promise<ReadResult> first = inner_.tryReadWithFds(buffer, 1, bytes_max, fds, fds_max);
  if (!allowed_().has_session) {
    first = first.exclusiveJoin(Idle().then([]() -> ReadResult { KJ_UNREACHABLE; }));
  }
  return first.then([this, buffer, bytes_min, bytes_max, fds, fds_max](ReadResult result) {
    return ReadRest(result, buffer, bytes_min, bytes_max, fds, fds_max);
  });
}

// `first` is at least one byte, unless the other end has closed.
kj::Promise<kj::AsyncCapabilityStream::ReadResult> BoundedStream::ReadRest(
    ReadResult first, void* buffer, size_t bytes_min, size_t bytes_max, kj::AutoCloseFd* fds,
    size_t fds_max) {
  HR_CHECK(first.byteCount <= bytes_max && first.capCount <= fds_max, first.byteCount,
           first.capCount);
  if (first.byteCount == 0) return first;
  deadline_ = timer_.now() + kMessageTime;
  message_bytes_ = first.byteCount;
  booking_ = arrivals_.Open(uid_);
  // What is beyond is closed at once: the call misses it, and says so.
  const std::size_t allowed =
      std::min(allowed_().descriptors, kDescriptorsOfACall + arrivals_.FreeDescriptors(uid_));
  while (first.capCount > allowed) fds[--first.capCount] = kj::AutoCloseFd();
  if (first.capCount > kDescriptorsOfACall) {
    const bool booked = booking_.Add(0, first.capCount - kDescriptorsOfACall);
    HR_CHECK(booked, first.capCount);
  }
  if (first.byteCount >= bytes_min) return first;
  // Descriptors come with the first byte; there are none with the others.
  fds_max = first.capCount;
  return InTime(inner_.tryReadWithFds(static_cast<kj::byte*>(buffer) + first.byteCount,
                                      bytes_min - first.byteCount, bytes_max - first.byteCount,
                                      fds + first.capCount, fds_max - first.capCount))
      .then([first](ReadResult rest) {
        return ReadResult{first.byteCount + rest.byteCount, first.capCount + rest.capCount};
      });
}

kj::Promise<size_t> BoundedStream::tryRead(void* buffer, size_t bytes_min, size_t bytes_max) {
  // Else the deadline is that of no message: Cap'n Proto reads the first word with tryReadWithFds.
  HR_CHECK(message_bytes_ > 0, bytes_min);
  message_bytes_ += bytes_min;
  if (message_bytes_ > kEarlyMessageBytesMax) {
    if (!allowed_().has_session) {
      Fail(fmt::format("a message of {} bytes; before a session is attached {} are allowed",
                       message_bytes_, kEarlyMessageBytesMax));
    }
    if (!booking_.Add(bytes_min, 0)) {
      Fail(
          fmt::format("a message of {} bytes beside others of its user that are not whole: {} "
                      "bytes are allowed in all",
                      message_bytes_, arrivals_.limits().bytes));
    }
  }
  return InTime(inner_.tryRead(buffer, bytes_min, bytes_max));
}

kj::Promise<void> BoundedStream::Idle() {
  return timer_.afterDelay(kIdleTimeWithoutSession).then([this]() -> kj::Promise<void> {
    if (allowed_().has_session) return kj::NEVER_DONE;
    Fail(fmt::format("it has no session and said nothing for {} s",
                     kIdleTimeWithoutSession / kj::SECONDS));
  });
}

template <typename T>
kj::Promise<T> BoundedStream::InTime(kj::Promise<T> promise) {
  return promise.exclusiveJoin(timer_.atTime(deadline_).then([this]() -> T {
    Fail(fmt::format("a message was not whole {} s after its first byte",
                     kMessageTime / kj::SECONDS));
  }));
}

void BoundedStream::Fail(const std::string& why) {
  disconnect_(why);
  kj::throwFatalException(KJ_EXCEPTION(FAILED, "a connection went beyond its bounds", why.c_str()));
}

kj::Promise<kj::AsyncCapabilityStream::ReadResult> BoundedStream::tryReadWithStreams(
    void* /*buffer*/, size_t /*bytes_min*/, size_t /*bytes_max*/,
    kj::Own<AsyncCapabilityStream>* /*streams*/, size_t /*streams_max*/) {
  return KJ_EXCEPTION(UNIMPLEMENTED, "clients pass no streams");
}

kj::Promise<void> BoundedStream::writeWithStreams(
    kj::ArrayPtr<const kj::byte> /*bytes*/,
    kj::ArrayPtr<const kj::ArrayPtr<const kj::byte>> /*more*/,
    kj::Array<kj::Own<AsyncCapabilityStream>> /*streams*/) {
  return KJ_EXCEPTION(UNIMPLEMENTED, "clients pass no streams");
}

}  // namespace headrace::service

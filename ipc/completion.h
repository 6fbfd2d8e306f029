// How the service ends an operation, and how a client waits for its end.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "ipc/base/clock.h"
#include "ipc/channel.h"

namespace headrace::ipc {

// The service's end; dispatch only.
class CompletionWriter {
 public:
  explicit CompletionWriter(ChannelLayout& layout) : layout_(layout) {}

  // Ends operation `sequence`, once. `text` names the cause when code is not kOk and is cut to what
  // an ErrorText holds. `source`: the rank that sent, for a receive that ended well, else 0. Wakes
  // the client's sleepers; returns whether that took a system call.
  bool End(std::uint64_t sequence, Code code, std::string_view text, std::uint8_t source = 0);

 private:
  std::uint8_t WriteText(std::uint64_t sequence, std::string_view text);

  ChannelLayout& layout_;
  std::uint32_t texts_written_ = 0;
};

// How an operation ended.
struct Outcome {
  Code code = Code::kOk;
  std::string text;  // empty when ok
};

// The client's end. Thread-safe: many threads may wait for the same or different operations.
class CompletionReader {
 public:
  explicit CompletionReader(ChannelLayout& layout) : layout_(&layout) {}

  bool HasEnded(std::uint64_t sequence) const;

  // Sleeps until the operation ends; false after `timeout_ns`.
  bool Wait(std::uint64_t sequence, TimeNs timeout_ns) const;

  // Requires HasEnded(sequence). An operation whose slot has since been used again by
  // sequence + kOperationsMax reports kOk only if the caller saw it end before; ask in time. Where
  // the entry of its text was used again, the text is that of the operation which used it if that
  // ended with the same code, and says so; else the code's name.
  Outcome Read(std::uint64_t sequence) const;

  // When the service is gone: ends every open operation up to `last` in its place and wakes all.
  // Operations the service had ended keep their outcome.
  void EndAllOpen(std::uint64_t last, Code code) const;

 private:
  ChannelLayout* layout_;  // never null; a pointer, so that another reader can take this place
};

}  // namespace headrace::ipc

// A training process as the service sees it: a channel, some memory, records, and nothing else.
// It may misbehave in every way a process can.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "ipc/base/collective.h"
#include "ipc/base/ids.h"
#include "ipc/channel.h"
#include "ipc/completion.h"
#include "ipc/records.h"
#include "ipc/ring_writer.h"
#include "ipc/sealed_memory.h"
#include "transport/memory/device_arena.h"

namespace headrace::support {

// A record of a collective over a one-off range of segment 0; change what the test is about.
ipc::Record OnSegment(Collective kind, DType dtype, std::uint64_t count, std::uint64_t offset = 0);
// ... over a registered tensor.
ipc::Record OnTensor(Collective kind, DType dtype, std::uint64_t count, TensorId tensor);
ipc::Record Barrier();
// A record of `count` float32 in segment 0, between this rank and rank `other`.
ipc::Record SendTo(std::uint32_t other, std::uint64_t count, std::uint64_t tag = 0);
ipc::Record ReceiveFrom(std::uint32_t other, std::uint64_t count, std::uint64_t tag = 0);

class ClientEnd {
 public:
  ClientEnd(SessionId id, JobId job, std::uint32_t rank, ipc::Channel channel);
  ClientEnd(const ClientEnd&) = delete;
  ClientEnd& operator=(const ClientEnd&) = delete;

  SessionId id() const { return id_; }
  JobId job() const { return job_; }
  std::uint32_t rank() const { return rank_; }
  ipc::ChannelLayout& layout() const { return channel_.layout(); }

  // Posts without looking whether there is room when `rude`; returns the operation's number.
  std::uint64_t Post(const ipc::Record& record, bool rude = false);
  // Posts it in memory of its own: the range moves on by its size with each post, and comes round
  // once as many as can be open were posted.
  std::uint64_t PostApart(ipc::Record record);
  std::uint64_t posted() const { return posted_; }
  bool HasRoom() const { return writer_.HasRoom(); }
  // Stores a commit word that no honest writer stores, where the service reads next.
  void PostGarbage(std::uint64_t commit);

  bool HasEnded(std::uint64_t sequence) const { return completions_.HasEnded(sequence); }
  ipc::Outcome Read(std::uint64_t sequence) const { return completions_.Read(sequence); }
  // Who sent what a receive got that ended well.
  std::uint32_t SourceOf(std::uint64_t sequence) const;

  // This side's view of the memory it handed over; segments are numbered 0, 1, ...
  void Keep(Mapping mapping) { segments_.emplace_back(std::move(mapping)); }
  // Memory of a GPU that the driver's double plays, which this process can touch.
  void Keep(transport::DeviceArena arena) { segments_.emplace_back(std::move(arena)); }
  std::span<std::byte> Memory(std::uint32_t segment = 0) const;
  template <typename Element>
  std::span<Element> Elements(std::uint32_t segment = 0) const {
    const std::span<std::byte> bytes = Memory(segment);
    return {reinterpret_cast<Element*>(bytes.data()), bytes.size() / sizeof(Element)};
  }

 private:
  SessionId id_;
  JobId job_;
  std::uint32_t rank_;
  ipc::Channel channel_;
  ipc::RingWriter writer_;
  ipc::CompletionReader completions_;
  std::uint64_t posted_ = 0;
  std::vector<std::variant<Mapping, transport::DeviceArena>> segments_;
};

}  // namespace headrace::support

// The service's part, played by hand: the other end of a client's channel, and a Control that
// answers without a socket.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "client/lib/control.h"
#include "ipc/channel.h"
#include "ipc/completion.h"
#include "ipc/ring_reader.h"

namespace headrace::client {

// Reads records and ends operations on a channel the client made; both ends in this process.
class ServiceEnd {
 public:
  explicit ServiceEnd(ipc::ChannelLayout& layout) : reader_(layout), writer_(layout) {}

  // The next record; the test fails when there is none.
  ipc::Record Take() {
    Result<std::optional<ipc::Record>> record = reader_.Read();
    EXPECT_TRUE(record.ok() && record->has_value());
    return record.ok() ? record->value_or(ipc::Record{}) : ipc::Record{};
  }
  bool HasRecord() const { return reader_.HasRecord(); }
  bool Sleep() { return reader_.PrepareToSleep(); }
  void End(std::uint64_t sequence, Code code = Code::kOk, const std::string& text = "") {
    writer_.End(sequence, code, text);
  }
  void EndReceive(std::uint64_t sequence, std::uint8_t source) {
    writer_.End(sequence, Code::kOk, "", source);
  }
  // Takes the next record and ends its operation.
  ipc::Record Serve(Code code = Code::kOk, const std::string& text = "") {
    const ipc::Record record = Take();
    End(record.commit, code, text);
    return record;
  }

 private:
  ipc::RingReader reader_;
  ipc::CompletionWriter writer_;
};

// Maps what it is given, as the service does, and remembers what it was asked.
class FakeControl final : public Control {
 public:
  Result<std::uint32_t> RegisterSegment(int fd, std::size_t size) override {
    if (refusal) return *refusal;
    Result<Mapping> mapping = ipc::MapSealedMemory(fd, size);
    if (!mapping) return mapping.error();
    segments.emplace(next_segment, std::move(mapping).value());
    return next_segment++;
  }
  // The descriptors of a claim, copied as the socket does; it is mapped by whoever wants to.
  struct Claim {
    DeviceHandle handle;
    std::vector<UniqueFd> pieces;
  };
  Result<std::uint32_t> RegisterDeviceSegment(const DeviceHandle& handle,
                                              std::span<const UniqueFd> pieces) override {
    if (refusal) return *refusal;
    Claim& claim = claims[next_segment];
    claim.handle = handle;
    for (const UniqueFd& piece : pieces) claim.pieces.push_back(Duplicate(piece.get()).value());
    return next_segment++;
  }
  Status ReleaseSegment(std::uint32_t segment) override {
    if (refusal) return *refusal;
    EXPECT_EQ(segments.erase(segment) + claims.erase(segment), 1U);
    return {};
  }
  Result<std::uint32_t> RegisterTensors(std::span<const TensorSpec> specs) override {
    if (refusal) return *refusal;
    const auto first = static_cast<std::uint32_t>(tensors.size());
    tensors.insert(tensors.end(), specs.begin(), specs.end());
    return first;
  }
  Status ReleaseTensors(std::uint32_t first, std::uint32_t count) override {
    if (refusal) return *refusal;
    released.emplace_back(first, count);
    return {};
  }
  Status SetLayout(const LayoutNotice& layout) override {
    if (layout_refusal) return *layout_refusal;
    layouts.push_back(layout);
    return {};
  }
  Status Leave() override {
    if (on_leave) on_leave();
    left = true;
    return {};
  }
  bool IsThere() const override { return !hung_up; }
  void BoundCalls(TimeNs timeout_ns) override { calls_bound_ns = timeout_ns; }
  void CloseInChild() override {}

  std::optional<Error> refusal;
  std::optional<Error> layout_refusal;
  std::uint32_t next_segment = 7;  // not 0, which a forgotten field would have
  std::map<std::uint32_t, Mapping> segments;
  std::map<std::uint32_t, Claim> claims;  // of memory of GPUs
  std::vector<TensorSpec> tensors;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> released;
  std::vector<LayoutNotice> layouts;
  bool left = false;
  bool hung_up = false;
  TimeNs calls_bound_ns = 0;
  std::function<void()> on_leave;
};

}  // namespace headrace::client

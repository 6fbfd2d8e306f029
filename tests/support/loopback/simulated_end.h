// One wire of a SimulatedNetwork. Private to this folder.
#pragma once

#include <string>
#include <vector>

#include "tests/support/loopback/simulated_wire.h"

namespace headrace::transport {

class SimulatedNetwork::SimulatedWire final : public Wire {
 public:
  SimulatedWire(SimulatedNetwork& network, std::size_t index, const std::string& name)
      : network_(network), index_(index), name_(name), address_("simulated:" + name) {}

  const std::string& name() const { return name_; }
  bool vanished() const { return vanished_; }
  void Vanish() { vanished_ = true; }
  void Refuse() { refuses_ = true; }
  std::size_t staging_count() const { return staging_.size(); }

  const std::string& address() const override { return address_; }
  std::string Names() const override { return "simulated"; }
  Result<LinkId> Connect(const std::string& address, std::uint64_t key,
                         std::uint16_t member) override;
  void Close(LinkId link) override;
  bool IsEager(std::size_t size) const override { return size <= network_.options_.eager_size; }
  void Send(LinkId link, const MessageHeader& header, const std::byte* bytes, std::size_t size,
            std::uint64_t token) override;
  using Wire::Accept;
  void Accept(ArrivalId arrival, std::byte* memory, std::uint64_t token,
              std::size_t whole) override;
  void Drop(ArrivalId arrival) override;
  Result<std::span<std::byte>> AllocateStaging(std::size_t size) override;
  void FreeStaging(std::span<std::byte> memory) override;
  std::uint64_t dropped_count() const override { return 0; }
  bool Progress(WireEvents& events) override;
  bool PrepareToSleep() override { return news_.empty(); }
  int event_fd() const override { return -1; }

  // What Progress will tell next.
  void TellAnnounced(const MessageHeader& header, std::size_t size, ArrivalId arrival);
  void TellSent(std::uint64_t token, Code code);
  void TellReceived(std::uint64_t token, Code code);
  void TellFailed(LinkId link, const std::string& cause);

 private:
  enum class Kind : std::uint8_t { kAnnounced, kSent, kReceived, kFailed };
  struct News {
    Kind kind = Kind::kSent;
    MessageHeader header{};
    std::size_t size = 0;
    std::uint64_t number = 0;  // an arrival, a token or a link
    Code code = Code::kOk;
    std::string cause{};
  };

  SimulatedNetwork& network_;
  std::size_t index_;
  std::string name_;
  std::string address_;
  bool vanished_ = false;
  bool refuses_ = false;
  std::vector<News> news_;
  std::vector<std::vector<std::byte>> staging_;
};

}  // namespace headrace::transport

// A network that passes everything on and remembers the notices that the node sends, which a test
// may also have it lose.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "transport/network.h"

namespace headrace::support {

class ObservedNetwork final : public transport::NetworkTransport {
 public:
  // `inner` outlives it.
  explicit ObservedNetwork(transport::NetworkTransport& inner) : inner_(inner) {}

  const transport::Capabilities& capabilities() const override { return inner_.capabilities(); }
  [[nodiscard]] transport::PostResult Post(const transport::Transfer& transfer,
                                           TimeNs now) override {
    return inner_.Post(transfer, now);
  }
  void Cancel(std::uint64_t token) override { inner_.Cancel(token); }
  std::uint64_t Missing(std::uint64_t token) const override { return inner_.Missing(token); }
  TimeNs FlowedNs() const override { return inner_.FlowedNs(); }
  bool DoWork(TimeNs now, std::vector<transport::Completion>& completions) override {
    return inner_.DoWork(now, completions);
  }
  bool PrepareToSleep() override { return inner_.PrepareToSleep(); }
  TimeNs NextLook() const override { return inner_.NextLook(); }
  int event_fd() const override { return inner_.event_fd(); }

  const std::string& address() const override { return inner_.address(); }
  std::string WireNames() const override { return inner_.WireNames(); }
  Status OpenGroup(const transport::GroupOptions& options) override {
    return inner_.OpenGroup(options);
  }
  void SetCost(std::uint32_t group, const transport::CostLine& cost) override {
    inner_.SetCost(group, cost);
  }
  void SetShare(std::uint32_t group, const transport::Share& share) override {
    inner_.SetShare(group, share);
  }
  void CloseGroup(std::uint32_t group, const std::string& cause) override {
    inner_.CloseGroup(group, cause);
  }
  void SendNotice(std::uint32_t group, std::uint32_t member,
                  std::vector<std::byte> bytes) override {
    sent.push_back({.group = group, .member = member, .bytes = bytes});
    if (!lose) inner_.SendNotice(group, member, std::move(bytes));
  }
  void DrainNotices(std::vector<transport::Notice>& notices) override {
    inner_.DrainNotices(notices);
  }
  void DrainMoves(std::vector<transport::MovedLink>& moves) override { inner_.DrainMoves(moves); }
  void DrainStaging(std::vector<transport::StagingRequest>& requests) override {
    inner_.DrainStaging(requests);
  }
  void SetStaging(std::uint32_t group, const Result<std::byte*>& on_gpus) override {
    inner_.SetStaging(group, on_gpus);
  }
  transport::NetworkCounters counters() const override { return inner_.counters(); }

  std::vector<transport::Notice> sent;  // in order; the member is the one that it is for
  bool lose = false;

 private:
  transport::NetworkTransport& inner_;
};

}  // namespace headrace::support

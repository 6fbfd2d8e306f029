// The groups of a lane between nodes: opened, measured and closed as control asks, which gets the
// answers. The lane's thread.
#pragma once

#include <cstdint>

#include "service/actor/messages.h"
#include "transport/network.h"

namespace headrace::service {

class Groups {
 public:
  // Both outlive this.
  Groups(std::uint8_t lane, transport::NetworkTransport& transport, Door<ControlMessage>& control)
      : lane_(lane), transport_(transport), control_(control) {}

  // OpenGroup, MeasureGroup, SetCost or CloseGroup.
  void Handle(const LaneMessage& message, TimeNs now);

  // Whether a completion is of a measurement and not of a stage, and its end.
  bool Owns(std::uint64_t /*token*/) const { return false; }
  void Ended(const transport::Completion& completion, TimeNs now);

 private:
  void Answer(ControlMessage message);

  std::uint8_t lane_;
  transport::NetworkTransport& transport_;
  Door<ControlMessage>& control_;
};

}  // namespace headrace::service

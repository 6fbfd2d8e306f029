// The wire of one lane between nodes: a UcxWire, or, where other rails may stand in for its own,
// one for each of them and a RailWire over all.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "transport/exchange/limits.h"
#include "transport/rails/rail_wire.h"
#include "transport/ucx/options.h"
#include "transport/ucx/ucx_wire.h"

namespace headrace::transport {

class UcxRails {
 public:
  // A connection of several rails is given up when the other end's kernel has acknowledged nothing
  // for so long. A rail that stands still for less goes on by itself.
  static constexpr int kUnacknowledgedMs = 5000;

  // `devices` are UcxOptions::net_devices of each rail, the lane's own first; the options' are not
  // looked at. Errors are those of UcxWire::Open.
  static Result<std::unique_ptr<UcxRails>> Open(UcxOptions options,
                                                const std::vector<std::string>& devices);

  // ExchangeOptions::peer_bytes_max where there are several: bytes count until the other end has
  // acknowledged them, and not only until they have left.
  static constexpr std::size_t kPeerBytesMax = std::size_t{1} << 20;

  Wire& wire();
  // For the exchange over this wire, which is the lane of that name.
  ExchangeOptions OptionsOf(const std::string& lane) const;
  // Each is readable when the wire has something to do.
  std::vector<int> event_fds() const;
  // Those of the lane's own rail.
  std::string Names() const { return wires_.front()->Names(); }
  std::string GpuPath() const { return wires_.front()->GpuPath(); }

 private:
  UcxRails() = default;

  std::vector<std::unique_ptr<UcxWire>> wires_;
  std::unique_ptr<RailWire> rails_;  // null: there is one
};

}  // namespace headrace::transport

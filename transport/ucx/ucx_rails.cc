#include "transport/ucx/ucx_rails.h"

#include <fmt/format.h>
#include <sys/random.h>

#include <cerrno>
#include <utility>

#include "ipc/base/check.h"

namespace headrace::transport {

Result<std::unique_ptr<UcxRails>> UcxRails::Open(UcxOptions options,
                                                 const std::vector<std::string>& devices) {
  HR_CHECK(!devices.empty() && devices.size() <= kWireRailsMax, devices.size());
  std::unique_ptr<UcxRails> opened(new UcxRails);
  if (devices.size() > 1) options.unacknowledged_ms = kUnacknowledgedMs;
  std::vector<Wire*> wires;
  for (const std::string& device : devices) {
    options.net_devices = device;
    auto wire = UcxWire::Open(options);
    if (!wire) return wire.error();
    opened->wires_.push_back(std::move(wire).value());
    wires.push_back(opened->wires_.back().get());
  }
  if (wires.size() == 1) return opened;
  std::uint64_t id = 0;
  if (getrandom(&id, sizeof(id), 0) != sizeof(id)) {
    return SystemError("draw an id for the wire", errno);
  }
  opened->rails_ = std::make_unique<RailWire>(std::move(wires), id);
  // As far as other nodes take one: each rail's own is within it.
  if (const std::size_t size = opened->wire().address().size(); size > kUcxAddressSizeMax) {
    return Error(Code::kExhausted, fmt::format("the address of {} rails has {} bytes, {} are the "
                                               "most: name fewer devices",
                                               devices.size(), size, kUcxAddressSizeMax));
  }
  return opened;
}

Wire& UcxRails::wire() {
  if (rails_) return *rails_;
  return *wires_.front();
}

ExchangeOptions UcxRails::OptionsOf(const std::string& lane) const {
  ExchangeOptions options{.name = lane};
  if (rails_) options.peer_bytes_max = kPeerBytesMax;
  return options;
}

std::vector<int> UcxRails::event_fds() const {
  std::vector<int> fds;
  for (const auto& wire : wires_) fds.push_back(wire->event_fd());
  return fds;
}

}  // namespace headrace::transport

// The services that this one has refused, or that have refused it, kept for users who look for the
// cause after the connection is closed. Used on the peers thread only; time is an argument.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "ipc/base/clock.h"
#include "service/rpc/messages.h"

namespace headrace::service {

class Refusals {
 public:
  // Limit, because anybody can connect and be refused. The oldest is dropped first.
  static constexpr std::size_t kMax = 16;
  static constexpr TimeNs kKept = 600 * kSecond;

  // `name` is empty if it is not known; `leads` as in PeerView.
  void Note(const std::string& name, const std::string& address, bool leads, const std::string& why,
            TimeNs now);
  // The services have connected.
  void Forget(const std::string& name, const std::string& address);
  // Appends those of which `views` has nothing.
  void AddTo(std::vector<PeerView>& views, TimeNs now) const;

 private:
  struct Refusal {
    PeerView view;
    TimeNs at_ns = 0;
  };
  static bool IsOf(const PeerView& view, const std::string& name, const std::string& address);

  std::vector<Refusal> refusals_;  // oldest first
};

}  // namespace headrace::service

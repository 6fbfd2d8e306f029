// The services that this one would not have, or that would not have it, for people who look for the
// cause after the connection is gone. The peers thread only; the time comes in as an argument.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "ipc/base/clock.h"
#include "service/rpc/messages.h"

namespace headrace::service {

class Refusals {
 public:
  // Strangers decide how many there are: beyond that the oldest are forgotten.
  static constexpr std::size_t kMax = 16;
  static constexpr TimeNs kKept = 600 * kSecond;

  // `name` is empty while the other has not said it; `leads` as in PeerView.
  void Note(const std::string& name, const std::string& address, bool leads, const std::string& why,
            TimeNs now);
  // The two have met.
  void Forget(const std::string& name, const std::string& address);
  // Appends those of which `views` has nothing.
  void AddTo(std::vector<PeerView>& views, TimeNs now) const;

 private:
  struct Refusal {
    PeerView view;
    TimeNs at_ns = 0;
  };
  static bool IsOf(const PeerView& view, const std::string& name, const std::string& address);

  std::vector<Refusal> refusals_;  // the newest last
};

}  // namespace headrace::service

#include "service/peers/refusals.h"

#include <algorithm>

#include "ipc/base/age.h"

namespace headrace::service {
namespace {

// Whoever connects comes from another port each time.
std::string HostOf(const std::string& address) { return address.substr(0, address.rfind(':')); }

}  // namespace

bool Refusals::IsOf(const PeerView& view, const std::string& name, const std::string& address) {
  if (!view.name.empty() && !name.empty()) return view.name == name;
  return view.leads ? view.address == address : HostOf(view.address) == HostOf(address);
}

void Refusals::Note(const std::string& name, const std::string& address, bool leads,
                    const std::string& why, TimeNs now) {
  Forget(name, address);
  if (refusals_.size() == kMax) refusals_.erase(refusals_.begin());
  refusals_.push_back(
      {.view = {.name = name, .address = address, .leads = leads, .why = why, .refused = true},
       .at_ns = now});
}

void Refusals::Forget(const std::string& name, const std::string& address) {
  std::erase_if(refusals_, [&](const Refusal& each) { return IsOf(each.view, name, address); });
}

void Refusals::AddTo(std::vector<PeerView>& views, TimeNs now) const {
  for (const Refusal& each : refusals_) {
    if (now - each.at_ns > kKept) continue;
    const bool known = std::any_of(views.begin(), views.end(), [&each](const PeerView& view) {
      return IsOf(each.view, view.name, view.address);
    });
    if (known) continue;
    views.push_back(each.view);
    views.back().why += " (" + FormatAge(now - each.at_ns) + " ago)";
  }
}

}  // namespace headrace::service

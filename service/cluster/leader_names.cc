#include "service/cluster/leader_names.h"

#include <fmt/format.h>

#include <cstdint>
#include <utility>

#include "service/config/config_address.h"

namespace headrace::service {

Result<std::string> LeaderNames::At(const std::string& rendezvous) const {
  const bool listed = !peers.empty();
  if (listed && (peers.contains(rendezvous) || rendezvous == node_name)) {
    return rendezvous;
  }
  const Result<HostPort> place = ParseHostPort(rendezvous);
  if (!place) return place.error().Within("the rendezvous");
  if (!listed) return place->Text();
  for (const auto& [name, where] : peers) {
    if (where == place->Text()) return name;
  }
  if (place->Text() == address || place->Text() == OwnAddress()) return node_name;
  return Error(
      Code::kPermissionDenied,
      fmt::format("the rendezvous {} is not one of the peers of node {}: name one of the list "
                  "peers, or add it there",
                  place->Text(), node_name));
}

Result<std::string> LeaderNames::At(const JobPlace& place) const {
  const bool own = place.node == node_name && !node_name.empty();
  if (peers.empty()) return At(own && port != 0 ? OwnAddress() : place.address);
  if (own || peers.contains(place.node)) return place.node;
  // A node whose name is not known is looked up by its address, as a rendezvous is.
  if (place.node.empty()) return At(place.address);
  return Error(
      Code::kPermissionDenied,
      fmt::format("node {}, which has ranks of the job, is not one of the peers of node {}: "
                  "add it to the list peers",
                  place.node, node_name));
}

std::string LeaderNames::AddressOf(const std::string& leader) const {
  const auto listed = peers.find(leader);
  if (listed != peers.end()) return listed->second;
  return !peers.empty() && leader == node_name ? OwnAddress() : leader;
}

std::string ControlAddress(const std::string& said, const std::string& from) {
  Result<HostPort> place = ParseListenAddress(said);
  const Result<HostPort> source = ParseHostPort(from);
  if (!place || place->port == 0) return {};
  const std::string& host = place->host;
  if (host == "*" || host == "0.0.0.0" || host == "::" || IsLoopback(host)) {
    if (!source) return {};
    place->host = source->host;
  }
  return place->Text();
}

std::string LeaderNames::ListensAt() const {
  Result<HostPort> own = ParseListenAddress(address);
  if (!own) return {};
  own->port = static_cast<std::uint16_t>(port);
  return own->Text();
}

std::string LeaderNames::OwnAddress() const {
  Result<HostPort> own = ParseListenAddress(address);
  if (!own) return {};
  if (own->host == "*" || own->host == "0.0.0.0" || own->host == "::") {
    own->host = "localhost";
  }
  own->port = static_cast<std::uint16_t>(port);
  return own->Text();
}

}  // namespace headrace::service

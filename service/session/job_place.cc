#include "service/session/job_place.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "ipc/base/foreign_text.h"
#include "transport/network.h"

namespace headrace::service {
namespace {

constexpr std::size_t kNodeBytesMax = 63;
constexpr std::string_view kNone = "-";

// Whether it is printable ASCII, as other services ask it of a node's name: they end the connection
// that all users share where they are sent another.
bool IsWord(std::string_view text, std::size_t size_max) {
  return !text.empty() && text.size() <= size_max &&
         std::all_of(text.begin(), text.end(),
                     [](char letter) { return letter > ' ' && letter <= '~'; });
}

std::string_view WordOf(const std::string& text) {
  return text.empty() ? kNone : std::string_view(text);
}

std::string TextOf(std::string_view word) {
  return word == kNone ? std::string() : std::string(word);
}

}  // namespace

std::string PlacesText(const std::vector<JobPlace>& places) {
  std::string text;
  for (const JobPlace& each : places) {
    text += fmt::format("{} {}\n", WordOf(each.node), WordOf(each.address));
  }
  return text;
}

Result<std::vector<JobPlace>> ParsePlaces(std::string_view text) {
  std::vector<JobPlace> places;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    const std::size_t blank = std::min(line.find(' '), line.size());
    const std::string_view node = line.substr(0, blank);
    const std::string_view address = line.substr(std::min(line.size(), blank + 1));
    if (!IsWord(node, kNodeBytesMax) || !IsWord(address, kPlaceAddressMax) ||
        (node == kNone && address == kNone)) {
      return Error(Code::kInvalidArgument,
                   fmt::format("place {} of the job's services is \"{}\": a node's name and "
                               "\"host:port\" are expected, one of them may be \"-\"",
                               places.size(), Printable(line, kNodeBytesMax)));
    }
    if (places.size() == transport::kNodesMax) {
      return Error(
          Code::kInvalidArgument,
          fmt::format("a job has at most {} services, more are named", transport::kNodesMax));
    }
    places.push_back({.node = TextOf(node), .address = TextOf(address)});
  }
  return places;
}

}  // namespace headrace::service

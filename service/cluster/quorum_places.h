// The services that are asked one quorum question: the places of the job's services in the order
// that all nodes share, which of them this node can reach, and at which one it meets the others.
// Pure.
//
// The question goes to all places, so that the service that decides knows every member that it can
// reach. The meeting place is the first place that answers. A node chooses it only after each place
// has answered or could not be reached, because a place may know of a newer decision or of further
// services.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "service/cluster/job_directory.h"

namespace headrace::service {

struct QuorumPlace {
  enum class State : std::uint8_t {
    kTrying,  // connecting
    kUp,      // connected; it has not answered yet
    kHeard,   // it has answered
    kGone,    // connecting failed, or it refused this node; connecting is retried
  };
  JobPlace where;
  std::string leader;  // the name of this service for it
  bool meets = true;   // false: it is asked, but cannot be the meeting place
  State state = State::kTrying;
  bool informed = false;  // it was sent what this node knows of the job

  bool IsUp() const { return state == State::kUp || state == State::kHeard; }
};

class QuorumPlaces {
 public:
  std::vector<QuorumPlace>& all() { return places_; }
  const std::vector<QuorumPlace>& all() const { return places_; }
  QuorumPlace* Find(const std::string& leader);
  bool Has(const std::string& leader) const;
  // Replaces all places. A place that was there before keeps its state.
  void Replace(std::vector<QuorumPlace> places);
  // Index of the place at which this node meets the others; nothing if it is not known yet.
  std::optional<std::size_t> Meeting() const;
  // How many places may become the meeting place.
  std::size_t meeting_count() const;

 private:
  std::vector<QuorumPlace> places_;
};

}  // namespace headrace::service

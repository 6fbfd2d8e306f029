// Where one question is asked, who is left of a job: the places of the job's services in their
// order, which of them live as far as this node can tell, and at which of them it meets the others.
// Pure.
//
// The question goes to all of them, so that whoever decides knows of everybody that it can reach.
// A node meets the others at the first place that lives; it says so once it has heard of each of
// them, or has failed to reach it: one that knows more than it does, of a decision or of one that
// lives, has its say before.
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
    kTrying,  // it is being reached
    kUp,      // reached; it has said nothing yet
    kHeard,
    kGone,  // an attempt to reach it has failed, or it will not have this node; it is tried again
  };
  JobPlace where;
  std::string leader;  // what this service calls it
  bool meets = true;   // else it is only asked
  State state = State::kTrying;
  bool informed = false;  // of what is known here about the job

  bool IsUp() const { return state == State::kUp || state == State::kHeard; }
};

class QuorumPlaces {
 public:
  std::vector<QuorumPlace>& all() { return places_; }
  const std::vector<QuorumPlace>& all() const { return places_; }
  QuorumPlace* Find(const std::string& leader);
  bool Has(const std::string& leader) const;
  // Takes these instead; of those that stay the state stays.
  void Replace(std::vector<QuorumPlace> places);
  // The place at which this node meets the others; nothing: it is not known yet.
  std::optional<std::size_t> Meeting() const;
  // How many it could be.
  std::size_t meeting_count() const;

 private:
  std::vector<QuorumPlace> places_;
};

}  // namespace headrace::service

// A profile in the form the algorithms work on: when each gradient is ready, how much forward pass
// still follows each tensor, and how many bytes stand in front of it.
//
// Time 0 is the start of the backward pass. Gradients become ready in reverse forward order, so
// release_s falls and tail_s falls with the index; prefix_bytes rises.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ipc/base/codecs.h"
#include "ipc/profile.h"

namespace headrace::plan {

struct Workload {
  std::vector<std::uint64_t> bytes;         // M_l, gradient size
  std::vector<std::uint64_t> prefix_bytes;  // M_0 + ... + M_l
  std::vector<double> release_s;            // r_l = tb_{L-1} + ... + tb_l
  std::vector<double> tail_s;               // q_l = tf_l + ... + tf_{L-1}
  std::uint64_t element_bytes = 1;          // blocks are cut between elements only
  std::vector<std::uint64_t> rows;          // of each that is known to be a matrix; else 0
  std::vector<Codec> codecs{};              // in which each crosses between nodes; empty: as it is

  std::size_t size() const { return bytes.size(); }
  double backward_s() const { return release_s.front(); }  // T_B
  double forward_s() const { return tail_s.front(); }      // T_F
  std::uint64_t total_bytes() const { return prefix_bytes.back(); }
};

// The profile must have passed CheckProfile.
Workload MakeWorkload(const Profile& profile);

}  // namespace headrace::plan

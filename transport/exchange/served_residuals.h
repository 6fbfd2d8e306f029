// What a server has left out of the sums of its groups, by where it belongs in the gradients, so
// that other blocks and other shares of rails find it. Memory is taken in segments, when something
// is first left out there.
//
// A group's lanes share it, each on its own thread: the next sum of an element may come by another
// lane, once all nodes have the one before.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>

#include "ipc/base/result.h"
#include "transport/transport.h"

namespace headrace::transport {

class ServedResiduals {
 public:
  static constexpr std::size_t kSegmentCount = std::size_t{64} << 10;  // elements
  static constexpr std::size_t kSegmentBytes = kSegmentCount * sizeof(float);

  // `bytes_max` is for all groups together; 0: no limit.
  explicit ServedResiduals(std::uint64_t bytes_max) : bytes_max_(bytes_max) {}
  ServedResiduals(const ServedResiduals&) = delete;
  ServedResiduals& operator=(const ServedResiduals&) = delete;

  // A lane opens the group, and closes it. What is kept of a group goes with its last lane.
  void Open(std::uint32_t group);
  void Close(std::uint32_t group);

  // What was encoded for a group, and left out of it, so far; zeros where it is not open.
  struct Use {
    std::uint64_t encoded_bytes = 0;  // had it not been encoded
    std::uint64_t kept_bytes = 0;     // of memory
    // Over a few elements of each piece, of the last hundred or so.
    double sum_squares = 0;
    double residual_squares = 0;
  };
  Use UseOf(std::uint32_t group) const;
  // A sum of so many bytes was encoded; the squares are of a few of its elements.
  void OnEncoded(std::uint32_t group, std::uint64_t bytes, double sum_squares,
                 double residual_squares);

  // The group is open. Runs are of float32: elements from `offset` bytes on.
  bool KeepsAny(std::uint32_t group, std::span<const Run> runs) const;
  // Copies what is kept of the runs, one behind the other; zeros where nothing is.
  void Load(std::uint32_t group, std::span<const Run> runs, float* values) const;
  // kExhausted, and nothing is changed, where that takes more memory than there may be.
  Status Store(std::uint32_t group, std::span<const Run> runs, const float* values);
  // Keeps nothing of the runs any more.
  void Forget(std::uint32_t group, std::span<const Run> runs);

  std::uint64_t bytes() const;

 private:
  using Segment = std::array<float, kSegmentCount>;
  struct Kept {
    std::uint32_t lanes_count = 0;
    std::map<std::uint64_t, std::unique_ptr<Segment>> segments{};
    Use use{};  // without kept_bytes
  };

  // Calls `visit(kept segment or null, first element in it, count, element of the runs)`.
  template <typename KeptOf, typename Visit>
  static void ForEachPart(KeptOf& kept, std::span<const Run> runs, Visit visit);
  std::uint64_t LackingBytes(const Kept& kept, std::span<const Run> runs) const;

  const std::uint64_t bytes_max_;
  mutable std::mutex mutex_;  // for what follows
  std::map<std::uint32_t, Kept> groups_;
  std::uint64_t bytes_ = 0;
};

}  // namespace headrace::transport

// The memory that one rank's open operations use: ranges of addresses, of which those that are
// written overlap no other. A second operation on memory that is being written would find, or
// leave, bytes that depend on which of the two came first.
//
// Sorted by where they begin. A look-up is a binary search and, where nothing overlaps, a look at
// one neighbour; a rank has a few open at a time. Dispatch's thread. Gradients of a layout are not
// kept here: the layout says where they are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace headrace::service {

// Bytes [begin, end) of the service's view of a rank's memory; at least one.
struct OpenRange {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::uint64_t sequence = 0;  // of the operation
  bool written = false;

  bool Overlaps(const OpenRange& other) const { return begin < other.end && other.begin < end; }
  bool Conflicts(const OpenRange& other) const {
    return (written || other.written) && Overlaps(other);
  }
  // Bytes of both.
  std::uint64_t Shared(const OpenRange& other) const;
};

class OpenRanges {
 public:
  // Room for as many ranges: opening that many allocates nothing.
  void Reserve(std::size_t count) { ranges_.reserve(count); }

  // An open range that `range` conflicts with; null when there is none.
  const OpenRange* FindConflict(const OpenRange& range) const;
  // It conflicts with none.
  void Open(const OpenRange& range);
  // The range that was opened as it is.
  void Close(const OpenRange& range);

  bool empty() const { return ranges_.empty(); }
  std::size_t count() const { return ranges_.size(); }

 private:
  std::vector<OpenRange> ranges_;
};

}  // namespace headrace::service

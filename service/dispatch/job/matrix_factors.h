// Memory for the factors of a job's gradients that cross as such (powersgd): of each matrix what
// one sum of it needs, and what helps the next one. Plain data on dispatch's thread; lanes use the
// memory while they have a transfer of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ipc/base/codecs.h"
#include "ipc/base/fd.h"
#include "ipc/base/result.h"
#include "service/plan/plan.h"
#include "service/session/layout.h"

namespace headrace::service {

class MatrixFactors {
 public:
  // Makes room for what the plan's matrices lack, all of it or nothing, and returns the bytes. Room
  // that the plan does not need is kept, since blocks of the one before may be under way.
  Result<std::uint64_t> MakeRoom(const plan::Plan& plan, const Layout& layout);
  // Frees the room of matrices that have another rank in the plan in force, of whose predecessors
  // no block is under way any more, and not that rank in the one `offered`, if there is one.
  // Returns the bytes.
  std::uint64_t FreeRoom(const plan::Plan& plan, const plan::Plan* offered);
  // Null where there is no room for it. Zeros until it is used.
  std::byte* Find(std::uint32_t tensor, const Codec& codec) const;

 private:
  struct Room {
    std::uint32_t tensor = 0;
    Codec codec;
    Mapping memory;
  };

  std::vector<Room> rooms_;
  std::uint32_t freed_for_ = 0;  // the plan's version
};

}  // namespace headrace::service

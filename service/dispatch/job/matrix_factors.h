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
  // that a later plan does not need is kept, since blocks of the one before may be under way.
  Result<std::uint64_t> MakeRoom(const plan::Plan& plan, const Layout& layout);
  // Null where there is no room for it. Zeros until it is used.
  std::byte* Find(std::uint32_t tensor, const Codec& codec) const;

 private:
  struct Room {
    std::uint32_t tensor = 0;
    Codec codec;
    std::byte* memory = nullptr;
  };

  std::vector<Room> rooms_;
  std::vector<Mapping> memory_;
};

}  // namespace headrace::service

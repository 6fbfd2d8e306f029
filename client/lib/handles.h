// What stands behind the C header's handles. Immutable once handed out, so any thread may read it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "client/include/headrace/headrace.h"
#include "ipc/base/collective.h"
#include "ipc/sealed_memory.h"

struct hr_segment {
  std::uint32_t id;
  headrace::ipc::SealedMemory memory;
};

struct hr_tensor {
  std::uint32_t id;
  std::byte* address;
  std::uint64_t count;  // elements
  headrace::DType dtype;
};

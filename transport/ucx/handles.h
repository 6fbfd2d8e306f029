// Handles of UCX objects, each with one owner, and UCX's statuses as our errors.
#pragma once

#include <ucp/api/ucp.h>

#include <string_view>

#include "ipc/base/error.h"
#include "ipc/base/unique_handle.h"

namespace headrace::transport {

struct UcxConfigTraits {
  using Value = ucp_config_t*;
  static Value None() { return nullptr; }
  static void Release(Value value) { ucp_config_release(value); }
};
using UcxConfig = UniqueHandle<UcxConfigTraits>;

struct UcxContextTraits {
  using Value = ucp_context_h;
  static Value None() { return nullptr; }
  static void Release(Value value) { ucp_cleanup(value); }
};
using UcxContext = UniqueHandle<UcxContextTraits>;

// What makes progress and owns endpoints; UCX's own word for it is ucp_worker.
struct UcxEngineTraits {
  using Value = ucp_worker_h;
  static Value None() { return nullptr; }
  static void Release(Value value) { ucp_worker_destroy(value); }
};
using UcxEngine = UniqueHandle<UcxEngineTraits>;

struct UcxDatatypeTraits {
  using Value = ucp_datatype_t;
  static Value None() { return 0; }
  static void Release(Value value) { ucp_dt_destroy(value); }
};
using UcxDatatype = UniqueHandle<UcxDatatypeTraits>;

// Memory that UCX allocated and knows. The context must outlive it.
struct UcxMemoryTraits {
  struct Value {
    ucp_context_h context = nullptr;
    ucp_mem_h memory = nullptr;
    friend bool operator==(const Value&, const Value&) = default;
  };
  static Value None() { return {}; }
  static void Release(const Value& value) { ucp_mem_unmap(value.context, value.memory); }
};
using UcxMemory = UniqueHandle<UcxMemoryTraits>;

// What the caller may do about a UCX status.
Code CodeOf(ucs_status_t status);
// "doing: UCX says <its words>".
Error UcxError(std::string_view doing, ucs_status_t status);

}  // namespace headrace::transport

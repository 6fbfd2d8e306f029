// Handles of CUDA objects, each with one owner; one destructor releases one object. Those that
// belong to a context make it current for their release and restore the previous one. The driver,
// and the context if there is one, must outlive them.
#pragma once

#include <cstddef>

#include "ipc/base/result.h"
#include "ipc/base/unique_handle.h"
#include "transport/memory/cuda_driver.h"

namespace headrace::transport {

// Makes a context current on this thread for as long as it lives.
class CurrentContext {
 public:
  CurrentContext(const CudaDriver& driver, CuContext context)
      : driver_(driver), result_(driver.call().ctx_push(context)) {}
  CurrentContext(const CurrentContext&) = delete;
  CurrentContext& operator=(const CurrentContext&) = delete;
  ~CurrentContext();

  CuResult result() const { return result_; }

 private:
  const CudaDriver& driver_;
  CuResult result_;
};

// A use of a GPU's primary context, which all of this process share.
struct PrimaryContextTraits {
  struct Value {
    const CudaDriver* driver = nullptr;
    CuDevice device = 0;
    CuContext context = nullptr;
    friend bool operator==(const Value&, const Value&) = default;
  };
  static Value None() { return {}; }
  static void Release(const Value& value);
};
using PrimaryContext = UniqueHandle<PrimaryContextTraits>;
Result<PrimaryContext> RetainPrimaryContext(const CudaDriver& driver, CuDevice device);

// Memory of cuMemCreate or an import of it: a count on it, without an address.
struct VmmMemoryTraits {
  struct Value {
    const CudaDriver* driver = nullptr;
    CuMemory memory = 0;
    friend bool operator==(const Value&, const Value&) = default;
  };
  static Value None() { return {}; }
  static void Release(const Value& value);
};
using VmmMemory = UniqueHandle<VmmMemoryTraits>;

// Addresses set aside, nothing there yet.
struct AddressRange {
  const CudaDriver* driver = nullptr;
  CuAddress address = 0;
  std::size_t size = 0;
  friend bool operator==(const AddressRange&, const AddressRange&) = default;
};
struct ReservationTraits {
  using Value = AddressRange;
  static Value None() { return {}; }
  static void Release(const Value& value);
};
using Reservation = UniqueHandle<ReservationTraits>;
Result<Reservation> ReserveAddresses(const CudaDriver& driver, std::size_t size);

// Memory at addresses set aside; the memory stays for as long as it is mapped.
struct VmmMappingTraits {
  using Value = AddressRange;
  static Value None() { return {}; }
  static void Release(const Value& value);
};
using VmmMapping = UniqueHandle<VmmMappingTraits>;
Result<VmmMapping> MapMemory(const VmmMemory& memory, CuAddress address, std::size_t size);

// A thing of a context.
template <typename Thing>
struct InContext {
  const CudaDriver* driver = nullptr;
  CuContext context = nullptr;
  Thing thing{};
  friend bool operator==(const InContext&, const InContext&) = default;
};

template <typename Thing, CuResult (*CudaFunctions::*kRelease)(Thing)>
struct InContextTraits {
  using Value = InContext<Thing>;
  static Value None() { return {}; }
  static void Release(const Value& value) {
    // Without its context nothing is released: an address may be another's in the one before.
    const CurrentContext current(*value.driver, value.context);
    value.driver->NoteRelease(current.result() == CuResult::kSuccess
                                  ? (value.driver->call().*kRelease)(value.thing)
                                  : current.result());
  }
};

using LegacyMapping =
    UniqueHandle<InContextTraits<CuAddress, &CudaFunctions::ipc_close_mem_handle>>;
using HostRegistration = UniqueHandle<InContextTraits<void*, &CudaFunctions::mem_host_unregister>>;
using CudaStream = UniqueHandle<InContextTraits<CuStream, &CudaFunctions::stream_destroy>>;
using CudaEvent = UniqueHandle<InContextTraits<CuEvent, &CudaFunctions::event_destroy>>;
using CudaModule = UniqueHandle<InContextTraits<CuModule, &CudaFunctions::module_unload>>;

// Maps another process's memory where the driver likes.
Result<LegacyMapping> OpenLegacyHandle(const PrimaryContext& context, const CuIpcHandle& handle);
// Pins host memory (page aligned) and gives it an address on every GPU.
Result<HostRegistration> RegisterHostMemory(const PrimaryContext& context, void* memory,
                                            std::size_t size);
// `flags`: kCuStreamNonBlocking unless the stream must keep order with the default stream.
Result<CudaStream> CreateStream(const PrimaryContext& context, unsigned flags, int priority);
Result<CudaEvent> CreateEvent(const PrimaryContext& context);
// `image`: a fatbin, cubin, or PTX ending in NUL.
Result<CudaModule> LoadModule(const PrimaryContext& context, const void* image);
// A kernel by its name; lives as long as its module.
Result<CuFunction> FindKernel(const CudaModule& module, const char* name);

}  // namespace headrace::transport

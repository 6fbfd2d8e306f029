// The memory of one segment, mapped here until it is destroyed: a client's host memory, or its
// GPU's.
//
// Moved from owner to owner, and used by one of them at a time. Destroying it may take long.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <variant>

#include "ipc/base/fd.h"
#include "ipc/base/result.h"
#include "transport/memory/device_import.h"
#include "transport/transport.h"

namespace headrace::service {

class SegmentMemory {
 public:
  SegmentMemory() = default;
  // NOLINTNEXTLINE(google-explicit-constructor): host memory is a segment's as it is.
  SegmentMemory(Mapping mapping) : memory_(std::move(mapping)) {}
  explicit SegmentMemory(transport::DeviceImport import) : memory_(std::move(import)) {}

  // Where every GPU that reaches a GPU's memory finds it. Not for this processor to touch.
  std::byte* data() const {
    const auto* import = std::get_if<transport::DeviceImport>(&memory_);
    // The driver's addresses are integers of a pointer's size.
    if (import != nullptr) return reinterpret_cast<std::byte*>(import->address());
    return std::get<Mapping>(memory_).data();
  }
  std::size_t size() const {
    const auto* import = std::get_if<transport::DeviceImport>(&memory_);
    return import != nullptr ? import->size() : std::get<Mapping>(memory_).size();
  }
  std::span<std::byte> bytes() const { return {data(), size()}; }
  // The GPU's ordinal, or transport::kHost.
  std::int8_t device() const {
    const auto* import = std::get_if<transport::DeviceImport>(&memory_);
    return import != nullptr ? static_cast<std::int8_t>(import->device()) : transport::kHost;
  }
  explicit operator bool() const { return data() != nullptr; }

  // Unmaps up to `bytes` at the end, whole pages; a GPU's memory goes whole. True when nothing is
  // left.
  bool UnmapEnd(std::size_t bytes) {
    auto* mapping = std::get_if<Mapping>(&memory_);
    if (mapping != nullptr && mapping->size() > bytes) {
      mapping->UnmapEnd(bytes);
      return false;
    }
    memory_ = Mapping();
    return true;
  }

 private:
  std::variant<Mapping, transport::DeviceImport> memory_;
};

}  // namespace headrace::service

// How memory of a GPU is named between processes: what travels beside file descriptors, without a
// word of CUDA's headers. It is a claim by whoever sent it; the receiver checks every field.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

namespace headrace {

using DeviceUuid = std::array<std::uint8_t, 16>;

// "GPU-" and the bytes in hex with dashes, as nvidia-smi prints it.
inline std::string DeviceUuidText(const DeviceUuid& uuid) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string text = "GPU-";
  for (std::size_t i = 0; i < uuid.size(); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += kHex[uuid[i] >> 4];
    text += kHex[uuid[i] & 15];
  }
  return text;
}

enum class DeviceHandleKind : std::uint32_t {
  kPosixFds = 1,  // memory of cuMemCreate; its descriptors follow, one for each piece
  kLegacyIpc = 2  // memory of cuMemAlloc; named by the bytes of a CUDA IPC handle
};

inline constexpr std::uint64_t kDeviceMemorySizeMax = std::uint64_t{1} << 46;  // catches nonsense
// As many descriptors as Linux passes in one message.
inline constexpr std::uint64_t kDevicePiecesMax = 253;

struct DeviceHandle {
  DeviceHandleKind kind = DeviceHandleKind::kPosixFds;
  // What the exporter's getpid() says. CUDA refuses IPC handles between two processes of the same
  // value, also when they are in different pid namespaces; the importer can say so.
  std::uint32_t exporter_pid = 0;
  DeviceUuid device{};
  std::uint64_t offset = 0;  // from the first byte of what is mapped to the first that is meant
  std::uint64_t size = 0;    // bytes that are meant, from offset
  // kPosixFds: what each descriptor holds; pieces follow each other without gaps. Else 0.
  std::uint64_t piece_size = 0;
  std::array<std::uint8_t, 64> legacy{};  // kLegacyIpc: CUDA's handle. Else zeros.
};
static_assert(sizeof(DeviceHandle) == 112 && alignof(DeviceHandle) == 8);
static_assert(std::is_trivially_copyable_v<DeviceHandle>);
static_assert(offsetof(DeviceHandle, device) == 8 && offsetof(DeviceHandle, offset) == 24);
static_assert(offsetof(DeviceHandle, size) == 32 && offsetof(DeviceHandle, piece_size) == 40);
static_assert(offsetof(DeviceHandle, legacy) == 48);

}  // namespace headrace

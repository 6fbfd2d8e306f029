#include "service/rpc/device_claim.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <utility>

namespace headrace::service {
namespace {

// No element is larger, so that tensors at multiples of their elements' size are aligned.
constexpr std::uint64_t kAlignment = 8;

Error Wrong(std::string text) { return Error(Code::kInvalidArgument, std::move(text)); }

Status ReadBytes(capnp::Data::Reader bytes, const char* field, std::span<std::uint8_t> target) {
  if (bytes.size() != target.size()) {
    return Wrong(fmt::format("handle field {} has {} bytes, expected are {}", field, bytes.size(),
                             target.size()));
  }
  std::ranges::copy(bytes, target.begin());
  return {};
}

Status CheckNumbers(const DeviceHandle& handle, std::size_t pieces_count) {
  if (handle.size == 0 || handle.size > kDeviceMemorySizeMax) {
    return Wrong(fmt::format("handle field size is {}: at least 1 and at most {}", handle.size,
                             kDeviceMemorySizeMax));
  }
  if (handle.offset > kDeviceMemorySizeMax || handle.offset % kAlignment != 0) {
    return Wrong(fmt::format("handle field offset is {}: a multiple of {}, at most {}",
                             handle.offset, kAlignment, kDeviceMemorySizeMax));
  }
  if (handle.piece_size > kDeviceMemorySizeMax) {
    return Wrong(fmt::format("handle field pieceSize is {}: at most {}", handle.piece_size,
                             kDeviceMemorySizeMax));
  }
  const bool legacy = handle.kind == DeviceHandleKind::kLegacyIpc;
  if (legacy && (handle.piece_size != 0 || pieces_count != 0)) {
    return Wrong(fmt::format("a CUDA IPC handle has no pieces, this has {} of {} bytes",
                             pieces_count, handle.piece_size));
  }
  if (legacy) return {};
  if (handle.piece_size == 0) return Wrong("handle field pieceSize is 0");
  const std::uint64_t needed = (handle.offset + handle.size - 1) / handle.piece_size + 1;
  if (needed != pieces_count) {
    return Wrong(
        fmt::format("{} bytes from offset {} lie in {} pieces of {} bytes, and {} "
                    "descriptors came",
                    handle.size, handle.offset, needed, handle.piece_size, pieces_count));
  }
  return {};
}

}  // namespace

Result<DeviceHandle> ReadDeviceClaim(schema::DeviceHandle::Reader claim, std::size_t pieces_count,
                                     const std::string& gpus_missing) {
  if (!gpus_missing.empty()) return Error(Code::kUnavailable, gpus_missing);
  // Before anything is done for each of them.
  if (pieces_count > kDevicePiecesMax) {
    return Error(Code::kExhausted, fmt::format("{} pieces: at most {} can be passed", pieces_count,
                                               kDevicePiecesMax));
  }
  DeviceHandle handle{.exporter_pid = claim.getExporterPid(),
                      .offset = claim.getOffset(),
                      .size = claim.getSize(),
                      .piece_size = claim.getPieceSize()};
  switch (claim.getKind()) {
    case static_cast<std::uint32_t>(DeviceHandleKind::kPosixFds):
      handle.kind = DeviceHandleKind::kPosixFds;
      break;
    case static_cast<std::uint32_t>(DeviceHandleKind::kLegacyIpc):
      handle.kind = DeviceHandleKind::kLegacyIpc;
      break;
    default:
      return Wrong(fmt::format("handle field kind is {}: not known", claim.getKind()));
  }
  if (Status status = ReadBytes(claim.getDevice(), "device", handle.device); !status) {
    return status.error();
  }
  const bool legacy = handle.kind == DeviceHandleKind::kLegacyIpc;
  const std::span<std::uint8_t> named = handle.legacy;
  if (Status status =
          ReadBytes(claim.getLegacy(), "legacy", named.first(legacy ? named.size() : 0));
      !status) {
    return status.error();
  }
  if (Status status = CheckNumbers(handle, pieces_count); !status) return status.error();
  return handle;
}

}  // namespace headrace::service

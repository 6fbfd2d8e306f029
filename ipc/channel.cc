#include "ipc/channel.h"

#include <fmt/format.h>

namespace headrace::ipc {

Result<Channel::Created> Channel::Create() {
  Result<SealedMemory> memory = CreateSealedMemory("headrace-channel", kChannelSize);
  if (!memory) return memory.error().Within("create channel");
  Channel channel(std::move(memory->mapping));
  ChannelHeader& header = channel.layout().header;
  header.magic = kChannelMagic;
  header.version = kChannelVersion;
  header.operations_max = kOperationsMax;
  header.size = kChannelSize;
  return Created{std::move(channel), std::move(memory->fd)};
}

Result<Channel> Channel::Open(int fd) {
  Result<Mapping> mapping = MapSealedMemory(fd, kChannelSize);
  if (!mapping) return mapping.error().Within("open channel");
  Channel channel(std::move(mapping).value());
  const ChannelHeader& header = channel.layout().header;
  const std::uint64_t magic = header.magic;
  const std::uint32_t version = header.version;
  const std::uint32_t operations_max = header.operations_max;
  if (magic != kChannelMagic) {
    return Error(Code::kInvalidArgument,
                 fmt::format("open channel: magic {:#x} is not {:#x}: the memory was not "
                             "initialised as a channel",
                             magic, kChannelMagic));
  }
  if (version != kChannelVersion || operations_max != kOperationsMax) {
    return Error(Code::kVersionMismatch,
                 fmt::format("open channel: version {} with {} operations; this service speaks "
                             "version {} with {}: update the {}",
                             version, operations_max, kChannelVersion, kOperationsMax,
                             version > kChannelVersion ? "service, which is older"
                                                       : "client library, which is older"));
  }
  return channel;
}

}  // namespace headrace::ipc

#include "service/peers/channel_hello.h"

#include <fmt/format.h>
#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>

#include "ipc/base/check.h"

namespace headrace::service {

ChannelId DrawChannelId() {
  ChannelId id{};
  ssize_t size = 0;
  do {
    size = ::getrandom(id.data(), id.size(), 0);
  } while (size < 0 && errno == EINTR);
  HR_CHECK(size == static_cast<ssize_t>(id.size()), size, errno);
  return id;
}

bool IsSame(const ChannelId& one, const ChannelId& other) {
  unsigned differs = 0;
  for (std::size_t i = 0; i < one.size(); ++i) {
    differs |= static_cast<unsigned>(one.at(i) ^ other.at(i));
  }
  return differs == 0;
}

void WriteChannel(schema::PeerChannel::Builder channel, const ChannelHello& hello) {
  channel.setId({hello.id.data(), hello.id.size()});
  channel.setResumes(hello.resumes);
  channel.setReceived(hello.received);
}

Result<ChannelHello> ReadChannel(schema::PeerChannel::Reader channel) {
  ChannelHello hello{.resumes = channel.getResumes(), .received = channel.getReceived()};
  const auto id = channel.getId();
  if (id.size() != hello.id.size()) {
    return Error(Code::kCorrupt, fmt::format("the id of a channel has {} bytes and not {}",
                                             id.size(), hello.id.size()));
  }
  if (!hello.resumes && hello.received != 0) {
    return Error(Code::kCorrupt,
                 fmt::format("a channel that begins has received {} messages", hello.received));
  }
  std::copy(id.begin(), id.end(), hello.id.begin());
  return hello;
}

}  // namespace headrace::service

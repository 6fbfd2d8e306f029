#include "ipc/base/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>

#include "ipc/base/fd.h"

namespace headrace {

Result<std::string> ReadSmallFile(const std::string& path, std::string_view what_not) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd) return SystemError("open " + path, errno);
  std::string text(kSmallFileMax + 1, '\0');
  std::size_t filled = 0;
  while (filled < text.size()) {
    const ssize_t got = ::read(fd.get(), text.data() + filled, text.size() - filled);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return SystemError("read " + path, errno);
    if (got == 0) break;
    filled += static_cast<std::size_t>(got);
  }
  if (filled > kSmallFileMax) {
    return Error(Code::kInvalidArgument,
                 fmt::format("{}: more than {} bytes: {}", path, kSmallFileMax, what_not));
  }
  text.resize(filled);
  return text;
}

}  // namespace headrace

// In which codecs people want the gradients of jobs to cross, kept beyond an epoch: ranks that come
// back after the loss of a service go on by what was asked. Only of jobs that this service leads,
// for as long as it runs. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>

#include "ipc/base/codec_choice.h"

namespace headrace::service {

class RequestedCodecs {
 public:
  // Beyond that the oldest request of the user that has the most is forgotten.
  static constexpr std::size_t kMax = 256;

  void Keep(std::string_view job, std::uint32_t uid, const CodecChoice& choice);
  std::optional<CodecChoice> Find(std::string_view job, std::uint32_t uid) const;
  // The job begins anew.
  void Forget(std::string_view job, std::uint32_t uid);

 private:
  struct Request {
    std::string job;
    std::uint32_t uid = 0;
    CodecChoice choice;
  };
  std::deque<Request> requests_;  // the newest last
};

}  // namespace headrace::service

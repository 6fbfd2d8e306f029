// The messages to http.
#pragma once

#include <variant>

#include "service/actor/probe_answer.h"
#include "service/actor/request.h"

namespace headrace::service {

struct ProbeEnded {
  RequestToken token = 0;
  ProbeAnswer answer;
};
using HttpMessage = std::variant<ProbeEnded>;

}  // namespace headrace::service

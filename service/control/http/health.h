// What a probe's answer says to whoever supervises the service, and since when.
//
// Healthy: control answers, and dispatch has answered it. Ready: also the service is running, and
// every lane has done something: inside the node summed a few bytes, between nodes turned around on
// its own thread. Pure: times come in as arguments.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "ipc/base/clock.h"
#include "ipc/board_layout.h"
#include "service/control/http/http_page.h"
#include "service/control/probe.h"

namespace headrace::service {

class Health {
 public:
  // Takes an answer in; `unix_ns` is when it came. Whoever has not answered is silent since the
  // first such answer after its last word.
  void Take(const ProbeAnswer& answer, std::int64_t unix_ns);

  // 200, or 503 with who is silent; JSON in both cases. Of what was taken in last.
  HttpPage Healthz() const;
  HttpPage Readyz(ipc::ServiceState state) const;

 private:
  struct Part {
    bool answered = false;
    TimeNs ns = -1;    // that the last answer took
    std::string says;  // what is wrong with it
    std::int64_t silent_since_unix_ns = 0;
    std::int64_t answered_unix_ns = 0;  // 0: never
  };
  void Take(const std::string& name, bool answered, TimeNs ns, std::string says,
            std::int64_t unix_ns);

  std::map<std::string, Part> parts_;  // "dispatch", "lane shm0", ...
};

}  // namespace headrace::service

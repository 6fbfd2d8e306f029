// The state of the service for its supervisor, from a probe's answer, and since when it holds.
//
// Healthy: dispatch and the other threads that clients depend on have answered. Ready: also the
// service is running, and every lane has done something: inside the node summed a few bytes,
// between nodes turned around on its own thread. Pure: times come in as arguments.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "ipc/base/clock.h"
#include "ipc/board_layout.h"
#include "service/actor/probe_answer.h"
#include "service/http/http_page.h"

namespace headrace::service {

class Health {
 public:
  // Takes an answer in; `unix_ns` is when it came. Whoever has not answered is silent since the
  // first such answer after its last word.
  void Update(const ProbeAnswer& answer, std::int64_t unix_ns);

  // 200, or 503 with who is silent; JSON in both cases. Of what was taken in last.
  HttpPage Healthz() const;
  HttpPage Readyz(ipc::ServiceState state) const;

 private:
  struct Component {
    bool answered = false;
    TimeNs ns = -1;    // that the last answer took
    std::string says;  // what is wrong with it
    std::int64_t silent_since_unix_ns = 0;
    std::int64_t answered_unix_ns = 0;  // 0: never
  };
  void Record(const std::string& name, bool answered, TimeNs ns, std::string says,
              std::int64_t unix_ns);

  // Those that have not answered, with what is known of them.
  nlohmann::ordered_json Silent(bool with_lanes) const;

  std::map<std::string, Component> components_;  // "dispatch", "peers", "lane shm0", ...
};

}  // namespace headrace::service

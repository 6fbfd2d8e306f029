// A trace as Perfetto and Chrome open it ("JSON Trace Event Format"): processes with tracks, slices
// on them, instants. Used for what a service recorded and for what a replay played. Pure.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "ipc/base/clock.h"

namespace headrace::ctl {

class TraceEvents {
 public:
  using Json = nlohmann::ordered_json;

  // Processes stand in the order of their numbers, tracks in the order of theirs.
  void NameProcess(std::uint32_t process, const std::string& name);
  void NameTrack(std::uint32_t process, int track, const std::string& name);
  // Times are nanoseconds after the trace's zero. What the name holds of control characters is
  // replaced.
  void Slice(std::uint32_t process, int track, const std::string& name, TimeNs begin_ns,
             TimeNs end_ns, Json args = nullptr);
  void Instant(std::uint32_t process, int track, const std::string& name, TimeNs at_ns,
               Json args = nullptr);

  // The whole file, and a newline. `about` is what tools show of the trace as a whole.
  std::string Dump(Json about) const;

 private:
  Json events_ = Json::array();
};

// Places on which nothing overlaps: slices that are there at the same time stand in rows of their
// own, the lowest that is free. Begins may not go back.
class TraceRows {
 public:
  // Counts from 0.
  std::size_t RowFor(TimeNs begin_ns, TimeNs end_ns);
  std::size_t count() const { return free_from_ns_.size(); }

 private:
  std::vector<TimeNs> free_from_ns_;
};

}  // namespace headrace::ctl

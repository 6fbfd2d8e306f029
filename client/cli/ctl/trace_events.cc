#include "client/cli/ctl/trace_events.h"

#include <algorithm>
#include <utility>

#include "client/cli/ctl/table.h"
#include "ipc/base/foreign_text.h"

namespace headrace::ctl {
namespace {

// The format's times are microseconds.
double Microseconds(TimeNs time_ns) { return static_cast<double>(time_ns) / kMicrosecond; }

TraceEvents::Json Named(const char* what, std::uint32_t process, int track,
                        const std::string& name) {
  return {{"name", what},
          {"ph", "M"},
          {"pid", process},
          {"tid", track},
          {"args", {{"name", Printable(name)}}}};
}

TraceEvents::Json Order(const char* what, std::uint32_t process, int track, std::int64_t index) {
  return {{"name", what},
          {"ph", "M"},
          {"pid", process},
          {"tid", track},
          {"args", {{"sort_index", index}}}};
}

}  // namespace

void TraceEvents::NameProcess(std::uint32_t process, const std::string& name) {
  events_.push_back(Named("process_name", process, 0, name));
  events_.push_back(Order("process_sort_index", process, 0, process));
}

void TraceEvents::NameTrack(std::uint32_t process, int track, const std::string& name) {
  events_.push_back(Named("thread_name", process, track, name));
  events_.push_back(Order("thread_sort_index", process, track, track));
}

void TraceEvents::Slice(std::uint32_t process, int track, const std::string& name, TimeNs begin_ns,
                        TimeNs end_ns, Json args) {
  Json slice = {{"name", Printable(name)},
                {"ph", "X"},
                {"pid", process},
                {"tid", track},
                {"ts", Microseconds(begin_ns)},
                {"dur", Microseconds(end_ns - begin_ns)}};
  if (!args.is_null()) slice["args"] = std::move(args);
  events_.push_back(std::move(slice));
}

void TraceEvents::Instant(std::uint32_t process, int track, const std::string& name, TimeNs at_ns,
                          Json args) {
  Json instant = {
      {"name", Printable(name)},  {"ph", "i"}, {"pid", process}, {"tid", track}, {"s", "t"},
      {"ts", Microseconds(at_ns)}};
  if (!args.is_null()) instant["args"] = std::move(args);
  events_.push_back(std::move(instant));
}

std::string TraceEvents::Dump(Json about) const {
  const Json trace = {
      {"displayTimeUnit", "ms"}, {"otherData", std::move(about)}, {"traceEvents", events_}};
  return trace.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::size_t TraceRows::RowFor(TimeNs begin_ns, TimeNs end_ns) {
  auto row = std::ranges::find_if(free_from_ns_,
                                  [begin_ns](TimeNs time_ns) { return time_ns <= begin_ns; });
  if (row == free_from_ns_.end()) row = free_from_ns_.insert(row, 0);
  *row = end_ns;
  return static_cast<std::size_t>(row - free_from_ns_.begin());
}

}  // namespace headrace::ctl

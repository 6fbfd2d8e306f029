// Where the limits of a process's control groups stand: those of version 2 in the one hierarchy
// under /sys/fs/cgroup, those of version 1 in one hierarchy for each controller below that. Pure:
// whoever calls this reads the files.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace headrace {

// The files called `name` of the process's group and of all groups above it, from the inside out:
// each group is bounded by those above it. `groups` is the text of /proc/PID/cgroup. `controller`
// is one of version 1 ("memory"); empty: the hierarchy of version 2. Empty where the process is in
// no such hierarchy.
//
// In a container the path may be the host's, and the container's own group the root of what is
// mounted: the files near the process are then not there, and the last one counts.
std::vector<std::string> CgroupFiles(std::string_view groups, std::string_view controller,
                                     std::string_view name);

}  // namespace headrace

// How much memory the service and its clients have: the machine's, or what the service's control
// group may use where that is less.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace headrace::service {

struct MemoryFound {
  std::uint64_t bytes = 0;
  std::string limited_by;  // the file of the control group that says so; empty: the machine's
};

// The text of a file; empty where it cannot be read.
using ReadText = std::function<std::string(const std::string& path)>;

// The smallest limit on the way up the service's control group, of version 2 (memory.max) or 1
// (memory.limit_in_bytes), unless the machine has less. `groups` is the text of /proc/self/cgroup.
// Pure.
MemoryFound FindMemory(std::uint64_t machine_bytes, const std::string& groups,
                       const ReadText& read);

// That of this process, now.
MemoryFound FindOwnMemory();

// What one uid may hand over by default: three quarters of it.
std::uint64_t DefaultMemoryPerUid(const MemoryFound& memory);

// How many mappings the service may have (vm.max_map_count); the kernel's default where it is not
// known.
std::uint64_t FindMappingsMax();

// "three quarters of the 128 GiB that ... allows", for the log.
std::string DescribeDefaultMemory(const MemoryFound& memory);

}  // namespace headrace::service

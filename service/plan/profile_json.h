// Profile files: the JSON form that the planner, the recorder and the replay read and write.
//
//   {"format": "headrace-profile/1", "model": "resnet50", "dtype": "float32",
//    "tensors": [{"name": "conv1.weight", "elements": 9408, "backward_s": 0.0040,
//                 "forward_s": 0.0020}, ...]}
//
// Tensors stand in forward order, times in seconds. Fields with other names are skipped, so that a
// recorder may add where and when.
#pragma once

#include <string>
#include <string_view>

#include "ipc/base/result.h"
#include "service/plan/profile.h"

namespace headrace::plan {

// Takes text from strangers. The error names the line and the field, for example
// "line 7: tensors[2].backward_s: is negative".
Result<Profile> ParseProfile(std::string_view text);

// One tensor a line; numbers in the shortest form that reads back as the same.
std::string ProfileJson(const Profile& profile);

}  // namespace headrace::plan

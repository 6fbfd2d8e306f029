#include "service/rpc/user_rows.h"

#include <algorithm>

#include "ipc/base/check.h"
namespace headrace::service {

void UserRows::Show(std::vector<std::uint32_t> uids, const Describe& describe) {
  std::sort(uids.begin(), uids.end());
  uids.erase(std::unique(uids.begin(), uids.end()), uids.end());
  std::vector<bool> taken(slots_.size(), false);
  for (auto each = places_.begin(); each != places_.end();) {
    if (std::binary_search(uids.begin(), uids.end(), each->first)) {
      taken[each->second] = true;
      ++each;
    } else {
      ipc::WriteRow(slots_[each->second], ipc::UserRow{});
      each = places_.erase(each);
    }
  }
  auto free = std::find(taken.begin(), taken.end(), false);
  for (const std::uint32_t uid : uids) {
    auto place = places_.find(uid);
    if (place == places_.end()) {
      if (free == taken.end()) continue;
      place = places_.emplace(uid, static_cast<std::size_t>(free - taken.begin())).first;
      free = std::find(free + 1, taken.end(), false);
    }
    HR_CHECK(place->second < slots_.size() && places_.size() <= slots_.size(), place->second,
             places_.size());
    ipc::UserRow row{};
    row.in_use = 1;
    row.uid = uid;
    describe(row);
    ipc::WriteRow(slots_[place->second], row);
  }
}

}  // namespace headrace::service

// The board's rows of users: what each uid holds of the service. The rpc thread only.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <vector>

#include "ipc/board.h"

namespace headrace::service {

class UserRows {
 public:
  // Fills in what the row's uid has.
  using Describe = std::function<void(ipc::UserRow& row)>;

  // The slots outlive this; all of them are free.
  explicit UserRows(std::span<ipc::BoardSlot<ipc::UserRow>> slots) : slots_(slots) {}

  // Shows these uids, in any order and perhaps twice, and no others. Those that find no free row
  // are left out until there is one.
  void Show(std::vector<std::uint32_t> uids, const Describe& describe);

 private:
  std::span<ipc::BoardSlot<ipc::UserRow>> slots_;
  std::map<std::uint32_t, std::size_t> places_;  // of the uids that are shown
};

}  // namespace headrace::service

#include "client/cli/ctl/snapshot.h"

namespace headrace::ctl {
namespace {

constexpr int kLooksMax = 20;

}  // namespace

Snapshot TakeSnapshot(const ipc::BoardLayout& layout, TimeNs now_ns) {
  return ipc::ReadBoard(layout, now_ns, {.looks_max = kLooksMax, .with_plan_blocks = true});
}

Result<Snapshot> ReadBoard(const std::string& path) {
  Result<ipc::BoardView> view = ipc::BoardView::Open(path);
  if (!view) {
    if (view.error().code() != Code::kNotFound) return view.error();
    return Error(Code::kUnavailable,
                 view.error().text() +
                     ": no service writes this board; start headraced, or name its board with "
                     "--board or HEADRACE_BOARD");
  }
  return TakeSnapshot(view->layout(), MonotonicNow());
}

}  // namespace headrace::ctl

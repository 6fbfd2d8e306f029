// The C functions about a session's layout.
#include "client/lib/api.h"
#include "client/lib/layout.h"

using headrace::Code;
using headrace::Error;
using headrace::Result;
using headrace::Status;
using headrace::client::Guarded;
using headrace::client::InsideOf;
using headrace::client::Layout;
using headrace::client::Session;
using headrace::client::WithSession;

namespace {

// Runs `body(layout)` for a layout that may be used here and now.
template <typename Body>
hr_status WithLayout(hr_layout* handle, hr_error* error, Body&& body) {
  return Guarded(error, [handle, &body]() -> Status {
    if (handle == nullptr) return Error(Code::kInvalidArgument, "the layout is NULL");
    return InsideOf(handle->session, [handle, &body] { return body(handle->layout); });
  });
}

}  // namespace

extern "C" {

hr_status hr_layout_create(hr_session* session, const hr_tensor_spec* specs, size_t count,
                           const hr_layout_options* options, hr_layout** layout, hr_error* error) {
  return WithSession(session, error, [=](Session& opened) -> Status {
    if (specs == nullptr || options == nullptr || layout == nullptr) {
      return Error(Code::kInvalidArgument, "specs, options or layout is NULL");
    }
    const Result<hr_layout*> created = opened.CreateLayout({specs, count}, *options);
    if (!created) return created.error();
    *layout = *created;
    return {};
  });
}

void hr_layout_free(hr_layout* layout) {
  if (layout == nullptr || layout->session.InChild()) return;
  layout->session.FreeLayout(layout);
}

hr_status hr_layout_begin_backward(hr_layout* layout, hr_error* error) {
  return WithLayout(layout, error, [](Layout& opened) { return opened.BeginBackward(); });
}

hr_status hr_layout_post(hr_layout* layout, uint32_t index, hr_operation* operation,
                         hr_error* error) {
  return WithLayout(layout, error, [index, operation](Layout& opened) -> Status {
    const Result<std::uint64_t> posted = opened.Post(index);
    if (!posted) return posted.error();
    if (operation != nullptr) *operation = *posted;
    return {};
  });
}

hr_status hr_layout_wait(hr_layout* layout, uint32_t index, int64_t timeout_ns, hr_error* error) {
  return WithLayout(layout, error,
                    [index, timeout_ns](Layout& opened) { return opened.Wait(index, timeout_ns); });
}

hr_status hr_layout_barrier(hr_layout* layout, hr_operation* operation, hr_error* error) {
  return WithLayout(layout, error, [operation](Layout& opened) -> Status {
    if (operation == nullptr) return Error(Code::kInvalidArgument, "operation is NULL");
    const Result<std::uint64_t> posted = opened.PostBarrier();
    if (!posted) return posted.error();
    *operation = *posted;
    return {};
  });
}

hr_status hr_layout_end_forward(hr_layout* layout, hr_error* error) {
  return WithLayout(layout, error, [](Layout& opened) -> Status {
    opened.EndForward();
    return {};
  });
}

hr_status hr_layout_set_contributors(hr_layout* layout, uint32_t count, hr_error* error) {
  return WithLayout(layout, error,
                    [count](Layout& opened) { return opened.SetContributors(count); });
}

hr_status hr_layout_set_iterations(hr_layout* layout, uint64_t iterations, hr_error* error) {
  return WithLayout(layout, error, [layout, iterations](Layout&) -> Status {
    layout->session.SetLayoutIterations(iterations);
    return {};
  });
}

}  // extern "C"

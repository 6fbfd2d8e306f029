// The C functions about memory of GPUs and their streams.
#include <unistd.h>

#include <new>
#include <utility>

#include "client/lib/api.h"
#include "client/lib/layout.h"

using headrace::Code;
using headrace::Collective;
using headrace::Error;
using headrace::Reduction;
using headrace::Result;
using headrace::Status;
using headrace::client::Deliver;
using headrace::client::GpuWords;
using headrace::client::Guarded;
using headrace::client::InsideOf;
using headrace::client::Layout;
using headrace::client::ReductionOf;
using headrace::client::Request;
using headrace::client::Session;
using headrace::client::StreamSignal;
using headrace::client::WithSession;
using headrace::transport::CuStream;

namespace {

Status DeliverSegment(const Result<hr_segment*>& made, hr_segment** segment) {
  if (!made) return made.error();
  *segment = *made;
  return {};
}

hr_status PostOnStream(hr_session* session, const Request& request, const hr_tensor* tensor,
                       const hr_range* range, void* stream, hr_operation* operation,
                       hr_error* error) {
  return WithSession(session, error, [&](Session& opened) -> Status {
    if (operation == nullptr) return Error(Code::kInvalidArgument, "operation is NULL");
    return Deliver(opened.PostOnStream(request, tensor, range, static_cast<CuStream>(stream)),
                   operation);
  });
}

// Runs `body(layout, words)` with what the stream needs to say and hear about the layout's memory.
template <typename Body>
hr_status WithLayoutOnGpu(hr_layout* handle, void* stream, hr_error* error, Body&& body) {
  return Guarded(error, [handle, stream, &body]() -> Status {
    if (handle == nullptr) return Error(Code::kInvalidArgument, "the layout is NULL");
    Session& session = handle->session;
    return InsideOf(session, [handle, stream, &session, &body]() -> Status {
      const Result<GpuWords*> words =
          session.WordsFor(handle->layout.device(), static_cast<CuStream>(stream));
      if (!words) return words.error();
      return body(handle->layout, **words);
    });
  });
}

}  // namespace

extern "C" {

hr_status hr_segment_create_on_device(hr_session* session, size_t size, int device,
                                      hr_segment** segment, hr_error* error) {
  return WithSession(session, error, [=](Session& opened) -> Status {
    if (segment == nullptr) return Error(Code::kInvalidArgument, "segment is NULL");
    return DeliverSegment(opened.CreateDeviceSegment(size, device), segment);
  });
}

hr_status hr_segment_share_device(hr_session* session, void* address, size_t size,
                                  hr_segment** segment, hr_error* error) {
  return WithSession(session, error, [=](Session& opened) -> Status {
    if (segment == nullptr) return Error(Code::kInvalidArgument, "segment is NULL");
    return DeliverSegment(opened.ShareDeviceSegment(address, size), segment);
  });
}

hr_status hr_device_allocation(hr_session* session, const void* address, hr_allocation* allocation,
                               hr_error* error) {
  return WithSession(session, error, [=](Session& opened) -> Status {
    if (allocation == nullptr) return Error(Code::kInvalidArgument, "allocation is NULL");
    const Result<hr_allocation> found = opened.AllocationAt(address);
    if (!found) return found.error();
    *allocation = *found;
    return {};
  });
}

int hr_segment_device(const hr_segment* segment) { return segment->device; }

hr_memory* hr_segment_keep(const hr_segment* segment) {
  if (segment->gpu_memory == nullptr) return nullptr;
  return new (std::nothrow) hr_memory{::getpid(), segment->gpu_memory};
}

void hr_memory_free(hr_memory* memory) {
  // A forked child has no GPU, and must not call the driver it inherited.
  if (memory == nullptr || memory->pid != ::getpid()) return;
  delete memory;
}

hr_status hr_all_reduce_on_stream(hr_session* session, hr_tensor* tensor, const hr_range* range,
                                  hr_reduction reduction, void* stream, hr_operation* operation,
                                  hr_error* error) {
  return PostOnStream(session, {Collective::kAllReduce, ReductionOf(reduction)}, tensor, range,
                      stream, operation, error);
}

hr_status hr_broadcast_on_stream(hr_session* session, hr_tensor* tensor, const hr_range* range,
                                 uint32_t root, void* stream, hr_operation* operation,
                                 hr_error* error) {
  return PostOnStream(session, {Collective::kBroadcast, Reduction::kSum, root}, tensor, range,
                      stream, operation, error);
}

hr_status hr_reduce_on_stream(hr_session* session, hr_tensor* tensor, const hr_range* range,
                              hr_reduction reduction, uint32_t root, void* stream,
                              hr_operation* operation, hr_error* error) {
  return PostOnStream(session, {Collective::kReduce, ReductionOf(reduction), root}, tensor, range,
                      stream, operation, error);
}

hr_status hr_reduce_scatter_on_stream(hr_session* session, hr_tensor* tensor, const hr_range* range,
                                      hr_reduction reduction, void* stream, hr_operation* operation,
                                      hr_error* error) {
  return PostOnStream(session, {Collective::kReduceScatter, ReductionOf(reduction)}, tensor, range,
                      stream, operation, error);
}

hr_status hr_reduce_scatter_into_on_stream(hr_session* session, const hr_tensor* input,
                                           const hr_range* range, hr_tensor* output,
                                           const hr_range* output_range, const uint64_t* counts,
                                           hr_reduction reduction, void* stream,
                                           hr_operation* operation, hr_error* error) {
  return WithSession(session, error, [&](Session& opened) -> Status {
    if (operation == nullptr) return Error(Code::kInvalidArgument, "operation is NULL");
    const Request request{Collective::kReduceScatter, ReductionOf(reduction)};
    auto made = opened.PartsRequest(request, input, range, output, output_range, counts);
    if (!made) return made.error();
    return Deliver(
        opened.PostOnStream(std::move(made), input->device, static_cast<CuStream>(stream)),
        operation);
  });
}

hr_status hr_all_gather_on_stream(hr_session* session, hr_tensor* tensor, const hr_range* range,
                                  void* stream, hr_operation* operation, hr_error* error) {
  return PostOnStream(session, {Collective::kAllGather}, tensor, range, stream, operation, error);
}

hr_status hr_send_on_stream(hr_session* session, hr_tensor* tensor, const hr_range* range,
                            uint32_t target, uint64_t tag, void* stream, hr_operation* operation,
                            hr_error* error) {
  return PostOnStream(session, headrace::client::SendTo(target, tag), tensor, range, stream,
                      operation, error);
}

hr_status hr_recv_on_stream(hr_session* session, hr_tensor* tensor, const hr_range* range,
                            uint32_t source, uint64_t tag, void* stream, hr_operation* operation,
                            hr_error* error) {
  return PostOnStream(session, headrace::client::ReceiveFrom(source, tag), tensor, range, stream,
                      operation, error);
}

hr_status hr_stream_wait(hr_session* session, hr_operation operation, void* stream,
                         hr_error* error) {
  return WithSession(session, error, [=](Session& opened) {
    return opened.WaitOnStream(operation, static_cast<CuStream>(stream));
  });
}

hr_status hr_layout_post_on_stream(hr_layout* layout, uint32_t index, void* stream,
                                   hr_operation* operation, hr_error* error) {
  return WithLayoutOnGpu(layout, stream, error, [=](Layout& opened, GpuWords& words) {
    StreamSignal signal(words, static_cast<CuStream>(stream));
    return Deliver(opened.Post(index, &signal), operation);
  });
}

hr_status hr_layout_wait_on_stream(hr_layout* layout, uint32_t index, void* stream,
                                   hr_error* error) {
  return WithLayoutOnGpu(layout, stream, error, [=](Layout& opened, GpuWords& words) {
    return opened.WaitOnStream(index, words, static_cast<CuStream>(stream));
  });
}

}  // extern "C"

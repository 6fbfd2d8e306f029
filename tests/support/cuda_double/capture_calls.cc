// Streams that are captured into a graph (CUDA Driver API, Stream Management): enough of it to tell
// that one is, and that a call of the process which pins memory ends it
// (cuThreadExchangeStreamCaptureMode, CU_STREAM_CAPTURE_MODE_GLOBAL); none of these calls lists
// CUDA_ERROR_INVALID_CONTEXT. What is posted meanwhile is carried out, and there is no graph.
#include "tests/support/cuda_double/machine.h"

namespace headrace::transport {
using namespace headrace::cuda_double;  // NOLINT(google-build-using-namespace)

extern "C" {

__attribute__((visibility("default"))) CuResult cuStreamBeginCapture_v2(CuStream stream,
                                                                        std::uint32_t /*mode*/) {
  HR_DOUBLE_ENTER();
  std::shared_ptr<StreamState> found;
  if (const CuResult result = FindStream(stream, found, Needs::kNothing);
      result != CuResult::kSuccess)
    return result;
  found->captured = true;
  found->spoiled = false;
  return CuResult::kSuccess;
}

__attribute__((visibility("default"))) CuResult cuStreamEndCapture(CuStream stream, void** graph) {
  HR_DOUBLE_ENTER();
  std::shared_ptr<StreamState> found;
  if (const CuResult result = FindStream(stream, found, Needs::kNothing);
      result != CuResult::kSuccess)
    return result;
  found->captured = false;
  *graph = nullptr;
  return found->spoiled ? CuResult::kStreamCaptureInvalidated : CuResult::kSuccess;
}

}  // extern "C"

CuResult cuStreamIsCapturing(CuStream stream, std::uint32_t* status) {
  HR_DOUBLE_ENTER();
  std::shared_ptr<StreamState> found;
  if (const CuResult result = FindStream(stream, found, Needs::kNothing);
      result != CuResult::kSuccess)
    return result;
  *status = found->captured ? 1 : 0;
  return CuResult::kSuccess;
}

}  // namespace headrace::transport

namespace headrace::cuda_double {

bool SpoilCaptures(Machine& machine) {
  bool any = false;
  for (auto& [handle, stream] : machine.streams) {
    any = any || stream->captured;
    stream->spoiled = stream->spoiled || stream->captured;
  }
  return any;
}

}  // namespace headrace::cuda_double

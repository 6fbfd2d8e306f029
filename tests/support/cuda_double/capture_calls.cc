// Streams that are captured into a graph (CUDA Driver API, Stream Management): enough of it to tell
// that one is; none of these calls lists CUDA_ERROR_INVALID_CONTEXT. What is posted meanwhile is
// carried out, and there is no graph.
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
  return CuResult::kSuccess;
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

// Measures the costs of codecs on GPU 0 of this node: kernels encode and decode in memory that is
// made for it, once at a service's start, on the calling thread. Other GPUs of the node count as
// alike.
#pragma once

#include <vector>

#include "ipc/base/codec_cost.h"
#include "ipc/base/result.h"
#include "transport/exchange/device_codec.h"
#include "transport/memory/gpus.h"

namespace headrace::transport {

// For each codec that `codec` has, with its default parameter, over values as gradients have them:
// pieces in a row, as the exchange starts them. Residuals and encodings are in pinned memory of the
// host. Decoding is of one encoding. Nobody else uses `codec` meanwhile. Errors: what the driver
// says.
Result<std::vector<CodecCost>> MeasureGpuCodecs(const Gpus& gpus, DeviceCodec& codec);

}  // namespace headrace::transport

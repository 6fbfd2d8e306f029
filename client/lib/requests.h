// Checks the operations that a rank requests and makes the records that are posted for them. Pure.
//
// Errors are kInvalidArgument and name the value and what is allowed.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "client/include/headrace/headrace.h"
#include "client/lib/arrays.h"
#include "client/lib/handles.h"
#include "client/lib/message_parts.h"
#include "ipc/base/collective.h"
#include "ipc/base/result.h"
#include "ipc/records.h"

namespace headrace::client {

// What is to be done, whatever memory it is done on.
struct Request {
  Collective kind = Collective::kBarrier;
  Reduction reduction = Reduction::kSum;
  std::uint32_t root = 0;  // the other rank, of a send or receive; ipc::kAnyRank: whoever sends
  std::uint64_t tag = 0;   // of a send or receive
};

inline Request SendTo(std::uint32_t target, std::uint64_t tag) {
  return {ipc::kSend, Reduction::kSum, target, tag};
}
inline Request ReceiveFrom(std::uint32_t source, std::uint64_t tag) {
  return {ipc::kReceive, Reduction::kSum, source, tag};
}

// Who asks: a rank of a job of that many.
struct Asker {
  std::uint32_t rank = 0;
  std::uint32_t world_size = 1;
};

// A record of one-off memory, which is not named yet, and what it does there.
struct ArrayRequest {
  ipc::Record record;
  ArrayUse use;
};
// A record of registered memory, with a parts table.
struct TableRequest {
  ipc::Record record;
  std::vector<ipc::PartRow> parts;
};

// For an array of `count` elements.
Status CheckRequest(const Request& request, std::uint64_t count, const Asker& asker);

// The record of one-off memory, whose place is filled in later.
ipc::Record RecordOf(const Request& request, DType dtype, std::uint64_t count);
// The record of a registered tensor. `range` null: the whole tensor.
Result<ipc::Record> TensorRecordOf(const Request& request, const hr_tensor* tensor,
                                   const hr_range* range, const Asker& asker);

Result<ArrayRequest> ArrayRequestOf(const Request& request, void* array, std::uint64_t count,
                                    std::uint8_t dtype, const Asker& asker);
// An array of `count` elements that lies in pieces.
Result<ArrayRequest> PiecesRequestOf(const Request& request, std::uint64_t count,
                                     std::uint8_t dtype, std::span<const hr_piece> read,
                                     std::span<const hr_piece> written, const Asker& asker);

// A gather, scatter or all_to_all: of one-off arrays, and of ranges of registered tensors, which
// are null where this rank has none. The rank's own part is copied at once.
Result<ArrayRequest> MessagesRequestOf(const Request& request, std::uint8_t dtype,
                                       const Moves<hr_array>& arrays, const Asker& asker);
Result<TableRequest> MessagesRequestOf(const Request& request, const hr_tensor* input,
                                       const hr_tensor* output, const Moves<hr_range>& ranges,
                                       const Asker& asker);

// An all_gather or reduce_scatter with parts of any size, of which a rank gives or gets its own.
Result<ArrayRequest> PartsRequestOf(const Request& request, std::uint8_t dtype, const hr_array& own,
                                    std::span<const hr_array> parts, const Asker& asker);
Result<TableRequest> PartsRequestOf(const Request& request, const hr_tensor* tensor,
                                    const hr_range* range, std::span<const std::uint64_t> counts,
                                    const Asker& asker);
// The same with this rank's part in a range of another tensor, `own`: copied from there at once by
// an all_gather, reduced to there by a reduce_scatter. `counts` empty: equal parts.
Result<TableRequest> PartsRequestOf(const Request& request, const hr_tensor* whole,
                                    const hr_range* whole_range, const hr_tensor* own,
                                    const hr_range* own_range,
                                    std::span<const std::uint64_t> counts, const Asker& asker);

}  // namespace headrace::client

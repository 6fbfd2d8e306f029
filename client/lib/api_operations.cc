// The C functions that post operations and wait for them.
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "client/lib/api.h"
#include "ipc/base/clock.h"
#include "ipc/base/collective.h"

using headrace::Code;
using headrace::Collective;
using headrace::DType;
using headrace::Error;
using headrace::MonotonicNow;
using headrace::Reduction;
using headrace::Result;
using headrace::Status;
using headrace::TimeNs;
using headrace::client::CallGate;
using headrace::client::Deliver;
using headrace::client::Guarded;
using headrace::client::Moves;
using headrace::client::ReceiveFrom;
using headrace::client::ReductionOf;
using headrace::client::Request;
using headrace::client::RootedMoves;
using headrace::client::SendTo;
using headrace::client::Session;
using headrace::client::WithSession;

namespace {

static_assert(HR_FLOAT32 == static_cast<int>(DType::kFloat32));
static_assert(HR_FLOAT64 == static_cast<int>(DType::kFloat64));
static_assert(HR_FLOAT16 == static_cast<int>(DType::kFloat16));
static_assert(HR_BFLOAT16 == static_cast<int>(DType::kBFloat16));
static_assert(HR_INT32 == static_cast<int>(DType::kInt32));
static_assert(HR_INT64 == static_cast<int>(DType::kInt64));
static_assert(HR_UINT8 == static_cast<int>(DType::kUInt8));
static_assert(HR_SUM == static_cast<int>(Reduction::kSum));
static_assert(HR_AVERAGE == static_cast<int>(Reduction::kAverage));
static_assert(HR_MIN == static_cast<int>(Reduction::kMin));
static_assert(HR_MAX == static_cast<int>(Reduction::kMax));
static_assert(HR_PRODUCT == static_cast<int>(Reduction::kProduct));
static_assert(HR_ANY_SOURCE == headrace::ipc::kAnyRank);

Error NoOperation() { return Error(Code::kInvalidArgument, "operation is NULL"); }

hr_status Post(hr_session* session, const Request& request, const hr_tensor* tensor,
               const hr_range* range, hr_operation* operation, hr_error* error) {
  return WithSession(session, error, [&](Session& opened) -> Status {
    if (operation == nullptr) return NoOperation();
    return Deliver(opened.Post(request, tensor, range), operation);
  });
}

hr_status PostArray(hr_session* session, const Request& request, void* array, uint64_t count,
                    hr_dtype dtype, hr_operation* operation, hr_error* error) {
  return WithSession(session, error, [&](Session& opened) -> Status {
    if (operation == nullptr) return NoOperation();
    return Deliver(opened.Post(ArrayRequestOf(request, array, count,
                                              static_cast<std::uint8_t>(dtype), opened.asker())),
                   operation);
  });
}

// Pieces as a caller hands them over.
struct Pieces {
  const hr_piece* first;
  size_t count;

  bool valid() const { return first != nullptr || count == 0; }
  std::span<const hr_piece> span() const { return {first, count}; }
};

hr_status PostPieces(hr_session* session, const Request& request, uint64_t count, hr_dtype dtype,
                     Pieces read, Pieces written, hr_operation* operation, hr_error* error) {
  return WithSession(session, error, [&](Session& opened) -> Status {
    if (operation == nullptr) return NoOperation();
    if (!read.valid() || !written.valid()) {
      return Error(Code::kInvalidArgument, "pieces are NULL, and their count is not 0");
    }
    return Deliver(opened.Post(PiecesRequestOf(request, count, static_cast<std::uint8_t>(dtype),
                                               read.span(), written.span(), opened.asker())),
                   operation);
  });
}

// The ranges of the ranks in a tensor: as the caller says, or equal parts of all of it.
Result<std::vector<hr_range>> RangesOf(const hr_tensor* tensor, const hr_range* ranges,
                                       std::uint32_t world_size) {
  if (tensor == nullptr) return Error(Code::kInvalidArgument, "the tensor is NULL");
  if (ranges != nullptr) return std::vector<hr_range>(ranges, ranges + world_size);
  if (tensor->count % world_size != 0) {
    return Error(Code::kInvalidArgument, "the tensor's " + std::to_string(tensor->count) +
                                             " elements are no equal parts of " +
                                             std::to_string(world_size) + " ranks: give ranges");
  }
  const std::uint64_t part = tensor->count / world_size;
  std::vector<hr_range> parts(world_size);
  for (std::uint32_t rank = 0; rank < world_size; ++rank) parts[rank] = {part * rank, part};
  return parts;
}

// A gather or scatter of registered memory: `own` is this rank's, `whole` the root's.
hr_status PostRooted(hr_session* session, const Request& request, const hr_tensor* own,
                     const hr_range* own_range, const hr_tensor* whole, const hr_range* ranges,
                     hr_operation* operation, hr_error* error) {
  return WithSession(session, error, [&](Session& opened) -> Status {
    if (operation == nullptr) return NoOperation();
    if (own == nullptr) return Error(Code::kInvalidArgument, "the tensor is NULL");
    if (Status status = CheckRequest(request, opened.world_size(), opened.asker()); !status)
      return status;
    const bool is_root = request.root == opened.rank();
    std::vector<hr_range> all;
    if (is_root) {
      auto parts = RangesOf(whole, ranges, opened.world_size());
      if (!parts) return parts.error();
      all = std::move(parts).value();
    }
    const hr_range ours = own_range != nullptr ? *own_range : hr_range{0, own->count};
    const Moves<hr_range> moves = RootedMoves(request.kind, opened.rank(), request.root,
                                              opened.world_size(), ours, all.data());
    const hr_tensor* const others = is_root ? whole : nullptr;
    const bool gathers = request.kind == headrace::kGather;
    return Deliver(opened.Post(MessagesRequestOf(request, gathers ? own : others,
                                                 gathers ? others : own, moves, opened.asker())),
                   operation);
  });
}

// The same of one-off arrays.
hr_status PostRooted(hr_session* session, const Request& request, hr_dtype dtype,
                     const hr_array* own, const hr_array* all, hr_operation* operation,
                     hr_error* error) {
  return WithSession(session, error, [&](Session& opened) -> Status {
    if (operation == nullptr) return NoOperation();
    if (Status status = CheckRequest(request, opened.world_size(), opened.asker()); !status)
      return status;
    if (own == nullptr || (request.root == opened.rank() && all == nullptr)) {
      return Error(Code::kInvalidArgument, "the arrays are NULL");
    }
    const Moves<hr_array> moves =
        RootedMoves(request.kind, opened.rank(), request.root, opened.world_size(), *own, all);
    return Deliver(opened.Post(MessagesRequestOf(request, static_cast<std::uint8_t>(dtype), moves,
                                                 opened.asker())),
                   operation);
  });
}

// Parts of any size, in registered memory and in arrays.
hr_status PostParts(hr_session* session, const Request& request, const hr_tensor* tensor,
                    const hr_range* range, const uint64_t* counts, hr_operation* operation,
                    hr_error* error) {
  return WithSession(session, error, [&](Session& opened) -> Status {
    if (operation == nullptr) return NoOperation();
    if (counts == nullptr) return Error(Code::kInvalidArgument, "the counts are NULL");
    return Deliver(opened.Post(PartsRequestOf(request, tensor, range, {counts, opened.world_size()},
                                              opened.asker())),
                   operation);
  });
}

// The same with this rank's part in another tensor.
hr_status PostParts(hr_session* session, const Request& request, const hr_tensor* whole,
                    const hr_range* whole_range, const hr_tensor* own, const hr_range* own_range,
                    const uint64_t* counts, hr_operation* operation, hr_error* error) {
  return WithSession(session, error, [&](Session& opened) -> Status {
    if (operation == nullptr) return NoOperation();
    return Deliver(
        opened.Post(opened.PartsRequest(request, whole, whole_range, own, own_range, counts)),
        operation);
  });
}

hr_status PostParts(hr_session* session, const Request& request, hr_dtype dtype,
                    const hr_array* own, const hr_array* parts, hr_operation* operation,
                    hr_error* error) {
  return WithSession(session, error, [&](Session& opened) -> Status {
    if (operation == nullptr) return NoOperation();
    if (own == nullptr || parts == nullptr) {
      return Error(Code::kInvalidArgument, "the arrays are NULL");
    }
    return Deliver(opened.Post(PartsRequestOf(request, static_cast<std::uint8_t>(dtype), *own,
                                              {parts, opened.world_size()}, opened.asker())),
                   operation);
  });
}

}  // namespace

extern "C" {

hr_status hr_all_to_all(hr_session* session, const hr_tensor* input, const hr_range* sent,
                        hr_tensor* output, const hr_range* received, hr_operation* operation,
                        hr_error* error) {
  return WithSession(session, error, [&](Session& opened) -> Status {
    if (operation == nullptr) return NoOperation();
    auto out = RangesOf(input, sent, opened.world_size());
    if (!out) return out.error();
    auto in = RangesOf(output, received, opened.world_size());
    if (!in) return in.error();
    return Deliver(opened.Post(MessagesRequestOf({headrace::kAllToAll}, input, output,
                                                 {std::move(out).value(), std::move(in).value()},
                                                 opened.asker())),
                   operation);
  });
}

hr_status hr_all_to_all_arrays(hr_session* session, hr_dtype dtype, const hr_array* sent,
                               const hr_array* received, hr_operation* operation, hr_error* error) {
  return WithSession(session, error, [&](Session& opened) -> Status {
    if (operation == nullptr) return NoOperation();
    if (sent == nullptr || received == nullptr) {
      return Error(Code::kInvalidArgument, "the arrays are NULL");
    }
    const std::uint32_t world_size = opened.world_size();
    return Deliver(
        opened.Post(MessagesRequestOf(
            {headrace::kAllToAll}, static_cast<std::uint8_t>(dtype),
            {{sent, sent + world_size}, {received, received + world_size}}, opened.asker())),
        operation);
  });
}

hr_status hr_all_gather_parts(hr_session* session, hr_tensor* tensor, const hr_range* range,
                              const uint64_t* counts, hr_operation* operation, hr_error* error) {
  return PostParts(session, {Collective::kAllGather}, tensor, range, counts, operation, error);
}

hr_status hr_reduce_scatter_parts(hr_session* session, hr_tensor* tensor, const hr_range* range,
                                  const uint64_t* counts, hr_reduction reduction,
                                  hr_operation* operation, hr_error* error) {
  return PostParts(session, {Collective::kReduceScatter, ReductionOf(reduction)}, tensor, range,
                   counts, operation, error);
}

hr_status hr_all_gather_into(hr_session* session, const hr_tensor* input, const hr_range* range,
                             hr_tensor* output, const hr_range* output_range,
                             const uint64_t* counts, hr_operation* operation, hr_error* error) {
  return PostParts(session, {Collective::kAllGather}, output, output_range, input, range, counts,
                   operation, error);
}

hr_status hr_reduce_scatter_into(hr_session* session, const hr_tensor* input, const hr_range* range,
                                 hr_tensor* output, const hr_range* output_range,
                                 const uint64_t* counts, hr_reduction reduction,
                                 hr_operation* operation, hr_error* error) {
  return PostParts(session, {Collective::kReduceScatter, ReductionOf(reduction)}, input, range,
                   output, output_range, counts, operation, error);
}

hr_status hr_all_gather_arrays(hr_session* session, hr_dtype dtype, const hr_array* array,
                               const hr_array* received, hr_operation* operation, hr_error* error) {
  return PostParts(session, {Collective::kAllGather}, dtype, array, received, operation, error);
}

hr_status hr_reduce_scatter_arrays(hr_session* session, hr_dtype dtype, const hr_array* sent,
                                   const hr_array* array, hr_reduction reduction,
                                   hr_operation* operation, hr_error* error) {
  return PostParts(session, {Collective::kReduceScatter, ReductionOf(reduction)}, dtype, array,
                   sent, operation, error);
}

hr_status hr_gather(hr_session* session, const hr_tensor* input, const hr_range* range,
                    hr_tensor* output, const hr_range* received, uint32_t root,
                    hr_operation* operation, hr_error* error) {
  return PostRooted(session, {headrace::kGather, Reduction::kSum, root}, input, range, output,
                    received, operation, error);
}

hr_status hr_scatter(hr_session* session, const hr_tensor* input, const hr_range* sent,
                     hr_tensor* output, const hr_range* range, uint32_t root,
                     hr_operation* operation, hr_error* error) {
  return PostRooted(session, {headrace::kScatter, Reduction::kSum, root}, output, range, input,
                    sent, operation, error);
}

hr_status hr_gather_arrays(hr_session* session, hr_dtype dtype, const hr_array* array,
                           const hr_array* received, uint32_t root, hr_operation* operation,
                           hr_error* error) {
  return PostRooted(session, {headrace::kGather, Reduction::kSum, root}, dtype, array, received,
                    operation, error);
}

hr_status hr_scatter_arrays(hr_session* session, hr_dtype dtype, const hr_array* sent,
                            const hr_array* array, uint32_t root, hr_operation* operation,
                            hr_error* error) {
  return PostRooted(session, {headrace::kScatter, Reduction::kSum, root}, dtype, array, sent,
                    operation, error);
}

hr_status hr_reduce(hr_session* session, hr_tensor* tensor, const hr_range* range,
                    hr_reduction reduction, uint32_t root, hr_operation* operation,
                    hr_error* error) {
  return Post(session, {Collective::kReduce, ReductionOf(reduction), root}, tensor, range,
              operation, error);
}

hr_status hr_reduce_array(hr_session* session, void* array, uint64_t count, hr_dtype dtype,
                          hr_reduction reduction, uint32_t root, hr_operation* operation,
                          hr_error* error) {
  return PostArray(session, {Collective::kReduce, ReductionOf(reduction), root}, array, count,
                   dtype, operation, error);
}

hr_status hr_reduce_pieces(hr_session* session, uint64_t count, hr_dtype dtype,
                           hr_reduction reduction, uint32_t root, const hr_piece* read,
                           size_t read_count, const hr_piece* written, size_t written_count,
                           hr_operation* operation, hr_error* error) {
  return PostPieces(session, {Collective::kReduce, ReductionOf(reduction), root}, count, dtype,
                    {read, read_count}, {written, written_count}, operation, error);
}

hr_status hr_all_reduce(hr_session* session, hr_tensor* tensor, const hr_range* range,
                        hr_reduction reduction, hr_operation* operation, hr_error* error) {
  return Post(session, {Collective::kAllReduce, ReductionOf(reduction)}, tensor, range, operation,
              error);
}

hr_status hr_broadcast(hr_session* session, hr_tensor* tensor, const hr_range* range, uint32_t root,
                       hr_operation* operation, hr_error* error) {
  return Post(session, {Collective::kBroadcast, Reduction::kSum, root}, tensor, range, operation,
              error);
}

hr_status hr_reduce_scatter(hr_session* session, hr_tensor* tensor, const hr_range* range,
                            hr_reduction reduction, hr_operation* operation, hr_error* error) {
  return Post(session, {Collective::kReduceScatter, ReductionOf(reduction)}, tensor, range,
              operation, error);
}

hr_status hr_all_gather(hr_session* session, hr_tensor* tensor, const hr_range* range,
                        hr_operation* operation, hr_error* error) {
  return Post(session, {Collective::kAllGather}, tensor, range, operation, error);
}

hr_status hr_barrier(hr_session* session, hr_operation* operation, hr_error* error) {
  return WithSession(session, error, [operation](Session& opened) -> Status {
    if (operation == nullptr) return NoOperation();
    return Deliver(opened.PostBarrier(), operation);
  });
}

hr_status hr_all_reduce_array(hr_session* session, void* array, uint64_t count, hr_dtype dtype,
                              hr_reduction reduction, hr_operation* operation, hr_error* error) {
  return PostArray(session, {Collective::kAllReduce, ReductionOf(reduction)}, array, count, dtype,
                   operation, error);
}

hr_status hr_broadcast_array(hr_session* session, void* array, uint64_t count, hr_dtype dtype,
                             uint32_t root, hr_operation* operation, hr_error* error) {
  return PostArray(session, {Collective::kBroadcast, Reduction::kSum, root}, array, count, dtype,
                   operation, error);
}

hr_status hr_reduce_scatter_array(hr_session* session, void* array, uint64_t count, hr_dtype dtype,
                                  hr_reduction reduction, hr_operation* operation,
                                  hr_error* error) {
  return PostArray(session, {Collective::kReduceScatter, ReductionOf(reduction)}, array, count,
                   dtype, operation, error);
}

hr_status hr_all_gather_array(hr_session* session, void* array, uint64_t count, hr_dtype dtype,
                              hr_operation* operation, hr_error* error) {
  return PostArray(session, {Collective::kAllGather}, array, count, dtype, operation, error);
}

hr_status hr_all_reduce_pieces(hr_session* session, uint64_t count, hr_dtype dtype,
                               hr_reduction reduction, const hr_piece* read, size_t read_count,
                               const hr_piece* written, size_t written_count,
                               hr_operation* operation, hr_error* error) {
  return PostPieces(session, {Collective::kAllReduce, ReductionOf(reduction)}, count, dtype,
                    {read, read_count}, {written, written_count}, operation, error);
}

hr_status hr_broadcast_pieces(hr_session* session, uint64_t count, hr_dtype dtype, uint32_t root,
                              const hr_piece* read, size_t read_count, const hr_piece* written,
                              size_t written_count, hr_operation* operation, hr_error* error) {
  return PostPieces(session, {Collective::kBroadcast, Reduction::kSum, root}, count, dtype,
                    {read, read_count}, {written, written_count}, operation, error);
}

hr_status hr_reduce_scatter_pieces(hr_session* session, uint64_t count, hr_dtype dtype,
                                   hr_reduction reduction, const hr_piece* read, size_t read_count,
                                   const hr_piece* written, size_t written_count,
                                   hr_operation* operation, hr_error* error) {
  return PostPieces(session, {Collective::kReduceScatter, ReductionOf(reduction)}, count, dtype,
                    {read, read_count}, {written, written_count}, operation, error);
}

hr_status hr_all_gather_pieces(hr_session* session, uint64_t count, hr_dtype dtype,
                               const hr_piece* read, size_t read_count, const hr_piece* written,
                               size_t written_count, hr_operation* operation, hr_error* error) {
  return PostPieces(session, {Collective::kAllGather}, count, dtype, {read, read_count},
                    {written, written_count}, operation, error);
}

hr_status hr_send(hr_session* session, hr_tensor* tensor, const hr_range* range, uint32_t target,
                  uint64_t tag, hr_operation* operation, hr_error* error) {
  return Post(session, SendTo(target, tag), tensor, range, operation, error);
}

hr_status hr_recv(hr_session* session, hr_tensor* tensor, const hr_range* range, uint32_t source,
                  uint64_t tag, hr_operation* operation, hr_error* error) {
  return Post(session, ReceiveFrom(source, tag), tensor, range, operation, error);
}

hr_status hr_send_array(hr_session* session, const void* array, uint64_t count, hr_dtype dtype,
                        uint32_t target, uint64_t tag, hr_operation* operation, hr_error* error) {
  // Nothing is copied back to it.
  return PostArray(session, SendTo(target, tag), const_cast<void*>(array), count, dtype, operation,
                   error);
}

hr_status hr_recv_array(hr_session* session, void* array, uint64_t count, hr_dtype dtype,
                        uint32_t source, uint64_t tag, hr_operation* operation, hr_error* error) {
  return PostArray(session, ReceiveFrom(source, tag), array, count, dtype, operation, error);
}

hr_status hr_recv_source(hr_session* session, hr_operation operation, uint32_t* source,
                         hr_error* error) {
  return WithSession(session, error, [operation, source](Session& opened) -> Status {
    if (source == nullptr) return Error(Code::kInvalidArgument, "source is NULL");
    const Result<std::uint32_t> answer = opened.SourceOf(operation);
    if (!answer) return answer.error();
    *source = *answer;
    return {};
  });
}

hr_status hr_test(hr_session* session, hr_operation operation, int* ended, hr_error* error) {
  return WithSession(session, error, [operation, ended](Session& opened) -> Status {
    const Result<bool> answer = opened.HasEnded(operation);
    if (!answer) return answer.error();
    if (ended == nullptr) return Error(Code::kInvalidArgument, "ended is NULL");
    *ended = *answer ? 1 : 0;
    return {};
  });
}

hr_status hr_wait(hr_session* session, hr_operation operation, int64_t timeout_ns,
                  hr_error* error) {
  return WithSession(session, error, [operation, timeout_ns](Session& opened) {
    return opened.Wait(operation, timeout_ns);
  });
}

hr_status hr_wait_all(hr_session* session, const hr_operation* operations, size_t count,
                      int64_t timeout_ns, hr_error* error) {
  return WithSession(session, error, [=](Session& opened) -> Status {
    if (count != 0 && operations == nullptr) {
      return Error(Code::kInvalidArgument, "operations is NULL");
    }
    const TimeNs begin = MonotonicNow();
    Status first;
    for (size_t i = 0; i < count; ++i) {
      const TimeNs left = timeout_ns < 0 ? -1 : timeout_ns - (MonotonicNow() - begin);
      Status status = opened.Wait(operations[i], timeout_ns >= 0 && left < 0 ? 0 : left);
      if (status.ok()) continue;
      const Result<bool> ended = opened.HasEnded(operations[i]);
      if (!ended || !*ended) return status;  // never posted, or the time is over
      if (first.ok()) first = std::move(status);
    }
    return first;
  });
}

void hr_discard(hr_session* session, hr_operation operation) {
  Guarded(nullptr, [session, operation]() -> Status {
    if (session == nullptr || session->session->InChild()) return {};
    // A reconnect copies results back: whoever gives an array up must not go on before it has.
    CallGate& gate = session->session->call_gate();
    gate.EnterWhenOpen();
    session->session->Discard(operation);
    gate.Leave();
    return {};
  });
}

}  // extern "C"

#include "transport/nvlink/stream_queue.h"

#include "ipc/base/check.h"

namespace headrace::transport {

Error FailedOnGpu(const CudaDriver& driver, CuResult result, std::string_view doing) {
  const Error error = driver.Failed(result, doing);
  if (!BreaksContext(result)) return error;
  return Error(error.code(),
               error.text() + "; the GPU can be used again once this process is started anew");
}

Result<StreamQueue> StreamQueue::Open(const PrimaryContext& context) {
  StreamQueue queue;
  auto stream = CreateStream(context, kCuStreamNonBlocking, 0);
  if (!stream) return stream.error();
  queue.stream_ = std::move(*stream);
  for (CudaEvent& mark : queue.marks_) {
    auto event = CreateEvent(context);
    if (!event) return event.error();
    mark = std::move(*event);
  }
  return queue;
}

Status StreamQueue::EndPiece(std::uint32_t slot) {
  HR_CHECK(HasRoom(), size_);
  const std::size_t place = (first_ + size_++) % kPiecesUnderWayMax;
  const CuResult result = call().event_record(marks_[place].get().thing, stream());
  pieces_[place] = {slot, result == CuResult::kSuccess};
  if (result == CuResult::kSuccess) return {};
  return FailedOnGpu(*stream_.get().driver, result, "mark the end of a piece");
}

StreamQueue::Ended StreamQueue::PopEnded() {
  if (empty()) return {};
  HR_CHECK(size_ <= kPiecesUnderWayMax && first_ < kPiecesUnderWayMax, size_, first_);
  const Piece piece = pieces_[first_];
  const CuResult result =
      piece.marked ? call().event_query(marks_[first_].get().thing) : call().stream_query(stream());
  if (result == CuResult::kNotReady) return {};
  first_ = (first_ + 1) % kPiecesUnderWayMax;
  --size_;
  return {.any = true, .slot = piece.slot, .result = result};
}

}  // namespace headrace::transport

// A stream of one GPU and the pieces that were launched on it, in order, each followed by an event
// that shows when it is done. One thread, the lane's, with the GPU's context current.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "ipc/base/result.h"
#include "transport/memory/cuda_handles.h"

namespace headrace::transport {

// Drivers hold back the caller once about a thousand operations wait in a stream; so many pieces of
// kOperationsMax each, with their marks, stay below.
inline constexpr std::size_t kPiecesUnderWayMax = 16;
inline constexpr std::size_t kOperationsMax = 32;  // of one piece

// What the driver refused, and where that broke the GPU's context, after which nothing runs in it
// any more, the remedy.
Error FailedOnGpu(const CudaDriver& driver, CuResult result, std::string_view doing);

class StreamQueue {
 public:
  static Result<StreamQueue> Open(const PrimaryContext& context);

  CuStream stream() const { return stream_.get().thing; }
  bool HasRoom() const { return size_ < kPiecesUnderWayMax; }
  bool empty() const { return size_ == 0; }

  // Ends a piece. Where the driver refuses the mark, the piece still counts as under way, and is
  // done when all of the stream is.
  Status EndPiece(std::uint32_t slot);

  // What the oldest piece came to.
  struct Ended {
    bool any = false;  // false: there is none, or it is not done
    std::uint32_t slot = 0;
    CuResult result = CuResult::kSuccess;
  };
  Ended PopEnded();

 private:
  struct Piece {
    std::uint32_t slot = 0;
    bool marked = false;
  };

  const CudaFunctions& call() const { return stream_.get().driver->call(); }

  CudaStream stream_;
  std::array<CudaEvent, kPiecesUnderWayMax> marks_;
  std::array<Piece, kPiecesUnderWayMax> pieces_;  // a ring, beside its marks
  std::size_t first_ = 0;
  std::size_t size_ = 0;
};

}  // namespace headrace::transport

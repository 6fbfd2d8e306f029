// What one session has registered: its segments' sizes and the ranges of its tensors. Checks what
// the client asks for before dispatch receives it. Pure; the rpc thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "ipc/base/ids.h"
#include "ipc/base/result.h"
#include "service/session/layout.h"
#include "service/session/session.h"

namespace headrace::service {

class MemoryAccounting {
 public:
  enum class Kind : std::uint8_t { kHost, kDevice };
  // Numbers a segment of `size` bytes that is about to be mapped, and will hold `bytes` of memory.
  // Until ConfirmSegment no tensor may lie in it.
  Result<SegmentId> ReserveSegment(std::uint64_t size, std::uint64_t bytes, Kind kind);
  Result<SegmentId> ReserveSegment(std::uint64_t size) {
    return ReserveSegment(size, size, Kind::kHost);
  }
  void ConfirmSegment(SegmentId id);
  // Between these two no tensor may be put into the segment; dispatch decides whether it goes.
  Status BeginRelease(SegmentId id);
  void CancelRelease(SegmentId id);
  void EraseSegment(SegmentId id);
  // What it holds; 0: there is none.
  std::uint64_t BytesOf(SegmentId id) const;

  // Checks all of `tensors` and numbers them first, first + 1, ...; all or none. Errors name the
  // index and the field.
  Result<TensorId> AddTensors(std::span<const Tensor> tensors);
  // The same in steps, for so many tensors that their caller must not do it at once: whether there
  // may be that many more, whether some of them are right (the first of which has number `index`),
  // their numbers, and putting some of them where they belong. Between the first step and the last
  // no segment may be released; RemoveTensors takes the numbers back.
  Status CheckCount(std::size_t count) const;
  Status CheckTensors(std::span<const Tensor> tensors, std::size_t index) const;
  Result<TensorId> NumberTensors(std::size_t count);
  void PlaceTensors(TensorId first, std::span<const Tensor> tensors);
  // The whole range must be registered, and nothing of it be of the layout. CheckRemoval says so
  // and removes nothing.
  Status RemoveTensors(TensorId first, std::uint32_t count);
  Status CheckRemoval(TensorId first, std::uint32_t count) const;

  // Bytes that the service holds for the session's tensors, here and in dispatch: the places that
  // were ever taken, and names. And what it would hold with these registered, too.
  std::uint64_t HeldBytes() const;
  std::uint64_t HeldBytesWith(std::span<const Tensor> more) const;

  // All tensors, for whoever frees them; the session has ended.
  std::vector<Tensor> ReleaseTensors() { return std::exchange(tensors_, {}); }

  // The layout of tensors first, first + 1, ...: checked, and kept for as long as the session lasts
  // by KeepLayout. A session has one.
  Result<Layout> MakeLayout(TensorId first, std::uint32_t count, Reduction reduction) const;
  void KeepLayout(TensorId first, std::uint32_t count);
  // Takes KeepLayout back: the other ranks' layouts are different.
  void DropLayout() { layout_count_ = 0; }

  // Whether there is room for the layout's residuals and right factors: aligned, in the host's
  // memory, within the segment and, where that has the gradients, behind them. kInvalidArgument
  // with what is possible.
  Status CheckResiduals(TensorId first, const Layout& layout, const ResidualsPlace& place) const;
  // Whether it lies in memory of a GPU; it is registered.
  bool IsOnDevice(TensorId tensor) const;
  std::size_t tensors_count() const { return tensors_count_; }
  std::uint64_t segment_bytes() const { return segment_bytes_; }

 private:
  struct Segment {
    std::uint64_t size = 0;
    std::uint64_t bytes = 0;
    Kind kind = Kind::kHost;
    bool usable = false;
  };

  Status CheckTensor(const Tensor& tensor) const;
  void Claim(std::size_t first, std::size_t count);
  bool IsTaken(std::uint64_t id) const { return id < taken_.size() && taken_[id]; }
  // The start of `count` free numbers in a row; kTensorsMax when there are none.
  std::size_t FindRoom(std::size_t count) const;

  std::map<std::uint32_t, Segment> segments_;
  std::uint64_t segment_bytes_ = 0;
  std::vector<bool> taken_;      // by tensor id; ends with the highest that is taken
  std::vector<Tensor> tensors_;  // by id; empty where nothing is taken; never shrinks
  std::uint64_t names_bytes_ = 0;
  std::uint32_t layout_first_ = 0;
  std::uint32_t layout_count_ = 0;  // 0: there is none
  std::size_t tensors_count_ = 0;
};

}  // namespace headrace::service

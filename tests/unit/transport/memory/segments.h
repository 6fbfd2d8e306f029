// Memory as a framework's allocator with growing segments has it: one range of addresses, mapped in
// pieces that were created one by one.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "transport/memory/cuda_handles.h"
#include "transport/memory/device_arena.h"

namespace headrace::transport {

struct Segment {
  Reservation reservation;
  std::vector<VmmMapping> mappings;
  CuAddress address() const { return reservation.get().address; }
};

inline Segment MakeSegment(const CudaDriver& driver, CuDevice device, std::size_t pieces_count,
                           std::size_t piece_size, CuHandleType types) {
  Segment segment;
  auto reservation = ReserveAddresses(driver, pieces_count * piece_size);
  EXPECT_TRUE(reservation.ok());
  segment.reservation = std::move(*reservation);
  CuAllocationProperties properties = ExportableMemoryOn(device);
  properties.handle_types = types;
  for (std::size_t i = 0; i < pieces_count; ++i) {
    CuMemory made = 0;
    EXPECT_EQ(driver.call().mem_create(&made, piece_size, &properties, 0), CuResult::kSuccess);
    const VmmMemory memory({&driver, made});
    auto mapping = MapMemory(memory, segment.address() + i * piece_size, piece_size);
    EXPECT_TRUE(mapping.ok());
    segment.mappings.push_back(std::move(*mapping));
  }
  const CuDevice own[] = {device};
  EXPECT_TRUE(AllowAccess(driver, segment.address(), pieces_count * piece_size, own).ok());
  return segment;
}

}  // namespace headrace::transport

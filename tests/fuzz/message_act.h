// One act of the script that message_fuzz.cc plays, as its seeds are written.
#pragma once

#include <cstdint>

#include "transport/exchange/wire.h"

namespace headrace::transport {

struct MessageAct {
  enum Kind : std::uint8_t { kInject, kPost, kStep, kClose };
  // Which fields are as an honest node's, whatever `header` has there.
  enum Honest : std::uint8_t {
    kKey = 1,
    kPlan = 2,
    kPosition = 4,
    kShape = 8,
    kSender = 16,
    kSize = 32,
    // Where a node has several rails: a number that came or comes soon, and what is between two
    // wires themselves, acknowledgements and pings.
    kSequence = 64,
    kControl = 128
  };
  std::uint8_t kind = kInject;  // modulo their number
  std::uint8_t honest = 0;
  std::uint16_t size = 0;   // of an injected message
  std::uint32_t count = 0;  // of steps; of an injected message, which rail it comes by
  MessageHeader header{};
};
static_assert(sizeof(MessageAct) == 112);

}  // namespace headrace::transport

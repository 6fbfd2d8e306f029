// The way of a message through the wire and back, as one node writes it and another reads it.
#pragma once

#include <capnp/message.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "service/peers/peer_wire.h"
#include "service/peers/wire_bytes.h"
#include "tests/support/expect_text.h"

namespace headrace::service {

// Writes the message, lets the test spoil what was written, and reads it.
inline Result<PeerMessage> Pass(
    const PeerMessage& message,
    const std::function<void(schema::PeerMessage::Builder)>& spoil = {}) {
  capnp::MallocMessageBuilder builder;
  auto root = builder.initRoot<schema::PeerMessage>();
  WriteMessage(root, message);
  EXPECT_LE(builder.sizeInWords() * 8, WireBytes(message)) << "of kind " << message.index();
  if (spoil) spoil(root);
  return ReadMessage(root.asReader());
}

template <typename Kind>
Kind Passed(const Kind& message) {
  Result<PeerMessage> passed = Pass(message);
  if (!passed.ok() || !std::holds_alternative<Kind>(*passed)) {
    ADD_FAILURE() << (passed.ok() ? "another kind" : passed.error().text());
    return {};
  }
  return std::get<Kind>(std::move(passed).value());
}

inline void ExpectRefused(const Result<PeerMessage>& passed,
                          std::initializer_list<std::string_view> values = {}) {
  ASSERT_FALSE(passed.ok());
  EXPECT_EQ(passed.error().code(), Code::kCorrupt);
  support::ExpectText(__FILE__, __LINE__, passed.error().text(), values);
}

}  // namespace headrace::service

// Addresses of wires of several rails, and the window of what has come.
#include "transport/rails/rail_address.h"

#include <gtest/gtest.h>

#include <string>

#include "transport/rails/received_window.h"

namespace headrace::transport {
namespace {

TEST(RailAddress, ComesBackAsItWas) {
  const RailAddress address{.wire_id = 0x0102030405060708, .rails = {"first", "", "third"}};
  const auto decoded = DecodeRails(EncodeRails(address));
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(decoded->wire_id, address.wire_id);
  EXPECT_EQ(decoded->rails, address.rails);
}

TEST(RailAddress, HasTheBytesThatTheHeaderSays) {
  const std::string bytes = EncodeRails({.wire_id = 2, .rails = {"ab"}});
  EXPECT_EQ(bytes, std::string("HRRAILS\x01\x02\0\0\0\0\0\0\0\x01\x02\0\0\0ab", 23));
}

TEST(RailAddress, IsRefusedWhereAnyByteIsMissingOrTooMany) {
  const std::string whole = EncodeRails({.wire_id = 7, .rails = {"one", "two"}});
  for (std::size_t size = 0; size < whole.size(); ++size) {
    const auto decoded = DecodeRails(std::string_view(whole).substr(0, size));
    ASSERT_FALSE(decoded.ok()) << size;
    EXPECT_EQ(decoded.error().code(), Code::kUnavailable);
  }
  EXPECT_FALSE(DecodeRails(whole + "x").ok());
}

TEST(RailAddress, IsRefusedWithNoRailsTooManyOrTooLong) {
  std::string bytes = EncodeRails({.wire_id = 7, .rails = {"one"}});
  for (const char count : {'\0', static_cast<char>(kWireRailsMax + 1), '\xFF'}) {
    std::string other = bytes;
    other[16] = count;
    EXPECT_FALSE(DecodeRails(other).ok());
  }
  bytes[20] = '\x7F';  // the highest byte of a size
  EXPECT_FALSE(DecodeRails(bytes).ok());
}

TEST(ReceivedWindow, CountsEachMessageOnce) {
  ReceivedWindow window;
  using Outcome = ReceivedWindow::Outcome;
  EXPECT_EQ(window.Add(0), Outcome::kTwice);  // no message has it
  EXPECT_EQ(window.Add(2), Outcome::kNew);
  EXPECT_EQ(window.end(), 1U);
  EXPECT_EQ(window.Add(2), Outcome::kTwice);
  EXPECT_EQ(window.Add(1), Outcome::kNew);
  EXPECT_EQ(window.end(), 3U);
  EXPECT_EQ(window.Add(1), Outcome::kTwice);
  EXPECT_EQ(window.Add(2), Outcome::kTwice);
}

TEST(ReceivedWindow, TakesNothingBeyondItself) {
  ReceivedWindow window;
  using Outcome = ReceivedWindow::Outcome;
  EXPECT_EQ(window.Add(1 + ReceivedWindow::kSize), Outcome::kBeyond);
  EXPECT_EQ(window.Add(UINT64_MAX), Outcome::kBeyond);
  EXPECT_EQ(window.Add(ReceivedWindow::kSize), Outcome::kNew);
  EXPECT_EQ(window.end(), 1U);
}

TEST(ReceivedWindow, GoesRound) {
  ReceivedWindow window;
  for (std::uint64_t pair = 1; pair < 5 * ReceivedWindow::kSize; pair += 2) {
    ASSERT_EQ(window.Add(pair + 1), ReceivedWindow::Outcome::kNew);
    ASSERT_EQ(window.Add(pair), ReceivedWindow::Outcome::kNew);
    ASSERT_EQ(window.end(), pair + 2);
  }
}

}  // namespace
}  // namespace headrace::transport

#include "transport/ucx/ucx_wire.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "ipc/base/copy.h"
#include "tests/support/expect_text.h"
#include "tests/unit/transport/ucx_pair.h"

namespace headrace::transport {
namespace {

class UcxWireTest : public ::testing::Test {
 protected:
  // Everything that is announced at b is received to `target` at once.
  void AcceptAtOnce(std::vector<std::byte>& target) {
    b_.told.on_announced = [this, &target](const Recorder::Announcement& announcement) {
      target.resize(announcement.size);
      b_.wire->Accept(announcement.arrival, target.data(), announcement.header.position, whole_);
    };
  }

  std::size_t whole_ = 0;  // of the array that all of it is said to be a part of
  Side a_{Loopback()};
  Side b_{Loopback()};
  std::vector<Side*> both_{&a_, &b_};
};

TEST_F(UcxWireTest, CarriesMessagesOfEverySizeByteForByte) {
  const LinkId link = a_.ConnectTo(b_, 7);
  std::vector<std::byte> target;
  AcceptAtOnce(target);
  std::uint64_t token = 0;
  for (const std::size_t size :
       {std::size_t{0}, std::size_t{1}, std::size_t{100}, std::size_t{4096}, std::size_t{131'071},
        std::size_t{131'072}, std::size_t{262'144}, std::size_t{1} << 20, std::size_t{64} << 20}) {
    const std::vector<std::byte> source = Pattern(size, static_cast<std::uint32_t>(size));
    ++token;
    MessageHeader header = HeaderOf(7, token);
    header.sender = 5;
    header.round = 3;
    a_.wire->Send(link, header, source.data(), size, token);
    ASSERT_TRUE(DriveUntil(both_, [&] {
      return a_.told.sent.contains(token) && b_.told.received.contains(token);
    })) << size;
    EXPECT_EQ(a_.told.sent[token], Code::kOk);
    EXPECT_EQ(b_.told.received[token], Code::kOk);
    EXPECT_TRUE(target == source) << size;
    const Recorder::Announcement& announced = b_.told.announcements.back();
    EXPECT_EQ(announced.size, size);
    EXPECT_EQ(announced.header.key, 7U);
    EXPECT_EQ(announced.header.sender, 5U);
    EXPECT_EQ(announced.header.round, 3U);
  }
  EXPECT_EQ(b_.told.announcements.size(), token);
}

TEST_F(UcxWireTest, CarriesPartsOfALargeArrayByteForByte) {
  const LinkId link = a_.ConnectTo(b_, 7);
  whole_ = kLargeCopyMin;
  std::vector<std::byte> target;
  AcceptAtOnce(target);
  std::uint64_t token = 0;
  for (const std::size_t size : {0U, 1U, 4096U, 131'071U, 262'144U}) {
    const std::vector<std::byte> source = Pattern(size, static_cast<std::uint32_t>(size));
    ++token;
    a_.wire->Send(link, HeaderOf(7, token), source.data(), size, token);
    ASSERT_TRUE(DriveUntil(both_, [&] { return b_.told.received.contains(token); })) << size;
    EXPECT_EQ(b_.told.received[token], Code::kOk);
    EXPECT_TRUE(target == source) << size;
  }
}

TEST_F(UcxWireTest, HoldsMessagesUntilTheyAreAccepted) {
  const LinkId link = a_.ConnectTo(b_);
  const std::vector<std::size_t> sizes = {0, 10, 9000, 1 << 20};
  std::vector<std::vector<std::byte>> sources;
  for (const std::size_t size : sizes) {
    sources.push_back(Pattern(size, static_cast<std::uint32_t>(size) + 1));
    a_.wire->Send(link, HeaderOf(1, sources.size()), sources.back().data(), size, sources.size());
  }
  ASSERT_TRUE(DriveUntil(both_, [&] { return b_.told.announcements.size() == sizes.size(); }));
  EXPECT_TRUE(b_.told.received.empty());
  EXPECT_FALSE(a_.told.sent.contains(4)) << "1 MiB was sent before anybody chose its memory";
  std::vector<std::vector<std::byte>> targets(sizes.size() + 1);
  for (const auto& announced : b_.told.announcements) {
    std::vector<std::byte>& target = targets[announced.header.position];
    target.resize(announced.size);
    b_.wire->Accept(announced.arrival, target.data(), announced.header.position);
  }
  ASSERT_TRUE(DriveUntil(both_, [&] {
    return b_.told.received.size() == sizes.size() && a_.told.sent.size() == sizes.size();
  }));
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    EXPECT_TRUE(targets[i + 1] == sources[i]) << sizes[i];
    EXPECT_EQ(b_.told.received[i + 1], Code::kOk);
  }
}

TEST_F(UcxWireTest, EndsTheSendOfADroppedMessage) {
  const LinkId link = a_.ConnectTo(b_);
  const std::vector<std::byte> source = Pattern(1 << 20, 3);
  bool at_once = true;
  b_.told.on_announced = [&](const Recorder::Announcement& announcement) {
    if (at_once) b_.wire->Drop(announcement.arrival);
  };
  a_.wire->Send(link, HeaderOf(1, 1), source.data(), source.size(), 1);
  a_.wire->Send(link, HeaderOf(1, 2), source.data(), 100, 2);
  ASSERT_TRUE(DriveUntil(both_, [&] { return a_.told.sent.size() == 2; }));
  at_once = false;
  a_.wire->Send(link, HeaderOf(1, 3), source.data(), source.size(), 3);
  a_.wire->Send(link, HeaderOf(1, 4), source.data(), 100, 4);
  ASSERT_TRUE(DriveUntil(both_, [&] { return b_.told.announcements.size() == 4; }));
  EXPECT_FALSE(a_.told.sent.contains(3));
  for (std::size_t i = 2; i < 4; ++i) b_.wire->Drop(b_.told.announcements[i].arrival);
  EXPECT_TRUE(DriveUntil(both_, [&] { return a_.told.sent.size() == 4; }));
  EXPECT_TRUE(b_.told.received.empty());
}

TEST_F(UcxWireTest, CarriesBothDirectionsAtOnce) {
  const LinkId to_b = a_.ConnectTo(b_);
  const LinkId to_a = b_.ConnectTo(a_);
  constexpr std::uint64_t kMessages = 50;
  const std::vector<std::byte> source = Pattern(300'000, 9);
  std::vector<std::vector<std::byte>> targets(2 * kMessages, std::vector<std::byte>(300'000));
  const auto accept_into = [&targets](Side& side, std::uint64_t first) {
    side.told.on_announced = [&targets, &side, first](const Recorder::Announcement& announcement) {
      side.wire->Accept(announcement.arrival, targets[first + announcement.header.position].data(),
                        announcement.header.position);
    };
  };
  accept_into(a_, 0);
  accept_into(b_, kMessages);
  for (std::uint64_t i = 0; i < kMessages; ++i) {
    const std::size_t size = i % 3 == 0 ? 1000 : source.size();
    a_.wire->Send(to_b, HeaderOf(1, i), source.data(), size, i);
    b_.wire->Send(to_a, HeaderOf(1, i), source.data(), size, i);
  }
  ASSERT_TRUE(DriveUntil(both_, [&] {
    return a_.told.received.size() == kMessages && b_.told.received.size() == kMessages &&
           a_.told.sent.size() == kMessages && b_.told.sent.size() == kMessages;
  }));
  for (std::uint64_t i = 0; i < 2 * kMessages; ++i) {
    const std::size_t size = i % kMessages % 3 == 0 ? 1000 : source.size();
    EXPECT_TRUE(std::equal(source.data(), source.data() + size, targets[i].data())) << i;
  }
}

TEST_F(UcxWireTest, TellsEndsFromInsideProgressOnly) {
  const LinkId link = a_.ConnectTo(b_);
  std::byte byte{};
  a_.wire->Send(link, HeaderOf(1, 1), &byte, 1, 1);
  a_.wire->Close(link);
  EXPECT_TRUE(a_.told.sent.empty());
  EXPECT_TRUE(DriveUntil(both_, [&] { return a_.told.sent.contains(1); }));
}

TEST_F(UcxWireTest, NamesTheWiresInUse) {
  EXPECT_EQ(a_.wire->Names(), "tcp/lo");
  a_.ConnectTo(b_);
  EXPECT_EQ(a_.wire->Names(), "tcp/lo");
}

TEST_F(UcxWireTest, RefusesAddressesThatMakeNoSense) {
  for (const std::string& address :
       {std::string(), std::string("10.0.0.1:4000"), std::string(200, '\xff'),
        a_.wire->address() + "x", a_.wire->address().substr(1)}) {
    const Result<LinkId> link = b_.wire->Connect(address, 1, 0);
    ASSERT_FALSE(link);
    EXPECT_EQ(link.error().code(), Code::kUnavailable);
  }
  std::string spoiled = a_.wire->address();
  for (std::size_t i = 0; i < spoiled.size(); ++i) {
    spoiled[i] = static_cast<char>(spoiled[i] ^ 0x10);
    EXPECT_FALSE(b_.wire->Connect(spoiled, 1, 0)) << i;
    spoiled[i] = static_cast<char>(spoiled[i] ^ 0x10);
  }
}

TEST_F(UcxWireTest, LendsMemoryThatCarriesMessages) {
  const LinkId link = a_.ConnectTo(b_);
  Result<std::span<std::byte>> from = a_.wire->AllocateStaging(1 << 20);
  Result<std::span<std::byte>> to = b_.wire->AllocateStaging(1 << 20);
  ASSERT_TRUE(from && to);
  const std::vector<std::byte> source = Pattern(1 << 20, 4);
  std::ranges::copy(source, from->begin());
  b_.told.on_announced = [&](const Recorder::Announcement& announcement) {
    b_.wire->Accept(announcement.arrival, to->data(), 1);
  };
  a_.wire->Send(link, HeaderOf(1, 1), from->data(), from->size(), 1);
  ASSERT_TRUE(DriveUntil(both_, [&] { return b_.told.received.contains(1); }));
  EXPECT_TRUE(std::ranges::equal(source, *to));
  EXPECT_TRUE(DriveUntil(both_, [&] { return a_.told.sent.contains(1); }));
  a_.wire->FreeStaging(*from);
  b_.wire->FreeStaging(*to);
}

TEST(UcxWireOptions, NameTheDeviceThatIsNotThere) {
  UcxOptions options;
  options.net_devices = "nosuch0";
  const auto wire = UcxWire::Open(options);
  ASSERT_FALSE(wire);
  EXPECT_EQ(wire.error().code(), Code::kUnavailable) << wire.error().text();
  EXPECT_VARYING_TEXT(wire.error().text(), "nosuch0");
}

TEST(UcxWireOptions, NameTheSettingThatUcxRefuses) {
  UcxOptions options = Loopback();
  options.settings = {{"RNDV_THRESH", "plenty"}};
  const auto wire = UcxWire::Open(options);
  ASSERT_FALSE(wire);
  EXPECT_EQ(wire.error().code(), Code::kInvalidArgument);
  EXPECT_VARYING_TEXT(wire.error().text(), "RNDV_THRESH=plenty");
}

// UCX would abort on the first segment that is longer than it expects.
TEST(UcxWireOptions, MustBeAlikeAtBothEnds) {
  Side plain(Loopback());
  UcxOptions options = Loopback();
  options.settings = {{"TCP_TX_SEG_SIZE", "512K"}, {"TCP_RX_SEG_SIZE", "512K"}};
  Side other(options);
  const Result<LinkId> link = plain.wire->Connect(other.wire->address(), 1, 0);
  ASSERT_FALSE(link);
  EXPECT_EQ(link.error().code(), Code::kUnavailable);
  EXPECT_VARYING_TEXT(link.error().text());
  Side alike(options);
  EXPECT_TRUE(other.wire->Connect(alike.wire->address(), 1, 0));
}

TEST(UcxWire, SleepsUntilSomethingComes) {
  Side a(Loopback());
  Side b(Loopback());
  const std::vector<Side*> both = {&a, &b};
  const LinkId link = a.ConnectTo(b);
  std::byte byte{};
  a.wire->Send(link, HeaderOf(1, 1), &byte, 1, 1);
  ASSERT_TRUE(DriveUntil(both, [&] { return b.told.announcements.size() == 1; }));
  const auto asleep = [](Side& side) {
    for (int i = 0; i < 100; ++i) {
      while (side.wire->Progress(side.told)) {
      }
      if (side.wire->PrepareToSleep()) return true;
    }
    return false;
  };
  ASSERT_TRUE(asleep(a) && asleep(b));
  pollfd fd{b.wire->event_fd(), POLLIN, 0};
  EXPECT_EQ(poll(&fd, 1, 50), 0) << "an idle wire wakes its lane";
  a.wire->Send(link, HeaderOf(1, 2), &byte, 1, 2);
  EXPECT_FALSE(a.wire->PrepareToSleep()) << "an end waits to be told";
  ASSERT_TRUE(DriveUntil({&a}, [&] { return a.told.sent.contains(2); }));
  EXPECT_EQ(poll(&fd, 1, 5000), 1);
}

}  // namespace
}  // namespace headrace::transport

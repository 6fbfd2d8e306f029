// Opening a channel: what the service checks before it believes a header.
#include "ipc/channel.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

#include "tests/support/expect_text.h"

namespace headrace::ipc {
namespace {

TEST(Channel, IsTheSameMemoryAtBothEnds) {
  Result<Channel::Created> client = Channel::Create();
  ASSERT_TRUE(client.ok()) << client.error().text();
  Result<Channel> service = Channel::Open(client->fd.get());
  ASSERT_TRUE(service.ok()) << service.error().text();
  client->channel.layout().records[5].count = 77;
  service->layout().words[9].store(78);
  EXPECT_EQ(service->layout().records[5].count, 77U);
  EXPECT_EQ(client->channel.layout().words[9].load(), 78U);
}

TEST(Channel, StartsAsZerosButForItsHeader) {
  Result<Channel::Created> client = Channel::Create();
  ASSERT_TRUE(client.ok());
  const auto* bytes = reinterpret_cast<const unsigned char*>(&client->channel.layout());
  EXPECT_TRUE(std::all_of(bytes + 24, bytes + kChannelSize, [](auto byte) { return byte == 0; }));
  EXPECT_EQ(std::string_view(reinterpret_cast<const char*>(bytes), 8), "HRDCHAN1");
}

TEST(Channel, OutlivesTheDescriptorItWasOpenedFrom) {
  Result<Channel::Created> client = Channel::Create();
  ASSERT_TRUE(client.ok());
  Result<Channel> service = Channel::Open(client->fd.get());
  ASSERT_TRUE(service.ok());
  client->fd.reset();
  service->layout().words[0].store(1);
  EXPECT_EQ(client->channel.layout().words[0].load(), 1U);
}

TEST(Channel, RefusesMemoryThatWasNeverInitialised) {
  Result<SealedMemory> memory = CreateSealedMemory("test", kChannelSize);
  ASSERT_TRUE(memory.ok());
  Result<Channel> channel = Channel::Open(memory->fd.get());
  ASSERT_FALSE(channel.ok());
  EXPECT_EQ(channel.error().code(), Code::kInvalidArgument);
  EXPECT_VARYING_TEXT(channel.error().text());
}

TEST(Channel, RefusesAnotherVersionAndNamesBoth) {
  Result<Channel::Created> client = Channel::Create();
  ASSERT_TRUE(client.ok());
  client->channel.layout().header.version = 41;
  Result<Channel> channel = Channel::Open(client->fd.get());
  ASSERT_FALSE(channel.ok());
  EXPECT_EQ(channel.error().code(), Code::kVersionMismatch);
  EXPECT_VARYING_TEXT(channel.error().text());
  EXPECT_TEXT(channel.error().text());
  client->channel.layout().header.version = 1;
  EXPECT_TEXT(ipc::Channel::Open(client->fd.get()).error().text());
}

TEST(Channel, RefusesAnotherRingLength) {
  Result<Channel::Created> client = Channel::Create();
  ASSERT_TRUE(client.ok());
  client->channel.layout().header.operations_max = 2048;
  Result<Channel> channel = Channel::Open(client->fd.get());
  ASSERT_FALSE(channel.ok());
  EXPECT_EQ(channel.error().code(), Code::kVersionMismatch);
  EXPECT_VARYING_TEXT(channel.error().text(), "2048");
}

TEST(Channel, RefusesUnsealedMemoryAndAWrongSizeBeforeMapping) {
  UniqueFd unsealed(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(unsealed.get(), kChannelSize), 0);
  Result<Channel> first = Channel::Open(unsealed.get());
  ASSERT_FALSE(first.ok());
  EXPECT_EQ(first.error().code(), Code::kInvalidArgument);
  EXPECT_TEXT(first.error().text());

  Result<SealedMemory> small = CreateSealedMemory("test", kChannelSize - kPageSize);
  ASSERT_TRUE(small.ok());
  Result<Channel> second = Channel::Open(small->fd.get());
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.error().code(), Code::kInvalidArgument);
  EXPECT_TEXT(second.error().text(), "118784");
  EXPECT_FALSE(Channel::Open(-1).ok());
}

}  // namespace
}  // namespace headrace::ipc

// Descriptors and mappings return to where they were, also when something was refused on the way.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "ipc/board.h"
#include "ipc/channel.h"
#include "ipc/sealed_memory.h"
#include "tests/support/open_descriptors.h"

namespace headrace::ipc {
namespace {

constexpr int kRounds = 1000;

// Mappings of what this test maps, not of the heap, which the allocator may split as it likes.
std::ptrdiff_t SharedMappings() {
  std::ifstream maps("/proc/self/maps");
  std::ptrdiff_t count = 0;
  for (std::string line; std::getline(maps, line);) {
    const bool ours = line.find("/memfd:headrace-") != std::string::npos ||
                      line.find("lifetime-test-board") != std::string::npos;
    count += ours ? 1 : 0;
  }
  return count;
}

TEST(Lifetime, AThousandChannelsLeaveNoDescriptorAndNoMapping) {
  const std::size_t descriptors = OpenDescriptors();
  ASSERT_EQ(SharedMappings(), 0);
  for (int round = 0; round < kRounds; ++round) {
    Result<Channel::Created> client = Channel::Create();
    ASSERT_TRUE(client.ok());
    Result<Channel> service = Channel::Open(client->fd.get());
    ASSERT_TRUE(service.ok());
    if (round == 0) {
      EXPECT_EQ(SharedMappings(), 2) << "the counter does not see what it counts";
    }
    client->channel.layout().header.version = 9;
    ASSERT_FALSE(Channel::Open(client->fd.get()).ok());
    Channel moved = std::move(service).value();
    moved.layout().words[0].store(1);
  }
  EXPECT_EQ(OpenDescriptors(), descriptors);
  EXPECT_EQ(SharedMappings(), 0);
}

TEST(Lifetime, AThousandSegmentsLeaveNoDescriptorAndNoMapping) {
  const std::size_t descriptors = OpenDescriptors();
  for (int round = 0; round < kRounds; ++round) {
    Result<SealedMemory> memory = CreateSealedMemory("headrace-segment", 64 * kPageSize);
    ASSERT_TRUE(memory.ok());
    Result<Mapping> mapped = MapSealedMemory(memory->fd.get(), 64 * kPageSize);
    ASSERT_TRUE(mapped.ok());
    Mapping assigned;
    assigned = std::move(mapped).value();
    assigned.data()[0] = std::byte{1};
    ASSERT_FALSE(MapSealedMemory(memory->fd.get(), 65 * kPageSize).ok());
    Result<UniqueFd> copy = Duplicate(memory->fd.get());
    ASSERT_TRUE(copy.ok());
  }
  EXPECT_EQ(OpenDescriptors(), descriptors);
  EXPECT_EQ(SharedMappings(), 0);
}

TEST(Lifetime, AThousandBoardsLeaveNoDescriptorNoMappingAndNoFile) {
  const std::string path = testing::TempDir() + "lifetime-test-board" + std::to_string(::getpid());
  const std::size_t descriptors = OpenDescriptors();
  for (int round = 0; round < kRounds; ++round) {
    Result<BoardFile> board = BoardFile::Create(path, 0644);
    ASSERT_TRUE(board.ok()) << board.error().text();
    Result<BoardView> view = BoardView::Open(path);
    ASSERT_TRUE(view.ok()) << view.error().text();
    if (round == 0) {
      EXPECT_EQ(SharedMappings(), 2);
    }
  }
  EXPECT_EQ(OpenDescriptors(), descriptors);
  EXPECT_EQ(SharedMappings(), 0);
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_FALSE(std::filesystem::exists(path + ".new"));
}

}  // namespace
}  // namespace headrace::ipc

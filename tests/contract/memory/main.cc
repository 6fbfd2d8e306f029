// The tests, or with --memory-peer KIND FD the other process of one of them.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string_view>

#include "tests/contract/memory/peer.h"

int main(int argc, char** argv) {
  if (argc == 4 && std::string_view(argv[1]) == "--memory-peer") {
    return headrace::memory_contract::RunPeer(argv[2], std::atoi(argv[3]));
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}

// Which word was meant, and when none was.
#include "ipc/base/nearest_name.h"

#include <gtest/gtest.h>

#include <vector>

namespace headrace {
namespace {

const std::vector<std::string> kWords = {"status", "top", "lanes", "plan", "log_level"};

TEST(NearestName, IsTheWordThatIsASlipAway) {
  EXPECT_EQ(NearestName("stauts", kWords), "status");
  EXPECT_EQ(NearestName("staus", kWords), "status");
  EXPECT_EQ(NearestName("lane", kWords), "lanes");
  EXPECT_EQ(NearestName("tpo", kWords), "top");
  EXPECT_EQ(NearestName("loglevel", kWords), "log_level");
  EXPECT_EQ(NearestName("log-levle", kWords), "log_level");
  EXPECT_EQ(NearestName("log_mevil", kWords), "log_level");
}

TEST(NearestName, IsTheWordThatWasBegun) {
  EXPECT_EQ(NearestName("stat", kWords), "status");
  EXPECT_EQ(NearestName("st", kWords), "");
}

TEST(NearestName, IsNoneForAnotherWord) {
  EXPECT_EQ(NearestName("foo", kWords), "");
  EXPECT_EQ(NearestName("clap", kWords), "");
  EXPECT_EQ(NearestName("", kWords), "");
  EXPECT_EQ(NearestName("x", kWords), "");
}

}  // namespace
}  // namespace headrace

#include "service/cluster/requested_codecs.h"

#include <gtest/gtest.h>

#include <string>

namespace headrace::service {
namespace {

TEST(RequestedCodecs, AreForgottenOfTheUserThatHasTheMost) {
  RequestedCodecs requests;
  const CodecChoice wanted(Codec::kInt8);
  requests.Keep("old", 1000, wanted);
  for (std::size_t i = 0; i < 2 * RequestedCodecs::kMax; ++i) {
    requests.Keep("job" + std::to_string(i), 65534, wanted);
  }
  EXPECT_TRUE(requests.Find("old", 1000).has_value());
  EXPECT_FALSE(requests.Find("job0", 65534).has_value());
  EXPECT_TRUE(requests.Find("job" + std::to_string(2 * RequestedCodecs::kMax - 1), 65534));
  requests.Forget("old", 1000);
  EXPECT_FALSE(requests.Find("old", 1000).has_value());
}

}  // namespace
}  // namespace headrace::service

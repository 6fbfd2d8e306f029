#include "tests/unit/service/dispatch/expect.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <string>

namespace headrace::support {

void ExpectOk(const ClientEnd& client, std::uint64_t sequence) {
  ASSERT_TRUE(client.HasEnded(sequence)) << "rank " << client.rank() << " operation " << sequence;
  const ipc::Outcome outcome = client.Read(sequence);
  EXPECT_EQ(outcome.code, Code::kOk)
      << "rank " << client.rank() << " operation " << sequence << ": " << outcome.text;
}

void ExpectFailed(const ClientEnd& client, std::uint64_t sequence, Code code,
                  std::initializer_list<std::string_view> parts) {
  ASSERT_TRUE(client.HasEnded(sequence)) << "rank " << client.rank() << " operation " << sequence;
  const ipc::Outcome outcome = client.Read(sequence);
  EXPECT_EQ(CodeName(outcome.code), CodeName(code))
      << "rank " << client.rank() << " operation " << sequence << ": " << outcome.text;
  for (const std::string_view part : parts) {
    EXPECT_THAT(outcome.text, ::testing::HasSubstr(std::string(part)));
  }
}

void ExpectOpen(const ClientEnd& client, std::uint64_t sequence) {
  EXPECT_FALSE(client.HasEnded(sequence)) << "rank " << client.rank() << " operation " << sequence
                                          << ": " << client.Read(sequence).text;
}

void Fill(const ClientEnd& client, float value) {
  const std::span<float> elements = client.Elements<float>();
  std::iota(elements.begin(), elements.end(), value);
}

}  // namespace headrace::support

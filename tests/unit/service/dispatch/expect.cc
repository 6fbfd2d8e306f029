#include "tests/unit/service/dispatch/expect.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <string>

#include "tests/support/expect_text.h"

namespace headrace::support {

void ExpectOk(const ClientEnd& client, std::uint64_t sequence) {
  ASSERT_TRUE(client.HasEnded(sequence)) << "rank " << client.rank() << " operation " << sequence;
  const ipc::Outcome outcome = client.Read(sequence);
  EXPECT_EQ(outcome.code, Code::kOk)
      << "rank " << client.rank() << " operation " << sequence << ": " << outcome.text;
}

void ExpectFailed(const ClientEnd& client, std::uint64_t sequence, Code code,
                  std::initializer_list<std::string_view> values) {
  ASSERT_TRUE(client.HasEnded(sequence)) << "rank " << client.rank() << " operation " << sequence;
  const ipc::Outcome outcome = client.Read(sequence);
  EXPECT_EQ(CodeName(outcome.code), CodeName(code))
      << "rank " << client.rank() << " operation " << sequence << ": " << outcome.text;
  ExpectText(__FILE__, __LINE__, outcome.text, values);
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

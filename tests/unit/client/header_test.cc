#include <gtest/gtest.h>
#include <headrace/headrace.h>

extern "C" {
std::size_t c_size_of_options(void);
std::size_t c_size_of_error(void);
std::size_t c_size_of_spec(void);
std::size_t c_size_of_piece(void);
std::size_t c_size_of_layout_options(void);
std::size_t c_size_of_counters(void);
}

namespace {

TEST(Header, MeansTheSameInCAndCpp) {
  EXPECT_EQ(c_size_of_options(), sizeof(hr_options));
  EXPECT_EQ(c_size_of_error(), sizeof(hr_error));
  EXPECT_EQ(c_size_of_spec(), sizeof(hr_tensor_spec));
  EXPECT_EQ(c_size_of_piece(), sizeof(hr_piece));
  EXPECT_EQ(c_size_of_layout_options(), sizeof(hr_layout_options));
  EXPECT_EQ(c_size_of_counters(), sizeof(hr_counters));
}

}  // namespace

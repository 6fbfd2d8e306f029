// Places of a job's services, as clients keep and return them.
#include "service/session/job_place.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "transport/network.h"

namespace headrace::service {
namespace {

TEST(JobPlaces, AreReadAsTheyWereWritten) {
  const std::vector<JobPlace> places = {{.node = "a", .address = "10.0.0.1:7733"},
                                        {.node = "b", .address = ""},
                                        {.node = "", .address = "[fd00::1]:7733"}};
  EXPECT_EQ(PlacesText(places), "a 10.0.0.1:7733\nb -\n- [fd00::1]:7733\n");
  const auto read = ParsePlaces(PlacesText(places));
  ASSERT_TRUE(read) << read.error().text();
  EXPECT_EQ(*read, places);
  EXPECT_TRUE(ParsePlaces("").value().empty());
}

TEST(JobPlaces, AreRefusedWhereAClientReturnsOthers) {
  for (const std::string text : {"\n", "a\n", "a \n", " a:1\n", "- -\n", "a b c\n", "a\tb:1\n",
                                 "a b:1\n\n", "a b:1\nc\x1b[2J d:1\n", "caf\xc3\xa9 a:1\n",
                                 "\xff a:1\n", "a a:1\xc2\xa0\n", "a\x7f a:1\n"}) {
    const auto read = ParsePlaces(text);
    ASSERT_FALSE(read) << text;
    EXPECT_EQ(read.error().code(), Code::kInvalidArgument);
    EXPECT_NE(read.error().text().find("host:port"), std::string::npos) << read.error().text();
    EXPECT_EQ(read.error().text().find('\x1b'), std::string::npos);
  }
  EXPECT_FALSE(ParsePlaces(std::string(64, 'n') + " a:1"));
  EXPECT_FALSE(ParsePlaces("n " + std::string(kPlaceAddressMax + 1, 'a')));
}

TEST(JobPlaces, AreAtMostThoseOfOneJob) {
  std::string text;
  for (std::uint32_t i = 0; i < transport::kNodesMax; ++i) text += "n a:1\n";
  EXPECT_EQ(ParsePlaces(text).value().size(), transport::kNodesMax);
  EXPECT_FALSE(ParsePlaces(text + "n a:1\n"));
}

}  // namespace
}  // namespace headrace::service

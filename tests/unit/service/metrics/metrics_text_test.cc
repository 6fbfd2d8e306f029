#include "service/watch/metrics_text.h"

#include <gtest/gtest.h>

#include <limits>

#include "service/watch/utf8.h"

namespace headrace::service {
namespace {

TEST(MetricValue, IsExactWhereADoubleIsNot) {
  EXPECT_EQ(MetricValue::Count(std::numeric_limits<std::uint64_t>::max()).text(),
            "18446744073709551615");
  EXPECT_EQ(MetricValue::Seconds(std::numeric_limits<TimeNs>::max()).text(),
            "9223372036.854775807");
}

TEST(MetricValue, WritesSecondsWithoutZerosAtTheEnd) {
  EXPECT_EQ(MetricValue::Seconds(0).text(), "0");
  EXPECT_EQ(MetricValue::Seconds(1).text(), "0.000000001");
  EXPECT_EQ(MetricValue::Seconds(1'500'000'000).text(), "1.5");
  EXPECT_EQ(MetricValue::Seconds(-20 * kSecond).text(), "-20");
  EXPECT_EQ(MetricValue::Ratio(0.25).text(), "0.25");
}

TEST(Labels, EscapeWhatEndsThem) {
  EXPECT_EQ(EscapeLabel("a\\b\"c\nd"), "a\\\\b\\\"c\\nd");
  EXPECT_EQ(EscapeLabel("job{x=\"y\"}"), "job{x=\\\"y\\\"}");
}

TEST(Labels, AreUtf8WhateverTheyWere) { EXPECT_EQ(EscapeLabel("a\xff"), "a\xef\xbf\xbd"); }

TEST(MetricsText, PutsSamplesUnderTheirFamily) {
  MetricsText text;
  text.Family("a_seconds", MetricType::kSummary, "Why.");
  text.Sample({{"job", "x"}, {"rank", "0"}}, MetricValue::Count(3), "_count");
  text.Family("b", MetricType::kGauge, "What.");
  text.Sample({}, MetricValue::Count(1));
  EXPECT_EQ(text.Release(),
            "# HELP a_seconds Why.\n# TYPE a_seconds summary\n"
            "a_seconds_count{job=\"x\",rank=\"0\"} 3\n"
            "# HELP b What.\n# TYPE b gauge\nb 1\n");
}

TEST(Utf8, KeepsWhatIsWellFormed) {
  const std::string text = "a\xc3\xbc\xe2\x82\xac\xf0\x9f\x99\x82z";
  EXPECT_EQ(ValidUtf8(text), text);
  EXPECT_EQ(ValidUtf8(""), "");
}

TEST(Utf8, ReplacesEachByteThatBelongsToNothing) {
  const std::string mark = "\xef\xbf\xbd";
  EXPECT_EQ(ValidUtf8("\x80"), mark);                           // no first byte
  EXPECT_EQ(ValidUtf8("a\xc3"), "a" + mark);                    // cut short
  EXPECT_EQ(ValidUtf8("\xc0\xaf"), mark + mark);                // longer than it need be
  EXPECT_EQ(ValidUtf8("\xed\xa0\x80"), mark + mark + mark);     // half a surrogate pair
  EXPECT_EQ(ValidUtf8("\xf4\x90\x80\x80").substr(0, 3), mark);  // beyond the last character
  EXPECT_EQ(ValidUtf8("\xe2\x82z"), mark + mark + "z");
}

}  // namespace
}  // namespace headrace::service

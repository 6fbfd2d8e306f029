// Prometheus' text form, version 0.0.4, line by line: families with their samples beneath them.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include "ipc/base/clock.h"

namespace headrace::service {

// A number as the text has it. Whole numbers and times are exact, whatever a double could hold.
class MetricValue {
 public:
  static MetricValue Count(std::uint64_t count);
  static MetricValue Seconds(TimeNs ns);
  static MetricValue Ratio(double ratio);
  const std::string& text() const { return text_; }

 private:
  explicit MetricValue(std::string text) : text_(std::move(text)) {}
  std::string text_;
};

struct MetricLabel {
  std::string_view name;
  std::string_view value;  // as it is; whatever bytes it has
};

enum class MetricType : std::uint8_t { kCounter, kGauge, kSummary };

class MetricsText {
 public:
  // Begins a family. A family stands once in a text, with all of its samples.
  void Family(std::string_view name, MetricType type, std::string_view help);
  // A sample of the family that was begun last; `suffix` is "_sum" or "_count" of a summary.
  void Sample(std::initializer_list<MetricLabel> labels, const MetricValue& value,
              std::string_view suffix = {});

  std::string Release() { return std::move(text_); }

 private:
  std::string family_;
  std::string text_;
};

// A label's value between its quotes: backslash, quote and line feed escaped; bytes that are not
// UTF-8 become U+FFFD, as a scraper refuses a text with any of them.
std::string EscapeLabel(std::string_view value);

}  // namespace headrace::service

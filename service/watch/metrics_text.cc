#include "service/watch/metrics_text.h"

#include <fmt/format.h>

#include "ipc/base/check.h"
#include "service/watch/utf8.h"

namespace headrace::service {
namespace {

std::string_view TypeName(MetricType type) {
  switch (type) {
    case MetricType::kCounter:
      return "counter";
    case MetricType::kGauge:
      return "gauge";
    case MetricType::kSummary:
      return "summary";
  }
  return "untyped";
}

}  // namespace

MetricValue MetricValue::Count(std::uint64_t count) { return MetricValue(std::to_string(count)); }

MetricValue MetricValue::Seconds(TimeNs ns) {
  const std::uint64_t size =
      ns < 0 ? 0 - static_cast<std::uint64_t>(ns) : static_cast<std::uint64_t>(ns);
  constexpr auto kUnit = static_cast<std::uint64_t>(kSecond);
  std::string text = fmt::format("{}{}.{:09d}", ns < 0 ? "-" : "", size / kUnit, size % kUnit);
  text.erase(text.find_last_not_of('0') + 1);
  HR_CHECK(text.find('.') != std::string::npos,
           text);  // so a dot is what is left of a whole number
  if (text.back() == '.') text.pop_back();
  return MetricValue(std::move(text));
}

MetricValue MetricValue::Ratio(double ratio) { return MetricValue(fmt::format("{}", ratio)); }

std::string EscapeLabel(std::string_view value) {
  std::string escaped;
  for (const char letter : ValidUtf8(value)) {
    switch (letter) {
      case '\\':
        escaped += "\\\\";
        break;
      case '"':
        escaped += "\\\"";
        break;
      case '\n':
        escaped += "\\n";
        break;
      default:
        escaped += letter;
    }
  }
  return escaped;
}

void MetricsText::Family(std::string_view name, MetricType type, std::string_view help) {
  HR_CHECK(!name.empty() && help.find('\n') == std::string_view::npos, name, help);
  family_ = name;
  text_ += fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, help, name, TypeName(type));
}

void MetricsText::Sample(std::initializer_list<MetricLabel> labels, const MetricValue& value,
                         std::string_view suffix) {
  HR_CHECK(!family_.empty() && !value.text().empty(), family_, suffix);
  text_ += family_;
  text_ += suffix;
  char separator = '{';
  for (const MetricLabel& label : labels) {
    text_ += fmt::format("{}{}=\"{}\"", separator, label.name, EscapeLabel(label.value));
    separator = ',';
  }
  if (labels.size() > 0) text_ += '}';
  text_ += ' ';
  text_ += value.text();
  text_ += '\n';
}

}  // namespace headrace::service

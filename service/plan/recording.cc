#include "service/plan/recording.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "ipc/base/check.h"

namespace headrace::plan {
namespace {

Error RefuseRecording(const std::string& what) {
  return {Code::kInvalidArgument, "recorded iterations: " + what};
}

bool IsDuration(double seconds) {
  return std::isfinite(seconds) && seconds >= 0 && seconds <= kSecondsMax;
}

Status CheckIteration(const RecordedIteration& each, const std::string& name, std::size_t count) {
  if (each.release_s.size() != count || each.forward_s.size() != count) {
    return RefuseRecording(name + " has times of another number of tensors");
  }
  const bool right = std::all_of(each.release_s.begin(), each.release_s.end(), IsDuration) &&
                     std::all_of(each.forward_s.begin(), each.forward_s.end(), IsDuration) &&
                     IsDuration(each.forward_begin_s);
  if (!right) return RefuseRecording(name + " has a time that is not a duration");
  if (!std::is_sorted(each.release_s.rbegin(), each.release_s.rend())) {
    return RefuseRecording(name + " releases a gradient before one behind it");
  }
  return {};
}

double Quantile(std::vector<float>& values, double q) {
  HR_CHECK(!values.empty() && q >= 0 && q <= 1, values.size(), q);
  const double place = q * static_cast<double>(values.size() - 1);
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(std::floor(place + 0.5));
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

}  // namespace

Status CheckRecording(const Recording& recording, std::size_t tensors_count) {
  if (recording.iterations.size() > kRecordedMax) {
    return RefuseRecording("there are more than " + std::to_string(kRecordedMax));
  }
  if (!(recording.contention >= 0 && recording.contention <= kContentionMax)) {
    return RefuseRecording("contention must lie between 0 and 0.9");
  }
  for (std::size_t index = 0; index < recording.iterations.size(); ++index) {
    const std::string name = "iteration " + std::to_string(index);
    Status status = CheckIteration(recording.iterations[index], name, tensors_count);
    if (!status) return status;
  }
  return {};
}

Profile QuantileOf(const Recording& recording, const Profile& profile, double q, double busy) {
  HR_CHECK(!recording.iterations.empty());
  Profile of = profile;
  const double stretch = 1 / (1 - recording.contention * busy);
  std::vector<float> values(recording.iterations.size());
  double released_s = 0;  // of the tensor behind
  for (std::size_t l = of.tensors.size(); l-- > 0;) {
    const auto of_all = [&](auto field) {
      for (std::size_t i = 0; i < values.size(); ++i) values[i] = field(recording.iterations[i]);
      return Quantile(values, q);
    };
    const double release_s = of_all([l](const RecordedIteration& it) { return it.release_s[l]; });
    of.tensors[l].backward_s = std::max(0.0, release_s - released_s) * stretch;
    released_s = std::max(released_s, release_s);
    of.tensors[l].forward_s =
        of_all([l](const RecordedIteration& it) { return it.forward_s[l]; }) * stretch;
  }
  return of;
}

}  // namespace headrace::plan

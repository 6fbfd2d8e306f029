#include "tests/unit/service/schedule/load.h"

#include <algorithm>

namespace headrace::schedule {

void Load::Run(TimeNs duration_ns) {
  const TimeNs end = now + duration_ns;
  while (now < end) {
    Fill();
    PickAll();
    if (lane_.empty()) {
      const TimeNs next = std::min(queue_.NextTime(0), end);
      idle_ns += next - now;
      now = next;
      continue;
    }
    const QueuedStage stage = lane_.front();
    lane_.pop_front();
    now += static_cast<TimeNs>(static_cast<double>(stage.bytes) * kSecond /
                               static_cast<double>(bytes_per_s_)) +
           1;
    queue_.Return(stage);
    moved[stage.job] += stage.bytes;
    last_end[stage.job] = now;
  }
}

void Load::Fill() {
  for (auto& [job, source] : sources_) {
    for (; waiting_[job] < source.waiting; ++waiting_[job]) {
      std::uniform_int_distribution<std::uint64_t> bytes(source.bytes_min, source.bytes_max);
      QueuedStage stage{.token = ++positions_, .position = positions_, .job = job};
      stage.bytes = bytes(random_);
      stage.wire_bytes = stage.bytes;
      if (source.both_classes && random_() % 2 == 0) stage.traffic_class = TrafficClass::kPlanned;
      queue_.Push(stage);
    }
  }
}

void Load::PickAll() {
  while (const std::optional<QueuedStage> stage = queue_.Pick(0, now)) {
    lane_.push_back(*stage);
    --waiting_[stage->job];
    Fill();
  }
}

}  // namespace headrace::schedule

// The bytes of a fuzz target, read as a script of steps.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace headrace::fuzz {

// Reads numbers off the script; zeros when it has ended.
class Script {
 public:
  Script(const std::uint8_t* bytes, std::size_t size) : bytes_(bytes), left_(size) {}
  bool empty() const { return left_ == 0; }

  template <typename Number>
  Number Read() {
    Number number{};
    const std::size_t size = std::min(left_, sizeof number);
    if (size > 0) std::memcpy(static_cast<void*>(&number), bytes_, size);
    bytes_ += size;
    left_ -= size;
    return number;
  }
  double Seconds() { return std::bit_cast<double>(Read<std::uint64_t>()); }

 private:
  const std::uint8_t* bytes_;
  std::size_t left_;
};

// Plays the script, at most Trial::kStepsMax steps of it. A trial may read off it how to begin.
template <typename Trial>
void Play(Script& script) {
  Trial trial = [&] {
    if constexpr (std::is_default_constructible_v<Trial>) {
      return Trial();
    } else {
      return Trial(script);
    }
  }();
  for (std::size_t step = 0; step < Trial::kStepsMax && !script.empty(); ++step) trial.Step(script);
  trial.Finish();
}

}  // namespace headrace::fuzz

// One owner for one foreign thing (fd, mapping, library handle). The destructor releases it.
//
// Traits: `using Value = ...;  static Value None();  static void Release(Value);`
#pragma once

#include <utility>

namespace headrace {

template <typename Traits>
class [[nodiscard]] UniqueHandle {
 public:
  using Value = typename Traits::Value;

  UniqueHandle() = default;
  explicit UniqueHandle(Value value) : value_(value) {}
  UniqueHandle(UniqueHandle&& other) noexcept : value_(other.release()) {}
  UniqueHandle& operator=(UniqueHandle&& other) noexcept {
    if (this != &other) reset(other.release());
    return *this;
  }
  UniqueHandle(const UniqueHandle&) = delete;
  UniqueHandle& operator=(const UniqueHandle&) = delete;
  ~UniqueHandle() { reset(); }

  const Value& get() const { return value_; }
  explicit operator bool() const { return !(value_ == Traits::None()); }

  // Gives ownership away.
  [[nodiscard]] Value release() { return std::exchange(value_, Traits::None()); }
  void reset(Value value = Traits::None()) {
    Value old = std::exchange(value_, value);
    if (!(old == Traits::None())) Traits::Release(old);
  }

 private:
  Value value_ = Traits::None();
};

}  // namespace headrace

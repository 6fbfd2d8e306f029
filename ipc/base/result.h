// Result<T>: a value or an Error. Status: nothing or an Error. Both must be looked at.
#pragma once

#include <utility>
#include <variant>

#include "ipc/base/check.h"
#include "ipc/base/error.h"

namespace headrace {

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }

  T& value() & {
    HR_CHECK(ok(), error().text());
    return std::get<0>(state_);
  }
  const T& value() const& {
    HR_CHECK(ok(), error().text());
    return std::get<0>(state_);
  }
  T&& value() && {
    HR_CHECK(ok(), error().text());
    return std::move(std::get<0>(state_));
  }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }

  const Error& error() const {
    HR_CHECK(!ok());
    return std::get<1>(state_);
  }

 private:
  std::variant<T, Error> state_;
};

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Error error) : state_(std::move(error)) {}

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }
  const Error& error() const {
    HR_CHECK(!ok());
    return std::get<1>(state_);
  }
  Code code() const { return ok() ? Code::kOk : error().code(); }

 private:
  std::variant<std::monostate, Error> state_;
};

}  // namespace headrace

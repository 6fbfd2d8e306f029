// A set of small numbers that gives its smallest member at once: gradients that wait, by priority.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "ipc/base/check.h"

namespace headrace::plan {

class ReadySet {
 public:
  explicit ReadySet(std::size_t size) : words_((size + 63) / 64, 0) {}

  void Insert(std::uint32_t member) {
    HR_CHECK(member / 64 < words_.size(), member, words_.size());
    words_[member / 64] |= std::uint64_t{1} << (member % 64);
    if (member / 64 < first_) first_ = member / 64;
  }
  void Erase(std::uint32_t member) {
    HR_CHECK(member / 64 < words_.size(), member, words_.size());
    words_[member / 64] &= ~(std::uint64_t{1} << (member % 64));
  }
  bool Contains(std::uint32_t member) const {
    HR_CHECK(member / 64 < words_.size(), member, words_.size());
    return (words_[member / 64] >> (member % 64) & 1) != 0;
  }

  // The smallest member, or `none`.
  std::uint32_t First(std::uint32_t none) {
    for (; first_ < words_.size(); ++first_) {
      if (words_[first_] == 0) continue;
      return static_cast<std::uint32_t>(first_ * 64) +
             static_cast<std::uint32_t>(std::countr_zero(words_[first_]));
    }
    return none;
  }

  void Clear() {
    words_.assign(words_.size(), 0);
    first_ = 0;
  }

 private:
  std::vector<std::uint64_t> words_;
  std::size_t first_ = 0;  // no member stands in a word before this one
};

}  // namespace headrace::plan

#include "ipc/profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>

namespace headrace::plan {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kFormat = "headrace-profile/1";
constexpr int kDepthMax = 64;  // of fields that are skipped

std::string KnownDTypes() {
  std::string names;
  for (std::uint8_t number = 1; IsDType(number); ++number) {
    names += fmt::format("{}{}", number == 1 ? "" : ", ", Name(static_cast<DType>(number)));
  }
  return names;
}

// How far the JSON reader has come, for the line in messages.
class Progress {
 public:
  explicit Progress(std::string_view text) : text_(text) {}

  void Advance() { ++offset_; }
  // The reader may have looked one character past a number; that one is no part of it.
  std::size_t Line() {
    const std::size_t end = std::min(text_.size(), offset_ == 0 ? 0 : offset_ - 1);
    for (; counted_ < end; ++counted_) line_ += text_[counted_] == '\n' ? 1 : 0;
    return line_;
  }

 private:
  std::string_view text_;
  std::size_t offset_ = 0;
  std::size_t counted_ = 0;
  std::size_t line_ = 1;
};

// Characters that report being read.
class Cursor {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  Cursor(const char* at, Progress* progress) : at_(at), progress_(progress) {}
  reference operator*() const { return *at_; }
  Cursor& operator++() {
    ++at_;
    progress_->Advance();
    return *this;
  }
  friend bool operator!=(const Cursor& left, const Cursor& right) { return left.at_ != right.at_; }

 private:
  const char* at_;
  Progress* progress_;  // owned by ParseProfile, which outlives every cursor
};

// A number as it stood in the file.
struct Number {
  double value = 0;
  std::optional<std::uint64_t> whole;
};

// Takes the events of nlohmann's reader; returning false ends it.
class ProfileReader {
 public:
  explicit ProfileReader(Progress& progress) : progress_(progress) {}

  Result<Profile> Finish() {
    if (error_) return *error_;
    return std::move(profile_);
  }

  bool start_object(std::size_t) {
    if (skipped_ > 0 || IsForeign()) return Skip();
    if (place_ == Place::kFile) {
      place_ = Place::kRoot;
      return true;
    }
    if (place_ != Place::kTensors) return Refuse("must not be an object");
    place_ = Place::kTensor;
    seen_.clear();
    field_.clear();
    tensor_ = {};
    return true;
  }

  bool end_object() {
    if (skipped_ > 0) return --skipped_, true;
    if (place_ == Place::kTensor) return EndTensor();
    place_ = Place::kDone;
    field_.clear();
    for (const char* name : {"format", "tensors"}) {
      if (!Seen(root_seen_, name)) return Missing(name);
    }
    return true;
  }

  bool start_array(std::size_t) {
    if (skipped_ > 0 || IsForeign()) return Skip();
    if (place_ == Place::kFile) return Refuse("a profile must be an object");
    if (place_ != Place::kRoot || field_ != "tensors") return Refuse("must not be an array");
    place_ = Place::kTensors;
    return true;
  }

  bool end_array() {
    if (skipped_ > 0) return --skipped_, true;
    place_ = Place::kRoot;
    if (profile_.tensors.empty()) return Refuse("empty: a profile has at least one tensor");
    return true;
  }

  bool key(std::string& name) {
    if (skipped_ > 0) return true;
    field_ = name;
    auto& seen = place_ == Place::kTensor ? seen_ : root_seen_;
    if (Seen(seen, name)) return Refuse("appears twice");
    if (!IsForeign()) seen.push_back(name);
    return true;
  }

  bool string(std::string& text) {
    if (skipped_ > 0 || IsForeign()) return true;
    if (place_ == Place::kRoot && field_ == "format") {
      return text == kFormat ||
             Refuse(fmt::format("unknown format \"{}\" (known: {})", text, kFormat));
    }
    if (place_ == Place::kRoot && field_ == "model") return profile_.model = text, true;
    if (place_ == Place::kRoot && field_ == "dtype") return SetDType(text);
    if (place_ == Place::kTensor && field_ == "name") return tensor_.name = text, true;
    return Refuse("must not be a string");
  }

  bool number_unsigned(std::uint64_t value) {
    return SetNumber({static_cast<double>(value), value});
  }
  bool number_integer(std::int64_t value) {
    return SetNumber({static_cast<double>(value), std::nullopt});
  }
  bool number_float(double value, const std::string&) { return SetNumber({value, std::nullopt}); }
  bool null() { return RefuseOther("null"); }
  bool boolean(bool value) { return RefuseOther(value ? "true" : "false"); }
  bool binary(Json::binary_t&) { return RefuseOther("binary"); }

  bool parse_error(std::size_t, const std::string&, const Json::exception& exception) {
    if (place_ == Place::kDone) return Refuse("unexpected text after the profile");
    const std::string_view what = exception.what();
    const std::size_t reason = what.find(": ");
    return Refuse("this is not JSON: " +
                  std::string(what.substr(reason == std::string_view::npos ? 0 : reason + 2)));
  }

 private:
  enum class Place { kFile, kRoot, kTensors, kTensor, kDone };

  static bool Seen(const std::vector<std::string>& seen, std::string_view name) {
    return std::find(seen.begin(), seen.end(), name) != seen.end();
  }

  // Whether the value at hand belongs to a field this reader does not know.
  bool IsForeign() const {
    if (place_ == Place::kRoot) {
      return field_ != "format" && field_ != "model" && field_ != "dtype" && field_ != "tensors";
    }
    return place_ == Place::kTensor && field_ != "name" && field_ != "elements" &&
           field_ != "backward_s" && field_ != "forward_s";
  }

  bool Skip() {
    return ++skipped_ <= kDepthMax ||
           Refuse(fmt::format("nested deeper than {} levels", kDepthMax));
  }

  bool Refuse(const std::string& what) {
    if (error_) return false;
    std::string where;
    if (place_ == Place::kTensors || place_ == Place::kTensor) {
      where = "tensors[" + std::to_string(profile_.tensors.size()) + "]";
      if (place_ == Place::kTensors && field_ == "tensors" && profile_.tensors.empty()) {
        where = "tensors";
      }
      if (place_ == Place::kTensor && !field_.empty()) where += "." + field_;
    } else {
      where = field_;
    }
    error_ = Error(Code::kInvalidArgument, fmt::format("line {}: {}{}{}", progress_.Line(), where,
                                                       where.empty() ? "" : ": ", what));
    return false;
  }

  bool Missing(const char* name) {
    field_ = name;
    return Refuse("is missing");
  }

  bool EndTensor() {
    for (const char* name : {"name", "elements", "backward_s", "forward_s"}) {
      if (!Seen(seen_, name)) return Missing(name);
    }
    if (profile_.tensors.size() == kTensorsMax)
      return Refuse(fmt::format("more than {} tensors", kTensorsMax));
    profile_.tensors.push_back(std::move(tensor_));
    place_ = Place::kTensors;
    field_ = "tensors";
    return true;
  }

  bool SetDType(const std::string& name) {
    for (std::uint8_t number = 1; IsDType(number); ++number) {
      if (Name(static_cast<DType>(number)) != name) continue;
      profile_.dtype = static_cast<DType>(number);
      return true;
    }
    return Refuse(fmt::format("unknown dtype \"{}\" (known: {})", name, KnownDTypes()));
  }

  bool SetNumber(const Number& number) {
    if (skipped_ > 0 || IsForeign()) return true;
    if (place_ == Place::kFile) return Refuse("a profile must be an object");
    if (place_ != Place::kTensor || field_ == "name") return Refuse("must not be a number");
    if (number.value < 0) return Refuse(fmt::format("{} is negative", number.value));
    if (field_ == "elements") {
      if (!number.whole) return Refuse(fmt::format("{} is not a whole number", number.value));
      if (*number.whole == 0) return Refuse("0 is too few: at least 1");
      if (*number.whole > kElementsMax - elements_) {
        return Refuse(fmt::format("a model has at most {} elements", kElementsMax));
      }
      elements_ += *number.whole;
      tensor_.elements = *number.whole;
      return true;
    }
    seconds_ += number.value;
    if (!(seconds_ <= kSecondsMax)) {
      return Refuse(fmt::format("an iteration has at most {} s", kSecondsMax));
    }
    (field_ == "backward_s" ? tensor_.backward_s : tensor_.forward_s) = number.value;
    return true;
  }

  bool RefuseOther(const std::string& what) {
    if (skipped_ > 0 || IsForeign()) return true;
    if (place_ == Place::kFile) return Refuse("a profile must be an object");
    return Refuse("must not be " + what);
  }

  Progress& progress_;
  Profile profile_;
  Tensor tensor_;
  Place place_ = Place::kFile;
  std::string field_;
  std::vector<std::string> root_seen_;
  std::vector<std::string> seen_;
  int skipped_ = 0;  // how deep inside a field that is skipped
  std::uint64_t elements_ = 0;
  double seconds_ = 0;
  std::optional<Error> error_;
};

Error InTensor(std::size_t index, const Tensor& tensor, const std::string& what) {
  return {Code::kInvalidArgument, fmt::format("tensors[{}] ({}): {}", index, tensor.name, what)};
}

bool IsDuration(double seconds) {
  return std::isfinite(seconds) && seconds >= 0 && seconds <= kSecondsMax;
}

}  // namespace

std::uint64_t Profile::bytes() const {
  std::uint64_t elements = 0;
  for (const Tensor& tensor : tensors) elements += tensor.elements;
  return elements * SizeOf(dtype);
}

Status CheckProfile(const Profile& profile) {
  if (profile.tensors.empty())
    return Error(Code::kInvalidArgument, "tensors: empty: a profile has at least one");
  if (profile.tensors.size() > kTensorsMax) {
    return Error(Code::kInvalidArgument,
                 fmt::format("tensors: {}, at most {}", profile.tensors.size(), kTensorsMax));
  }
  if (!IsDType(static_cast<std::uint8_t>(profile.dtype))) {
    return Error(Code::kInvalidArgument,
                 fmt::format("unknown dtype {} (known: {})", static_cast<int>(profile.dtype),
                             KnownDTypes()));
  }
  std::uint64_t elements = 0;
  double seconds = 0;
  for (std::size_t index = 0; index < profile.tensors.size(); ++index) {
    const Tensor& tensor = profile.tensors[index];
    if (tensor.elements == 0) return InTensor(index, tensor, "elements is 0: at least 1");
    if (tensor.elements > kElementsMax - elements) {
      return InTensor(index, tensor, fmt::format("elements: a model has at most {}", kElementsMax));
    }
    if (!IsDuration(tensor.backward_s))
      return InTensor(index, tensor,
                      fmt::format("backward_s is {}: 0 to {} s", tensor.backward_s, kSecondsMax));
    if (!IsDuration(tensor.forward_s))
      return InTensor(index, tensor,
                      fmt::format("forward_s is {}: 0 to {} s", tensor.forward_s, kSecondsMax));
    elements += tensor.elements;
    seconds += tensor.backward_s + tensor.forward_s;
    if (seconds > kSecondsMax)
      return InTensor(index, tensor, fmt::format("an iteration has at most {} s", kSecondsMax));
  }
  return {};
}

Result<Profile> ParseProfile(std::string_view text) {
  Progress progress(text);
  ProfileReader reader(progress);
  Json::sax_parse(Cursor(text.data(), &progress), Cursor(text.data() + text.size(), &progress),
                  &reader);
  Result<Profile> profile = reader.Finish();
  if (!profile) return profile.error().Within("profile");
  if (Status status = CheckProfile(*profile); !status) return status.error().Within("profile");
  return profile;
}

Result<Profile> ReadProfile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return SystemError("open " + path, errno);
  std::string text;
  constexpr std::size_t kReadAtOnce = std::size_t{1} << 20;
  while (file && text.size() <= kProfileFileSizeMax) {
    const std::size_t size = text.size();
    text.resize(size + kReadAtOnce);
    file.read(text.data() + size, static_cast<std::streamsize>(kReadAtOnce));
    text.resize(size + static_cast<std::size_t>(file.gcount()));
  }
  if (file.bad()) return SystemError("read " + path, errno);
  if (text.size() > kProfileFileSizeMax) {
    return Error(Code::kInvalidArgument,
                 fmt::format("{}: more than {} bytes: not a profile", path, kProfileFileSizeMax));
  }
  Result<Profile> profile = ParseProfile(text);
  if (!profile) return profile.error().Within(path);
  return profile;
}

}  // namespace headrace::plan

#include "client/cli/replay/profile.h"

#include <fmt/format.h>

#include <cerrno>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>

namespace headrace::replay {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kFormat = "headrace-profile/1";

Error Wrong(const std::string& what) { return Error(Code::kInvalidArgument, what); }

// Nothing is quoted that is longer than a name in an error should be.
constexpr std::size_t kQuotedMax = 80;

std::string Quoted(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace).substr(0, kQuotedMax);
}

Result<std::string> TextOf(const Json& object, const char* field, const std::string& where) {
  const auto found = object.find(field);
  if (found == object.end()) return Wrong(where + field + " is missing");
  if (!found->is_string()) return Wrong(where + field + " must be a string");
  return found->get<std::string>();
}

Result<TimeNs> TimeOf(const Json& object, const char* field, const std::string& where,
                      double scale) {
  const auto found = object.find(field);
  if (found == object.end()) return Wrong(where + field + " is missing");
  if (!found->is_number()) return Wrong(where + field + " must be a number of seconds");
  const double seconds = found->get<double>() * scale;
  // Written so that a number which is none is refused too.
  if (!(seconds >= 0 && seconds <= kSecondsMax)) {
    return Wrong(fmt::format("{}{} is {}: 0 to {} s are possible", where, field, Quoted(*found),
                             kSecondsMax));
  }
  return std::llround(seconds * static_cast<double>(kSecond));
}

Result<DType> DTypeOf(const Json& root) {
  const Result<std::string> name = TextOf(root, "dtype", "");
  if (!name) return name.error();
  // Gradients are floating point numbers; the others would not be averaged exactly.
  for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16}) {
    if (Name(dtype) == *name) return dtype;
  }
  return Wrong("dtype " + Quoted(*name) +
               " is none: gradients are float32, float64, float16 or "
               "bfloat16");
}

Result<Tensor> TensorOf(const Json& entry, const std::string& where, double scale) {
  if (!entry.is_object()) return Wrong(where + " must be an object");
  Result<std::string> name = TextOf(entry, "name", where + ".");
  if (!name) return name.error();
  const auto elements = entry.find("elements");
  if (elements == entry.end()) return Wrong(where + ".elements is missing");
  if (!elements->is_number_unsigned() || elements->get<std::uint64_t>() == 0) {
    return Wrong(fmt::format("{}.elements is {}: it must be a whole number from 1", where,
                             Quoted(*elements)));
  }
  const Result<TimeNs> backward = TimeOf(entry, "backward_s", where + ".", scale);
  if (!backward) return backward.error();
  const Result<TimeNs> forward = TimeOf(entry, "forward_s", where + ".", scale);
  if (!forward) return forward.error();
  return Tensor{std::move(name).value(), elements->get<std::uint64_t>(), *backward, *forward};
}

Result<Profile> ProfileOf(const Json& root, double scale) {
  if (!root.is_object()) return Wrong("a profile must be an object");
  const Result<std::string> format = TextOf(root, "format", "");
  if (!format) return format.error();
  if (*format != kFormat)
    return Wrong(fmt::format("format {} is not {}", Quoted(*format), kFormat));
  Profile profile;
  if (root.contains("model")) {
    const Result<std::string> model = TextOf(root, "model", "");
    if (!model) return model.error();
    profile.model = *model;
  }
  if (root.contains("dtype")) {
    const Result<DType> dtype = DTypeOf(root);
    if (!dtype) return dtype.error();
    profile.dtype = *dtype;
  }
  const auto tensors = root.find("tensors");
  if (tensors == root.end() || !tensors->is_array()) return Wrong("tensors must be an array");
  if (tensors->empty() || tensors->size() > kTensorsMax) {
    return Wrong(fmt::format("there are {} tensors: a job has 1 to {} gradients", tensors->size(),
                             kTensorsMax));
  }
  std::uint64_t bytes = 0;
  TimeNs time_ns = 0;
  for (std::size_t index = 0; index < tensors->size(); ++index) {
    const std::string where = fmt::format("tensors[{}]", index);
    Result<Tensor> tensor = TensorOf((*tensors)[index], where, scale);
    if (!tensor) return tensor.error();
    if (tensor->elements > (kBytesMax - bytes) / SizeOf(profile.dtype)) {
      return Wrong(where + ".elements: the gradients exceed the limit for a model");
    }
    bytes += tensor->elements * SizeOf(profile.dtype);
    time_ns += tensor->backward_ns + tensor->forward_ns;
    if (time_ns > static_cast<TimeNs>(kSecondsMax) * kSecond) {
      return Wrong(fmt::format("{}: an iteration takes more than {} s", where, kSecondsMax));
    }
    profile.tensors.push_back(std::move(tensor).value());
  }
  return profile;
}

}  // namespace

std::uint64_t Profile::bytes() const {
  return std::accumulate(tensors.begin(), tensors.end(), std::uint64_t{0},
                         [this](std::uint64_t sum, const Tensor& tensor) {
                           return sum + tensor.elements * SizeOf(dtype);
                         });
}

Result<Profile> ParseProfile(std::string_view text, double scale) {
  std::optional<Json> root;
  try {
    root = Json::parse(text);
  } catch (const Json::exception& exception) {
    return Wrong(std::string("this is not JSON: ") + exception.what());
  }
  return ProfileOf(*root, scale);
}

Result<Profile> ReadProfile(const std::string& path, double scale) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return SystemError("profile " + path, errno);
  std::string text(kFileSizeMax + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.bad()) return SystemError("profile " + path, errno);
  text.resize(static_cast<std::size_t>(file.gcount()));
  if (text.size() > kFileSizeMax) {
    return Wrong(fmt::format("profile {}: more than {} bytes", path, kFileSizeMax));
  }
  Result<Profile> profile = ParseProfile(text, scale);
  if (!profile) return profile.error().Within("profile " + path);
  return profile;
}

}  // namespace headrace::replay

// Copies fields between messages and the schema's builders and readers.
//
// Each message is described once, by a function Describe(wire, message) that names its fields,
// their names in the schema, and their checks. ToWire writes a message by that description.
// FromWire reads one and keeps the first error. Any thread.
#pragma once

#include <capnp/blob.h>
#include <fmt/format.h>

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "ipc/base/architecture.h"
#include "ipc/base/check.h"
#include "ipc/base/foreign_text.h"
#include "ipc/base/result.h"
#include "service/accounts/rank_table.h"
#include "service/cluster/agreement.h"
#include "service/plan/plan.h"

// The descriptions are in this namespace, too, where argument-dependent lookup finds them.
namespace headrace::service::wire_fields {

inline Error Corrupt(const std::string& what) {
  return Error(Code::kCorrupt, "a service sent " + what);
}

// Matches a Message that is written, which is const, and one that is read.
template <typename Message, typename Wanted>
concept Is = std::same_as<std::remove_const_t<Message>, Wanted>;

// How the schema's field of that name is read and set. A list and a struct are initialised instead.
#define HR_FIELD(Name)                               \
  [](const auto& part) { return part.get##Name(); }, \
      [](auto& part, const auto& sent) { part.set##Name(sent); }
#define HR_LIST(Name)                                \
  [](const auto& part) { return part.get##Name(); }, \
      [](auto& part, std::size_t count) { return part.init##Name(static_cast<unsigned>(count)); }
#define HR_STRUCT(Name) \
  [](const auto& part) { return part.get##Name(); }, [](auto& part) { return part.init##Name(); }

inline capnp::Data::Reader BytesOf(const std::string& text) {
  return {reinterpret_cast<const kj::byte*>(text.data()), text.size()};
}

template <typename Builder>
class ToWire {
 public:
  explicit ToWire(Builder wire) : wire_(wire) {}

  template <typename Value>
  void Number(const Value& value, auto /*get*/, auto set) {
    if constexpr (std::is_enum_v<Value>) {
      set(wire_, static_cast<std::uint8_t>(value));
    } else {
      set(wire_, value);
    }
  }
  void ErrorCode(Code code, auto get, auto set) { Number(code, get, set); }
  void Policy(const std::optional<plan::Policy>& policy, auto get, auto set) {
    Number(policy.value_or(plan::Policy{0}), get, set);
  }
  void Architecture(std::optional<headrace::Architecture> architecture, auto /*get*/, auto set) {
    const std::string_view name = headrace::Name(architecture);
    set(wire_, kj::StringPtr(name.data(), name.size()));
  }
  void Text(const std::string& text, std::size_t /*max*/, auto /*get*/, auto set) {
    set(wire_, text);
  }
  void Name(const std::string& name, const char* /*what*/, auto /*get*/, auto set) {
    set(wire_, name);
  }
  void NameOrNothing(const std::string& name, const char* what, auto get, auto set) {
    Name(name, what, get, set);
  }
  void Bytes(const std::shared_ptr<const std::string>& bytes, std::size_t /*max*/,
             const char* /*what*/, auto /*get*/, auto set) {
    if (bytes != nullptr) set(wire_, BytesOf(*bytes));
  }
  void Inside(auto describe, auto /*get*/, auto init) {
    ToWire<decltype(init(wire_))> inside(init(wire_));
    describe(inside);
  }
  template <typename Value>
  void Struct(const Value& value, auto get, auto init) {
    Inside([&value](auto& inside) { Describe(inside, value); }, get, init);
  }
  template <typename Value>
  void Struct(const std::shared_ptr<const Value>& value, auto get, auto init) {
    HR_CHECK(value != nullptr);
    Struct(*value, get, init);
  }
  template <typename Value>
  void List(const std::vector<Value>& values, std::size_t /*max*/, const char* /*what*/,
            auto /*get*/, auto init) {
    auto list = init(wire_, values.size());
    for (unsigned i = 0; i < list.size(); ++i) {
      if constexpr (std::is_arithmetic_v<Value>) {
        list.set(i, values[i]);
      } else if constexpr (std::same_as<Value, std::string>) {
        list.set(i, BytesOf(values[i]));
      } else {
        ToWire<std::remove_cvref_t<decltype(list[i])>> inside(list[i]);
        Describe(inside, values[i]);
      }
    }
  }
  void Check(auto /*wrong*/) {}

 private:
  Builder wire_;
};

template <typename Reader>
class FromWire {
 public:
  explicit FromWire(Reader wire) : wire_(wire) {}

  template <typename Value>
  void Number(Value& value, auto get, auto /*set*/) {
    value = static_cast<Value>(get(wire_));
  }
  // A code of a later release is read as kInternal.
  void ErrorCode(Code& code, auto get, auto /*set*/) {
    code = get(wire_) < kCodesCount ? static_cast<Code>(get(wire_)) : Code::kInternal;
  }
  // 0 means no policy.
  void Policy(std::optional<plan::Policy>& policy, auto get, auto /*set*/) {
    const auto wanted = static_cast<plan::Policy>(get(wire_));
    policy.reset();
    if (std::ranges::find(plan::kPolicies, wanted) != plan::kPolicies.end()) {
      policy = wanted;
    } else if (get(wire_) != 0) {
      Refuse(fmt::format("unknown policy {}", get(wire_)));
    }
  }
  // Empty means no architecture.
  void Architecture(std::optional<headrace::Architecture>& architecture, auto get, auto /*set*/) {
    const capnp::Text::Reader sent = get(wire_);
    architecture = ArchitectureNamed({sent.begin(), sent.size()});
    if (!architecture && sent.size() != 0) {
      Refuse(fmt::format("an unknown architecture of {} bytes (known: {})", sent.size(),
                         fmt::join(kArchitectureNames, ", ")));
    }
  }
  void Text(std::string& text, std::size_t max, auto get, auto /*set*/) {
    const capnp::Text::Reader sent = get(wire_);
    text = Printable({sent.begin(), sent.size()}, max);
  }
  void Name(std::string& name, const char* what, auto get, auto /*set*/) {
    const capnp::Text::Reader sent = get(wire_);
    name.assign(sent.begin(), sent.size());
    // What was sent is not repeated: the text reaches clients and other nodes.
    if (!CheckJobName(name)) {
      Refuse(fmt::format(
          "an invalid {} name of {} bytes (1 to {} printable ASCII characters without blanks)",
          what, name.size(), kJobNameMax));
    }
  }
  void NameOrNothing(std::string& name, const char* what, auto get, auto set) {
    if (get(wire_).size() != 0) Name(name, what, get, set);
  }
  void Bytes(std::shared_ptr<const std::string>& bytes, std::size_t max, const char* what, auto get,
             auto /*set*/) {
    bytes = std::make_shared<const std::string>(Copy(get(wire_), max, what));
  }
  void Inside(auto describe, auto get, auto /*init*/) {
    FromWire<decltype(get(wire_))> inside(get(wire_));
    describe(inside);
    Keep(inside.status());
  }
  template <typename Value>
  void Struct(Value& value, auto get, auto init) {
    Inside([&value](auto& inside) { Describe(inside, value); }, get, init);
  }
  template <typename Value>
  void Struct(std::shared_ptr<const Value>& value, auto get, auto init) {
    auto made = std::make_shared<Value>();
    Struct(*made, get, init);
    value = std::move(made);
  }
  // Checks the size first, because a list of empty structs can have millions in a few bytes.
  template <typename Value>
  void List(std::vector<Value>& values, std::size_t max, const char* what, auto get,
            auto /*init*/) {
    if (!status_) return;
    const auto list = get(wire_);
    if (list.size() > max) return RefuseSize(what, list.size(), max);
    values.clear();
    for (const auto each : list) {
      Value& value = values.emplace_back();
      if constexpr (std::is_arithmetic_v<Value>) {
        value = each;
      } else if constexpr (std::same_as<Value, std::string>) {
        value = Copy(each, kLaneAddressMax, "a lane's address of {} bytes");
      } else {
        FromWire<std::remove_cv_t<decltype(each)>> inside(each);
        Describe(inside, value);
        Keep(inside.status());
      }
      if (!status_) return;
    }
  }
  // `wrong` returns what is wrong, or an empty text.
  void Check(auto wrong) {
    if (!status_) return;
    if (const std::string what = wrong(); !what.empty()) Refuse(what);
  }

  const Status& status() const { return status_; }

 private:
  void Refuse(const std::string& what) { Keep(Corrupt(what)); }
  // `what` has a place for the size.
  void RefuseSize(const char* what, std::size_t size, std::size_t max) {
    Refuse(fmt::format("{} (at most {})", fmt::format(fmt::runtime(what), size), max));
  }
  void Keep(const Status& status) {
    if (status_) status_ = status;
  }
  std::string Copy(capnp::Data::Reader bytes, std::size_t max, const char* what) {
    if (bytes.size() > max) {
      RefuseSize(what, bytes.size(), max);
      return {};
    }
    return {reinterpret_cast<const char*>(bytes.begin()), bytes.size()};
  }

  Reader wire_;
  Status status_;
};

}  // namespace headrace::service::wire_fields

// Dispatches a message to the one part that has a Handle for it, with or without the time. A
// message that no part or two parts handle does not compile.
#pragma once

#include <tuple>
#include <type_traits>
#include <variant>

#include "ipc/base/clock.h"

namespace headrace::service {

template <typename Part, typename... Arguments>
concept Handles = requires(Part& part, Arguments&... arguments) {
  part.Handle(arguments...);
};
template <typename Part, typename... Arguments>
concept HandlesTimed = requires(Part& part, TimeNs now, Arguments&... arguments) {
  part.Handle(arguments..., now);
};

template <typename Part, typename... Arguments>
constexpr int kHandlersOf = (Handles<Part, Arguments...> ? 1 : 0) +
                            (HandlesTimed<Part, Arguments...> ? 1 : 0);

template <typename Message, typename Messages>
constexpr bool kIsOneOf = false;
template <typename Message, typename... Messages>
constexpr bool kIsOneOf<Message, std::variant<Messages...>> = (std::is_same_v<Message, Messages> ||
                                                               ...);

// The handler may erase what the arguments refer to.
template <typename... Parts, typename... Arguments>
void HandOver(std::tuple<Parts&...> parts, TimeNs now, Arguments&... arguments) {
  static_assert((kHandlersOf<Parts, Arguments...> + ...) == 1, "one part handles each message");
  const auto try_part = [&]<typename Part>(Part& part) {
    if constexpr (Handles<Part, Arguments...>) {
      part.Handle(arguments...);
    } else if constexpr (HandlesTimed<Part, Arguments...>) {
      part.Handle(arguments..., now);
    }
  };
  std::apply([&](Parts&... each) { (try_part(each), ...); }, parts);
}

}  // namespace headrace::service

// What a key does: the state of top between two keys. Pure.
#pragma once

#include <cstdint>
#include <string>

#include "client/cli/ctl/top/model.h"

namespace headrace::ctl {

// Keys beside characters; terminal.h gives them.
inline constexpr int kKeyEnter = '\n';
inline constexpr int kKeyEscape = 27;
inline constexpr int kKeyUp = 0x10001;
inline constexpr int kKeyDown = 0x10002;
inline constexpr int kKeyBackspace = 0x10003;
inline constexpr int kKeyResize = 0x10004;

// What is to be done for a key.
struct Deed {
  enum class Kind { kNothing, kQuit, kReadNow, kPause, kResume, kWeight };
  Kind kind = Kind::kNothing;
  std::string job{};         // of the last three
  std::uint64_t weight = 0;  // of the last
};

class Keys {
 public:
  // `picture`: what was on the screen when the key was pressed.
  Deed Press(int key, const Picture& picture);

  // The selection follows the jobs that are shown: the first, where the selected one is gone.
  void Follow(const Picture& picture);

  // A line for the person, until the next key.
  void Say(std::string text) { said_ = std::move(text); }

  const Wishes& wishes() const { return wishes_; }
  bool shows_help() const { return mode_ == Mode::kHelp; }
  bool asks() const { return mode_ == Mode::kAsk; }
  // The question, the filter that is typed, or what was said; empty: the keys' names.
  std::string Message() const;

 private:
  enum class Mode { kLook, kFilter, kAsk, kHelp };

  Deed PressInLook(int key, const Picture& picture);
  Deed PressInFilter(int key);
  Deed PressInAsk(int key);
  void Move(int step, const Picture& picture);
  Deed Weigh(int step, const Picture& picture);
  Deed AskForPause(const Picture& picture);

  Mode mode_ = Mode::kLook;
  Wishes wishes_;
  Deed asked_;  // what a yes does
  std::string said_;
};

}  // namespace headrace::ctl

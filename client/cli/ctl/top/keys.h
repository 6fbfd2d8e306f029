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
struct Action {
  enum class Kind { kNothing, kQuit, kReadNow, kPause, kResume, kWeight };
  Kind kind = Kind::kNothing;
  std::string job{};         // of the last three
  std::uint32_t owner = 0;   // uid, of that job
  std::uint64_t weight = 0;  // of the last
};

class Keys {
 public:
  // `picture`: what was on the screen when the key was pressed.
  Action Press(int key, const Picture& picture);

  // The selection follows the jobs that are shown: the first, where the selected one is gone.
  void Follow(const Picture& picture);

  // A line for the person, until the next key.
  void ShowMessage(std::string text) { message_ = std::move(text); }

  const ViewOptions& view_options() const { return view_options_; }
  bool shows_help() const { return mode_ == Mode::kHelp; }
  bool asks() const { return mode_ == Mode::kAsk; }
  // The question, the filter that is typed, or what was said; empty: the keys' names.
  std::string Message() const;

 private:
  enum class Mode { kLook, kFilter, kAsk, kHelp };

  Action PressInView(int key, const Picture& picture);
  Action PressInFilter(int key);
  Action PressInAsk(int key);
  void Move(int step, const Picture& picture);
  Action ChangeWeight(int step, const Picture& picture);
  Action AskForPause(const Picture& picture);

  Mode mode_ = Mode::kLook;
  ViewOptions view_options_;
  Action asked_;  // what a yes does
  std::string message_;
};

}  // namespace headrace::ctl

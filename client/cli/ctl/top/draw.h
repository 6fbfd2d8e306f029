// A picture as lines of a terminal of any size. Pure.
#pragma once

#include <string>

#include "client/cli/ctl/top/model.h"
#include "client/cli/ctl/top/screen.h"

namespace headrace::ctl {

// What surrounds the picture.
struct Frame {
  int width = 80;
  int height = 24;
  bool utf8 = true;
  std::string clock;    // at the right of the title
  std::string message;  // in place of the keys: a question, an answer, the filter that is typed
  bool asks = false;    // the message waits for a key
  std::string trouble;  // the board cannot be read: in the title, above what was read last
};

// Jobs, waits, lanes and ranks, each as many as there is room for, in this order of importance. A
// terminal too small for all gets the first of them; nothing is ever longer than it.
Screen Draw(const Picture& picture, const ViewOptions& view_options, const Frame& frame);

// What the keys do.
Screen DrawHelp(const Frame& frame);

}  // namespace headrace::ctl

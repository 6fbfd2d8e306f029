// What the steering commands refuse before a service is asked, and what they say without one. That
// they reach a service and do what they say, tests/e2e shows.
#include <gtest/gtest.h>

#include "tests/golden/ctl/board_fixture.h"
#include "tests/golden/ctl/run_program.h"
#include "tests/support/expect_text.h"

namespace headrace::ctl {
namespace {

class Steering : public BoardTest {
 protected:
  Ran Ask(const std::string& arguments) {
    return RunProgram("--socket " + folder() + "/none " + arguments);
  }
};

TEST_F(Steering, RefusesWhatNobodyCanMean) {
  for (const char* arguments :
       {"pause", "resume", "drain --deadline soon", "drain --deadline -1", "cancel",
        "weight vision", "weight vision heavy", "weight vision -1", "weight vision 1.5",
        "priority vision", "priority vision high", "limit vision", "limit vision 2",
        "limit vision 100MB", "limit vision 2gbit", "pause vision now",
        "cancel vision --timeout 0"}) {
    EXPECT_EQ(Ask(arguments).exit_code, 2) << arguments;
  }
}

TEST_F(Steering, NamesTheSocketThatNobodyListensOn) {
  for (const char* arguments : {"pause vision", "resume vision", "drain vision", "drain",
                                "cancel vision --yes", "weight vision 3", "priority vision 1",
                                "limit vision 2Gbit", "limit vision none", "doctor --probe"}) {
    const Ran ran = Ask(arguments);
    EXPECT_EQ(ran.exit_code, 1) << arguments;
    EXPECT_VARYING_TEXT(ran.output, folder() + "/none");
  }
}

TEST_F(Steering, AsksBeforeItCancelsOnATerminalOnly) {
  // script(1) gives the program a terminal; it must not get as far as the socket.
  const std::string program = std::string(HEADRACECTL) + " --socket " + folder() + "/none cancel v";
  const Ran asked = RunCommand("printf 'n\\n' | script -qec '" + program + "' /dev/null");
  EXPECT_EQ(asked.exit_code, 1);
  EXPECT_NE(asked.output.find("job v"), std::string::npos) << asked.output;
  EXPECT_EQ(asked.output.find(folder()), std::string::npos) << asked.output;
  const Ran piped = RunCommand(program + " </dev/null");
  EXPECT_VARYING_TEXT(piped.output, folder() + "/none");
}

}  // namespace
}  // namespace headrace::ctl

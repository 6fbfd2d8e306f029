// client/cli/ctl/JSON.md names every key that a job and a plan have.
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "client/cli/ctl/views.h"
#include "tests/golden/ctl/board_fixture.h"

namespace headrace::ctl {
namespace {

std::string NobodysName(std::uint32_t /*uid*/) { return ""; }

class JsonPage : public BoardTest {
 protected:
  JsonPage() { FillAll(); }
  // What the page says of that command.
  static std::string SectionOf(const std::string& command) {
    std::ifstream page(GOLDEN_FOLDER "/../../../client/cli/ctl/JSON.md");
    std::string section;
    std::string line;
    bool is_in = false;
    while (std::getline(page, line)) {
      if (line.starts_with("## ")) is_in = line == "## `" + command + "`";
      if (is_in) section += line + "\n";
    }
    EXPECT_FALSE(section.empty()) << command;
    return section;
  }
  static void ExpectKeys(const std::string& command, const Json& object) {
    const std::string section = SectionOf(command);
    for (const auto& [key, value] : object.items()) {
      EXPECT_NE(section.find("`" + key + "`"), std::string::npos) << command << ": " << key;
    }
  }
};

TEST_F(JsonPage, NamesEveryKeyOfAJob) {
  const Json jobs = JobsJson(Read(), NobodysName);  // which the loop must not outlive
  for (const Json& job : jobs.at("jobs")) {
    ExpectKeys("jobs", job);
    if (job.at("compression").is_object()) ExpectKeys("jobs", job.at("compression"));
  }
}

TEST_F(JsonPage, NamesEveryKeyOfAJobThatAServerSumsFor) {
  const Json jobs = JobsJson(Read(), NobodysName);
  ASSERT_EQ(jobs.at("served").size(), 1U);
  ExpectKeys("jobs", jobs.at("served").front());
}

TEST_F(JsonPage, NamesEveryKeyOfAPlan) {
  ExpectKeys("plan", PlanJson(Read(), "vision")["jobs"][0]["plan"]);
}

}  // namespace
}  // namespace headrace::ctl

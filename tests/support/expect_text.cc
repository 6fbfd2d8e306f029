#include "tests/support/expect_text.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>

#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <utility>
#include <vector>

#include "ipc/base/fd.h"

namespace headrace::support {
namespace {

using Entries = std::map<std::string, std::vector<std::string>>;  // texts by test

constexpr std::string_view kText = "  - ";
constexpr std::string_view kMore = "    ";  // before a further line of the same text

bool Updates() { return std::getenv("HEADRACE_GOLDEN_UPDATE") != nullptr; }

std::string Path() {
  return std::string(TEXTS_FOLDER) + "/" + program_invocation_short_name + ".txt";
}

Entries Read(const std::string& path) {
  Entries entries;
  std::vector<std::string>* texts = nullptr;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.empty()) continue;
    if (line.starts_with(kText) && texts != nullptr) {
      texts->push_back(line.substr(kText.size()));
    } else if (line.starts_with(kMore) && texts != nullptr && !texts->empty()) {
      texts->back() += "\n" + line.substr(kMore.size());
    } else {
      texts = &entries[line];
    }
  }
  return entries;
}

std::string Format(const Entries& entries) {
  std::string all;
  for (const auto& [test, texts] : entries) {
    all += (all.empty() ? "" : "\n") + test + "\n";
    for (const std::string& text : texts) {
      std::istringstream lines(text);
      std::string line;
      for (bool first = true; std::getline(lines, line) || first; first = false) {
        all += std::string(first ? kText : kMore) + line + "\n";
      }
    }
  }
  return all;
}

// Each test may run in a process of its own, and many of them at a time.
void Replace(const std::string& test, const std::vector<std::string>& texts) {
  const UniqueFd folder(::open(TEXTS_FOLDER, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  ASSERT_TRUE(folder) << TEXTS_FOLDER;
  ASSERT_EQ(::flock(folder.get(), LOCK_EX), 0);
  Entries entries = Read(Path());
  entries.erase(test);
  if (!texts.empty()) entries[test] = texts;
  std::ofstream(Path()) << Format(entries);
}

std::string NameOf(const testing::TestInfo& test) {
  return std::string(test.test_suite_name()) + "." + test.name();
}

// With a word in the place of what differs from run to run.
std::string Fixed(std::string_view text) {
  static const std::pair<std::regex, const char*> kVarying[] = {
      {std::regex("127\\.0\\.0\\.1:[0-9]{2,}"), "127.0.0.1:PORT"},
      {std::regex("0x[0-9a-f]{5,}"), "ADDRESS"},
      {std::regex("\\bpid [0-9]+"), "pid PID"},
      {std::regex("\\buid [0-9]+"), "uid UID"},
      {std::regex("\\b20[0-9]{2}-[0-9]{2}-[0-9]{2}\\b"), "DATE"},
      // The first of both also where the tree lies under /tmp.
      {std::regex("/[^ :;]+/(lib[a-z]+\\.so)"), "FOLDER/$1"},
      {std::regex("/tmp/[^/ ]+"), "FOLDER"},
      {std::regex("both are [0-9]+"), "both are PID"},
      {std::regex("answered for [0-9.]+ s"), "answered for SECONDS"},
      {std::regex("Headrace authority [0-9a-f]+"), "Headrace authority NUMBER"},
      {std::regex("\\b[0-9a-f]{16}\\b"), "HASH"}};
  std::string fixed(text);
  for (const auto& [pattern, word] : kVarying) fixed = std::regex_replace(fixed, pattern, word);
  return fixed;
}

class Texts final : public testing::EmptyTestEventListener {
 public:
  static Texts& Instance() {
    static auto* const texts = new Texts;  // gtest's, which deletes it
    return *texts;
  }

  void Expect(const char* file, int line, std::string_view text) {
    // The file does not keep them.
    while (text.ends_with('\n')) text.remove_suffix(1);
    asked_.emplace_back(text);
    if (Updates()) return;
    if (asked_.size() <= known_.size() && known_[asked_.size() - 1] == text) return;
    ADD_FAILURE_AT(file, line) << "text " << asked_.size() << " of this test is\n  " << text
                               << "\nand in " << Path() << "\n  "
                               << (asked_.size() <= known_.size() ? known_[asked_.size() - 1]
                                                                  : std::string("(none)"))
                               << "\nHEADRACE_GOLDEN_UPDATE=1 writes the file anew";
  }

  void OnTestStart(const testing::TestInfo& test) override {
    asked_.clear();
    const Entries entries = Read(Path());
    const auto found = entries.find(NameOf(test));
    known_ = found == entries.end() ? std::vector<std::string>() : found->second;
  }

  void OnTestEnd(const testing::TestInfo& test) override {
    // A test that was skipped or gave up has asked for fewer.
    if (!test.result()->Passed()) return;
    if (Updates()) return Replace(NameOf(test), asked_);
    EXPECT_EQ(asked_.size(), known_.size())
        << Path() << " has texts of this test that it does not ask for; HEADRACE_GOLDEN_UPDATE=1 "
        << "writes the file anew";
  }

 private:
  std::vector<std::string> asked_;
  std::vector<std::string> known_;
};

class Registration final : public testing::Environment {
 public:
  void SetUp() override {
    testing::UnitTest& all = *testing::UnitTest::GetInstance();
    all.listeners().Append(&Texts::Instance());
    std::set<std::string> tests;
    for (int i = 0; i < all.total_test_suite_count(); ++i) {
      const testing::TestSuite& suite = *all.GetTestSuite(i);
      for (int j = 0; j < suite.total_test_count(); ++j)
        tests.insert(NameOf(*suite.GetTestInfo(j)));
    }
    for (const auto& [test, texts] : Read(Path())) {
      EXPECT_TRUE(tests.contains(test)) << Path() << ": there is no test " << test;
    }
  }
};

const auto* const registered = testing::AddGlobalTestEnvironment(new Registration);

}  // namespace

void ExpectText(const char* file, int line, std::string_view text,
                std::initializer_list<std::string_view> values, Varies varies) {
  for (const std::string_view value : values) {
    if (text.find(value) != std::string_view::npos) continue;
    ADD_FAILURE_AT(file, line) << "\"" << value << "\" is missing in: " << text;
  }
  Texts::Instance().Expect(file, line, varies == Varies::kYes ? Fixed(text) : std::string(text));
}

}  // namespace headrace::support

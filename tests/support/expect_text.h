// Texts that people read, compared with tests/golden/texts/PROGRAM.txt, where all texts of a test
// program stand, test by test, in the order in which its tests ask for them.
//
// A test asserts codes and values itself. Its sentences are here, so that a better wording is one
// run with HEADRACE_GOLDEN_UPDATE=1, which writes the file anew, and one diff to read.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

namespace headrace::support {

// Fails the test unless `text` is the next one that the file has for it, and has all of `values` in
// it. Use the macro. Of a text that `varies` the file has a word in the place of what differs from
// run to run: addresses, ports, pids, uids, dates, folders of temporary files, names by chance.
enum class Varies : bool { kNo, kYes };
void ExpectText(const char* file, int line, std::string_view text,
                std::initializer_list<std::string_view> values, Varies varies = Varies::kNo);

// The same for each of `texts`.
template <typename Texts>
void ExpectTexts(const char* file, int line, const Texts& texts) {
  for (const auto& text : texts) ExpectText(file, line, text, {});
}

}  // namespace headrace::support

// EXPECT_TEXT(text, "rank 3", "pid 12"): the values must be in the text, however it is worded.
#define EXPECT_TEXT(text, ...) \
  ::headrace::support::ExpectText(__FILE__, __LINE__, text, {__VA_ARGS__})
#define EXPECT_VARYING_TEXT(text, ...)                                     \
  ::headrace::support::ExpectText(__FILE__, __LINE__, text, {__VA_ARGS__}, \
                                  ::headrace::support::Varies::kYes)
#define EXPECT_TEXTS(texts) ::headrace::support::ExpectTexts(__FILE__, __LINE__, texts)

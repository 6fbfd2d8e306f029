#include "ipc/base/foreign_text.h"

#include <gtest/gtest.h>

#include <string>

namespace headrace {
namespace {

TEST(ForeignText, IsTheSystemsWordsWithoutFunctionsAndValues) {
  EXPECT_EQ(CauseInForeignText("::bind(sockfd, &addr.generic, addrlen): Address already in use; "
                               "toString() = 127.0.0.1:7733"),
            "Address already in use");
  EXPECT_EQ(CauseInForeignText("connect() : Connection refused"), "Connection refused");
}

TEST(ForeignText, SaysWhatTheResolverSaid) {
  EXPECT_EQ(CauseInForeignText("DNS lookup failed.; params.host = nowhere; params.service = 7733; "
                               "gai_strerror(status) = Name or service not known"),
            "the name cannot be resolved: Name or service not known");
}

TEST(ForeignText, KeepsASentenceWithoutItsValues) {
  EXPECT_EQ(CauseInForeignText("remote exception: remote exception: too many calls; open = 65; "
                               "most = 64"),
            "too many calls");
  EXPECT_EQ(CauseInForeignText("no value; nothing of it is left out"),
            "no value; nothing of it is left out");
  EXPECT_EQ(CauseInForeignText("Method not implemented.; methodId = 3"), "Method not implemented");
}

TEST(ForeignText, IsBoundedAndPrintable) {
  EXPECT_EQ(CauseInForeignText("a\x1b[31mb\n"), "a?[31mb?");
  EXPECT_EQ(CauseInForeignText(std::string(5000, 'x')).size(), 300U);
}

// A terminal obeys control characters in any form, and marks of direction make a row read as
// another.
TEST(ForeignText, HasNoControlsOfAnyKind) {
  EXPECT_EQ(Printable("a\x1b[2J\x7f\t"), "a?[2J??");
  EXPECT_EQ(Printable("a\xc2\x9b"
                      "2Jb"),
            "a?2Jb");
  EXPECT_EQ(Printable("a\xe2\x80\xae"
                      "b\xe2\x81\xa6"
                      "c\xe2\x80\x8f"),
            "a?b?c?");
  for (const char* const honest : {"layer.é", "größe", "重み", "\xc2\xa0", "\xe2\x80\xa6", ""}) {
    EXPECT_EQ(Printable(honest), honest);
    EXPECT_FALSE(HasControls(honest)) << honest;
  }
  for (const char* const cut : {"\xc2", "\xe2", "\xe2\x80", "\xe2\x81"})
    EXPECT_EQ(Printable(cut), cut);
  EXPECT_TRUE(HasControls("a\xc2\x80"));
  EXPECT_EQ(Printable("abc", 2), "ab");
}

}  // namespace
}  // namespace headrace

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

}  // namespace
}  // namespace headrace

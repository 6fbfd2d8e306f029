// What stands at which path.
#include <nlohmann/json.hpp>
#include <regex>

#include "service/http/http_assets.h"
#include "tests/unit/service/http/visit.h"

namespace headrace::service {
namespace {

using Site = HttpTest;
using nlohmann::json;

TEST_F(Site, GivesMetricsInTheFormThatTheirHeaderNames) {
  const Visit visit = Get("/metrics");
  EXPECT_EQ(visit.status(), 200);
  EXPECT_EQ(visit.header("Content-Type"), "text/plain; version=0.0.4; charset=utf-8");
  EXPECT_NE(visit.body.find("headrace_service_state{state=\"running\"} 1\n"), std::string::npos);
  EXPECT_EQ(visit.header("Content-Length"), std::to_string(visit.body.size()));
}

TEST_F(Site, GivesTheStatusAsJson) {
  const Visit visit = Get("/status.json?whatever");
  EXPECT_EQ(visit.header("Content-Type"), "application/json");
  EXPECT_EQ(json::parse(visit.body)["service"]["state"], "running");
}

TEST_F(Site, HasNothingElse) {
  for (const char* path : {"/metric", "/metrics/", "/page", "/page/", "/../etc/passwd", "/%2e"}) {
    const Visit visit = Get(path);
    EXPECT_EQ(visit.status(), 404) << path;
    EXPECT_NE(visit.body.find("/status.json"), std::string::npos);
  }
}

TEST_F(Site, HasAPageAllOfWhoseFilesAreHere) {
  const Visit page = Get("/");
  EXPECT_EQ(page.header("Content-Type"), "text/html; charset=utf-8");
  const std::regex link("(?:src|href)=\"(/page/[^\"]+)\"");
  int links = 0;
  for (auto at = std::sregex_iterator(page.body.begin(), page.body.end(), link);
       at != std::sregex_iterator(); ++at, ++links) {
    EXPECT_EQ(Get((*at)[1]).status(), 200) << (*at)[1];
  }
  EXPECT_GE(links, 3);
  for (const HttpAsset& asset : HttpAssets()) {
    EXPECT_EQ(Get(std::string(asset.path)).body, asset.body) << asset.path;
  }
}

// A module that is imported but not embedded would show only in a browser.
TEST_F(Site, HasEveryModuleThatAnotherImports) {
  const std::regex import("from \"\\./([^\"]+)\"");
  int imports = 0;
  for (const HttpAsset& asset : HttpAssets()) {
    const std::string body(asset.body);
    for (auto at = std::sregex_iterator(body.begin(), body.end(), import);
         at != std::sregex_iterator(); ++at, ++imports) {
      EXPECT_EQ(Get("/page/" + std::string((*at)[1])).status(), 200) << (*at)[1];
    }
  }
  EXPECT_GE(imports, 5);
}

TEST_F(Site, LetsItsPageLoadNothingFromElsewhere) {
  const Visit page = Get("/");
  const std::string policy = page.header("Content-Security-Policy");
  EXPECT_EQ(policy.find("default-src 'none'"), 0U);
  for (const char* loophole : {"unsafe", "data:", "http", "*"}) {
    EXPECT_EQ(policy.find(loophole), std::string::npos) << loophole;
  }
  EXPECT_EQ(page.header("X-Content-Type-Options"), "nosniff");
  EXPECT_EQ(page.header("Cache-Control"), "no-store");
  const std::regex elsewhere("(src|href|url)[=(]\"?(https?:)?//");
  for (const HttpAsset& asset : HttpAssets()) {
    const std::string body(asset.body);
    EXPECT_FALSE(std::regex_search(body, elsewhere)) << asset.path;
    // Whatever is shown is set as text.
    EXPECT_EQ(body.find("innerHTML"), std::string::npos) << asset.path;
  }
}

TEST_F(Site, MakesAPageOnceForManyWhoAskAtATime) {
  const std::string first = Get("/status.json").body;
  ipc::ServiceRow row{};
  row.state = static_cast<std::uint32_t>(ipc::ServiceState::kDraining);
  ipc::WriteRow(board->service, row);
  // Younger than it must be: the same again; older: what the board says now.
  EXPECT_TRUE(Until(
      [&] { return json::parse(Get("/status.json").body)["service"]["state"] == "draining"; }));
}

}  // namespace
}  // namespace headrace::service

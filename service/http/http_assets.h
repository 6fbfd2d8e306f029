// The files of the status page (page/), as the build put them into the program.
#pragma once

#include <span>
#include <string_view>

namespace headrace::service {

struct HttpAsset {
  std::string_view path;  // "/", "/page/style.css"
  std::string_view content_type;
  std::string_view body;
};

std::span<const HttpAsset> HttpAssets();

}  // namespace headrace::service

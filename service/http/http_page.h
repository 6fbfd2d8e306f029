// What is sent for one path.
#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace headrace::service {

struct HttpPage {
  unsigned status = 200;
  std::string_view content_type = "text/plain; charset=utf-8";
  // Shared by the cache of pages and the connections on which it is being sent; nobody changes it.
  std::shared_ptr<const std::string> body;
};

inline HttpPage PageOf(unsigned status, std::string_view content_type, std::string body) {
  return {.status = status,
          .content_type = content_type,
          .body = std::make_shared<const std::string>(std::move(body))};
}

// "Not Found".
std::string_view HttpReason(unsigned status);

}  // namespace headrace::service

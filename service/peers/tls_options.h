// The files of this node's certificate, without anything of kj. Any thread.
#pragma once

#include <string>
#include <string_view>

#include "ipc/base/result.h"

namespace headrace::service {

// What both sides say first, and the DNS name that every node's certificate has. 8 bytes, no NUL.
inline constexpr std::string_view kGreeting = "headrace";

struct PeerSecurityOptions {
  // As in the configuration. The three files: all or none.
  std::string node_name;
  std::string authority_path;
  std::string certificate_path;
  std::string key_path;
  bool plain_text = false;  // allow peers without TLS beyond loopback, and of all users on it

  bool has_files() const {
    return !authority_path.empty() || !certificate_path.empty() || !key_path.empty();
  }
};

// Whether other nodes would believe the files, as far as this node can tell; no files are fine too.
// Errors name the file and what to do.
Status CheckTlsFiles(const PeerSecurityOptions& options);

}  // namespace headrace::service

// Options of services with certificates, in a folder that goes with the test.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <ctime>
#include <filesystem>
#include <string>

#include "client/cli/ctl/certs.h"
#include "ipc/base/check.h"
#include "tests/unit/service/rpc/cluster.h"

namespace headrace::support {

class CertifiedNodes : public testing::Test {
 protected:
  CertifiedNodes() : folder_(std::filesystem::temp_directory_path() / "headrace-peers-XXXXXX") {
    HR_CHECK(::mkdtemp(folder_.data()) != nullptr, folder_);
    MakeAuthority("ca");
  }
  ~CertifiedNodes() noexcept override { std::filesystem::remove_all(folder_); }

  void MakeAuthority(const std::string& name) const {
    const auto made = ctl::MakeAuthority(
        {.out = folder_ + "/" + name, .days = 30, .now_unix_s = std::time(nullptr)});
    HR_CHECK(made.ok(), made.error().text());
  }
  StandOptions Node(const std::string& name, const std::string& authority = "ca") const {
    const auto made = ctl::MakeNodeCertificate({.name = name,
                                                .authority = folder_ + "/" + authority,
                                                .out = folder_ + "/" + authority + "-" + name,
                                                .hosts = {},
                                                .days = 30,
                                                .force = false,
                                                .now_unix_s = std::time(nullptr)});
    HR_CHECK(made.ok(), made.error().text());
    StandOptions options = NodeNamed(name);
    options.peers.tls_authority = made->authority;
    options.peers.tls_certificate = made->certificate;
    options.peers.tls_key = made->key;
    return options;
  }

 private:
  std::string folder_;
};

}  // namespace headrace::support

// The cluster's authority, and the certificates by which its nodes know each other.
//
// A node's certificate has the node's name as its common name and, among its alternative names,
// "headrace": that is the name the connecting side checks, so that addresses and names of hosts may
// change without new certificates. Keys are EC P-256; signatures ECDSA with SHA-256.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ipc/base/result.h"

namespace headrace::ctl {

inline constexpr std::string_view kServiceName = "headrace";
inline constexpr int kAuthorityDays = 3650;
inline constexpr int kNodeDays = 365;
inline constexpr int kDaysMax = 36500;
inline constexpr std::size_t kHostsMax = 64;

struct AuthorityRequest {
  std::string out;  // folder; gets authority.key and authority.crt
  int days = kAuthorityDays;
  bool force = false;
  std::int64_t now_unix_s = 0;
};

struct NodeRequest {
  std::string name;
  std::string authority;           // folder with the authority's two files
  std::string out;                 // folder; gets NAME.key, NAME.crt and a copy of authority.crt
  std::vector<std::string> hosts;  // further names and addresses, for other programs' sake
  std::string owner{};             // of key and certificate; empty: who makes them
  int days = kNodeDays;            // ends with the authority at the latest
  bool force = false;
  std::int64_t now_unix_s = 0;
};

// The files that were written, or for a node also those that the service needs.
struct CertificatePaths {
  std::string authority;
  std::string certificate;
  std::string key;
};

Result<CertificatePaths> MakeAuthority(const AuthorityRequest& request);
Result<CertificatePaths> MakeNodeCertificate(const NodeRequest& request);

}  // namespace headrace::ctl

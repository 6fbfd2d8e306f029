// The certificate in use: replaced when its files change, and its end announced in time. Control's
// thread only; the time comes in as an argument.
//
// New connections use the new files, open ones stay as they are. Files that other nodes would not
// trust, or that are half written, are not used; an event says so. Paths are followed through
// symbolic links at each look, so a folder that is exchanged as a whole (`..data` of Kubernetes)
// counts as a change.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "ipc/base/result.h"
#include "service/peers/tls_files.h"
#include "service/peers/tls_options.h"

namespace headrace::service {

// For the board and those who read it. Times are seconds since 1970.
struct CertificateState {
  std::int64_t loaded_unix_s = 0;
  std::int64_t until_unix_s = 0;            // of this node's certificate
  std::int64_t authority_until_unix_s = 0;  // of those that signed it
  std::int64_t warn_from_unix_s = 0;        // from when on the log warns of the end
  std::string refused;  // why files that have changed since are not in use; empty: they are
};

struct CertificateReports {
  // What went well.
  std::function<void(const std::string& text)> log = [](const std::string&) {};
  // What somebody has to do, at most daily.
  std::function<void(const std::string& text)> alert = [](const std::string&) {};
  // After every change.
  std::function<void(const CertificateState& state)> show = [](const CertificateState&) {};
};

class TlsRenewal {
 public:
  static constexpr std::int64_t kDay = 24 * 3600;
  // A certificate of a year is announced a month ahead; of shorter ones the last quarter, since
  // those who make them replace them earlier than that.
  static constexpr std::int64_t kWarnAhead = 30 * kDay;
  static constexpr std::int64_t kWarnShare = 4;

  // Reads the files for the first time.
  static Result<std::unique_ptr<TlsRenewal>> Create(const PeerSecurityOptions& options,
                                                    CertificateReports reports,
                                                    std::int64_t unix_s);

  // Shared by this object and the handshakes that have begun with it.
  const std::shared_ptr<const TlsFiles>& files() const { return files_; }

  // Reads the files anew if they have changed, and announces the end when it is near.
  void Check(std::int64_t unix_s);

 private:
  struct FileMark {
    std::uint64_t device = 0;
    std::uint64_t inode = 0;
    std::int64_t size = -1;
    std::int64_t changed_s = 0;
    std::int64_t changed_ns = 0;
    bool operator==(const FileMark&) const = default;
  };
  using Marks = std::array<FileMark, 3>;

  TlsRenewal(PeerSecurityOptions options, CertificateReports reports)
      : options_(std::move(options)), reports_(std::move(reports)) {}
  static FileMark MarkOf(const std::string& path);
  Marks MarksNow() const;
  void Use(std::unique_ptr<TlsFiles> files, const Marks& marks, std::int64_t unix_s);
  void Reload(std::int64_t unix_s);
  void Refuse(const std::string& why, std::int64_t unix_s);
  void AnnounceEnd(std::int64_t unix_s);

  PeerSecurityOptions options_;
  CertificateReports reports_;
  std::shared_ptr<const TlsFiles> files_;
  Marks marks_{};  // of the files in use
  CertificateState state_;
  std::string refused_;  // at the last look; empty: nothing was
  std::int64_t refusal_alerted_unix_s_ = 0;
  std::int64_t end_alerted_unix_s_ = 0;
};

}  // namespace headrace::service

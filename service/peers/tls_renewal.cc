#include "service/peers/tls_renewal.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <utility>

#include "ipc/base/check.h"

namespace headrace::service {
namespace {

std::int64_t WarnFrom(std::int64_t from_unix_s, std::int64_t until_unix_s) {
  const std::int64_t share = (until_unix_s - from_unix_s) / TlsRenewal::kWarnShare;
  return until_unix_s - std::min(TlsRenewal::kWarnAhead, share);
}

std::string DaysText(std::int64_t seconds) {
  if (seconds < TlsRenewal::kDay) return "in less than a day";
  const std::int64_t days = seconds / TlsRenewal::kDay;
  return fmt::format("in {} {}", days, days == 1 ? "day" : "days");
}

}  // namespace

Result<std::unique_ptr<TlsRenewal>> TlsRenewal::Create(const PeerSecurityOptions& options,
                                                       CertificateReports reports,
                                                       std::int64_t unix_s) {
  std::unique_ptr<TlsRenewal> made(new TlsRenewal(options, std::move(reports)));
  const Marks marks = made->MarksNow();
  Result<std::unique_ptr<TlsFiles>> files = ReadTlsFiles(options);
  if (!files) return files.error();
  made->Use(std::move(files).value(), marks, unix_s);
  return made;
}

TlsRenewal::FileMark TlsRenewal::MarkOf(const std::string& path) {
  struct stat state {};
  // A file that is not there has a mark too, which differs from that of every file.
  if (::stat(path.c_str(), &state) != 0) return {};
  return {.device = state.st_dev,
          .inode = state.st_ino,
          .size = state.st_size,
          .changed_s = state.st_ctim.tv_sec,
          .changed_ns = state.st_ctim.tv_nsec};
}

TlsRenewal::Marks TlsRenewal::MarksNow() const {
  return {MarkOf(options_.authority_path), MarkOf(options_.certificate_path),
          MarkOf(options_.key_path)};
}

void TlsRenewal::Use(std::unique_ptr<TlsFiles> files, const Marks& marks, std::int64_t unix_s) {
  HR_CHECK(files != nullptr);
  files_ = std::move(files);
  marks_ = marks;
  refused_.clear();
  refusal_alerted_unix_s_ = 0;
  end_alerted_unix_s_ = 0;
  state_ = {.loaded_unix_s = unix_s,
            .until_unix_s = files_->until_unix_s,
            .authority_until_unix_s = files_->authority_until_unix_s,
            .warn_from_unix_s =
                std::min(WarnFrom(files_->from_unix_s, files_->until_unix_s),
                         WarnFrom(files_->authority_from_unix_s, files_->authority_until_unix_s)),
            .refused = {}};
  reports_.show(state_);
}

void TlsRenewal::Check(std::int64_t unix_s) {
  // Marks are taken before the files are read, so that what changes in between is seen next time.
  if (!refused_.empty() || MarksNow() != marks_) Reload(unix_s);
  AnnounceEnd(unix_s);
}

void TlsRenewal::Reload(std::int64_t unix_s) {
  const Marks marks = MarksNow();
  Result<std::unique_ptr<TlsFiles>> files = ReadTlsFiles(options_);
  if (!files) return Refuse(files.error().text(), unix_s);
  Use(std::move(files).value(), marks, unix_s);
  reports_.log(fmt::format(
      "the certificate's files have changed: new connections use the certificate valid until {}, "
      "and believe \"{}\"",
      DateText(state_.until_unix_s), files_->authority_name));
}

// Whoever replaces three files is in the middle of it for a moment: people are alerted when the
// next look finds the same.
void TlsRenewal::Refuse(const std::string& why, std::int64_t unix_s) {
  HR_CHECK(!why.empty() && files_ != nullptr, why);
  if (std::exchange(refused_, why) != why) {
    refusal_alerted_unix_s_ = 0;
    return;
  }
  if (refusal_alerted_unix_s_ != 0 && unix_s - refusal_alerted_unix_s_ < kDay) return;
  refusal_alerted_unix_s_ = unix_s;
  state_.refused = why;
  reports_.show(state_);
  reports_.alert(fmt::format(
      "the certificate's files have changed and are not used: {}. The former certificate stays in "
      "use, until {}",
      why, DateText(state_.until_unix_s)));
}

void TlsRenewal::AnnounceEnd(std::int64_t unix_s) {
  if (unix_s < state_.warn_from_unix_s) return;
  if (end_alerted_unix_s_ != 0 && unix_s - end_alerted_unix_s_ < kDay) return;
  end_alerted_unix_s_ = unix_s;
  const bool authority = state_.authority_until_unix_s < state_.until_unix_s;
  const std::int64_t end_unix_s = std::min(state_.authority_until_unix_s, state_.until_unix_s);
  const std::string whose =
      authority ? fmt::format("the certificate of the authority \"{}\"", files_->authority_name)
                : fmt::format("the certificate of node {}", options_.node_name);
  const std::string when =
      unix_s < end_unix_s
          ? fmt::format("ends on {}, {}, and other nodes refuse this one then",
                        DateText(end_unix_s), DaysText(end_unix_s - unix_s))
          : fmt::format("has ended on {}: other nodes refuse this one", DateText(end_unix_s));
  reports_.alert(fmt::format(
      "{} {}. Replace the files ({}); the service reads them when they change, without a restart",
      whose, when,
      authority ? "a new authority signs new certificates for all nodes"
                : "`headracectl certs node` makes them"));
}

}  // namespace headrace::service

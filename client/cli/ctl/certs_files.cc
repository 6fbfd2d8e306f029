#include "client/cli/ctl/certs_files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <openssl/pem.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "ipc/base/fd.h"
#include "ipc/base/file.h"

namespace headrace::ctl {
namespace {

Status WriteAll(int fd, std::string_view text, const std::string& path) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return SystemError("write " + path, errno);
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  if (::fsync(fd) != 0) return SystemError("fsync " + path, errno);
  return {};
}

Status ChangeOwner(int fd, const std::string& owner, const std::string& path) {
  const passwd* user = ::getpwnam(owner.c_str());
  if (user == nullptr) {
    return Error(
        Code::kNotFound,
        fmt::format("there is no user {} on this machine, to whom {} could belong", owner, path));
  }
  if (::fchown(fd, user->pw_uid, user->pw_gid) == 0) return {};
  return SystemError(fmt::format("give {} to user {}", path, owner), errno);
}

// The temporary file takes the name it is for.
Status MoveIntoPlace(const std::string& temporary, const std::string& path, bool force) {
  if (force) {
    if (::rename(temporary.c_str(), path.c_str()) != 0) return SystemError("write " + path, errno);
    return {};
  }
  const int linked = ::link(temporary.c_str(), path.c_str());
  const int error_number = errno;
  ::unlink(temporary.c_str());
  if (linked == 0) return {};
  if (error_number != EEXIST) return SystemError("write " + path, error_number);
  return Error(Code::kAlreadyExists,
               path + " exists: choose another --out, or overwrite it with --force");
}

Result<std::string> Written(UniqueBio bio) {
  char* bytes = nullptr;
  const long size = BIO_get_mem_data(bio.get(), &bytes);
  if (size <= 0) return Error(Code::kInternal, "OpenSSL wrote nothing");
  return std::string(bytes, static_cast<std::size_t>(size));
}

UniqueBio BioOf(const std::string& text) {
  return UniqueBio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

// A key with a password would make OpenSSL ask for it on the terminal.
int NoPassword(char*, int, int, void*) { return 0; }

}  // namespace

Result<std::string> ReadText(const std::string& path) {
  return ReadSmallFile(path, "neither key nor certificate");
}

Result<UniqueCertificate> ReadCertificate(const std::string& path) {
  const Result<std::string> text = ReadText(path);
  if (!text) return text.error();
  const UniqueBio bio = BioOf(*text);
  UniqueCertificate certificate(PEM_read_bio_X509(bio.get(), nullptr, NoPassword, nullptr));
  if (!certificate) {
    return OpensslError(Code::kInvalidArgument, path + " holds no certificate in PEM form");
  }
  return certificate;
}

Result<UniqueKey> ReadKey(const std::string& path) {
  struct stat state {};
  if (::stat(path.c_str(), &state) != 0) return SystemError("open " + path, errno);
  if ((state.st_mode & (S_IRWXO | S_IRWXG)) != 0) {
    return Error(Code::kPermissionDenied,
                 fmt::format("{} has mode 0{:03o}: whoever read it can make certificates in its "
                             "name. chmod 600 {} if you know that nobody did, or make a new one",
                             path, state.st_mode & 0777U, path));
  }
  const Result<std::string> text = ReadText(path);
  if (!text) return text.error();
  const UniqueBio bio = BioOf(*text);
  UniqueKey key(PEM_read_bio_PrivateKey(bio.get(), nullptr, NoPassword, nullptr));
  if (!key) {
    return OpensslError(Code::kInvalidArgument,
                        path + " holds no key in PEM form without a password");
  }
  return key;
}

Result<std::string> PemOf(X509& certificate) {
  UniqueBio bio(BIO_new(BIO_s_mem()));
  if (!bio || PEM_write_bio_X509(bio.get(), &certificate) != 1) {
    return OpensslError(Code::kInternal, "write a certificate");
  }
  return Written(std::move(bio));
}

Result<std::string> PemOf(EVP_PKEY& key) {
  UniqueBio bio(BIO_new(BIO_s_mem()));
  const bool done = bio && PEM_write_bio_PKCS8PrivateKey(bio.get(), &key, nullptr, nullptr, 0,
                                                         nullptr, nullptr) == 1;
  if (!done) return OpensslError(Code::kInternal, "write a key");
  return Written(std::move(bio));
}

Status WriteText(const std::string& path, std::string_view text, unsigned mode, bool force,
                 const std::string& owner) {
  std::string temporary = path + ".XXXXXX";
  const UniqueFd fd(::mkostemp(temporary.data(), O_CLOEXEC));
  if (!fd) return SystemError("write " + path, errno);
  Status status = WriteAll(fd.get(), text, path);
  if (status && ::fchmod(fd.get(), mode) != 0) status = SystemError("chmod " + path, errno);
  // Before it has its name: nobody finds it with another owner.
  if (status && !owner.empty()) status = ChangeOwner(fd.get(), owner, path);
  if (status) status = MoveIntoPlace(temporary, path, force);
  if (!status) ::unlink(temporary.c_str());
  return status;
}

Status MakeFolder(const std::string& path, unsigned mode) {
  if (::mkdir(path.c_str(), mode) == 0) return {};
  const int error_number = errno;
  struct stat state {};
  if (error_number == EEXIST && ::stat(path.c_str(), &state) == 0 && S_ISDIR(state.st_mode)) {
    return {};
  }
  return SystemError("make the folder " + path, error_number);
}

}  // namespace headrace::ctl

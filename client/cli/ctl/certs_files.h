// Certificates and keys as files: PEM, written whole or not at all, keys for their owner only.
#pragma once

#include <string>
#include <string_view>

#include "client/cli/ctl/openssl.h"
#include "ipc/base/result.h"

namespace headrace::ctl {

Result<UniqueCertificate> ReadCertificate(const std::string& path);
// Refuses a key that others than its owner may read.
Result<UniqueKey> ReadKey(const std::string& path);

Result<std::string> PemOf(X509& certificate);
Result<std::string> PemOf(EVP_PKEY& key);

Result<std::string> ReadText(const std::string& path);
// Puts `text` to `path` with these permissions, in one step: readers find the old file or the new
// one. Without `force` an existing file is kept and kAlreadyExists is the answer.
// `owner` gets the file, and needs root; empty: whoever writes it.
Status WriteText(const std::string& path, std::string_view text, unsigned mode, bool force,
                 const std::string& owner = {});
// Makes the last directory of the path when only that is missing.
Status MakeFolder(const std::string& path, unsigned mode);

}  // namespace headrace::ctl

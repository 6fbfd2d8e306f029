// One of the alternative names of a certificate.
#pragma once

#include <string>

#include "client/cli/ctl/openssl.h"
#include "ipc/base/result.h"

namespace headrace::ctl {

// Adds a host's name or its address, whichever `host` is, taken as it is: nothing in it is a sign
// of OpenSSL's own little language for such lists.
Status AddHost(GENERAL_NAMES& names, const std::string& host);

}  // namespace headrace::ctl

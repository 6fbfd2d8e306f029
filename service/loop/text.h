// Untrusted texts that are shown to users, and refusals that are sent to untrusted clients.
#pragma once

#include <kj/exception.h>

#include <cstddef>
#include <string>
#include <string_view>

#include "ipc/base/error.h"
#include "ipc/schema/client.capnp.h"

namespace headrace::service {

inline constexpr std::size_t kJobNameShownMax = 64;

// Why something of kj failed: the one way from its exceptions to texts that people read.
std::string CauseOf(const kj::Exception& exception);

// Fills a refusal in.
void Refuse(schema::Refusal::Builder refusal, const Error& error);

}  // namespace headrace::service

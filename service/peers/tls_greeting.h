// The first words on a connection between services: kGreeting, from both sides.
#pragma once

#include <kj/async.h>

#include "ipc/base/result.h"
#include "service/peers/secured_peer.h"

namespace headrace::service {

// Said by both without waiting, so that each can tell the other form of speech apart.
kj::Promise<Result<SecuredPeer>> GreetInPlainText(SecuredPeer peer);

// The side that accepted speaks first: the other hears there whether its certificate was believed,
// and has nothing unread behind when it was not.
kj::Promise<Result<SecuredPeer>> GreetEncrypted(SecuredPeer peer, bool accepted);

}  // namespace headrace::service

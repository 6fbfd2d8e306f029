// The first bytes on a connection between services: kGreeting, from both sides.
#pragma once

#include <kj/async.h>

#include "ipc/base/result.h"
#include "service/peers/secured_peer.h"

namespace headrace::service {

// Sent by both without waiting, so that each can recognise the other protocol.
kj::Promise<Result<SecuredPeer>> GreetInPlainText(SecuredPeer peer);

// The side that accepted speaks first: the other hears there whether its certificate was believed,
// and has nothing unread behind when it was not.
kj::Promise<Result<SecuredPeer>> GreetEncrypted(SecuredPeer peer, bool accepted);

}  // namespace headrace::service

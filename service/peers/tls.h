// Who the other service is before a word is exchanged with it: mutual TLS, or plain text where that
// is allowed. The peers thread only.
//
// How it is used, with one PeerSecurity per service, built before the port is opened:
//
//   security->Accept(kj::mv(stream))                 // a stream the port gave
//   security->Connect(kj::mv(stream), "b:7733")      // a connected stream, and what it is called
//       .then([&](Result<SecuredPeer> peer) {
//         if (!peer) { say(peer.error()); return; }  // names the peer, the cause and the remedy
//         ... run RPC over *peer->stream ...
//         // As soon as the peer has said in its hello how its node is called:
//         if (Status status = CheckPeerName(*peer, hello_name); !status) { say; close; }
//       });
//
// The promises never fail and resolve within kHandshakeTimeout; whoever drops one drops the
// connection. The PeerSecurity outlives its promises, not the streams it gave.
//
// With a certificate both sides show one, and both must be signed by our authority and carry the
// DNS name "headrace", which every node's certificate has (`headracectl certs node`): names and
// addresses of hosts may change freely. A certificate speaks for the node of its common name and
// for those of its other DNS names, so that pods of one job may share one. Files that change are
// read anew (tls_renewal.h). Without a certificate, text is plain: allowed on loopback with root
// and the service's own user (socket_owner.h), and beyond it only when the configuration says
// plain_text, which the log repeats.
//
// On the wire both sides then say kGreeting, inside of TLS where there is TLS. So a service that
// was refused learns it here and not from its first call, and one that speaks the other form, or
// another protocol altogether, is recognised.
#pragma once

#include <kj/async-io.h>
#include <kj/async.h>
#include <kj/timer.h>

#include <cstddef>
#include <cstdint>
#include <ctime>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ipc/base/result.h"
#include "service/peers/secured_peer.h"
#include "service/peers/tls_options.h"
#include "service/peers/tls_renewal.h"

namespace headrace::service {

inline constexpr auto kHandshakeTimeout = 5 * kj::SECONDS;
inline constexpr std::size_t kHandshakesMax = 128;  // open at one time; more are closed
inline constexpr auto kPlainTextReminder = 60 * kj::SECONDS;
inline constexpr auto kCertificateCheckInterval = 10 * kj::SECONDS;

class PeerSecurity {
 public:
  // Something for the log.
  using Warn = std::function<void(const std::string& text)>;
  // Seconds since 1970.
  using UnixClock = std::function<std::int64_t()>;

  // Reads the files and checks that peers will believe them: the key belongs to the certificate,
  // the certificate to this node, it is signed by the authority and valid today. Errors name the
  // file and what to do. `timer` outlives this. `certificate` hears of the certificate's changes.
  static Result<std::unique_ptr<PeerSecurity>> Create(
      const PeerSecurityOptions& options, kj::Timer& timer, Warn warn,
      CertificateReports certificate = {}, UnixClock clock = [] { return ::time(nullptr); });
  ~PeerSecurity();
  PeerSecurity(const PeerSecurity&) = delete;
  PeerSecurity& operator=(const PeerSecurity&) = delete;

  kj::Promise<Result<SecuredPeer>> Accept(kj::Own<kj::AsyncIoStream> stream);
  // `known_as` is what the configuration or the job calls the peer.
  kj::Promise<Result<SecuredPeer>> Connect(kj::Own<kj::AsyncIoStream> stream, std::string known_as);

  // For the log at start: "TLS as node a, valid until 2027-01-31" or what plain text means here.
  std::string Describe() const;
  // While plain text is allowed beyond loopback, says so at once and every minute for as long as
  // the promise is kept; otherwise never resolves and says nothing.
  kj::Promise<void> RemindOfPlainText();
  // Looks at the certificate's files at once and every kCertificateCheckInterval for as long as the
  // promise is kept; without a certificate never resolves and does nothing.
  kj::Promise<void> WatchFiles();
  // Looks now.
  void CheckFiles();

 private:
  class Parts;
  explicit PeerSecurity(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

// Where the other end of a stream is, for people: "10.0.0.2:4711".
std::string FarAddressOf(kj::AsyncIoStream& stream);

}  // namespace headrace::service

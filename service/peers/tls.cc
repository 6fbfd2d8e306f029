#include "service/peers/tls.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <kj/debug.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <utility>

#include "ipc/base/check.h"
#include "ipc/base/foreign_text.h"
#include "service/peers/socket_owner.h"
#include "service/peers/tls_files.h"
#include "service/peers/tls_greeting.h"
#include "service/peers/tls_handshake.h"

namespace headrace::service {
namespace {

constexpr std::size_t kKnownAsMax = 300;
// Who names an address again and again fills no log.
constexpr std::uint64_t kNamesLoggedMax = 16;

// Where a stream leads, and whether that is this host whatever lies between.
struct Far {
  std::string text = "a peer of unknown address";
  bool loopback = false;
  bool gone = false;  // it has ended the connection already
};

std::string AddressText(int family, const void* address, std::uint16_t port) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  ::inet_ntop(family, address, text.data(), text.size());
  return family == AF_INET6 ? fmt::format("[{}]:{}", text.data(), port)
                            : fmt::format("{}:{}", text.data(), port);
}

Far FarOf(const sockaddr_storage& storage) {
  if (storage.ss_family == AF_INET) {
    sockaddr_in address{};
    std::memcpy(&address, &storage, sizeof address);
    return {.text = AddressText(AF_INET, &address.sin_addr, ntohs(address.sin_port)),
            .loopback = ntohl(address.sin_addr.s_addr) >> 24U == 127};
  }
  if (storage.ss_family == AF_INET6) {
    sockaddr_in6 address{};
    std::memcpy(&address, &storage, sizeof address);
    const std::uint8_t* bytes = address.sin6_addr.s6_addr;
    const bool mapped = IN6_IS_ADDR_V4MAPPED(&address.sin6_addr);
    return {.text = AddressText(AF_INET6, &address.sin6_addr, ntohs(address.sin6_port)),
            .loopback = IN6_IS_ADDR_LOOPBACK(&address.sin6_addr) || (mapped && bytes[12] == 127)};
  }
  if (storage.ss_family == AF_UNIX) return {.text = "a unix socket", .loopback = true};
  return {};
}

sockaddr_storage AddressOf(kj::AsyncIoStream& stream,
                           void (kj::AsyncIoStream::*get)(sockaddr*, kj::uint*)) {
  sockaddr_storage storage{};
  kj::uint size = sizeof storage;
  (stream.*get)(reinterpret_cast<sockaddr*>(&storage), &size);
  return storage;
}

Far FarEndOf(kj::AsyncIoStream& stream) {
  Far far;
  // Fails for what is no socket, and when the peer has gone already.
  auto failed = kj::runCatchingExceptions(
      [&] { far = FarOf(AddressOf(stream, &kj::AsyncIoStream::getpeername)); });
  KJ_IF_MAYBE (exception, failed) {
    far.gone = exception->getType() == kj::Exception::Type::DISCONNECTED;
  }
  return far;
}

// The user of the far end of a connection on this host; nothing if no process has it.
std::optional<std::uint32_t> OwnerOfFarEnd(kj::AsyncIoStream& stream, bool accepted) {
  const sockaddr_storage far = AddressOf(stream, &kj::AsyncIoStream::getpeername);
  if (far.ss_family == AF_UNIX) {
    ucred other{};
    kj::uint size = sizeof other;
    stream.getsockopt(SOL_SOCKET, SO_PEERCRED, &other, &size);
    return other.uid;
  }
  const std::optional<SocketEnd> there = SocketEndOf(far);
  const std::optional<SocketEnd> here =
      SocketEndOf(AddressOf(stream, &kj::AsyncIoStream::getsockname));
  if (!there || !here) return std::nullopt;
  const std::optional<std::uint32_t> uid = OwnerOfConnected(*there, *here);
  // The other service may not have accepted it yet.
  return uid || accepted ? uid : OwnerOfListening(*there, *here);
}

// A peer's own words in an error: "10.0.0.2:4711 <what is wrong>".
Error About(const std::string& address, const Error& error) {
  return Error(error.code(), fmt::format("{} {}", address, error.text()));
}

Error ExplainLoss(const std::string& address, const kj::Exception& exception) {
  const std::string reason = ReasonIn(exception.getDescription().cStr());
  if (exception.getType() == kj::Exception::Type::OVERLOADED) {
    return Error(Code::kTimeout, fmt::format("{} did not finish the handshake within {} s", address,
                                             kHandshakeTimeout / kj::SECONDS));
  }
  if (reason.find(" alert ") != std::string::npos) {
    return Error(Code::kPermissionDenied, fmt::format("{} {}", address, AlertText(reason)));
  }
  return Error(Code::kUnavailable,
               fmt::format("{} ended the connection during the handshake: {}", address, reason));
}

}  // namespace

std::string FarAddressOf(kj::AsyncIoStream& stream) { return FarEndOf(stream).text; }

class PeerSecurity::Parts {
 public:
  Parts(const PeerSecurityOptions& options, kj::Timer& timer, Warn warn,
        std::unique_ptr<TlsRenewal> renewal, UnixClock clock)
      : options_(options),
        timer_(timer),
        warn_(std::move(warn)),
        renewal_(std::move(renewal)),
        clock_(std::move(clock)) {}

  kj::Promise<Result<SecuredPeer>> Secure(kj::Own<kj::AsyncIoStream> stream, std::string known_as,
                                          bool accepted);
  std::string Describe() const;
  kj::Promise<void> Remind();
  kj::Promise<void> WatchFiles();
  void CheckFiles() {
    if (renewal_) renewal_->Check(clock_());
  }

 private:
  kj::Promise<Result<SecuredPeer>> Encrypt(SecuredPeer peer, bool accepted);
  Result<SecuredPeer> AllowPlainText(SecuredPeer peer, bool loopback, bool accepted);
  Status CheckOwner(SecuredPeer& peer, bool accepted) const;
  bool WarnsOfPlainText() const { return !renewal_ && options_.plain_text; }

  PeerSecurityOptions options_;
  kj::Timer& timer_;
  Warn warn_;
  std::unique_ptr<TlsRenewal> renewal_;  // null: plain text
  UnixClock clock_;
  std::size_t handshakes_count_ = 0;
  std::uint64_t names_logged_ = 0;       // of certificates that were not believed
  std::uint64_t plain_peers_count_ = 0;  // on other hosts, so far
};

kj::Promise<Result<SecuredPeer>> PeerSecurity::Parts::Encrypt(SecuredPeer peer, bool accepted) {
  auto files = renewal_->files();
  HR_CHECK(files != nullptr && peer.stream.get() != nullptr, peer.address);
  const auto log = [this, address = peer.address](const std::string& text) {
    if (++names_logged_ <= kNamesLoggedMax) warn_(fmt::format("{} {}", address, text));
  };
  auto shaken = ShakeHands(*files, kj::mv(peer.stream), accepted, log).attach(kj::mv(files));
  return shaken.then(
      [peer = kj::mv(peer),
       accepted](Result<EncryptedPeer> encrypted) mutable -> kj::Promise<Result<SecuredPeer>> {
        if (!encrypted) return Result<SecuredPeer>(About(peer.address, encrypted.error()));
        peer.stream = kj::mv(encrypted->stream);
        peer.node_names = std::move(encrypted->node_names);
        peer.encrypted = true;
        return GreetEncrypted(kj::mv(peer), accepted);
      });
}

// Every user of this host reaches it by loopback, so whoever is there must be one that may do all
// that this service does.
Status PeerSecurity::Parts::CheckOwner(SecuredPeer& peer, bool accepted) const {
  std::optional<std::uint32_t> uid;
  auto failed = kj::runCatchingExceptions([&] { uid = OwnerOfFarEnd(*peer.stream, accepted); });
  if (failed != nullptr || !uid) {
    return Error(Code::kUnavailable,
                 peer.address +
                     " is refused: no process has the other end of its connection, so it is not "
                     "known which user speaks");
  }
  if (*uid == 0 || *uid == ::geteuid()) return {};
  return Error(
      Code::kPermissionDenied,
      fmt::format("{} is refused: uid {} may not speak for a node on loopback, only root and the "
                  "user of this service (uid {}) may. Make certificates with `headracectl certs` "
                  "and set tls_authority, tls_certificate and tls_key, or set plain_text if you "
                  "trust every user of this host",
                  peer.address, *uid, ::geteuid()));
}

Result<SecuredPeer> PeerSecurity::Parts::AllowPlainText(SecuredPeer peer, bool loopback,
                                                        bool accepted) {
  if (loopback) {
    if (options_.plain_text) return peer;
    if (Status status = CheckOwner(peer, accepted); !status) return status.error();
    return peer;
  }
  if (!options_.plain_text) {
    return Error(Code::kPermissionDenied,
                 peer.address +
                     " is refused: it is on another host and this node has no "
                     "certificate. Make certificates with `headracectl certs` and set "
                     "tls_authority, tls_certificate and tls_key, or set plain_text on a "
                     "network of which you trust every host");
  }
  ++plain_peers_count_;
  warn_(peer.address + " is spoken to in plain text: who is on the way can read and change it");
  return peer;
}

kj::Promise<Result<SecuredPeer>> PeerSecurity::Parts::Secure(kj::Own<kj::AsyncIoStream> stream,
                                                             std::string known_as, bool accepted) {
  const Far far = FarEndOf(*stream);
  if (far.gone) {
    const std::string who = known_as.empty() ? "a peer" : Printable(known_as, kKnownAsMax);
    return Result<SecuredPeer>(
        Error(Code::kUnavailable, who + " ended the connection before anything was said"));
  }
  SecuredPeer peer;
  peer.address = known_as.empty() || known_as == far.text
                     ? far.text
                     : fmt::format("{} ({})", Printable(known_as, kKnownAsMax), far.text);
  const std::string address = peer.address;
  if (handshakes_count_ >= kHandshakesMax) {
    return Result<SecuredPeer>(
        Error(Code::kExhausted, fmt::format("{} has to wait: {} handshakes are open, more are not "
                                            "allowed",
                                            address, handshakes_count_)));
  }
  peer.stream = kj::mv(stream);
  if (!renewal_) {
    Result<SecuredPeer> allowed = AllowPlainText(kj::mv(peer), far.loopback, accepted);
    if (!allowed) return Result<SecuredPeer>(allowed.error());
    peer = std::move(allowed).value();
  }
  // To write to a connection that was reset throws at once.
  auto secured = kj::evalNow(
      [&] { return renewal_ ? Encrypt(kj::mv(peer), accepted) : GreetInPlainText(kj::mv(peer)); });
  ++handshakes_count_;
  return timer_.timeoutAfter(kHandshakeTimeout, kj::mv(secured))
      .catch_([address](kj::Exception&& exception) -> Result<SecuredPeer> {
        return ExplainLoss(address, exception);
      })
      .attach(kj::defer([this] {
        HR_CHECK(handshakes_count_ > 0 && handshakes_count_ <= kHandshakesMax, handshakes_count_);
        --handshakes_count_;
      }));
}

std::string PeerSecurity::Parts::Describe() const {
  if (renewal_) {
    const TlsFiles& files = *renewal_->files();
    return fmt::format("TLS as node {}, believing \"{}\", valid until {}", options_.node_name,
                       files.authority_name, DateText(files.until_unix_s));
  }
  return options_.plain_text ? "plain text, with every host" : "plain text, on this host only";
}

kj::Promise<void> PeerSecurity::Parts::Remind() {
  if (!WarnsOfPlainText()) return kj::NEVER_DONE;
  warn_(
      fmt::format("plain_text is set: what nodes say to each other, {} times so far, can be read "
                  "and changed on the way. `headracectl certs` makes certificates",
                  plain_peers_count_));
  return timer_.afterDelay(kPlainTextReminder).then([this] { return Remind(); });
}

kj::Promise<void> PeerSecurity::Parts::WatchFiles() {
  if (!renewal_) return kj::NEVER_DONE;
  CheckFiles();
  return timer_.afterDelay(kCertificateCheckInterval).then([this] { return WatchFiles(); });
}

PeerSecurity::PeerSecurity(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
PeerSecurity::~PeerSecurity() = default;

Result<std::unique_ptr<PeerSecurity>> PeerSecurity::Create(const PeerSecurityOptions& options,
                                                           kj::Timer& timer, Warn warn,
                                                           CertificateReports certificate,
                                                           UnixClock clock) {
  std::unique_ptr<TlsRenewal> renewal;
  if (options.has_files()) {
    Result<std::unique_ptr<TlsRenewal>> read =
        TlsRenewal::Create(options, std::move(certificate), clock());
    if (!read) return read.error();
    renewal = std::move(read).value();
  }
  return std::unique_ptr<PeerSecurity>(new PeerSecurity(std::make_unique<Parts>(
      options, timer, std::move(warn), std::move(renewal), std::move(clock))));
}

kj::Promise<Result<SecuredPeer>> PeerSecurity::Accept(kj::Own<kj::AsyncIoStream> stream) {
  return parts_->Secure(kj::mv(stream), "", true);
}

kj::Promise<Result<SecuredPeer>> PeerSecurity::Connect(kj::Own<kj::AsyncIoStream> stream,
                                                       std::string known_as) {
  return parts_->Secure(kj::mv(stream), std::move(known_as), false);
}

std::string PeerSecurity::Describe() const { return parts_->Describe(); }
kj::Promise<void> PeerSecurity::RemindOfPlainText() { return parts_->Remind(); }
kj::Promise<void> PeerSecurity::WatchFiles() { return parts_->WatchFiles(); }
void PeerSecurity::CheckFiles() { parts_->CheckFiles(); }

}  // namespace headrace::service

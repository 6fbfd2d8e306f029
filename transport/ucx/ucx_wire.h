// Messages between nodes over UCX: TCP, InfiniBand, whatever it finds.
//
// It has one UCX context, one engine (ucp_worker), and one endpoint towards each other wire, which
// all links to that wire share. Links are unknown to UCX: closing one ends the requests that are
// open on it and does not touch the endpoint, which lives until the other wire is lost or this one
// ends. UCX offers to close an endpoint by force, but its TCP, in 1.13, then loses its place in a
// half-sent message, or reads memory that it has freed; and endpoints of their own for links would
// be paired by UCX in the order of the connects, so that one job's close would end another's link.
//
// A message is an active message: a header of ours, then the bytes: at once if they are few
// (eager), else announced first and sent once the receiver has chosen the memory (rendezvous). Over
// TCP this wire's own code copies the bytes between that memory and UCX's socket buffer (PackPiece,
// UnpackPiece), so sends and receives can be cancelled at any time: their memory is not touched
// from then on. A word after the bytes tells the receiver whether the message is complete. Over
// RDMA the bytes go without a copy, and a cancelled request ends when the device is done with it.
//
// One thread at a time. UCX calls back from inside its calls; these events are queued and reported
// by Progress.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "transport/exchange/wire.h"
#include "transport/slots.h"
#include "transport/ucx/address.h"
#include "transport/ucx/handles.h"
#include "transport/ucx/options.h"
#include "transport/ucx/peers.h"

namespace headrace::transport {

class UcxWire final : public Wire {
 public:
  static constexpr std::size_t kStagingsMax = 4096;

  // Errors: kInvalidArgument (a setting that UCX does not take), kUnavailable (no such device),
  // kExhausted (memory, descriptors).
  static Result<std::unique_ptr<UcxWire>> Open(const UcxOptions& options);
  ~UcxWire() override;
  UcxWire(const UcxWire&) = delete;
  UcxWire& operator=(const UcxWire&) = delete;

  const std::string& address() const override { return address_; }
  std::string Names() const override;
  // How GPUs' memory goes over this wire, as a sentence for people.
  std::string GpuPath() const;

  Result<LinkId> Connect(const std::string& address, std::uint64_t key,
                         std::uint16_t member) override;
  void Close(LinkId link) override;

  bool IsEager(std::size_t size) const override { return size < rendezvous_bytes_; }
  void Send(LinkId link, const MessageHeader& header, const std::byte* bytes, std::size_t size,
            std::uint64_t token) override;
  using Wire::Accept;
  void Accept(ArrivalId arrival, std::byte* memory, std::uint64_t token,
              std::size_t whole) override;
  void Drop(ArrivalId arrival) override;

  Result<std::span<std::byte>> AllocateStaging(std::size_t size) override;
  void FreeStaging(std::span<std::byte> memory) override;

  bool Progress(WireEvents& events) override;
  bool PrepareToSleep() override;
  int event_fd() const override { return event_fd_; }

  std::uint64_t dropped_count() const override { return dropped_count_; }

 private:
  static constexpr unsigned kMessageId = 1;  // of the one active message

  // What stands in front of a message's bytes.
  struct Envelope {
    std::uint64_t wire_id = 0;  // of the sender
    MessageHeader header{};
  };
  static_assert(sizeof(Envelope) == 112);

  struct Link {
    std::uint32_t peer = 0;
    std::uint64_t peer_wire_id = 0;
    std::uint64_t key = 0;  // of its messages, both ways
    ucs_status_t failure = UCS_OK;
  };

  // A message that was announced.
  struct Arrival {
    std::uint64_t peer_wire_id = 0;
    std::uint64_t key = 0;
    std::size_t size = 0;
    void* bytes = nullptr;      // eager: where they lie; else UCX's descriptor
    ucp_ep_h source = nullptr;  // of a rendezvous: the endpoint towards the sender
    bool rendezvous = false;
    bool held = false;            // UCX keeps `bytes` until they are released
    std::vector<std::byte> copy;  // where UCX keeps nothing; its capacity stays
  };

  // A send or an accept that UCX works on.
  struct OpenMessage {
    UcxWire* wire = nullptr;
    std::uint32_t id = 0;
    bool sends = false;
    std::uint64_t token = 0;
    LinkId link = 0;                 // of a send
    std::uint64_t peer_wire_id = 0;  // of a receive, with the key
    std::uint64_t key = 0;
    Code given_up = Code::kOk;  // what it ends with, when it was given up
    bool reported = false;      // its end is reported, UCX has not let go of it
    // The endpoint towards the sender of a receive. UCX may have made it by itself, and destroys
    // such a one without a word, but not before it has let go of this receive.
    ucp_ep_h source = nullptr;
    std::byte* memory = nullptr;  // of a send: only read
    std::size_t size = 0;
    std::uint64_t trailer = 0;  // of a receive: what came behind the bytes
    Envelope envelope{};
  };

  enum class EndKind : std::uint8_t { kSent, kReceived, kLinkFailed };
  struct End {
    EndKind kind = EndKind::kSent;
    Code code = Code::kOk;
    LinkId link = 0;
    std::uint64_t token = 0;
  };

  // What happened to a message inside its own announcement.
  enum class Fate : std::uint8_t { kUndecided, kStarted, kDone };

  UcxWire() = default;
  Status Build(const UcxOptions& options);
  Status BuildEngine(const UcxOptions& options);
  Status ReadAddress();

  static ucs_status_t OnMessage(void* wire, const void* header, std::size_t header_size,
                                void* bytes, std::size_t size, const ucp_am_recv_param_t* param);
  static void OnSent(void* request, ucs_status_t status, void* message);
  static void OnReceived(void* request, ucs_status_t status, std::size_t size, void* message);
  static std::size_t PackPiece(void* message, std::size_t offset, void* bytes,
                               std::size_t size_max);
  static ucs_status_t UnpackPiece(void* message, std::size_t offset, const void* bytes,
                                  std::size_t size);
  static const ucp_generic_dt_ops_t& PieceOps();

  ucs_status_t Announce(const Envelope& envelope, void* bytes, std::size_t size,
                        const ucp_am_recv_param_t& param);
  OpenMessage& NewMessage(bool sends, std::uint64_t token);
  void EndMessage(OpenMessage& message, ucs_status_t status);
  void StartReceive(const Arrival& arrival, std::byte* memory, std::uint64_t token);
  Arrival& ArrivalOf(ArrivalId id);
  static bool BelongsTo(const OpenMessage& message, LinkId id, const Link& link);
  void EndMessages(LinkId id, const Link& link, Code code);
  void ForgetFailedPeers();
  bool Deliver(WireEvents& events);
  std::string CauseOf(const Link& link) const;

  std::string address_;
  std::uint64_t wire_id_ = 0;
  std::uint64_t settings_sum_ = 0;
  std::size_t rendezvous_bytes_ = 0;
  bool in_place_ = false;  // bytes go without PackPiece and UnpackPiece
  std::uint64_t dropped_count_ = 0;

  // Before UCX's things, which call back while they go.
  UcxPeers peers_;
  Slots<Link> links_;
  Slots<Arrival> arrivals_;
  Slots<OpenMessage> open_messages_;
  std::vector<End> ended_;  // to be reported by Progress
  std::vector<End> reporting_;
  WireEvents* events_ = nullptr;  // inside Progress
  ArrivalId fresh_ = 0;           // being announced right now
  Fate fate_ = Fate::kUndecided;

  UcxContext context_;
  UcxDatatype pieces_;
  UcxEngine engine_;
  int event_fd_ = -1;  // the engine's
  bool leave_at_end_ = false;

  struct Staging {
    UcxMemory memory;
    std::span<std::byte> bytes;
  };
  std::vector<Staging> stagings_;
};

}  // namespace headrace::transport

// Any number of wires in one process, on one thread, in virtual time: for tests and simulation.
//
// Time is what AdvanceTo says. A message of up to `eager_size` bytes leaves by itself: its memory
// is read when it leaves, which is when its Send ends. A larger one is announced first, and its
// memory is read in the moment its bytes are written at the receiver, as late as the contract
// allows: who changes memory too early is found out. Each message is late by a random jitter, so
// that messages overtake each other. The same options and calls give the same run.
//
// The connections of two wires to each other with one key are the two ends of one link: they fail
// together.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ipc/base/clock.h"
#include "transport/exchange/wire.h"

namespace headrace::transport {

struct SimulatedNetworkOptions {
  std::uint64_t seed = 1;
  TimeNs latency_ns = 10 * kMicrosecond;
  TimeNs jitter_ns = 0;        // a message is late by 0 to this
  double ns_per_byte = 0;      // from each wire to each other, whichever links the bytes take
  double ns_per_byte_out = 0;  // of all that leaves a wire: its node's way out
  std::size_t eager_size = 8192;
  TimeNs detection_ns = kMillisecond;  // from a failure to LinkFailed
  double duplicate_share = 0;          // of the messages are announced again, a delay later
  // Whether a Close makes the other end fail, as a wire may; else its sends do not get through, and
  // that is all.
  bool closes_are_told = false;
};

// Whether the ends of a link that fails hear of it, or just nothing any more.
enum class Silence : std::uint8_t { kTold, kSilent };

class SimulatedNetwork {
 public:
  explicit SimulatedNetwork(const SimulatedNetworkOptions& options);
  ~SimulatedNetwork();
  SimulatedNetwork(const SimulatedNetwork&) = delete;
  SimulatedNetwork& operator=(const SimulatedNetwork&) = delete;

  // The wire lives as long as the network. Its address is made of the name, which must be new.
  Wire& AddWire(const std::string& name);

  TimeNs now() const { return now_; }
  // Makes happen what is due by then, in order. The wires' Progress tells of it.
  void AdvanceTo(TimeNs now);
  // When something is due next; kNever when nothing is.
  TimeNs NextDue() const;

  // Nothing gets from `from` to `to` any more. Both ends of their links hear of it if they are
  // told.
  void CutOneWay(const std::string& from, const std::string& to, Silence silence);
  void Cut(const std::string& one, const std::string& other, Silence silence);
  // What is sent from now on gets through again, over links that are made anew where the ends have
  // heard of the cut.
  void Mend(const std::string& one, const std::string& other);
  // The node is gone, in the middle of whatever it did; its wire does nothing any more.
  void Vanish(const std::string& name, Silence silence);
  // Whoever connects to that wire from now on is refused at once; links that are there stay.
  void Refuse(const std::string& name);
  // Nothing leaves `from` for `to` until it flows again, as if `to` did not read: sends stay open.
  void Dam(const std::string& from, const std::string& to);
  void LetFlow(const std::string& from, const std::string& to);
  // Bytes that have left `from` for `to` in messages with that key.
  std::uint64_t BytesOf(const std::string& from, const std::string& to, std::uint64_t key) const;
  // A message from nobody.
  void Inject(const std::string& to, const MessageHeader& header, std::vector<std::byte> bytes);

  // Messages that were announced, sends and accepts that have not ended, and staging memory that
  // was not given back, of all wires that have not vanished.
  std::uint64_t announced_count() const { return announced_count_; }
  std::size_t open_count() const;
  std::size_t staging_count() const;
  // What Accept has been called with as `whole`, each once.
  const std::set<std::size_t>& wholes() const { return wholes_; }

 private:
  class SimulatedWire;
  struct Link {
    std::size_t wire = 0;
    std::size_t peer = 0;
    std::uint64_t key = 0;
    bool open = true;
    bool failed = false;
  };
  // From a wire to another.
  struct Way {
    TimeNs free_ns = 0;  // when the bytes before have left
    bool dammed = false;
    std::vector<ArrivalId> kept;  // by the dam, in order
    std::map<std::uint64_t, std::uint64_t> bytes_by_key;
  };
  struct Flight {
    static constexpr std::size_t kNobody = SIZE_MAX;
    std::size_t from = kNobody;
    std::size_t to = 0;
    LinkId link = 0;
    MessageHeader header;
    const std::byte* bytes = nullptr;
    std::size_t size = 0;
    std::uint64_t send_token = 0;
    bool send_open = false;
    bool has_copy = false;  // the bytes have left the sender
    std::vector<std::byte> copy{};
    bool arrived = false;  // announced
    bool lost = false;     // its bytes will not come
    std::byte* memory = nullptr;
    std::uint64_t accept_token = 0;
    bool accept_open = false;

    bool IsOver() const;
  };
  enum class What : std::uint8_t { kLeave, kAnnounce, kWrite, kConfirm, kFail };
  struct Due {
    What what = What::kLeave;
    ArrivalId flight = 0;
    LinkId link = 0;
    std::string cause{};
  };

  void InjectAt(TimeNs at, std::size_t to, const MessageHeader& header,
                std::vector<std::byte> bytes);
  void Schedule(TimeNs at, Due due);
  void Happen(const Due& due);
  void Leave(ArrivalId id, Flight& flight);
  void Announce(ArrivalId id, Flight& flight);
  void Write(ArrivalId id, Flight& flight);
  void FailLink(LinkId id, const std::string& cause);
  void EndOpenOf(const Link& link, LinkId id, Code code);
  void EndSend(Flight& flight, Code code);
  void EndAccept(Flight& flight, Code code);
  void EraseIfOver(ArrivalId id);
  void FailLinksBetween(std::size_t one, std::size_t other, const std::string& cause);

  LinkId OtherEnd(LinkId id) const;
  bool Reaches(std::size_t from, std::size_t to) const;
  std::size_t IndexOf(const std::string& name) const;
  TimeNs Delay();
  TimeNs Occupy(std::size_t from, std::size_t to, std::size_t size, TimeNs earliest);

  SimulatedNetworkOptions options_;
  std::mt19937_64 random_;
  TimeNs now_ = 0;
  std::vector<std::unique_ptr<SimulatedWire>> wires_;
  std::vector<Link> links_;                                  // by LinkId
  std::map<std::pair<std::size_t, std::size_t>, bool> cut_;  // from, to
  std::map<std::pair<std::size_t, std::size_t>, Way> ways_;
  std::map<std::size_t, TimeNs> out_free_ns_;  // by wire: when what it has sent is on its ways
  std::map<ArrivalId, Flight> flights_;
  ArrivalId flights_begun_ = 0;
  std::map<std::pair<TimeNs, std::uint64_t>, Due> due_;
  std::uint64_t dues_begun_ = 0;
  std::uint64_t announced_count_ = 0;
  std::set<std::size_t> wholes_;
};

}  // namespace headrace::transport

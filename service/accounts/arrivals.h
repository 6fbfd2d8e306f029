// What each uid is sending to the service: bytes of incomplete messages, and descriptors that came
// with a message and are not yet taken over. Bounded, so that many connections of one uid hold no
// more than a few. Pure; the rpc thread only.
#pragma once

#include <cstdint>
#include <map>
#include <utility>

namespace headrace::service {

// Eight of the largest messages.
inline constexpr std::uint64_t kArrivingBytesMax = std::uint64_t{256} << 20;

// The limits of one uid.
struct ArrivalLimits {
  std::uint64_t bytes = kArrivingBytesMax;
  std::uint64_t descriptors = 1024;
};

class Arrivals {
 public:
  // Something under way: booked until this goes. `Arrivals` outlives it.
  class Booking {
   public:
    Booking() = default;
    Booking(Booking&& other) noexcept
        : arrivals_(std::exchange(other.arrivals_, nullptr)),
          uid_(other.uid_),
          bytes_(other.bytes_),
          descriptors_(other.descriptors_) {}
    Booking& operator=(Booking&& other) noexcept {
      std::swap(arrivals_, other.arrivals_);
      std::swap(uid_, other.uid_);
      std::swap(bytes_, other.bytes_);
      std::swap(descriptors_, other.descriptors_);
      return *this;
    }
    Booking(const Booking&) = delete;
    Booking& operator=(const Booking&) = delete;
    ~Booking() {
      if (arrivals_ != nullptr) arrivals_->Return(*this);
    }

    // Books more on it; false, and nothing booked, when the uid may not have that much.
    bool Add(std::uint64_t bytes, std::uint64_t descriptors);

   private:
    friend class Arrivals;
    Booking(Arrivals& arrivals, std::uint32_t uid) : arrivals_(&arrivals), uid_(uid) {}

    Arrivals* arrivals_ = nullptr;
    std::uint32_t uid_ = 0;
    std::uint64_t bytes_ = 0;
    std::uint64_t descriptors_ = 0;
  };

  explicit Arrivals(ArrivalLimits limits = {}) : limits_(limits) {}

  Booking Open(std::uint32_t uid) { return {*this, uid}; }
  std::uint64_t FreeDescriptors(std::uint32_t uid) const;
  const ArrivalLimits& limits() const { return limits_; }
  std::size_t uids_count() const { return uids_.size(); }

 private:
  struct Use {
    std::uint64_t bytes = 0;
    std::uint64_t descriptors = 0;
  };

  void Return(const Booking& booking);

  ArrivalLimits limits_;
  std::map<std::uint32_t, Use> uids_;  // of those that have something under way
};

}  // namespace headrace::service

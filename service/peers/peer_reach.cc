#include "service/peers/peer_reach.h"

#include <kj/debug.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "ipc/base/check.h"
#include "service/config/config_address.h"
#include "service/loop/text.h"
#include "service/peers/tcp.h"

namespace headrace::service {
namespace {

constexpr auto kAgainAfter = 50 * kj::MILLISECONDS;

}  // namespace

PeerReach::PeerReach(Options options, PeerSecurity& security, kj::Network& network,
                     kj::Timer& timer)
    : options_(std::move(options)),
      security_(security),
      network_(network),
      timer_(timer),
      refused_(options_.addresses.size()),
      tasks_(*this) {
  HR_CHECK(!options_.addresses.empty(), options_.known_as);
  auto pair = kj::newPromiseAndFulfiller<Result<Reached>>();
  answer_ = kj::mv(pair.fulfiller);
  answered_ = kj::mv(pair.promise);
  for (std::size_t i = 0; i < options_.addresses.size(); ++i) {
    tasks_.add(kj::evalLater([this, i] { return Attempt(i); }));
  }
}

kj::Promise<Result<SecuredPeer>> PeerReach::Connect(std::size_t index) {
  return network_.parseAddress(options_.addresses[index], kNodePort)
      .then([](kj::Own<kj::NetworkAddress> address) {
        auto stream = address->connect();
        return stream.attach(kj::mv(address));
      })
      .then([this](kj::Own<kj::AsyncIoStream> stream) {
        TuneForControl(*stream);
        return security_.Connect(kj::mv(stream), options_.known_as);
      });
}

kj::Promise<void> PeerReach::Attempt(std::size_t index) {
  if (!answer_->isWaiting()) return kj::READY_NOW;
  return timer_.timeoutAfter(options_.attempt_ns * kj::NANOSECONDS, Connect(index))
      .then(
          [this, index](Result<SecuredPeer> peer) {
            refused_[index] = false;
            if (!peer || !answer_->isWaiting()) return;
            answer_->fulfill(
                Reached{.peer = kj::mv(peer).value(), .address = options_.addresses[index]});
          },
          [this, index](kj::Exception&& exception) {
            refused_[index] = CauseOf(exception) == std::strerror(ECONNREFUSED);
            if (!answer_->isWaiting() || !std::ranges::all_of(refused_, [](bool is) { return is; }))
              return;
            answer_->fulfill(Error(Code::kUnavailable, CauseOf(exception)));
          })
      .then([this] { return timer_.afterDelay(kAgainAfter); })
      .then([this, index] { return Attempt(index); });
}

// Attempts end well, whatever comes of them.
void PeerReach::taskFailed(kj::Exception&& exception) {
  if (answer_->isWaiting()) answer_->reject(kj::mv(exception));
}

}  // namespace headrace::service

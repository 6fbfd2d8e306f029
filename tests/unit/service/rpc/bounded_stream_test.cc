// What one message on its way in may be, hold and take, over a real socket and with a clock that is
// moved by hand.
#include "service/rpc/bounded_stream.h"

#include <capnp/message.h>
#include <capnp/serialize-async.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <kj/io.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "ipc/base/device_handle.h"
#include "ipc/base/fd.h"

namespace headrace::service {
namespace {

constexpr std::uint32_t kUid = 65534;
constexpr std::uint32_t kOtherUid = 1000;
using Read = kj::Promise<kj::Maybe<capnp::MessageReaderAndFds>>;

// Both ends of a client's connection, and the reader of its messages.
struct Line {
  Line(kj::AsyncIoContext& io, kj::Timer& timer, Arrivals& arrivals, std::uint32_t uid) {
    std::array<int, 2> ends{};
    HR_CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) == 0);
    client = UniqueFd(ends[0]);
    inner = io.lowLevelProvider->wrapUnixSocketFd(
        ends[1],
        kj::LowLevelAsyncIoProvider::TAKE_OWNERSHIP | kj::LowLevelAsyncIoProvider::ALREADY_CLOEXEC);
    stream = std::make_unique<BoundedStream>(
        *inner, timer, arrivals, uid, [this] { return allowance; },
        [this](const std::string& why) { cause = why; });
  }

  Read Receive() {
    fds = kj::heapArray<kj::AutoCloseFd>(kDevicePiecesMax);
    capnp::ReaderOptions options;
    options.traversalLimitInWords = std::uint64_t{4} << 20;
    return capnp::tryReadMessage(*stream, fds, options);
  }
  // Sends the first `size` bytes of a message of `words` words, with descriptors.
  void Send(std::uint32_t words, std::size_t size, std::size_t descriptors = 0) const {
    std::vector<std::uint32_t> bytes(2 + 2 * std::size_t{words});
    bytes[1] = words;
    iovec piece{.iov_base = bytes.data(), .iov_len = size};
    std::vector<char> control(CMSG_SPACE(descriptors * sizeof(int)));
    msghdr message{};
    message.msg_iov = &piece;
    message.msg_iovlen = 1;
    const std::vector<int> passed(descriptors, client.get());
    if (descriptors > 0) {
      message.msg_control = control.data();
      message.msg_controllen = control.size();
      cmsghdr* header = CMSG_FIRSTHDR(&message);
      header->cmsg_level = SOL_SOCKET;
      header->cmsg_type = SCM_RIGHTS;
      header->cmsg_len = CMSG_LEN(descriptors * sizeof(int));
      std::memcpy(CMSG_DATA(header), passed.data(), descriptors * sizeof(int));
    }
    HR_CHECK(::sendmsg(client.get(), &message, MSG_NOSIGNAL) == static_cast<ssize_t>(size));
  }
  void SendMore(std::size_t size) const {
    const std::vector<char> bytes(size);
    HR_CHECK(::send(client.get(), bytes.data(), size, MSG_NOSIGNAL) == static_cast<ssize_t>(size));
  }

  UniqueFd client;
  kj::Own<kj::AsyncCapabilityStream> inner;
  BoundedStream::Allowance allowance;
  std::string cause;  // why it was cut
  std::unique_ptr<BoundedStream> stream;
  kj::Array<kj::AutoCloseFd> fds;
};

class BoundedStreamTest : public testing::Test {
 protected:
  // The event loop's destructors may throw, a test's may not.
  ~BoundedStreamTest() noexcept override {}

  std::unique_ptr<Line> Connect(std::uint32_t uid = kUid) {
    return std::make_unique<Line>(io_, timer_, arrivals_, uid);
  }
  void Advance(kj::Duration time) {
    now_ += time;
    timer_.advanceTo(now_);
  }
  bool IsDone(Read& read) { return read.poll(io_.waitScope); }
  // The words of the message that has come.
  std::size_t Words(Read read) {
    auto message = read.wait(io_.waitScope);
    KJ_IF_MAYBE (whole, message) return whole->reader->getSegment(0).size();
    ADD_FAILURE() << "the stream has ended";
    return 0;
  }
  std::size_t Descriptors(Read read) {
    auto message = read.wait(io_.waitScope);
    KJ_IF_MAYBE (whole, message) return whole->fds.size();
    ADD_FAILURE() << "the stream has ended";
    return 0;
  }
  void ExpectCut(Line& line, Read read, const std::string& part) {
    EXPECT_ANY_THROW(read.wait(io_.waitScope));
    EXPECT_NE(line.cause.find(part), std::string::npos) << line.cause;
  }

  kj::AsyncIoContext io_ = kj::setupAsyncIo();
  kj::TimePoint now_ = kj::origin<kj::TimePoint>() + 1 * kj::SECONDS;
  kj::TimerImpl timer_{now_};
  Arrivals arrivals_{{.bytes = std::uint64_t{1} << 20, .descriptors = 300}};
};

TEST_F(BoundedStreamTest, LetsHonestMessagesPass) {
  const auto line = Connect();
  line->Send(10, 88, 2);
  EXPECT_EQ(Descriptors(line->Receive()), 2U);
  line->allowance.has_session = true;
  line->Send(20000, 8);
  Read large = line->Receive();
  EXPECT_FALSE(IsDone(large));
  line->SendMore(80000);
  EXPECT_FALSE(IsDone(large));
  line->SendMore(80000);
  EXPECT_EQ(Words(kj::mv(large)), 20000U);
  EXPECT_EQ(line->cause, "");
}

TEST_F(BoundedStreamTest, CutsAMessageThatIsNotWholeInTime) {
  const auto line = Connect();
  line->allowance.has_session = true;
  Read read = line->Receive();
  line->Send(100, 8);
  EXPECT_FALSE(IsDone(read));
  // From the first byte on, however many follow one by one.
  for (int second = 1; second < kMessageTime / kj::SECONDS; ++second) {
    Advance(1 * kj::SECONDS);
    line->SendMore(1);
    EXPECT_FALSE(IsDone(read)) << second;
  }
  Advance(1 * kj::SECONDS);
  ASSERT_TRUE(IsDone(read));
  ExpectCut(*line, kj::mv(read), "not whole");
  const auto shorter = Connect();
  Read word = shorter->Receive();
  shorter->Send(100, 3);  // of its first word
  EXPECT_FALSE(IsDone(word));
  Advance(kMessageTime);
  ASSERT_TRUE(IsDone(word));
  ExpectCut(*shorter, kj::mv(word), "not whole");
}

TEST_F(BoundedStreamTest, CountsNoTimeBetweenMessages) {
  const auto line = Connect();
  line->allowance.has_session = true;
  for (int message = 0; message < 3; ++message) {
    Read read = line->Receive();
    EXPECT_FALSE(IsDone(read));
    Advance(1 * kj::HOURS);
    EXPECT_FALSE(IsDone(read)) << "whoever has a session may be idle";
    line->Send(4, 40);
    EXPECT_EQ(Words(kj::mv(read)), 4U);
  }
}

TEST_F(BoundedStreamTest, CutsAnIdleConnectionWithoutASession) {
  const auto line = Connect();
  const auto attached = Connect();
  Read idle = line->Receive();
  Read quiet = attached->Receive();
  EXPECT_FALSE(IsDone(idle));
  EXPECT_FALSE(IsDone(quiet));
  attached->allowance.has_session = true;  // since it said its last
  Advance(kIdleTimeWithoutSession);
  EXPECT_FALSE(IsDone(quiet));
  ASSERT_TRUE(IsDone(idle));
  ExpectCut(*line, kj::mv(idle), "said nothing");
}

TEST_F(BoundedStreamTest, CutsALargeMessageBeforeThereIsASession) {
  const auto line = Connect();
  line->Send(kEarlyMessageBytesMax / 8, 8);
  ExpectCut(*line, line->Receive(), "before a session");
  const auto small = Connect();
  small->Send(kEarlyMessageBytesMax / 8 - 1, kEarlyMessageBytesMax);
  EXPECT_EQ(Words(small->Receive()), kEarlyMessageBytesMax / 8 - 1);
}

TEST_F(BoundedStreamTest, KeepsNoMoreDescriptorsOfAMessageThanACallNeeds) {
  const int before = ::dup(0);
  ::close(before);
  std::vector<std::unique_ptr<Line>> lines;
  std::vector<Read> reads;
  for (int i = 0; i < 8; ++i) {
    lines.push_back(Connect());
    lines.back()->Send(100, 12, kDevicePiecesMax);
    reads.push_back(lines.back()->Receive());
    EXPECT_FALSE(IsDone(reads.back()));
  }
  std::size_t kept = 0;
  for (const auto& line : lines) {
    for (const kj::AutoCloseFd& fd : line->fds) kept += fd.get() >= 0 ? 1 : 0;
  }
  EXPECT_EQ(kept, 8 * kDescriptorsOfACall);
  const int after = ::dup(0);
  ::close(after);
  // Each line is two sockets; the event loop has a few.
  EXPECT_LE(after - before, 8 * 2 + static_cast<int>(kept) + 4);
  reads.clear();
}

TEST_F(BoundedStreamTest, BooksDescriptorsOfUnfinishedMessagesOnTheirUid) {
  const auto first = Connect();
  const auto second = Connect();
  const auto other = Connect(kOtherUid);
  for (Line* line : {first.get(), second.get(), other.get()}) {
    line->allowance = {.has_session = true, .descriptors = kDevicePiecesMax};
    line->Send(100, 12, kDevicePiecesMax);
  }
  Read one = first->Receive();
  Read two = second->Receive();
  Read three = other->Receive();
  for (Read* read : {&one, &two, &three}) EXPECT_FALSE(IsDone(*read));
  // 300 for a uid, beside those that any call may have.
  const std::size_t rest = 300 - (kDevicePiecesMax - kDescriptorsOfACall) + kDescriptorsOfACall;
  first->SendMore(796);
  second->SendMore(796);
  other->SendMore(796);
  EXPECT_EQ(Descriptors(kj::mv(one)), kDevicePiecesMax);
  EXPECT_EQ(Descriptors(kj::mv(two)), rest);
  EXPECT_EQ(Descriptors(kj::mv(three)), kDevicePiecesMax);
  // Whoever reads on has handed the last message on.
  Read next = first->Receive();
  EXPECT_EQ(arrivals_.FreeDescriptors(kUid), 300 - (rest - kDescriptorsOfACall));
}

TEST_F(BoundedStreamTest, BooksBytesOfUnfinishedMessagesOnTheirUid) {
  constexpr std::uint32_t kWords = 50000;  // 400 kB: two fit into a MiB, three do not
  std::vector<std::unique_ptr<Line>> lines;
  std::vector<Read> reads;
  for (int i = 0; i < 2; ++i) {
    lines.push_back(Connect());
    lines.back()->allowance.has_session = true;
    lines.back()->Send(kWords, 8);
    reads.push_back(lines.back()->Receive());
    EXPECT_FALSE(IsDone(reads.back()));
  }
  const auto third = Connect();
  third->allowance.has_session = true;
  third->Send(kWords, 8);
  ExpectCut(*third, third->Receive(), "beside others");
  const auto other = Connect(kOtherUid);
  other->allowance.has_session = true;
  other->Send(kWords, 8);
  Read unharmed = other->Receive();
  EXPECT_FALSE(IsDone(unharmed));
  reads.clear();
  lines.clear();
  EXPECT_EQ(arrivals_.uids_count(), 1U) << "nothing stays of connections that are gone";
}

}  // namespace
}  // namespace headrace::service

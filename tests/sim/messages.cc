#include "tests/sim/messages.h"

#include <fmt/format.h>

#include <cstring>
#include <iterator>

namespace headrace::sim {
namespace {

std::string DescribeTriple(const Messages::Triple& triple) {
  return fmt::format("job {} from rank {} to rank {}, tag {}", triple.job.value,
                     static_cast<std::int32_t>(triple.source), triple.target, triple.tag);
}

std::int32_t Read(std::span<const std::byte> memory, std::size_t index) {
  std::int32_t element = 0;
  std::memcpy(&element, memory.data() + index * sizeof element, sizeof element);
  return element;
}

}  // namespace

std::int32_t Messages::ElementOf(std::uint32_t number, std::size_t index) {
  return static_cast<std::int32_t>(number << 10 | (index & 0x3ff));
}

std::uint32_t Messages::Send(const Triple& triple, std::span<std::byte> memory) {
  const auto number = static_cast<std::uint32_t>(messages_.size());
  messages_.push_back({.triple = triple, .ok = {}});
  for (std::size_t i = 0; i < memory.size() / sizeof(std::int32_t); ++i) {
    const std::int32_t element = ElementOf(number, i);
    std::memcpy(memory.data() + i * sizeof element, &element, sizeof element);
  }
  return number;
}

std::optional<std::string> Messages::Failed(const std::string& what, const ipc::Outcome& outcome) {
  ++failed_;
  if (outcome.text != CodeName(outcome.code)) {
    for (const char* word : {"rank ", "ranks ", "lane ", "uid ", "the service", "node "}) {
      if (outcome.text.find(word) != std::string::npos) return std::nullopt;
    }
  }
  return fmt::format("{}: error without a cause: {}", what, outcome.text);
}

std::optional<std::string> Messages::SendEnded(std::uint32_t number, const ipc::Outcome& outcome) {
  Message& message = messages_[number];
  message.ok = outcome.code == Code::kOk;
  const std::string what = fmt::format("message {} {}", number, DescribeTriple(message.triple));
  if (ends_ == Ends::kTogether && !*message.ok && message.received) {
    return what + ": was received, and its sender has an error: " + outcome.text;
  }
  return *message.ok ? std::nullopt : Failed(what, outcome);
}

std::optional<std::string> Messages::ReceiveEnded(const Triple& expected,
                                                  const ipc::Outcome& outcome, std::uint32_t source,
                                                  std::uint64_t record,
                                                  std::span<const std::byte> memory) {
  const std::string what = "receive " + DescribeTriple(expected);
  if (outcome.code != Code::kOk) return Failed(what, outcome);
  const auto number = static_cast<std::uint32_t>(Read(memory, 0)) >> 10;
  if (number >= messages_.size()) return what + ": ended well with bytes that nobody sent";
  for (std::size_t i = 0; i < memory.size() / sizeof(std::int32_t); ++i) {
    if (Read(memory, i) != ElementOf(number, i)) {
      return fmt::format("{}: element {} is not that of message {}", what, i, number);
    }
  }
  Message& message = messages_[number];
  Triple triple = expected;
  triple.source = source;
  if (message.triple != triple || (expected.source != ipc::kAnyRank && expected.source != source)) {
    return fmt::format("{}: got message {} {}, said to be of rank {}", what, number,
                       DescribeTriple(message.triple), source);
  }
  if (message.received) return fmt::format("{}: message {} came twice", what, number);
  if (ends_ == Ends::kTogether && message.ok == false) {
    return fmt::format("{}: got message {}, whose sender has an error", what, number);
  }
  auto& taken = taken_[triple];
  const auto own = taken.emplace(record, number).first;
  const bool after = own != taken.begin() && std::prev(own)->second > number;
  const bool before = std::next(own) != taken.end() && std::next(own)->second < number;
  if (after || before) {
    return fmt::format("{}: message {} was not taken in its turn", what, number);
  }
  message.received = true;
  ++received_;
  return std::nullopt;
}

std::vector<Messages::Triple> Messages::Unreceived() const {
  std::vector<Triple> unreceived;
  for (const Message& message : messages_) {
    if (message.ok == true && !message.received) unreceived.push_back(message.triple);
  }
  return unreceived;
}

std::optional<std::string> Messages::Lost() const {
  for (std::size_t number = 0; number < messages_.size(); ++number) {
    const Message& message = messages_[number];
    if (message.ok == true && !message.received) {
      return fmt::format("the send of message {} {} has ended, and nobody has received it", number,
                         DescribeTriple(message.triple));
    }
  }
  return std::nullopt;
}

}  // namespace headrace::sim

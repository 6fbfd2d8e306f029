#include "tests/unit/service/http/visit.h"

#include <strings.h>

#include <sstream>

namespace headrace::service {

int Visit::status() const { return head.size() > 12 ? std::stoi(head.substr(9, 3)) : 0; }

std::string Visit::header(const std::string& name) const {
  std::istringstream lines(head);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t colon = line.find(": ");
    if (colon != std::string::npos &&
        ::strcasecmp(line.substr(0, colon).c_str(), name.c_str()) == 0) {
      return line.substr(colon + 2, line.find('\r') - colon - 2);
    }
  }
  return {};
}

ProbeAnswer AllWell() {
  return {.dispatch_ns = 50 * kMicrosecond,
          .lanes = {{.name = "shm0", .answered = true, .ns = 90 * kMicrosecond},
                    {.name = "ucx0", .answered = true, .ns = 70 * kMicrosecond}}};
}

HttpTest::HttpTest() : io(kj::setupAsyncIo()), board(std::make_unique<ipc::BoardLayout>()) {
  ipc::ServiceRow row{};
  row.state = static_cast<std::uint32_t>(ipc::ServiceState::kRunning);
  ipc::WriteRow(board->service, row);
  answer = AllWell();
  auto ask = [this]() -> kj::Promise<ProbeAnswer> {
    ++asked;
    if (answer) return kj::cp(*answer);
    auto pair = kj::newPromiseAndFulfiller<ProbeAnswer>();
    probes.push_back(kj::mv(pair.fulfiller));
    return kj::mv(pair.promise);
  };
  listener = HttpListener::Create("127.0.0.1:0", *board, ask, io).value();
}

kj::Own<kj::AsyncIoStream> HttpTest::Connect() {
  return io.provider->getNetwork()
      .parseAddress(kj::str("127.0.0.1:", listener->port()))
      .then([](kj::Own<kj::NetworkAddress> address) { return address->connect(); })
      .wait(io.waitScope);
}

Visit HttpTest::Request(const std::string& text) {
  auto client = Connect();
  std::string whole;
  try {
    client->write(text.data(), text.size()).wait(io.waitScope);
    const auto all = client->readAllText().wait(io.waitScope);
    whole.assign(all.begin(), all.size());
  } catch (const kj::Exception&) {
    // Closed with what was not read still under way: a reset may overtake the answer.
  }
  const std::size_t end = whole.find("\r\n\r\n");
  if (end == std::string::npos) return {.head = whole, .body = {}};
  return {.head = whole.substr(0, end + 2), .body = whole.substr(end + 4)};
}

Visit HttpTest::Get(const std::string& path) {
  return Request("GET " + path + " HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n");
}

Visit HttpTest::Read(kj::AsyncIoStream& client) {
  Visit visit;
  char letter = 0;
  while (visit.head.find("\r\n\r\n") == std::string::npos) {
    if (client.tryRead(&letter, 1, 1).wait(io.waitScope) == 0) return visit;
    visit.head += letter;
  }
  visit.body.resize(std::stoul(visit.header("Content-Length")));
  const std::size_t size = visit.body.size();
  visit.body.resize(client.tryRead(visit.body.data(), size, size).wait(io.waitScope));
  return visit;
}

}  // namespace headrace::service

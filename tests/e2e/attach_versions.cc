// Attaches to a service, or asks as an admin, with version numbers that are off by something, and
// prints what the answer is. Arguments: attach or admin, socket path, what is added to the
// protocol's number, what is added to the channel's.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "ipc/channel.h"
#include "tests/unit/service/rpc/caller.h"

namespace headrace {
namespace {

support::Answered Attach(support::Caller& caller, int protocol, int channel) {
  const ipc::Channel::Created created = ipc::Channel::Create().value();
  created.channel.layout().header.version += static_cast<std::uint32_t>(channel);
  support::AttachCall fields;
  fields.protocol_version += static_cast<std::uint32_t>(protocol);
  fields.channel = created.fd.get();
  support::Attached attached = caller.Attach(fields);
  if (attached.code == Code::kOk) return caller.Leave(attached.session);
  return {attached.code, attached.text};
}

support::Answered AskAsAdmin(support::Caller& caller, int protocol) {
  auto call = caller.bootstrap().adminRequest();
  call.getHello().setProtocolVersion(schema::PROTOCOL_VERSION +
                                     static_cast<std::uint32_t>(protocol));
  call.getHello().setProgram("headracectl 0.1.0");
  auto answer = caller.loop().Wait(call.send().dropPipeline());
  const auto refusal = answer.getRefusal();
  return {static_cast<Code>(refusal.getCode()), refusal.getText().cStr()};
}

int Run(int count, char** arguments) {
  if (count != 5) return 2;
  support::CallerLoop loop;
  support::Caller caller(loop, arguments[2]);
  const int protocol = std::atoi(arguments[3]);
  const support::Answered answered = std::string(arguments[1]) == "admin"
                                         ? AskAsAdmin(caller, protocol)
                                         : Attach(caller, protocol, std::atoi(arguments[4]));
  std::printf("%s: %s\n", std::string(CodeName(answered.code)).c_str(), answered.text.c_str());
  return 0;
}

}  // namespace
}  // namespace headrace

int main(int count, char** arguments) { return headrace::Run(count, arguments); }

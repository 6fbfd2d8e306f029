// A transport of GPUs, for callers whose memory is on the host: what they post is copied to memory
// of GPUs, laid out alike, between guards, and the results are copied back when it ends. So the
// contract of all transports can be held against it, on the double and on real GPUs alike.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "ipc/base/fd.h"
#include "tests/support/device_memory.h"
#include "transport/memory/gpus.h"
#include "transport/transport.h"

namespace headrace::transport {

class StagedTransport final : public Transport {
 public:
  // Member i is on GPU i modulo `gpus_count`. All must outlive this; GPUs must reach each other.
  StagedTransport(const Gpus& gpus, std::size_t gpus_count, Transport& inner);

  const Capabilities& capabilities() const override { return inner_.capabilities(); }
  [[nodiscard]] PostResult Post(const Transfer& transfer, TimeNs now) override;
  void Cancel(std::uint64_t token) override { inner_.Cancel(token); }
  std::uint64_t Missing(std::uint64_t token) const override { return inner_.Missing(token); }
  bool DoWork(TimeNs now, std::vector<Completion>& completions) override;
  bool PrepareToSleep() override { return inner_.PrepareToSleep(); }
  TimeNs NextLook() const override { return inner_.NextLook(); }

 private:
  struct Copy {
    DeviceMemory memory;
    CuAddress at = 0;  // of what the member has
    std::size_t size = 0;
    std::size_t device = 0;
  };
  struct Staged {
    Transfer original;
    std::vector<Copy> members;
    std::vector<Copy> outputs;  // of members whose part is written elsewhere, in their order
    Mapping output{};           // of a reduce to memory that is no member's: pinned
    HostRegistration registration;
  };

  Staged Stage(const Transfer& transfer, Transfer& posted) const;
  Copy StageMember(const std::byte* from, std::size_t size, std::size_t device) const;
  void StageOutput(const Transfer& transfer, Transfer& posted, Staged& staged) const;
  void StageOutputs(const Transfer& transfer, Transfer& posted, Staged& staged) const;
  void BringBack(const Staged& staged) const;
  std::vector<std::byte> Read(const Copy& copy) const;

  const Gpus& gpus_;
  std::size_t gpus_count_;
  Transport& inner_;
  std::map<std::uint64_t, Staged> staged_;  // by token
};

}  // namespace headrace::transport

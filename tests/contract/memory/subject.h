// A kind of memory that processes share: what every kind must do, whatever it lies in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include "ipc/base/result.h"
#include "transport/memory/device_grant.h"

namespace headrace::memory_contract {

using transport::DeviceGrant;

// Memory that this process can reach, until it is destroyed.
class Reachable {
 public:
  virtual ~Reachable() = default;
  virtual std::uint64_t size() const = 0;
  virtual Status Write(std::uint64_t offset, std::span<const std::byte> bytes) = 0;
  virtual Status Read(std::uint64_t offset, std::span<std::byte> bytes) = 0;
  // For another process. Only of memory that was allocated here.
  virtual Result<DeviceGrant> Grant() = 0;
};

class Subject {
 public:
  virtual ~Subject() = default;
  virtual Result<std::unique_ptr<Reachable>> Allocate(std::uint64_t size) = 0;
  virtual Result<std::unique_ptr<Reachable>> Import(DeviceGrant grant) = 0;
  // What this process holds, and of a machine that nobody else uses the machine too, number by
  // number; equal when nothing was left behind.
  virtual std::vector<std::uint64_t> Held() = 0;
  // Bytes of a card that are taken. The driver and other processes take and give back there as
  // they like, so only much more than before tells of something left behind. 0: Held says it all.
  virtual std::uint64_t TakenOnCard() { return 0; }
};

// Names of all kinds: "host", "double", "double_legacy", "cuda", "cuda_legacy".
std::vector<std::string> KindNames();
// kNotFound and kUnavailable: this machine has none.
Result<std::unique_ptr<Subject>> MakeSubject(const std::string& kind);

}  // namespace headrace::memory_contract

#include <cstring>
#include <filesystem>
#include <fstream>

#include "ipc/base/check.h"
#include "ipc/sealed_memory.h"
#include "tests/contract/memory/subject.h"
#include "tests/support/cuda_double/doubled_driver.h"
#include "tests/support/device_memory.h"
#include "tests/support/open_descriptors.h"
#include "transport/memory/device_arena.h"
#include "transport/memory/device_import.h"

namespace headrace::memory_contract {
namespace {

using namespace headrace::transport;  // NOLINT(google-build-using-namespace)

std::uint64_t SharedMappings() {
  std::ifstream maps("/proc/self/maps");
  std::uint64_t count = 0;
  for (std::string line; std::getline(maps, line);) {
    count += line.find("/memfd:") != std::string::npos ? 1 : 0;
  }
  return count;
}

class HostMemory final : public Reachable {
 public:
  HostMemory(UniqueFd fd, Mapping mapping) : fd_(std::move(fd)), mapping_(std::move(mapping)) {}
  std::uint64_t size() const override { return mapping_.size(); }
  Status Write(std::uint64_t offset, std::span<const std::byte> bytes) override {
    std::memcpy(mapping_.data() + offset, bytes.data(), bytes.size());
    return {};
  }
  Status Read(std::uint64_t offset, std::span<std::byte> bytes) override {
    std::memcpy(bytes.data(), mapping_.data() + offset, bytes.size());
    return {};
  }
  Result<DeviceGrant> Grant() override {
    auto fd = Duplicate(fd_.get());
    if (!fd) return fd.error();
    DeviceGrant grant;
    grant.handle.size = size();
    grant.fds.push_back(std::move(*fd));
    return grant;
  }

 private:
  UniqueFd fd_;
  Mapping mapping_;
};

class HostSubject final : public Subject {
 public:
  Result<std::unique_ptr<Reachable>> Allocate(std::uint64_t size) override {
    auto made = ipc::CreateSealedMemory("memory-contract", size);
    if (!made) return made.error();
    return std::unique_ptr<Reachable>(
        std::make_unique<HostMemory>(std::move(made->fd), std::move(made->mapping)));
  }
  Result<std::unique_ptr<Reachable>> Import(DeviceGrant grant) override {
    auto mapping = ipc::MapSealedMemory(grant.fds.at(0).get(), grant.handle.size);
    if (!mapping) return mapping.error();
    return std::unique_ptr<Reachable>(
        std::make_unique<HostMemory>(UniqueFd(), std::move(*mapping)));
  }
  std::vector<std::uint64_t> Held() override { return {OpenDescriptors(), SharedMappings()}; }
};

// What the kinds on a GPU have in common: copies through the driver.
class GpuMemory : public Reachable {
 public:
  explicit GpuMemory(const PrimaryContext& context) : context_(context) {}
  virtual CuAddress address() const = 0;
  Status Write(std::uint64_t offset, std::span<const std::byte> bytes) override {
    const CurrentContext current(driver(), context_.get().context);
    const Status written = driver().Check(
        driver().call().memcpy_to_device(address() + offset, bytes.data(), bytes.size()), "write");
    // A copy from pageable memory has only reached its staging buffer by then (CUDA Driver API, API
    // synchronization behavior), and who looks next is another stream's or process's.
    return written ? driver().Check(driver().call().ctx_synchronize(), "write") : written;
  }
  Status Read(std::uint64_t offset, std::span<std::byte> bytes) override {
    const CurrentContext current(driver(), context_.get().context);
    return driver().Check(
        driver().call().memcpy_to_host(bytes.data(), address() + offset, bytes.size()), "read");
  }
  Result<DeviceGrant> Grant() override {
    return Error(Code::kInvalidArgument, "an import is not granted on");
  }

 protected:
  const CudaDriver& driver() const { return *context_.get().driver; }

 private:
  const PrimaryContext& context_;
};

class Arena final : public GpuMemory {
 public:
  Arena(const PrimaryContext& context, DeviceArena arena)
      : GpuMemory(context), arena_(std::move(arena)) {}
  CuAddress address() const override { return arena_.address(); }
  std::uint64_t size() const override { return arena_.size(); }
  Result<DeviceGrant> Grant() override { return arena_.Grant(); }

 private:
  DeviceArena arena_;
};

// As a framework's allocator has it: what is shared lies inside a larger allocation.
class Suballocated final : public GpuMemory {
 public:
  static constexpr std::uint64_t kOffset = 512;
  Suballocated(const PrimaryContext& context, DeviceMemory memory, std::uint64_t size)
      : GpuMemory(context), memory_(std::move(memory)), size_(size) {}
  CuAddress address() const override { return memory_.get().thing + kOffset; }
  std::uint64_t size() const override { return size_; }
  Result<DeviceGrant> Grant() override { return GrantExisting(driver(), address(), size_); }

 private:
  DeviceMemory memory_;
  std::uint64_t size_;
};

class Imported final : public GpuMemory {
 public:
  Imported(const PrimaryContext& context, DeviceImport import)
      : GpuMemory(context), import_(std::move(import)) {}
  CuAddress address() const override { return import_.address(); }
  std::uint64_t size() const override { return import_.size(); }

 private:
  DeviceImport import_;
};

class GpuSubject final : public Subject {
 public:
  struct Kind {
    bool legacy = false;
    bool alone = false;  // nobody else uses the machine
  };
  GpuSubject(std::unique_ptr<CudaDriver> driver, PrimaryContext context, Kind kind)
      : driver_(std::move(driver)), kind_(kind) {
    contexts_.push_back(std::move(context));
  }
  Result<std::unique_ptr<Reachable>> Allocate(std::uint64_t size) override {
    if (!kind_.legacy) {
      auto arena = DeviceArena::Allocate(*driver_, 0, size);
      if (!arena) return arena.error();
      return std::unique_ptr<Reachable>(std::make_unique<Arena>(contexts_[0], std::move(*arena)));
    }
    auto memory = AllocateDeviceMemory(contexts_[0], size + Suballocated::kOffset);
    if (!memory) return memory.error();
    return std::unique_ptr<Reachable>(
        std::make_unique<Suballocated>(contexts_[0], std::move(*memory), size));
  }
  Result<std::unique_ptr<Reachable>> Import(DeviceGrant grant) override {
    auto import = DeviceImport::Open(*driver_, grant.handle, grant.fds, contexts_);
    if (!import) return import.error();
    return std::unique_ptr<Reachable>(std::make_unique<Imported>(contexts_[0], std::move(*import)));
  }
  std::vector<std::uint64_t> Held() override {
    return {OpenDescriptors(), kind_.alone ? Taken() : 0, driver_->releases_failed()};
  }
  std::uint64_t TakenOnCard() override { return kind_.alone ? 0 : Taken(); }

 private:
  std::uint64_t Taken() const {
    const CurrentContext current(*driver_, contexts_[0].get().context);
    std::size_t free = 0;
    std::size_t total = 0;
    const auto asked = driver_->call().mem_get_info(&free, &total);
    HR_CHECK(asked == CuResult::kSuccess, static_cast<unsigned>(asked));
    return total - free;
  }

  std::unique_ptr<CudaDriver> driver_;
  std::vector<PrimaryContext> contexts_;
  Kind kind_;
};

}  // namespace

std::vector<std::string> KindNames() {
  return {"host", "double", "double_legacy", "cuda", "cuda_legacy"};
}

Result<std::unique_ptr<Subject>> MakeSubject(const std::string& kind) {
  if (kind == "host") return std::unique_ptr<Subject>(std::make_unique<HostSubject>());
  const bool is_double = kind.starts_with("double");
  auto driver = is_double ? cuda_double::OpenDouble() : CudaDriver::Open(std::string(kCudaLibrary));
  if (!driver) return driver.error();
  auto context = RetainPrimaryContext(**driver, 0);
  if (!context) return context.error();
  return std::unique_ptr<Subject>(std::make_unique<GpuSubject>(
      std::move(*driver), std::move(*context),
      GpuSubject::Kind{.legacy = kind.ends_with("_legacy"), .alone = is_double}));
}

}  // namespace headrace::memory_contract

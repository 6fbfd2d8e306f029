#include "tests/support/nccl_double/companions.h"

#include <cstdlib>
#include <map>
#include <string_view>
#include <utility>

#include "tests/support/nccl_double/rank.h"

namespace headrace::nccl_double {
namespace {

// What is alive of a kind, by what it belongs to. Stays until the process has ended.
template <typename Key, typename Shared>
class Register {
 public:
  template <typename Make>
  std::shared_ptr<Shared> FindOrMake(const Key& key, Make make) {
    const std::lock_guard lock(mutex_);
    std::weak_ptr<Shared>& known = known_[key];
    std::shared_ptr<Shared> shared = known.lock();
    if (shared == nullptr) known = shared = make();
    return shared;
  }

 private:
  std::mutex mutex_;
  std::map<Key, std::weak_ptr<Shared>> known_;
};

bool HasLaunchOrder() {
  // NCCL_PARAM: a number, of which only zero says no.
  const char* const given = std::getenv("NCCL_LAUNCH_ORDER_IMPLICIT");
  return given != nullptr && std::atoll(given) != 0;
}

}  // namespace

std::shared_ptr<Family> Family::Of(const std::string& hub, std::uint64_t host) {
  using Families = Register<std::pair<std::string, std::uint64_t>, Family>;
  static Families* const families = std::make_unique<Families>().release();
  return families->FindOrMake({hub, host}, [] { return std::make_shared<Family>(); });
}

void Family::Join(std::shared_ptr<Rank> rank) {
  const std::lock_guard lock(mutex_);
  ranks_.push_back(std::move(rank));
}

std::vector<std::shared_ptr<Rank>> Family::Leave() {
  const std::lock_guard lock(mutex_);
  if (++left_count_ < ranks_.size()) return {};
  left_count_ = 0;
  return std::exchange(ranks_, {});
}

std::shared_ptr<LaunchOrder> LaunchOrder::Of(transport::CuContext context) {
  if (!HasLaunchOrder()) return nullptr;
  using Orders = Register<transport::CuContext, LaunchOrder>;
  static Orders* const orders = std::make_unique<Orders>().release();
  return orders->FindOrMake(context, [context]() -> std::shared_ptr<LaunchOrder> {
    constexpr int kHasLaunchEvents = 12030;  // CUDA 12.3
    const transport::CudaDriver& driver = *TheCuda().driver;
    const transport::CurrentContext current(driver, context);
    transport::CuEvent event = nullptr;
    int version = 0;
    if (driver.call().event_create(&event, transport::kCuEventDisableTiming) !=
            transport::CuResult::kSuccess ||
        driver.call().driver_get_version(&version) != transport::CuResult::kSuccess) {
      return nullptr;
    }
    auto order = std::make_shared<LaunchOrder>();
    order->kind = version >= kHasLaunchEvents ? Kind::kBegins : Kind::kEnds;
    order->last = transport::CudaEvent({&driver, context, event});
    return order;
  });
}

}  // namespace headrace::nccl_double

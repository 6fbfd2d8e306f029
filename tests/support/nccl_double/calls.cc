// The functions of the library, as nccl.h has them.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "tests/support/nccl_double/hub.h"
#include "tests/support/nccl_double/rank.h"
#include "tests/support/nccl_double/settings.h"

#define HR_NCCL_DECLARE(member, symbol, parameters) \
  extern "C" __attribute__((visibility("default"))) \
  headrace::transport::NcclResult symbol parameters;
#define HR_NCCL_DECLARE_TEXT(member, symbol, parameters) \
  extern "C" __attribute__((visibility("default"))) const char* symbol parameters;
namespace headrace::transport {
HR_NCCL_FUNCTIONS(HR_NCCL_DECLARE)
HR_NCCL_TEXTS(HR_NCCL_DECLARE_TEXT)
}  // namespace headrace::transport

namespace headrace::nccl_double {
namespace {

using namespace headrace::transport;  // NOLINT(google-build-using-namespace): the interface we play

// The longest that they take by themselves.
constexpr std::chrono::microseconds kInitDelay(3000);
constexpr std::chrono::microseconds kAbortDelay(3000);

struct Table {
  std::mutex mutex;
  std::map<NcclComm, std::shared_ptr<Rank>> ranks;
  std::uintptr_t serial = 0;
};
// Stays until the process has ended, as do ranks that nobody destroys.
Table& TheTable() {
  static Table* const table = std::make_unique<Table>().release();
  return *table;
}

std::shared_ptr<Rank> Find(NcclComm comm) {
  Table& table = TheTable();
  const std::lock_guard lock(table.mutex);
  const auto found = table.ranks.find(comm);
  return found != table.ranks.end() ? found->second : nullptr;
}

NcclComm Keep(std::shared_ptr<Rank> rank) {
  Table& table = TheTable();
  const std::lock_guard lock(table.mutex);
  // No handle is ever used again.
  const auto comm = reinterpret_cast<NcclComm>(++table.serial << 8 | 0xdc);
  table.ranks[comm] = std::move(rank);
  return comm;
}

std::shared_ptr<Rank> Take(NcclComm comm) {
  Table& table = TheTable();
  const std::lock_guard lock(table.mutex);
  const auto found = table.ranks.find(comm);
  if (found == table.ranks.end()) return nullptr;
  std::shared_ptr<Rank> rank = std::move(found->second);
  table.ranks.erase(found);
  return rank;
}

// NCCL's groups belong to the thread that opens them (src/group.cc, ncclGroupDepth is
// thread_local).
struct Group {
  int depth = 0;
  NcclResult error = NcclResult::kSuccess;  // of the first call that failed
  std::vector<std::pair<std::shared_ptr<Rank>, std::string>> forming;
  std::vector<std::pair<std::shared_ptr<Rank>, std::vector<Call>>> calls;
};
Group& TheGroup() {
  thread_local Group group;
  return group;
}

// src/include/group.h, ncclGroupErrCheck: a group remembers its first error, and ncclGroupEnd
// returns it and launches nothing of the group.
NcclResult Remember(NcclResult result) {
  Group& group = TheGroup();
  if (group.depth > 0 && group.error == NcclResult::kSuccess) group.error = result;
  return result;
}

NcclResult EndGroup() {
  Group group = std::exchange(TheGroup(), {});
  if (group.error != NcclResult::kSuccess) {
    // src/group.cc, groupCleanup: asking a rank of it tells the error.
    for (auto& [rank, hub] : group.forming) rank->Fail(group.error);
    for (auto& [rank, calls] : group.calls) rank->Fail(group.error);
    return group.error;
  }
  const bool any = !group.forming.empty() || !group.calls.empty();
  if (!group.calls.empty() && Settings::Get().Enter("block") != NcclResult::kSuccess) {
    group.calls.front().first->AwaitAbort();
    return NcclResult::kInternalError;
  }
  for (auto& [rank, hub] : group.forming) rank->Form(std::move(hub));
  for (auto& [rank, calls] : group.calls) rank->Launch(std::move(calls));
  return any ? NcclResult::kInProgress : NcclResult::kSuccess;
}

NcclResult Add(const std::shared_ptr<Rank>& rank, const Call& call) {
  Group& group = TheGroup();
  auto found = std::find_if(group.calls.begin(), group.calls.end(),
                            [&](const auto& entry) { return entry.first == rank; });
  if (found == group.calls.end()) {
    found = group.calls.insert(group.calls.end(), {rank, {}});
  }
  found->second.push_back(call);
  return group.depth == 0 ? EndGroup() : NcclResult::kSuccess;
}

bool IsType(NcclType type) {
  const auto number = static_cast<std::uint32_t>(type);
  return number == 1 || number == 2 || number == 4 || (number >= 6 && number <= 9);
}

// What a function of collectives was called with.
struct Asked {
  const char* function;
  Collective kind;
  const void* source;
  void* target;
  std::size_t count;
  NcclType type;
  NcclReduction reduction = kNcclSum;
  int root = 0;
};

// src/init.cc, ncclCommEnsureReady: a rank that is still about something is refused as an argument,
// one that has failed answers what it failed with.
NcclResult Ready(const std::shared_ptr<Rank>& rank) {
  if (!rank || rank->state() == NcclResult::kInProgress) return NcclResult::kInvalidArgument;
  return rank->state();
}

NcclResult TryCollect(const Asked& asked, NcclComm comm, CuStream stream) {
  if (const NcclResult told = Settings::Get().Enter(asked.function); told != NcclResult::kSuccess) {
    return told;
  }
  const std::shared_ptr<Rank> rank = Find(comm);
  if (const NcclResult ready = Ready(rank); ready != NcclResult::kSuccess) return ready;
  if (!IsType(asked.type)) return NcclResult::kInvalidArgument;
  if (asked.root < 0 || asked.root >= static_cast<int>(rank->ranks_count())) {
    return NcclResult::kInvalidArgument;
  }
  Call call;
  call.stream = stream;
  call.header.says = Says::kCall;
  call.header.kind = asked.kind;
  call.header.type = asked.type;
  call.header.reduction = std::min(asked.reduction, kNcclOwnReductionsFirst);
  call.header.count = asked.count;
  call.header.root = static_cast<std::uint32_t>(asked.root);
  if (asked.reduction >= kNcclOwnReductionsFirst) {
    const auto scalar = rank->ScalarOf(asked.reduction);
    if (!scalar) return NcclResult::kInvalidArgument;
    call.header.scalar = *scalar;
  }
  const std::size_t size = asked.count * SizeOf(DTypeOf(asked.type));
  const bool is_root = static_cast<int>(rank->number()) == asked.root;
  const std::size_t all = size * rank->ranks_count();
  call.source = static_cast<const std::byte*>(asked.source);
  call.target = static_cast<std::byte*>(asked.target);
  call.source_size = asked.kind == Collective::kReduceScatter ? all : size;
  call.target_size = asked.kind == Collective::kAllGather ? all : size;
  if (asked.kind == Collective::kBroadcast && !is_root) call.source_size = 0;
  if (asked.kind == Collective::kReduce && !is_root) call.target_size = 0;
  const bool lacks_source = call.source_size != 0 && call.source == nullptr;
  const bool lacks_target = call.target_size != 0 && call.target == nullptr;
  if (lacks_source || lacks_target) return NcclResult::kInvalidArgument;
  return Add(rank, call);
}

NcclResult Collect(const Asked& asked, NcclComm comm, CuStream stream) {
  const NcclResult result = TryCollect(asked, comm, stream);
  const bool taken = result == NcclResult::kSuccess || result == NcclResult::kInProgress;
  return taken ? result : Remember(result);
}

// The GPU of the context that is current.
NcclResult CurrentDevice(CuContext& context, CuDevice& device) {
  const CudaFunctions& call = TheCuda().driver->call();
  if (call.ctx_get_current(&context) != CuResult::kSuccess || context == nullptr) {
    return NcclResult::kUnhandledCudaError;
  }
  int devices_count = 0;  // another after a restart
  call.device_get_count(&devices_count);
  for (device = 0; device < devices_count; ++device) {
    const auto primary = RetainPrimaryContext(*TheCuda().driver, device);
    if (primary && primary->get().context == context) return NcclResult::kSuccess;
  }
  return NcclResult::kUnhandledCudaError;
}

NcclResult Enter(const char* function) { return Settings::Get().Enter(function); }

}  // namespace
}  // namespace headrace::nccl_double

namespace headrace::transport {
using namespace headrace::nccl_double;  // NOLINT(google-build-using-namespace)

#define HR_DOUBLE_ENTER()                                                                 \
  if (const NcclResult told = nccl_double::Enter(__func__); told != NcclResult::kSuccess) \
  return told

NcclResult ncclGetVersion(int* version) {
  HR_DOUBLE_ENTER();
  *version = Settings::Get().version();
  return NcclResult::kSuccess;
}

NcclResult ncclGetUniqueId(NcclId* id) {
  HR_DOUBLE_ENTER();
  return StartHub(*id);
}

namespace {
NcclResult TryInit(NcclComm* comm, int ranks_count, const NcclId& id, int rank,
                   const NcclConfig* config) {
  if (const NcclResult told = nccl_double::Enter("ncclCommInitRankConfig");
      told != NcclResult::kSuccess) {
    return told;
  }
  const std::string hub = NameOf(id);
  if (config == nullptr || config->magic != 0xcafebeef || config->version < 21400 ||
      config->size < offsetof(NcclConfig, cga_cluster_size) || config->blocking != 0) {
    return NcclResult::kInvalidArgument;
  }
  if (hub.empty() || rank < 0 || rank >= ranks_count) return NcclResult::kInvalidArgument;
  CuContext context = nullptr;
  CuDevice device = 0;
  if (const NcclResult found = CurrentDevice(context, device); found != NcclResult::kSuccess) {
    return found;
  }
  // src/init.cc, ncclCommInitRankDev: a nonblocking call, too, reads the environment, makes the
  // context (cudaFree(NULL)) and allocates on the thread that calls it, before it returns.
  Settings::Get().AwaitInits();
  Settings::Get().Delay(kInitDelay);
  auto made = std::make_shared<Rank>(context, device, static_cast<std::uint32_t>(rank),
                                     static_cast<std::uint32_t>(ranks_count));
  *comm = Keep(made);
  TheGroup().forming.emplace_back(made, hub);
  return TheGroup().depth == 0 ? EndGroup() : NcclResult::kSuccess;
}
}  // namespace

NcclResult ncclCommInitRankConfig(NcclComm* comm, int ranks_count, NcclId id, int rank,
                                  NcclConfig* config) {
  const NcclResult result = TryInit(comm, ranks_count, id, rank, config);
  const bool taken = result == NcclResult::kSuccess || result == NcclResult::kInProgress;
  return taken ? result : Remember(result);
}

NcclResult ncclCommFinalize(NcclComm comm) {
  HR_DOUBLE_ENTER();
  const auto rank = Find(comm);
  if (const NcclResult ready = Ready(rank); ready != NcclResult::kSuccess) return ready;
  rank->Finalize();
  return NcclResult::kInProgress;
}

NcclResult ncclCommDestroy(NcclComm comm) {
  HR_DOUBLE_ENTER();
  if (const NcclResult ready = Ready(Find(comm)); ready != NcclResult::kSuccess) return ready;
  const auto rank = Take(comm);
  if (!rank) return NcclResult::kInvalidArgument;
  if (rank->finalized()) Settings::Get().Count(&NcclDoubleCounts::finished, 1);
  rank->Leave();
  return NcclResult::kSuccess;
}

// As in NCCL 2.28.9, src/init.cc: the flags that kernels look at, in pinned memory, are set first
// (setCommAbortFlags); then the call joins what goes on in the background (ncclCommEnsureReady).
// The call for the last rank of this process stops the proxy threads of all, frees their memory of
// the GPU and returns, which may take much longer; the others return before that (commReclaim).
NcclResult ncclCommAbort(NcclComm comm) {
  HR_DOUBLE_ENTER();
  const auto rank = Take(comm);
  if (!rank) return NcclResult::kInvalidArgument;
  Settings::Get().AwaitAborts(2);
  rank->Abort();
  Settings::Get().AwaitAborts(1);
  Settings::Get().Delay(kAbortDelay);
  Settings::Get().Count(&NcclDoubleCounts::aborted, 1);
  rank->Leave();
  return NcclResult::kSuccess;
}

NcclResult ncclCommGetAsyncError(NcclComm comm, NcclResult* state) {
  HR_DOUBLE_ENTER();
  const auto rank = Find(comm);
  if (!rank) return NcclResult::kInvalidArgument;
  *state = rank->state();
  return NcclResult::kSuccess;
}

NcclResult ncclGroupStart() {
  HR_DOUBLE_ENTER();
  ++TheGroup().depth;
  return NcclResult::kSuccess;
}

NcclResult ncclGroupEnd() {
  // src/group.cc: "ncclGroupEnd: not in a group call."
  if (TheGroup().depth == 0) return NcclResult::kInvalidUsage;
  if (--TheGroup().depth > 0) return NcclResult::kSuccess;
  if (const NcclResult told = nccl_double::Enter(__func__); told != NcclResult::kSuccess) {
    TheGroup() = {};
    return told;
  }
  return EndGroup();
}

NcclResult ncclRedOpCreatePreMulSum(NcclReduction* reduction, void* scalar, NcclType type,
                                    std::uint32_t residence, NcclComm comm) {
  HR_DOUBLE_ENTER();
  const auto rank = Find(comm);
  if (const NcclResult ready = Ready(rank); ready != NcclResult::kSuccess) return ready;
  if (scalar == nullptr || residence != kNcclScalarNow || !IsType(type)) {
    return NcclResult::kInvalidArgument;
  }
  std::array<std::byte, 8> bytes{};
  std::memcpy(bytes.data(), scalar, SizeOf(DTypeOf(type)));
  *reduction = rank->MakeReduction(bytes);
  return NcclResult::kSuccess;
}

NcclResult ncclRedOpDestroy(NcclReduction reduction, NcclComm comm) {
  HR_DOUBLE_ENTER();
  const auto rank = Find(comm);
  const bool dropped = rank && rank->DropReduction(reduction);
  return dropped ? NcclResult::kSuccess : NcclResult::kInvalidArgument;
}

NcclResult ncclAllReduce(const void* source, void* target, std::size_t count, NcclType type,
                         NcclReduction reduction, NcclComm comm, CuStream stream) {
  return Collect({__func__, Collective::kAllReduce, source, target, count, type, reduction}, comm,
                 stream);
}

NcclResult ncclReduce(const void* source, void* target, std::size_t count, NcclType type,
                      NcclReduction reduction, int root, NcclComm comm, CuStream stream) {
  return Collect({__func__, Collective::kReduce, source, target, count, type, reduction, root},
                 comm, stream);
}

NcclResult ncclBroadcast(const void* source, void* target, std::size_t count, NcclType type,
                         int root, NcclComm comm, CuStream stream) {
  return Collect({__func__, Collective::kBroadcast, source, target, count, type, kNcclSum, root},
                 comm, stream);
}

NcclResult ncclReduceScatter(const void* source, void* target, std::size_t count, NcclType type,
                             NcclReduction reduction, NcclComm comm, CuStream stream) {
  return Collect({__func__, Collective::kReduceScatter, source, target, count, type, reduction},
                 comm, stream);
}

NcclResult ncclAllGather(const void* source, void* target, std::size_t count, NcclType type,
                         NcclComm comm, CuStream stream) {
  return Collect({__func__, Collective::kAllGather, source, target, count, type}, comm, stream);
}

const char* ncclGetErrorString(NcclResult result) {
  switch (result) {
    case NcclResult::kSuccess:
      return "no error";
    case NcclResult::kUnhandledCudaError:
      return "unhandled cuda error";
    case NcclResult::kSystemError:
      return "unhandled system error";
    case NcclResult::kInternalError:
      return "internal error";
    case NcclResult::kInvalidArgument:
      return "invalid argument";
    case NcclResult::kInvalidUsage:
      return "invalid usage";
    case NcclResult::kRemoteError:
      return "remote process exited or there was a network error";
    case NcclResult::kInProgress:
      return "NCCL operation in progress";
    case NcclResult::kTimeout:
      break;
  }
  return "unknown result code";
}

const char* ncclGetLastError(NcclComm) { return ""; }

}  // namespace headrace::transport

#include "service/control/session_server.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "ipc/sealed_memory.h"
#include "service/control/device_claim.h"
#include "service/control/plans.h"

namespace headrace::service {
namespace {

Error Behind() { return Error(Code::kBusy, "the service is behind with its messages: try again"); }

std::vector<Tensor> ReadTensors(capnp::List<schema::TensorSpec>::Reader specs) {
  std::vector<Tensor> tensors;
  tensors.reserve(specs.size());
  for (schema::TensorSpec::Reader spec : specs) {
    const auto name = spec.getName();
    tensors.push_back({.name = std::string(name.begin(), name.size()),
                       .segment = SegmentId{spec.getSegment()},
                       .offset = spec.getOffset(),
                       .count = spec.getCount(),
                       .dtype = static_cast<DType>(spec.getDtype()),
                       .order = spec.getOrder()});
  }
  return tensors;
}

}  // namespace

SessionServer::~SessionServer() {
  if (client_->session == session_) {
    client_->Lose();
    client_->session = {};
  }
  client_->desk.leases.Forget(session_);
}

Status SessionServer::BeginSlow(const char* call) {
  if (Status status = client_->desk.leases.Check(session_); !status) return status;
  if (slow_call_ != nullptr) {
    return Error(Code::kBusy, fmt::format("{} while {} of this session is under way: one at a time",
                                          call, slow_call_));
  }
  slow_call_ = call;
  return {};
}

kj::Promise<void> SessionServer::registerSegment(RegisterSegmentContext context) {
  if (Status status = BeginSlow("registerSegment"); !status) {
    Refuse(context.getResults().initRefusal(), status.error());
    return kj::READY_NOW;
  }
  const auto params = context.getParams();
  const std::uint64_t size = params.getSize();
  return TakeDescriptor(params.getMemory(), "memory")
      .then([this, size](Result<UniqueFd> memory) -> kj::Promise<Result<SegmentId>> {
        if (!memory) return Result<SegmentId>(memory.error());
        return Map(std::move(memory).value(), size);
      })
      .then([this, context](Result<SegmentId> id) mutable {
        slow_call_ = nullptr;
        if (id) {
          context.getResults().setSegment(id->value);
        } else {
          Refuse(context.getResults().initRefusal(), id.error().Within("register segment"));
        }
      });
}

kj::Promise<Result<SegmentId>> SessionServer::Map(UniqueFd memory, std::uint64_t size) {
  const Result<SegmentId> id = Reserve(size, size, Ledger::Kind::kHost);
  if (!id) return id;
  if (Status status = ipc::VerifySealedMemory(memory.get(), size); !status) {
    Erase(*id);
    return Result<SegmentId>(status.error());
  }
  const RequestToken token = client_->desk.answers.NextToken();
  return Map(*id, token, MapSegment{.memory = std::move(memory), .size = size, .token = token});
}

kj::Promise<void> SessionServer::registerDeviceSegment(RegisterDeviceSegmentContext context) {
  const auto params = context.getParams();
  Status status = BeginSlow("registerDeviceSegment");
  if (!status) {
    Refuse(context.getResults().initRefusal(), status.error());
    return kj::READY_NOW;
  }
  const auto pieces = params.getPieces();
  const Result<DeviceHandle> handle =
      ReadDeviceClaim(params.getHandle(), pieces.size(), client_->desk.options.gpus_missing);
  if (!handle) {
    slow_call_ = nullptr;
    Refuse(context.getResults().initRefusal(), handle.error().Within("register GPU memory"));
    return kj::READY_NOW;
  }
  return TakeDescriptors(pieces)
      .then([this, claim = *handle](Result<std::vector<UniqueFd>> fds) {
        if (!fds) return kj::Promise<Result<SegmentId>>(Result<SegmentId>(fds.error()));
        return MapDevice(claim, std::move(fds).value());
      })
      .then([this, context](Result<SegmentId> id) mutable {
        slow_call_ = nullptr;
        if (id) {
          context.getResults().setSegment(id->value);
        } else {
          Refuse(context.getResults().initRefusal(), id.error().Within("register GPU memory"));
        }
      });
}

kj::Promise<Result<SegmentId>> SessionServer::MapDevice(const DeviceHandle& handle,
                                                        std::vector<UniqueFd> fds) {
  // Whole pieces are mapped, and so are held, whatever is meant of them.
  const std::uint64_t bytes = std::max(handle.size, handle.piece_size * fds.size());
  const Result<SegmentId> id = Reserve(handle.size, bytes, Ledger::Kind::kDevice);
  if (!id) return id;
  const RequestToken token = client_->desk.answers.NextToken();
  return Map(*id, token, MapDeviceSegment{.handle = handle, .fds = std::move(fds), .token = token});
}

Result<SegmentId> SessionServer::Reserve(std::uint64_t size, std::uint64_t bytes,
                                         Ledger::Kind kind) {
  Desk& desk = client_->desk;
  if (Status status = desk.leases.Check(session_); !status) return status.error();
  const Result<SegmentId> id = ledger_.ReserveSegment(size, bytes, kind);
  if (!id) return id;
  if (Status status = desk.leases.TakeMemory(session_, bytes); !status) {
    ledger_.EraseSegment(*id);
    return status.error();
  }
  return id;
}

kj::Promise<Result<SegmentId>> SessionServer::Map(SegmentId id, RequestToken token,
                                                  WatchMessage message) {
  Desk& desk = client_->desk;
  if (!desk.watch.Send(std::move(message))) {
    Erase(id);
    return Result<SegmentId>(Behind());
  }
  return desk.answers.mapped.Add(token).then(
      [this, id](Result<SegmentMemory> memory) { return Add(id, kj::mv(memory)); });
}

// Hands the memory to dispatch, unless the lease has ended in the meantime.
Result<SegmentId> SessionServer::Add(SegmentId id, Result<SegmentMemory> memory) {
  Desk& desk = client_->desk;
  Status status = memory ? desk.leases.Check(session_) : Status(memory.error());
  if (memory.ok() && !status) {
    // Unmapping may take long too; without room for the message it happens here.
    [[maybe_unused]] const bool taken = desk.watch.Send(DiscardMemory{std::move(memory).value()});
  }
  if (status.ok() &&
      !desk.dispatch.Send(
          AddSegment{.session = session_, .segment = id, .memory = std::move(memory).value()})) {
    status = Behind();
  }
  if (!status) {
    Erase(id);
    return status.error();
  }
  ledger_.ConfirmSegment(id);
  return id;
}

void SessionServer::Erase(SegmentId id) {
  client_->desk.leases.GiveMemory(session_, ledger_.BytesOf(id));
  ledger_.EraseSegment(id);
}

kj::Promise<void> SessionServer::releaseSegment(ReleaseSegmentContext context) {
  if (Status status = BeginSlow("releaseSegment"); !status) {
    Refuse(context.getResults().initRefusal(), status.error());
    return kj::READY_NOW;
  }
  return Remove(SegmentId{context.getParams().getSegment()})
      .then([this, context](Status status) mutable {
        slow_call_ = nullptr;
        if (!status) {
          Refuse(context.getResults().initRefusal(), status.error().Within("release segment"));
        }
      });
}

kj::Promise<Status> SessionServer::Remove(SegmentId id) {
  Desk& desk = client_->desk;
  if (Status status = ledger_.BeginRelease(id); !status) return status;
  const RequestToken token = desk.answers.NextToken();
  if (!desk.dispatch.Send(RemoveSegment{.session = session_, .segment = id, .token = token})) {
    ledger_.CancelRelease(id);
    return Status(Behind());
  }
  return desk.answers.removed.Add(token).then([this, id](Status status) {
    if (status) {
      Erase(id);
    } else {
      ledger_.CancelRelease(id);
    }
    return status;
  });
}

kj::Promise<void> SessionServer::registerTensors(RegisterTensorsContext context) {
  Desk& desk = client_->desk;
  const capnp::List<schema::TensorSpec>::Reader specs = context.getParams().getTensors();
  const std::uint32_t count = specs.size();
  std::vector<Tensor> tensors;
  Result<TensorId> first = TensorId{};
  if (Status status = desk.leases.Check(session_); !status) {
    first = status.error();
  } else if (count > kTensorsMax) {
    // Before reading: a list of empty structs announces millions in a few bytes.
    first = Error(Code::kExhausted,
                  fmt::format("register {} tensors: a session may have {}", count, kTensorsMax));
  } else {
    tensors = ReadTensors(specs);
    first = ledger_.AddTensors(tensors);
  }
  if (first.ok() && !desk.dispatch.Send(AddTensors{
                        .session = session_, .first = *first, .tensors = std::move(tensors)})) {
    const Status removed = ledger_.RemoveTensors(*first, count);
    HR_CHECK(removed.ok(), first->value, count);
    first = Behind();
  }
  if (first) {
    context.getResults().setFirst(first->value);
  } else {
    Refuse(context.getResults().initRefusal(), first.error().Within("register tensors"));
  }
  return kj::READY_NOW;
}

kj::Promise<void> SessionServer::releaseTensors(ReleaseTensorsContext context) {
  Desk& desk = client_->desk;
  const TensorId first{context.getParams().getFirst()};
  const std::uint32_t count = context.getParams().getCount();
  Status status = desk.leases.Check(session_);
  if (status) status = ledger_.RemoveTensors(first, count);
  if (status &&
      !desk.dispatch.Send(RemoveTensors{.session = session_, .first = first, .count = count})) {
    ledger_.RestoreTensors(first, count);
    status = Behind();
  }
  if (!status) Refuse(context.getResults().initRefusal(), status.error().Within("release tensors"));
  return kj::READY_NOW;
}

kj::Promise<void> SessionServer::setLayout(SetLayoutContext context) {
  const auto params = context.getParams();
  const auto policy = params.getPolicy();
  const Status status = Set({.first = TensorId{params.getFirst()},
                             .count = params.getCount(),
                             .reduction = static_cast<Reduction>(params.getReduction()),
                             .policy = std::string(policy.begin(), policy.size())});
  if (!status) Refuse(context.getResults().initRefusal(), status.error().Within("set layout"));
  return kj::READY_NOW;
}

Status SessionServer::Set(const LayoutWish& wish) {
  Desk& desk = client_->desk;
  if (Status status = desk.leases.Check(session_); !status) return status;
  const SessionIdentity* identity = desk.leases.Find(session_);
  HR_CHECK(identity != nullptr && desk.plans != nullptr, session_.value);
  const Result<std::optional<plan::Policy>> policy = ReadPolicyName(wish.policy);
  if (!policy) return policy.error();
  Result<Layout> made = ledger_.MakeLayout(wish.first, wish.count, wish.reduction);
  if (!made) return made.error();
  auto layout = std::make_shared<const Layout>(std::move(made).value());
  if (Status status = desk.plans->CheckLayout(*identity, *layout, *policy); !status) {
    desk.plans->LayoutRefused(*identity, status.error());
    return status;
  }
  if (!desk.dispatch.Send(SetLayout{.session = session_, .first = wish.first, .layout = layout})) {
    return Behind();
  }
  ledger_.KeepLayout(wish.first, wish.count);
  desk.plans->LayoutSet(*identity, std::move(layout), *policy);
  return {};
}

kj::Promise<void> SessionServer::leave(LeaveContext context) {
  Desk& desk = client_->desk;
  if (Status status = desk.leases.Check(session_); !status) {
    Refuse(context.getResults().initRefusal(), status.error());
    return kj::READY_NOW;
  }
  desk.leases.End(session_, true, Code::kUnavailable, "left the job");
  if (client_->session == session_) client_->session = {};
  return kj::READY_NOW;
}

}  // namespace headrace::service

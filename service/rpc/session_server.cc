#include "service/rpc/session_server.h"

#include <fmt/format.h>
#include <kj/debug.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <span>
#include <utility>

#include "ipc/base/check.h"
#include "ipc/sealed_memory.h"
#include "service/cluster/layouts.h"
#include "service/cluster/setting_changes.h"
#include "service/loop/text.h"
#include "service/rpc/descriptors.h"
#include "service/rpc/device_claim.h"

namespace headrace::service {
namespace {

// Tensors that are read, checked or handed on before others have their turn: about a millisecond.
constexpr std::uint32_t kTensorsPerTurn = SlowRelease::kTensorsPerTurn;
// What the tensors of every session may make the service hold without being booked on its user.
constexpr std::uint64_t kTensorBytesFree = std::uint64_t{256} << 10;

Tensor ReadTensor(schema::TensorSpec::Reader spec) {
  const auto name = spec.getName();
  return {.name = std::string(name.begin(), name.size()),
          .segment = SegmentId{spec.getSegment()},
          .offset = spec.getOffset(),
          .count = spec.getCount(),
          .dtype = static_cast<DType>(spec.getDtype()),
          .order = spec.getOrder()};
}

template <typename Context>
void AnswerSegment(Context& context, const Result<SegmentId>& id, std::string_view doing) {
  if (id) {
    context.getResults().setSegment(id->value);
  } else {
    Refuse(context.getResults().initRefusal(), id.error().Within(doing));
  }
}

}  // namespace

SessionServer::~SessionServer() {
  if (client_->session == session_) {
    client_->Lose();
    client_->session = {};
  }
  ports_.leases.Forget(session_);
  ports_.notices.Forget(session_);
  ports_.releases.Release(memory_.ReleaseTensors());
}

Status SessionServer::BeginSlow(const char* call) {
  if (Status status = ports_.leases.Check(session_); !status) return status;
  if (slow_call_ != nullptr) {
    return Error(Code::kBusy, fmt::format("{} while {} of this session is under way: one at a time",
                                          call, slow_call_));
  }
  slow_call_ = call;
  return {};
}

void SessionServer::EndSlow() {
  HR_CHECK(slow_call_ != nullptr, session_.value);
  slow_call_ = nullptr;
}

kj::Promise<void> SessionServer::registerSegment(RegisterSegmentContext context) {
  if (Status status = BeginSlow("registerSegment"); !status) {
    Refuse(context.getResults().initRefusal(), status.error());
    return kj::READY_NOW;
  }
  const auto params = context.getParams();
  const std::uint64_t size = params.getSize();
  auto descriptor = CopyDescriptor(params.getMemory(), "memory");
  // Mapping may take long, and what came with the call must not be held for it.
  context.releaseParams();
  return descriptor
      .then([this, size](Result<UniqueFd> memory) -> kj::Promise<Result<SegmentId>> {
        if (!memory) return Result<SegmentId>(memory.error());
        return Map(std::move(memory).value(), size);
      })
      .then([this, context](Result<SegmentId> id) mutable {
        EndSlow();
        AnswerSegment(context, id, "register segment");
      });
}

template <typename Request>
kj::Promise<Result<SegmentId>> SessionServer::Map(SegmentId id, Request request) {
  request.session = session_;
  request.uid = client_->process.uid;
  return ports_.mapping.Map(std::move(request), mapping_)
      .then([this, id](Result<SegmentMemory> memory) { return Add(id, kj::mv(memory)); });
}

kj::Promise<Result<SegmentId>> SessionServer::Map(UniqueFd memory, std::uint64_t size) {
  const Result<SegmentId> id = Reserve(size, size, MemoryAccounting::Kind::kHost);
  if (!id) return id;
  if (Status status = ipc::VerifySealedMemory(memory.get(), size); !status) {
    Erase(*id);
    return Result<SegmentId>(status.error());
  }
  return Map(*id, MapSegment{.memory = std::move(memory), .size = size});
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
      ReadDeviceClaim(params.getHandle(), pieces.size(), ports_.gpus_missing);
  if (!handle) {
    EndSlow();
    Refuse(context.getResults().initRefusal(), handle.error().Within("register GPU memory"));
    return kj::READY_NOW;
  }
  auto descriptors = CopyDescriptors(pieces);
  context.releaseParams();
  return descriptors
      .then([this, claim = *handle](Result<std::vector<UniqueFd>> fds) {
        if (!fds) return kj::Promise<Result<SegmentId>>(Result<SegmentId>(fds.error()));
        // On the uid until they are mapped: other messages of it may bring more meanwhile.
        auto booking = kj::heap(ports_.arrivals.Open(client_->process.uid));
        if (!booking->Add(0, fds->size())) {
          return kj::Promise<Result<SegmentId>>(Result<SegmentId>(Error(
              Code::kBusy, fmt::format("{} descriptors beside others of uid {} that are being "
                                       "mapped, {} in all: try again when those are done",
                                       fds->size(), client_->process.uid,
                                       ports_.arrivals.limits().descriptors))));
        }
        return MapDevice(claim, std::move(fds).value()).attach(kj::mv(booking));
      })
      .then([this, context](Result<SegmentId> id) mutable {
        EndSlow();
        AnswerSegment(context, id, "register GPU memory");
      });
}

kj::Promise<void> SessionServer::registration(RegistrationContext context) {
  context.getResults().setBytes(ports_.mapping.ProgressOf(mapping_));
  return kj::READY_NOW;
}

kj::Promise<Result<SegmentId>> SessionServer::MapDevice(const DeviceHandle& handle,
                                                        std::vector<UniqueFd> fds) {
  // Whole pieces are mapped, and so are held, whatever is meant of them.
  const std::uint64_t bytes = std::max(handle.size, handle.piece_size * fds.size());
  const Result<SegmentId> id = Reserve(handle.size, bytes, MemoryAccounting::Kind::kDevice);
  if (!id) return id;
  return Map(*id, MapDeviceSegment{.handle = handle, .fds = std::move(fds)});
}

Result<SegmentId> SessionServer::Reserve(std::uint64_t size, std::uint64_t bytes,
                                         MemoryAccounting::Kind kind) {
  if (Status status = ports_.leases.Check(session_); !status) return status.error();
  const Result<SegmentId> id = memory_.ReserveSegment(size, bytes, kind);
  if (!id) return id;
  if (Status status = ports_.leases.ReserveSegment(session_, bytes); !status) {
    memory_.EraseSegment(*id);
    return status.error();
  }
  return id;
}

// Hands the memory to dispatch, unless the lease has ended in the meantime.
Result<SegmentId> SessionServer::Add(SegmentId id, Result<SegmentMemory> memory) {
  Status status = memory ? ports_.leases.Check(session_) : Status(memory.error());
  if (memory.ok() && !status) {
    ports_.mapping.Discard(std::move(memory).value(), client_->process.uid);
  }
  if (status.ok() && !ports_.dispatch.Send(AddSegment{.session = session_,
                                                      .segment = id,
                                                      .memory = std::move(memory).value(),
                                                      .uid = client_->process.uid})) {
    status = Behind();
  }
  if (!status) {
    Erase(id);
    return status.error();
  }
  memory_.ConfirmSegment(id);
  return id;
}

void SessionServer::Erase(SegmentId id) {
  ports_.leases.ReleaseSegment(session_, memory_.BytesOf(id));
  memory_.EraseSegment(id);
}

kj::Promise<void> SessionServer::releaseSegment(ReleaseSegmentContext context) {
  if (Status status = BeginSlow("releaseSegment"); !status) {
    Refuse(context.getResults().initRefusal(), status.error());
    return kj::READY_NOW;
  }
  return Remove(SegmentId{context.getParams().getSegment()})
      .then([this, context](Status status) mutable {
        EndSlow();
        if (!status) {
          Refuse(context.getResults().initRefusal(), status.error().Within("release segment"));
        }
      });
}

kj::Promise<Status> SessionServer::Remove(SegmentId id) {
  if (Status status = memory_.BeginRelease(id); !status) return status;
  return ports_.dispatch.Remove(session_, id).then([this, id](Status status) {
    if (status) {
      Erase(id);
    } else {
      memory_.CancelRelease(id);
    }
    return status;
  });
}

struct SessionServer::Registration {
  explicit Registration(RegisterTensorsContext call)
      : context(call), specs(context.getParams().getTensors()) {}

  RegisterTensorsContext context;  // which holds what specs reads
  capnp::List<schema::TensorSpec>::Reader specs;
  std::vector<Tensor> tensors;
  std::optional<TensorId> first;  // once they are numbered
  std::uint32_t done = 0;         // of tensors: they are accounted for, and dispatch has them
};

kj::Promise<void> SessionServer::registerTensors(RegisterTensorsContext context) {
  Status status = BeginSlow("registerTensors");
  if (!status) {
    Refuse(context.getResults().initRefusal(), status.error().Within("register tensors"));
    return kj::READY_NOW;
  }
  // Before reading: a list of empty structs announces millions in a few bytes.
  const std::uint32_t count = context.getParams().getTensors().size();
  if (count > kTensorsMax) {
    status = Error(Code::kExhausted,
                   fmt::format("register {} tensors: a session may have {}", count, kTensorsMax));
  }
  if (status) status = memory_.CheckCount(count);
  kj::Promise<Result<TensorId>> added =
      status ? CheckAll(kj::heap<Registration>(context)) : Result<TensorId>(status.error());
  return added.then([this, context](Result<TensorId> first) mutable {
    EndSlow();
    if (first) {
      context.getResults().setFirst(first->value);
    } else {
      Refuse(context.getResults().initRefusal(), first.error().Within("register tensors"));
    }
  });
}

// All are checked before dispatch receives the first.
kj::Promise<Result<TensorId>> SessionServer::CheckAll(kj::Own<Registration> registration) {
  std::vector<Tensor>& tensors = registration->tensors;
  const auto begin = static_cast<std::uint32_t>(tensors.size());
  const std::uint32_t end = std::min(registration->specs.size(), begin + kTensorsPerTurn);
  HR_CHECK(begin <= end && !registration->first, begin, end);
  if (begin == 0) tensors.reserve(registration->specs.size());
  for (std::uint32_t i = begin; i < end; ++i) tensors.push_back(ReadTensor(registration->specs[i]));
  const Status status = memory_.CheckTensors(std::span(tensors).subspan(begin), begin);
  if (!status) return Result<TensorId>(status.error());
  if (end == registration->specs.size()) return AddAll(kj::mv(registration));
  return ports_.timer.afterDelay(0 * kj::NANOSECONDS)
      .then([this, kept = kj::mv(registration)]() mutable { return CheckAll(kj::mv(kept)); });
}

kj::Promise<Result<TensorId>> SessionServer::AddAll(kj::Own<Registration> registration) {
  Registration& all = *registration;
  Status status = ports_.leases.Check(session_);
  if (status && !all.first) {
    if (status = BookTensors(memory_.HeldBytesWith(all.tensors)); !status) {
      return Result<TensorId>(status.error());
    }
    const Result<TensorId> first = memory_.NumberTensors(all.tensors.size());
    if (!first) {
      RebookTensors();
      return first;
    }
    all.first = *first;
  }
  if (status) status = AddSlice(all);
  if (!status) {
    RollBack(all);
    RebookTensors();
    return Result<TensorId>(status.error());
  }
  if (all.done == all.tensors.size()) {
    RebookTensors();
    return Result<TensorId>(*all.first);
  }
  return ports_.timer.afterDelay(0 * kj::NANOSECONDS)
      .then([this, kept = kj::mv(registration)]() mutable { return AddAll(kj::mv(kept)); });
}

Status SessionServer::AddSlice(Registration& registration) {
  HR_CHECK(registration.first && registration.done < registration.tensors.size(),
           registration.done);
  const auto begin = registration.tensors.begin() + registration.done;
  const auto end =
      begin + std::min<std::ptrdiff_t>(kTensorsPerTurn, registration.tensors.end() - begin);
  const TensorId first{registration.first->value + registration.done};
  memory_.PlaceTensors(first, {begin, end});
  if (!ports_.dispatch.SendInOrder(
          AddTensors{.session = session_,
                     .first = first,
                     .tensors = {std::move_iterator(begin), std::move_iterator(end)}})) {
    return Behind();
  }
  registration.done += static_cast<std::uint32_t>(end - begin);
  return {};
}

Status SessionServer::BookTensors(std::uint64_t held_bytes) {
  const std::uint64_t wanted = std::max(held_bytes, kTensorBytesFree) - kTensorBytesFree;
  if (wanted > tensor_bytes_booked_) {
    const std::uint64_t more = wanted - tensor_bytes_booked_;
    if (Status status = ports_.leases.ReserveMemory(session_, more, "tensors"); !status) {
      return status;
    }
  } else {
    ports_.leases.ReleaseMemory(session_, tensor_bytes_booked_ - wanted);
  }
  tensor_bytes_booked_ = wanted;
  return {};
}

void SessionServer::RebookTensors() {
  const Status booked = BookTensors(memory_.HeldBytes());
  HR_CHECK(booked.ok(), memory_.HeldBytes(), tensor_bytes_booked_);
}

void SessionServer::RollBack(const Registration& registration) {
  if (!registration.first) return;
  const auto count = static_cast<std::uint32_t>(registration.tensors.size());
  HR_CHECK(registration.done < count, registration.done, count);
  // The client may have guessed their numbers and released some of them between two slices: then
  // the others stay taken for as long as its session lasts.
  [[maybe_unused]] const Status removed = memory_.RemoveTensors(*registration.first, count);
  if (registration.done == 0) return;
  ports_.dispatch.SendReliably(
      RemoveTensors{.session = session_, .first = *registration.first, .count = registration.done});
}

kj::Promise<void> SessionServer::releaseTensors(ReleaseTensorsContext context) {
  const TensorId first{context.getParams().getFirst()};
  const std::uint32_t count = context.getParams().getCount();
  Status status = ports_.leases.Check(session_);
  if (status) status = memory_.CheckRemoval(first, count);
  if (status &&
      !ports_.dispatch.Send(RemoveTensors{.session = session_, .first = first, .count = count})) {
    status = Behind();
  }
  if (status) {
    status = memory_.RemoveTensors(first, count);
    HR_CHECK(status.ok(), first.value, count);
    // Those of a registration under way are booked, and not all of them are in their places yet.
    if (slow_call_ == nullptr) RebookTensors();
  }
  if (!status) Refuse(context.getResults().initRefusal(), status.error().Within("release tensors"));
  return kj::READY_NOW;
}

namespace {

ResidualsPlace ReadResidualsPlace(schema::Session::SetLayoutParams::Reader params) {
  ResidualsPlace place{
      .segment = {}, .offset = params.getResiduals(), .factors_rank = params.getFactorsRank()};
  const std::uint32_t segment = params.getResidualsSegment();
  if (segment != schema::GRADIENTS_SEGMENT) place.segment = SegmentId{segment};
  return place;
}

}  // namespace

kj::Promise<void> SessionServer::setLayout(SetLayoutContext context) {
  const auto params = context.getParams();
  const auto policy = params.getPolicy();
  const auto codec = params.getCodec();
  std::vector<std::string> codecs;
  // One too many is enough to refuse them.
  for (const auto each : params.getCodecs()) {
    if (codecs.size() > kLayoutTensorsMax) break;
    codecs.emplace_back(each.begin(), each.size());
  }
  std::vector<std::uint64_t> rows;
  for (const std::uint64_t each : params.getRows()) {
    if (rows.size() > kLayoutTensorsMax) break;
    rows.push_back(each);
  }
  return Set({.first = TensorId{params.getFirst()},
              .count = params.getCount(),
              .reduction = static_cast<Reduction>(params.getReduction()),
              .policy = std::string(policy.begin(), policy.size()),
              .codec = std::string(codec.begin(), codec.size()),
              .codecs = std::move(codecs),
              .compress_after = params.getCompressAfter(),
              .residuals = ReadResidualsPlace(params),
              .iterations_before = params.getIterationsBefore(),
              .adaptive = params.getAdaptive(),
              .rows = std::move(rows)})
      .then([context](const Status& status) mutable {
        if (status) return;
        Refuse(context.getResults().initRefusal(), status.error().Within("set layout"));
      });
}

Status SessionServer::ReadCodecs(const LayoutRequest& request, Layout& layout) const {
  const Result<CodecChoice> codec = ReadCodecNames(request.codec);
  if (!codec) return codec.error();
  std::vector<std::optional<CodecChoice>> each;
  for (const std::string& name : request.codecs) {
    const Result<CodecChoice> own = ReadCodecNames(name);
    if (!own) return own.error();
    each.push_back(name.empty() ? std::nullopt : std::optional(*own));
  }
  layout.compress_after = request.compress_after;
  layout.iterations_before = request.iterations_before;
  layout.adaptive = request.adaptive;
  if (Status status = SetRows(layout, request.rows); !status) return status;
  if (Status status = CheckIterationsBefore(request.iterations_before); !status) return status;
  const GradientsPlace on_gpus =
      ports_.nccl_between_nodes ? GradientsPlace::kGpusByNccl : GradientsPlace::kGpusThroughHost;
  const bool is_on_gpu = memory_.IsOnDevice(request.first);
  if (Status status = SetCodecs(layout, *codec, each, is_on_gpu ? on_gpus : GradientsPlace::kHost);
      !status) {
    return status;
  }
  if (request.residuals.is_nowhere()) return {};
  return memory_.CheckResiduals(request.first, layout, request.residuals);
}

kj::Promise<Status> SessionServer::Set(const LayoutRequest& request) {
  if (Status status = ports_.leases.Check(session_); !status) return status;
  const SessionIdentity* identity = ports_.leases.Find(session_);
  HR_CHECK(identity != nullptr, session_.value);
  const Result<std::optional<plan::Policy>> policy = ReadPolicyName(request.policy);
  if (!policy) return Status(policy.error());
  Result<Layout> made = memory_.MakeLayout(request.first, request.count, request.reduction);
  if (!made) return Status(made.error());
  if (Status status = ReadCodecs(request, *made); !status) return status;
  // From here on none of the tensors may go; a layout that is refused was none.
  memory_.KeepLayout(request.first, request.count);
  return ports_.peers
      .Ask(HandInLayout{.identity = *identity,
                        .first = request.first,
                        .layout = std::make_shared<const Layout>(std::move(made).value()),
                        .policy = *policy,
                        .residuals = request.residuals})
      .then([this](Status status) {
        // Nobody knows what an answer that did not come would have been.
        if (!status && status.code() != Code::kTimeout) memory_.DropLayout();
        return status;
      });
}

kj::Promise<void> SessionServer::lateness(LatenessContext context) {
  // Whoever drops the session does not wait for this.
  context.allowCancellation();
  const SessionIdentity* identity = ports_.leases.Find(session_);
  const TimeNs late_ns = ports_.late_ns;
  if (identity == nullptr || identity->rendezvous.empty() || late_ns == 0 ||
      std::exchange(asked_lateness_, true)) {
    return kj::READY_NOW;
  }
  const TimeNs until_ns = identity->attached_ns + late_ns;
  const TimeNs left_ns = std::max<TimeNs>(until_ns - MonotonicNow(), 0);
  return ports_.peers
      .Ask(AskForming{.job = identity->job, .until_ns = until_ns}, left_ns + kPeersTimeout)
      .then([context](const Status& waits) mutable {
        // Another code says that peers did not answer, which is not for the trainer.
        if (waits || waits.code() != Code::kUnavailable) return;
        context.getResults().setText(waits.error().text());
      });
}

kj::Promise<void> SessionServer::stopping(StoppingContext context) {
  context.allowCancellation();
  if (std::exchange(asked_stopping_, true)) {
    return KJ_EXCEPTION(FAILED, "stopping is asked once a session");
  }
  return ports_.shutdown.WhenBegun().then([this, context]() mutable {
    const SessionIdentity* identity = ports_.leases.Find(session_);
    const TimeNs patience_ns = ports_.shutdown.patience_ns();
    if (identity == nullptr || identity->can_reconnect || patience_ns == 0) return;
    context.getResults().setText(
        fmt::format("the service stops in {} s at most, and job {} cannot reconnect, since "
                    "HEADRACE_RECONNECT is "
                    "not set: it ends then, unless it has ended before",
                    patience_ns / kSecond, identity->job_name));
  });
}

kj::Promise<void> SessionServer::notice(NoticeContext context) {
  context.allowCancellation();
  return ports_.notices.Next(session_).then([context](SessionNotice notice) mutable {
    context.getResults().setKind(static_cast<std::uint8_t>(notice.kind));
    context.getResults().setText(notice.text);
  });
}

kj::Promise<void> SessionServer::leave(LeaveContext context) {
  if (Status status = ports_.leases.Check(session_); !status) {
    Refuse(context.getResults().initRefusal(), status.error());
    return kj::READY_NOW;
  }
  ports_.leases.End(session_, true, Code::kUnavailable, "left the job");
  if (client_->session == session_) client_->session = {};
  return kj::READY_NOW;
}

}  // namespace headrace::service

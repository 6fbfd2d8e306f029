#include "client/lib/session.h"

#include <fmt/format.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <numeric>
#include <utility>
#include <vector>

#include "client/lib/options.h"
#include "ipc/base/codecs.h"
#include "ipc/base/collective_text.h"
#include "ipc/base/foreign_text.h"

namespace headrace::client {
namespace {

// A post that finds the channel full waits a little longer than the service lets its oldest
// operation live.
constexpr TimeNs kFullWaitMargin = kSecond;

Result<Session::Endpoints> CreateEndpoints(ipc::Channel::Created& created) {
  Result<ForkGuard> guard = ForkGuard::Create();
  if (!guard) return guard.error();
  UniqueFd doorbell(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!doorbell) return SystemError("create an eventfd", errno);
  return Session::Endpoints{std::move(guard).value(), std::move(created.channel),
                            std::move(doorbell)};
}

std::string ProgramName(const hr_options& options) {
  const std::string program = options.program;
  return fmt::format("libheadrace {}{}{}{}", HEADRACE_VERSION, program.empty() ? "" : " (", program,
                     program.empty() ? "" : ")");
}

AttachRequest RequestOf(const hr_options& options) {
  return {.socket_path = options.socket_path,
          .job = options.job,
          .rank = options.rank,
          .world_size = options.world_size,
          .timeout_ms = options.timeout_ms,
          .rendezvous = options.rendezvous,
          .rendezvous_from = {},
          .architecture = options.architecture,
          .sends_class = options.sends_class,
          .slow_s = options.slow_bound_s,
          .slow_least_world = options.slow_evict != 0 ? options.shrink_min_world : 0,
          .min_world = options.shrink_min_world,
          .can_reconnect = options.reconnect_s != 0,
          .program = ProgramName(options),
          .call_timeout_ns = options.call_timeout_ms * kMillisecond};
}

Membership AllOf(std::uint32_t world_size) {
  Membership all;
  all.members.resize(world_size);
  std::iota(all.members.begin(), all.members.end(), 0);
  return all;
}

Result<Session::Attached> AttachToService(const AttachRequest& request, int channel_fd,
                                          int doorbell_fd, LossListener& listener) {
  auto connection = Connection::Attach(request, channel_fd, doorbell_fd, listener);
  if (!connection) return connection.error();
  const std::int32_t pid = (*connection)->service_pid();
  const Grant grant = (*connection)->grant();
  std::optional<Quorum> quorum = (*connection)->quorum();
  return Session::Attached{std::move(connection).value(), pid, grant, std::move(quorum)};
}

Result<TensorSpec> SpecOf(const hr_tensor_spec& spec, std::size_t index) {
  const auto wrong = [index](const std::string& what) {
    return Error(Code::kInvalidArgument, fmt::format("tensor {} of the list: {}", index, what));
  };
  if (spec.segment == nullptr) return wrong("its segment is NULL");
  const auto dtype = static_cast<std::uint8_t>(spec.dtype);
  if (!IsDType(dtype)) return wrong(UnknownDTypeText(dtype));
  const std::size_t element = SizeOf(static_cast<DType>(dtype));
  const std::size_t size = spec.segment->size;
  if (spec.offset % element != 0) {
    return wrong(
        fmt::format("offset {} is not a multiple of the element size {}", spec.offset, element));
  }
  if (spec.count == 0 || spec.offset > size || spec.count > (size - spec.offset) / element) {
    return wrong(
        fmt::format("{} elements of {} bytes from offset {} do not lie within the "
                    "segment's {} bytes",
                    spec.count, element, spec.offset, size));
  }
  return TensorSpec{spec.name == nullptr ? "" : spec.name,
                    spec.segment->id,
                    spec.offset,
                    spec.count,
                    static_cast<DType>(dtype),
                    spec.order};
}

Result<std::vector<TensorSpec>> SpecsOf(std::span<const hr_tensor_spec> specs) {
  std::vector<TensorSpec> announced;
  announced.reserve(specs.size());
  for (std::size_t i = 0; i < specs.size(); ++i) {
    Result<TensorSpec> spec = SpecOf(specs[i], i);
    if (!spec) return spec.error();
    announced.push_back(std::move(spec).value());
  }
  return announced;
}

}  // namespace

Session::Session(const hr_options& options, Endpoints endpoints, Attacher attach)
    : attach_(std::move(attach)),
      request_(RequestOf(options)),
      reconnect_ns_(options.reconnect_s * kSecond),
      shrink_(options.shrink_min_world == 0
                  ? std::nullopt
                  : std::optional(ShrinkRules{.min_world = options.shrink_min_world,
                                              .grace_ms = options.shrink_grace_ms})),
      rank_(options.rank),
      world_size_(options.world_size),
      membership_(AllOf(options.world_size)),
      came_as_(static_cast<std::uint8_t>(options.role)),
      role_(came_as_),
      endpoints_(std::move(endpoints)),
      operations_(endpoints_.channel.layout(), endpoints_.doorbell.get(),
                  options.spin_us * kMicrosecond),
      gpus_(endpoints_.channel.layout()) {}

Session::~Session() {
  if (!gpus_.HasWords()) return;
  // Streams that wait for an operation are let go by its end, and only then may the words go.
  operations_.Lose(Error(Code::kCancelled, fmt::format("rank {} closed its session", rank())));
  gpus_.LetStreamsPass(kStreamsPassMax);
}

void Session::Adopt(Attached attached) {
  control_ = std::move(attached.control);
  if (arrays_ == nullptr) {
    arrays_ = std::make_unique<Arrays>(*control_, operations_);
  } else {
    arrays_->Renew(*control_);
  }
  service_pid_.store(attached.service_pid, std::memory_order_relaxed);
  epoch_ = std::max(epoch_, attached.grant.epoch);
  const std::uint32_t timeout_ms = attached.grant.timeout_ms;
  operations_.BoundFullWait(timeout_ms == 0 ? kNever : timeout_ms * kMillisecond + kFullWaitMargin);
}

Result<std::unique_ptr<Session>> Session::Open(const hr_options& given,
                                               std::string_view rendezvous_from) {
  if (Status status = CheckOptions(given); !status) return status.error();
  hr_options options = given;
  if (options.role != HR_ROLE_RANK) {  // which rank it is to be, and of how many, it is told
    options.rank = 0;
    options.world_size = 1;
  }
  Result<ipc::Channel::Created> created = ipc::Channel::Create();
  if (!created) return created.error();
  Result<Endpoints> endpoints = CreateEndpoints(*created);
  if (!endpoints) return endpoints.error();
  const int doorbell = endpoints->doorbell.get();
  auto session = std::make_unique<Session>(options, std::move(endpoints).value(), AttachToService);
  session->request_.rendezvous_from = rendezvous_from;
  if (session->role_ != HR_ROLE_RANK) {
    if (Status status = session->Join(); !status) return status.error();
    return session;
  }
  Result<Attached> attached =
      session->attach_(session->request_, created->fd.get(), doorbell, *session);
  if (!attached) return attached.error();
  session->Adopt(std::move(attached).value());
  return session;
}

Status Session::CheckProcess() const {
  if (!InChild()) return {};
  return Error(Code::kInvalidArgument,
               fmt::format("rank {} of job {} was attached by the parent of this process: a forked "
                           "child must open a session of its own",
                           rank(), job()));
}

Status Session::Reconnecting() const {
  return Error(
      Code::kUnavailable,
      fmt::format("rank {} of job {} is reconnecting to the service at {}: call again when "
                  "hr_session_reconnect has returned",
                  rank(), job(), request_.socket_path));
}

template <typename Handle>
Status Session::CheckOwned(const Owned<Handle>& owned, const Handle* handle, const char* what) {
  std::lock_guard lock(mutex_);
  if (owned.contains(handle)) return {};
  return Error(Code::kInvalidArgument,
               fmt::format("the {} is not of this session, or was released before", what));
}

Result<hr_segment*> Session::CreateSegment(std::size_t size) {
  if (size == 0 || size > ipc::kSegmentSizeMax - ipc::kPageSize) {
    return Error(Code::kInvalidArgument, fmt::format("segment of {} bytes: 1 to {} are possible",
                                                     size, ipc::kSegmentSizeMax - ipc::kPageSize));
  }
  const std::size_t whole = (size + ipc::kPageSize - 1) / ipc::kPageSize * ipc::kPageSize;
  Result<ipc::SealedMemory> memory = ipc::CreateSealedMemory("headrace-segment", whole);
  if (!memory) return memory.error();
  if (Status status = ipc::Populate(*memory); !status) return status.error();
  const Result<std::uint32_t> id = control_->RegisterSegment(memory->fd.get(), whole);
  if (!id) return id.error();
  auto segment = std::make_unique<hr_segment>();
  segment->id = *id;
  segment->address = memory->mapping.data();
  segment->size = whole;
  segment->memory = std::move(memory).value();
  return Own(std::move(segment));
}

Result<hr_segment*> Session::CreateDeviceSegment(std::size_t size, int device) {
  if (size == 0 || size > kDeviceMemorySizeMax) {
    return Error(Code::kInvalidArgument, fmt::format("segment of {} bytes: 1 to {} are possible",
                                                     size, kDeviceMemorySizeMax));
  }
  if (Status status = gpus_.CheckDevice(device); !status) return status.error();
  Result<std::shared_ptr<const transport::CudaDriver>> driver = gpus_.Driver();
  if (!driver) return driver.error();
  auto memory = GpuMemory::Allocate(std::move(driver).value(), device, size);
  if (!memory) return memory.error();
  if (Status status = gpus_.NoteMemoryOn(device); !status) return status.error();
  const Result<transport::DeviceGrant> grant = (*memory)->arena().Grant();
  if (!grant) return grant.error();
  const Result<std::uint32_t> id = control_->RegisterDeviceSegment(grant->handle, grant->fds);
  if (!id) return id.error();
  const transport::DeviceArena& arena = (*memory)->arena();
  auto segment = std::make_unique<hr_segment>();
  segment->id = *id;
  segment->device = device;
  segment->address = reinterpret_cast<std::byte*>(arena.address());  // NOLINT: of the GPU
  segment->size = arena.size();
  segment->gpu_memory = std::move(memory).value();
  return Own(std::move(segment));
}

Result<hr_segment*> Session::ShareDeviceSegment(void* address, std::size_t size) {
  const auto grant = gpus_.Grant(reinterpret_cast<transport::CuAddress>(address), size);  // NOLINT
  if (!grant) return grant.error();
  if (Status status = gpus_.NoteMemoryOn(grant->device); !status) return status.error();
  const Result<std::uint32_t> id = control_->RegisterDeviceSegment(grant->handle, grant->fds);
  if (!id) return id.error();
  auto segment = std::make_unique<hr_segment>();
  segment->id = *id;
  segment->device = grant->device;
  segment->address = static_cast<std::byte*>(address);
  segment->size = size;
  return Own(std::move(segment));
}

Result<hr_allocation> Session::AllocationAt(const void* address) {
  const auto found = gpus_.AllocationAt(reinterpret_cast<transport::CuAddress>(address));
  if (!found) return found.error();
  return hr_allocation{.base = reinterpret_cast<void*>(found->base),  // NOLINT: of the GPU
                       .size = found->size,
                       .number = found->number,
                       .device = found->device};
}

hr_segment* Session::Own(std::unique_ptr<hr_segment> segment) {
  hr_segment* handle = segment.get();
  std::lock_guard lock(mutex_);
  segments_.emplace(handle, std::move(segment));
  return handle;
}

Status Session::ReleaseSegment(hr_segment* segment) {
  if (segment == nullptr) return {};
  if (Status status = CheckOwned(segments_, segment, "segment"); !status) return status;
  if (Status status = control_->ReleaseSegment(segment->id); !status) return status;
  std::lock_guard lock(mutex_);
  segments_.erase(segment);
  return {};
}

Status Session::RegisterTensors(std::span<const hr_tensor_spec> specs, hr_tensor** tensors) {
  if (specs.empty()) return {};
  const Result<std::vector<TensorSpec>> announced = SpecsOf(specs);
  if (!announced) return announced.error();
  const Result<std::uint32_t> first = control_->RegisterTensors(*announced);
  if (!first) return first.error();
  std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const hr_segment& segment = *specs[i].segment;
    const TensorSpec& spec = (*announced)[i];
    auto tensor = std::make_unique<hr_tensor>(
        hr_tensor{*first + static_cast<std::uint32_t>(i), segment.address + specs[i].offset,
                  spec.count, spec.dtype, segment.device, &segment, spec});
    tensors[i] = tensor.get();
    tensors_.emplace(tensors[i], std::move(tensor));
  }
  return {};
}

Status Session::ReleaseTensors(std::span<hr_tensor*> tensors) {
  for (const hr_tensor* tensor : tensors) {
    if (tensor == nullptr) continue;
    if (Status status = CheckOwned(tensors_, tensor, "tensor"); !status) return status;
  }
  for (std::size_t begin = 0; begin < tensors.size();) {
    if (tensors[begin] == nullptr) {
      ++begin;
      continue;
    }
    // Tensors registered together stand in a row and go in one round trip.
    std::size_t end = begin + 1;
    while (end < tensors.size() && tensors[end] != nullptr &&
           tensors[end]->id == tensors[end - 1]->id + 1) {
      ++end;
    }
    const auto count = static_cast<std::uint32_t>(end - begin);
    const std::uint32_t first = tensors[begin]->id;
    // The service knows only of what it has read of the channel.
    if (const std::uint64_t open = operations_.OldestOpenOn(first, count); open != 0) {
      return Error(
          Code::kBusy,
          fmt::format("the tensor is in use: operation {} is open; wait for it first", open));
    }
    const Status status = control_->ReleaseTensors(first, count);
    if (!status) return status;
    std::lock_guard lock(mutex_);
    for (; begin < end; ++begin) tensors_.erase(std::exchange(tensors[begin], nullptr));
  }
  return {};
}

// Registers what must stay together: tensors that no layout takes go again.
Result<std::uint32_t> Session::Announce(std::span<const TensorSpec> specs, LayoutNotice& notice) {
  const Result<std::uint32_t> first = control_->RegisterTensors(specs);
  if (!first) return first.error();
  notice.first = *first;
  notice.count = static_cast<std::uint32_t>(specs.size());
  const Status taken = control_->SetLayout(notice);
  if (taken.ok()) return *first;
  // What the caller needs to know is why the layout was refused, not how the tensors went.
  [[maybe_unused]] const Status released = control_->ReleaseTensors(notice.first, notice.count);
  return taken.error();
}

Result<hr_layout*> Session::CreateLayout(std::span<const hr_tensor_spec> specs,
                                         const hr_layout_options& options) {
  if (Status status = CheckLayout(specs, options); !status) return status.error();
  Result<std::vector<TensorSpec>> announced = SpecsOf(specs);
  if (!announced) return announced.error();
  Layout::Shape shape{.reduction = static_cast<Reduction>(options.reduction),
                      .device = specs[0].segment->device};
  for (std::size_t i = 0; i < specs.size(); ++i) {
    (*announced)[i].order = static_cast<std::uint32_t>(i);
    shape.gradients.push_back({(*announced)[i].name, specs[i].count, (*announced)[i].dtype});
  }
  {
    std::lock_guard lock(mutex_);
    if (has_layout_) {
      return Error(Code::kAlreadyExists,
                   fmt::format("rank {} of job {} has a layout already: a session has one, for as "
                               "long as it lasts",
                               rank(), job()));
    }
    has_layout_ = true;  // taken before the round trips, so that two threads do not both make one
  }
  LayoutNotice notice = NoticeOf(options, specs.size());
  const Result<std::uint32_t> first = Announce(*announced, notice);
  std::lock_guard lock(mutex_);
  has_layout_ = first.ok();
  if (!first) return first.error();
  shape.first_tensor = *first;
  layout_request_ = {specs[0].segment, options.residuals_segment, std::move(announced).value(),
                     std::move(notice)};
  layout_.reset(new hr_layout{*this, Layout(operations_, std::move(shape))});
  return layout_.get();
}

void Session::SetLayoutIterations(std::uint64_t iterations) {
  std::lock_guard lock(mutex_);
  if (layout_request_) layout_request_->notice.iterations_before = iterations;
}

void Session::FreeLayout(const hr_layout* layout) {
  std::lock_guard lock(mutex_);
  if (layout_.get() == layout) layout_.reset();
}

Result<std::uint64_t> Session::Post(const Request& request, const hr_tensor* tensor,
                                    const hr_range* range) {
  Result<ipc::Record> record = TensorRecordOf(request, tensor, range, asker());
  if (!record) return record.error();
  AddCodec(*record);
  return operations_.Post(*record);
}

void Session::AddCodec(ipc::Record& record) const {
  const auto reduction = static_cast<Reduction>(record.reduction);
  const bool sums = reduction == Reduction::kSum || reduction == Reduction::kAverage;
  if (record.kind != static_cast<std::uint8_t>(Collective::kAllReduce) || !sums) return;
  if (record.dtype != static_cast<std::uint8_t>(DType::kFloat32)) return;
  record.tag = all_reduce_codec_.load(std::memory_order_relaxed);  // no other memory goes with it
}

Status Session::SetAllReduceCodec(std::string_view name) {
  const std::optional<Codec> codec = CodecNamed(name.empty() ? "none" : name);
  if (!codec || NeedsResidual(*codec)) {
    return Error(
        Code::kInvalidArgument,
        fmt::format("codec \"{}\" is not possible for all-reduces (possible: none, bf16, fp16, "
                    "int8-stochastic, int4-stochastic, lossless); others need what they left out "
                    "before, which is kept for the gradients of a layout only",
                    Printable(name, HR_CODEC_SIZE)));
  }
  all_reduce_codec_.store(SteeringValue(*codec), std::memory_order_relaxed);
  return {};
}

Result<std::uint64_t> Session::Post(Result<ArrayRequest> request) {
  if (!request) return request.error();
  AddCodec(request->record);
  return arrays_->Post(request->record, std::move(request->use));
}

Result<std::uint64_t> Session::Post(Result<TableRequest> request) {
  if (!request) return request.error();
  return arrays_->PostTable(request->record, std::move(request->parts), nullptr);
}

Result<TableRequest> Session::PartsRequest(const Request& request, const hr_tensor* whole,
                                           const hr_range* whole_range, const hr_tensor* own,
                                           const hr_range* own_range, const std::uint64_t* counts) {
  for (const hr_tensor* tensor : {whole, own}) {
    if (tensor == nullptr) continue;  // which is refused below
    if (Status status = CheckOwned(tensors_, tensor, "tensor"); !status) return status.error();
  }
  const std::span<const std::uint64_t> given(counts, counts == nullptr ? 0 : world_size());
  return PartsRequestOf(request, whole, whole_range, own, own_range, given, asker());
}

Result<std::uint64_t> Session::PostOnStream(Result<TableRequest> request, int device,
                                            transport::CuStream stream) {
  if (!request) return request.error();
  const Result<GpuWords*> words = WordsFor(device, stream);
  if (!words) return words.error();
  StreamSignal signal(**words, stream);
  return arrays_->PostTable(request->record, std::move(request->parts), &signal);
}

Result<std::uint64_t> Session::PostOnStream(const Request& request, const hr_tensor* tensor,
                                            const hr_range* range, transport::CuStream stream) {
  Result<ipc::Record> record = TensorRecordOf(request, tensor, range, asker());
  if (!record) return record.error();
  AddCodec(*record);
  const Result<GpuWords*> words = WordsFor(tensor->device, stream);
  if (!words) return words.error();
  StreamSignal signal(**words, stream);
  return operations_.PostWhenReady(*record, signal);
}

Result<GpuWords*> Session::WordsFor(int device, transport::CuStream stream) {
  if (device >= 0) return gpus_.WordsOf(device, stream);
  return Error(Code::kInvalidArgument,
               "the memory is the host's, which no stream makes ready: post it without a stream");
}

Status Session::Leave() {
  // The host may be far ahead of its GPU: what a stream is still to make ready would be missed by
  // the other ranks, and what it waits for would be cut short.
  gpus_.AwaitStreams(kStreamsPassMax);
  return control_->Leave();
}

Status Session::WaitOnStream(std::uint64_t operation, transport::CuStream stream) {
  const Result<bool> ended = operations_.HasEnded(operation);
  if (!ended) return ended.error();
  const Result<GpuWords*> words = gpus_.WordsForWaits(stream);
  if (!words) return words.error();
  if (*ended) return {};
  return (*words)->AwaitEnd(stream, operations_.NumberInChannel(operation));
}

Result<std::uint64_t> Session::PostBarrier() {
  return operations_.Post(RecordOf(Request{}, DType::kUInt8, 0));
}

Status Session::Wait(std::uint64_t operation, TimeNs timeout_ns) {
  const Result<bool> ended = operations_.WaitForEnd(operation, timeout_ns);
  if (!ended) return ended.error();
  if (!*ended) {
    return Error(Code::kTimeout, fmt::format("operation {} is still open after {} ms of waiting",
                                             operation, timeout_ns / kMillisecond));
  }
  const ipc::Outcome outcome = operations_.OutcomeOf(operation);
  arrays_->Settle(operation, outcome.code == Code::kOk);
  if (outcome.code == Code::kOk) return {};
  const std::string name = fmt::format("operation {}", operation);
  // The service may have begun with it: "operation 1 [broadcast of ...] timed out".
  if (outcome.text.starts_with(name + " ")) return Error(outcome.code, outcome.text);
  return Error(outcome.code, fmt::format("{}: {}", name, outcome.text));
}

void Session::ReadCounters(hr_counters& counters) const {
  const OperationCounters& from = operations_.counters();
  counters.posted = operations_.posted();
  counters.waits = from.waits.load(std::memory_order_relaxed);
  counters.waited_ns = from.waited_ns.load(std::memory_order_relaxed);
  counters.doorbells = from.doorbells.load(std::memory_order_relaxed);
  counters.full_waits = from.full_waits.load(std::memory_order_relaxed);
  counters.arrays = arrays_->posted();
  counters.copied_bytes = arrays_->copied_size();
  counters.staging_bytes = arrays_->staging_size();
}

void Session::CloseInChild() {
  control_->CloseInChild();
  ::close(endpoints_.doorbell.get());
}

}  // namespace headrace::client

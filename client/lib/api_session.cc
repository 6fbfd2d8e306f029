// The C functions about sessions and memory.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "client/lib/api.h"
#include "client/lib/options.h"

using headrace::Code;
using headrace::CodeName;
using headrace::Error;
using headrace::Result;
using headrace::Status;
using headrace::client::Guarded;
using headrace::client::Session;
using headrace::client::ShrinkRules;
using headrace::client::WithSession;

namespace {
const char* FromProcess(const char* name) { return std::getenv(name); }
}  // namespace

extern "C" {

const char* hr_version(void) { return HEADRACE_VERSION; }

const char* hr_status_name(hr_status status) {
  // The names are literals, so they end in NUL.
  return CodeName(static_cast<Code>(status)).data();
}

hr_status hr_options_init_sized(hr_options* options, size_t size, hr_error* error) {
  return Guarded(error, [options, size]() -> Status {
    if (options == nullptr) return Error(Code::kInvalidArgument, "options is NULL");
    return headrace::client::FillSizedOptions(FromProcess, size, *options);
  });
}

hr_status(hr_options_init)(hr_options* options, hr_error* error) {
  return hr_options_init_sized(options, headrace::client::kFirstOptionsSize, error);
}

hr_status hr_layout_options_init_sized(hr_layout_options* options, size_t size, hr_error* error) {
  return Guarded(error, [options, size]() -> Status {
    if (options == nullptr) return Error(Code::kInvalidArgument, "options is NULL");
    return headrace::client::FillLayoutOptions(FromProcess, size, *options);
  });
}

hr_status hr_open(const hr_options* options, hr_session** session, hr_error* error) {
  return Guarded(error, [options, session]() -> Status {
    if (options == nullptr || session == nullptr) {
      return Error(Code::kInvalidArgument, "options or session is NULL");
    }
    const Result<hr_options> whole = headrace::client::WholeOptions(FromProcess, *options);
    if (!whole) return whole.error();
    Result<std::unique_ptr<Session>> opened =
        Session::Open(*whole, headrace::client::RendezvousSource(FromProcess, *whole));
    if (!opened) return opened.error();
    const char* library = FromProcess("HEADRACE_CUDA_LIBRARY");
    if (library != nullptr && *library != '\0') (*opened)->UseCudaLibrary(library);
    *session = new hr_session{std::move(opened).value()};
    return {};
  });
}

hr_status hr_close(hr_session* session, hr_error* error) {
  if (session == nullptr) return HR_OK;
  if (session->session->InChild()) {
    // The parent's threads do not exist here and its locks are in an unknown state: nothing can be
    // destroyed, only the descriptors can go.
    session->session->CloseInChild();
    return HR_OK;
  }
  return Guarded(error, [session]() -> Status {
    Status status = session->session->Leave();
    delete session;
    return status;
  });
}

hr_status hr_session_reconnect(hr_session* session, int64_t timeout_ns, hr_error* error) {
  return Guarded(error, [session, timeout_ns]() -> Status {
    if (session == nullptr) return Error(Code::kInvalidArgument, "the session is NULL");
    if (Status status = session->session->CheckProcess(); !status) return status;
    return session->session->Reconnect(timeout_ns);
  });
}

hr_status hr_session_shrink(hr_session* session, int64_t timeout_ns, uint32_t min_world,
                            uint32_t grace_ms, hr_error* error) {
  return Guarded(error, [=]() -> Status {
    if (session == nullptr) return Error(Code::kInvalidArgument, "the session is NULL");
    if (Status status = session->session->CheckProcess(); !status) return status;
    if (min_world == 0) {
      return Error(Code::kInvalidArgument, "min_world is 0: a job has one rank at least");
    }
    return session->session->Shrink(timeout_ns,
                                    ShrinkRules{.min_world = min_world, .grace_ms = grace_ms});
  });
}

uint32_t hr_session_rank(const hr_session* session) { return session->session->rank(); }

uint32_t hr_session_world_size(const hr_session* session) { return session->session->world_size(); }

uint32_t hr_session_members(const hr_session* session, uint32_t* members, uint32_t room) {
  const std::vector<std::uint32_t>& all = session->session->members();
  if (members != nullptr)
    std::copy_n(all.begin(), std::min<std::size_t>(room, all.size()), members);
  return static_cast<std::uint32_t>(all.size());
}

uint32_t hr_session_role(const hr_session* session) { return session->session->came_as(); }

int hr_session_members_wait(const hr_session* session) {
  return session->session->members_wait() ? 1 : 0;
}

hr_status hr_session_count_waits(hr_session* session, const hr_session* in, hr_error* error) {
  return WithSession(session, error, [session, in](Session& opened) -> Status {
    if (in == nullptr || in == session) {
      return Error(Code::kInvalidArgument,
                   "waits of a session are counted in another one, which is not NULL");
    }
    opened.CountWaitsIn(*in->session);
    return {};
  });
}

const char* hr_session_rendezvous(const hr_session* session) {
  return session->session->rendezvous().c_str();
}

const char* hr_session_job(const hr_session* session) { return session->session->job().c_str(); }

int32_t hr_session_service_pid(const hr_session* session) {
  return session->session->service_pid();
}

hr_status hr_session_compress(hr_session* session, const char* codec, hr_error* error) {
  return WithSession(session, error, [codec](Session& opened) {
    return opened.SetAllReduceCodec(codec == nullptr ? "" : codec);
  });
}

hr_status hr_session_counters(const hr_session* session, hr_counters* counters, hr_error* error) {
  return WithSession(session, error, [counters](Session& opened) -> Status {
    if (counters == nullptr || counters->size != sizeof *counters) {
      return Error(Code::kInvalidArgument,
                   "counters is NULL or its size is not that of this library's hr_counters");
    }
    opened.ReadCounters(*counters);
    return {};
  });
}

hr_status hr_segment_create(hr_session* session, size_t size, hr_segment** segment,
                            hr_error* error) {
  return WithSession(session, error, [size, segment](Session& opened) -> Status {
    if (segment == nullptr) return Error(Code::kInvalidArgument, "segment is NULL");
    const Result<hr_segment*> created = opened.CreateSegment(size);
    if (!created) return created.error();
    *segment = *created;
    return {};
  });
}

void* hr_segment_address(const hr_segment* segment) { return segment->address; }

size_t hr_segment_size(const hr_segment* segment) { return segment->size; }

int hr_segment_descriptor(const hr_segment* segment) { return segment->memory.fd.get(); }

hr_status hr_segment_release(hr_session* session, hr_segment* segment, hr_error* error) {
  return WithSession(session, error,
                     [segment](Session& opened) { return opened.ReleaseSegment(segment); });
}

hr_status hr_tensor_register(hr_session* session, const hr_tensor_spec* spec, hr_tensor** tensor,
                             hr_error* error) {
  return hr_tensors_register(session, spec, 1, tensor, error);
}

hr_status hr_tensors_register(hr_session* session, const hr_tensor_spec* specs, size_t count,
                              hr_tensor** tensors, hr_error* error) {
  return WithSession(session, error, [=](Session& opened) -> Status {
    if (count != 0 && (specs == nullptr || tensors == nullptr)) {
      return Error(Code::kInvalidArgument, "specs or tensors is NULL");
    }
    return opened.RegisterTensors({specs, count}, tensors);
  });
}

hr_status hr_tensors_release(hr_session* session, hr_tensor** tensors, size_t count,
                             hr_error* error) {
  return WithSession(session, error, [tensors, count](Session& opened) -> Status {
    if (count != 0 && tensors == nullptr) {
      return Error(Code::kInvalidArgument, "tensors is NULL");
    }
    return opened.ReleaseTensors({tensors, count});
  });
}

void* hr_tensor_address(const hr_tensor* tensor) { return tensor->address; }

uint64_t hr_tensor_count(const hr_tensor* tensor) { return tensor->count; }

hr_dtype hr_tensor_dtype(const hr_tensor* tensor) { return static_cast<hr_dtype>(tensor->dtype); }

}  // extern "C"

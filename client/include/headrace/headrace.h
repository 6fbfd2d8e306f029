/* headrace.h: how a training process hands its gradients to headraced, the service of its node.
 *
 * Conventions, which hold for every function unless it says otherwise:
 *
 *  1. Order of use. Call hr_options_init and hr_open, then create segments and tensors, post
 *     operations, and call hr_close. Handles are invalid after their session was closed.
 *  2. Agreement. Ranks post the same operations in the same order: the nth operation of one rank
 *     is matched with the nth of every other. A mismatch ends that operation on all ranks with an
 *     error that names both sides. When several threads of a rank post, the program must give
 *     their posts the same order on every rank. Sends and receives are not counted here: they are
 *     matched by source, target and tag, and in the order of their posts within each such triple.
 *  3. Errors. Functions that can fail return an hr_status; HR_OK is 0. The last parameter is an
 *     optional hr_error (NULL: no text wanted) that is filled on failure with the same status and a
 *     sentence that names the cause and, where there is one, the remedy. On success it is
 *     untouched; outputs are written on success only.
 *  4. Threads. All functions on one session may be called from any thread at the same time, except
 *     hr_close, which must come last and alone. The library keeps no global and no thread-local
 *     state; each session has one thread of its own, with all signals blocked. The library does
 *     not change signal handlers. A program that uses kj itself must ignore SIGPIPE itself.
 *  5. Ownership. Handles belong to the session and live until they are released or the session is
 *     closed. Strings and arrays passed to a function are read during the call only, unless the
 *     function says otherwise.
 *  6. Units. Sizes and the offsets of segments are bytes; counts and the offsets of ranges are
 *     elements. Times are nanoseconds if the name ends in _ns and milliseconds if it ends in _ms.
 *     A negative timeout_ns means no timeout.
 *  7. Memory. While an operation is open (from its post to its end) its memory belongs to the
 *     service: do not read or write it. Another operation on the same memory ends with
 *     HR_INVALID_ARGUMENT, unless both only read it (as a broadcast's root does). An operation in
 *     stream order is open from the moment when the stream reaches it. A failed operation leaves
 *     the memory that it would have written undefined.
 *  8. Completion. Every operation ends exactly once, with success or an error, within its timeout
 *     or one second after the cause is known (a rank died, the service went away). After an error
 *     the session stays usable, unless the service is gone or the job has failed. Then every later
 *     call returns that error, until hr_session_reconnect has succeeded.
 *     A service that is stopped or stuck counts as gone in two cases: an operation is open for
 *     longer than the session's timeout and the service does not answer within a further quarter
 *     of it (1 to 10 s), or the service does not answer a round trip within call_timeout_ms. Then
 *     every wait ends with HR_UNAVAILABLE, also one without a timeout, waiting streams go on, and
 *     the session is lost as if the service had died. A paused job is waited for as long as the
 *     service answers. Memory stays mapped at its address. A service that continues later may
 *     still write to the memory of operations that were open, and then unmaps it; the outcome of
 *     an operation never changes.
 *  9. Cost. Posting an operation on a registered tensor makes no system call while the service is
 *     awake, no allocation and no round trip. All other functions that need the service make a
 *     round trip to it: call them before training starts.
 * 10. fork. A session belongs to the process that opened it. In a forked child every function
 *     returns HR_INVALID_ARGUMENT, except hr_close, which closes the child's copies of the
 *     descriptors and has no effect on the parent. Call it early: an inherited socket keeps the
 *     session attached after the parent has died.
 * 11. Versions. A structure begins with its size as the caller compiled it; hr_options_init sets
 *     it. New fields are added at the end, so programs compiled earlier keep working. Numbers and
 *     fields never change their meaning.
 */
#ifndef HEADRACE_HEADRACE_H
#define HEADRACE_HEADRACE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(HR_BUILDING_LIBRARY)
#define HR_API __attribute__((visibility("default")))
#else
#define HR_API
#endif

/* ---- Types and constants -------------------------------------------------------------------- */

/* Status of a call or an operation. */
typedef enum hr_status {
  HR_OK = 0,
  HR_INVALID_ARGUMENT = 1,  /* an argument or the call itself is invalid */
  HR_NOT_FOUND = 2,         /* the named object does not exist */
  HR_ALREADY_EXISTS = 3,    /* the rank or name is in use */
  HR_PERMISSION_DENIED = 4, /* the object belongs to another user */
  HR_VERSION_MISMATCH = 5,  /* library and service have different versions; the text has both */
  HR_UNAVAILABLE = 6,       /* the service is not running or went away */
  HR_BUSY = 7,              /* too much is open: wait for an operation, then retry */
  HR_TIMEOUT = 8,           /* the operation, or the wait for it, exceeded its timeout */
  HR_MISMATCH = 9,          /* ranks posted different operations */
  HR_PEER_LOST = 10,        /* a rank that the operation needs is gone */
  HR_CORRUPT = 11,          /* data that no correct client or service sends */
  HR_EXHAUSTED = 12,        /* a limit of the service or the machine was reached */
  HR_CANCELLED = 13,        /* a user ended it */
  HR_INTERNAL = 14          /* a bug, or an unexpected error of the system */
} hr_status;

typedef enum hr_dtype {
  HR_FLOAT32 = 1,
  HR_FLOAT64 = 2,
  HR_FLOAT16 = 3,
  HR_BFLOAT16 = 4,
  HR_INT32 = 5,
  HR_INT64 = 6,
  HR_UINT8 = 7
} hr_dtype;

/* float16 and bfloat16 are accumulated in float32. The order of a reduction is fixed by rank, so
 * all ranks get the same bits and so does a second run. Sums and products of integers that overflow
 * wrap around, modulo 2^bits of the type, signed types too. Averages of integers are divided before
 * anything wraps, and truncate toward zero. Minimum and maximum are NaN where any input is. */
typedef enum hr_reduction {
  HR_SUM = 1,
  HR_AVERAGE = 2,
  HR_MIN = 3,
  HR_MAX = 4,
  HR_PRODUCT = 5
} hr_reduction;

/* Sizes of strings include the terminating NUL. */
#define HR_JOB_NAME_SIZE 64
#define HR_SOCKET_PATH_SIZE 108 /* that of sockaddr_un.sun_path */
#define HR_RENDEZVOUS_SIZE 256
#define HR_ARCHITECTURE_SIZE 32
#define HR_SENDS_CLASS_SIZE 8
#define HR_ERROR_TEXT_SIZE 512
#define HR_UNSET UINT32_MAX      /* a rank or world size that was not set */
#define HR_ANY_SOURCE UINT32_MAX /* hr_recv: from any rank, as MPI_ANY_SOURCE */

typedef struct hr_error {
  hr_status code;
  char text[HR_ERROR_TEXT_SIZE]; /* UTF-8, ends in NUL */
} hr_error;

typedef struct hr_session hr_session;
typedef struct hr_segment hr_segment;
typedef struct hr_tensor hr_tensor;

/* An operation is identified by its number within the session, from 1. It needs no release. */
typedef uint64_t hr_operation;

/* The library's version, "0.1.0". Static storage. */
HR_API const char* hr_version(void);

/* The name of a status as it appears in logs, like "peer lost". Static storage. */
HR_API const char* hr_status_name(hr_status status);

/* ---- Opening and closing a session ---------------------------------------------------------- */

typedef struct hr_options {
  size_t size;                           /* of this structure; set by hr_options_init */
  char socket_path[HR_SOCKET_PATH_SIZE]; /* the service's socket */
  char job[HR_JOB_NAME_SIZE];            /* the same on all ranks; printable ASCII, no blanks */
  uint32_t rank;                         /* 0 .. world_size - 1 */
  uint32_t world_size;
  uint32_t timeout_ms;      /* timeout of every operation; 0: the service's default */
  uint32_t call_timeout_ms; /* timeout of a round trip to the service, including hr_open;
                             * registering memory may take longer while it makes progress */
  uint32_t spin_us;         /* how long a wait polls before it sleeps */
  char program[64];         /* for the service's log, e.g. "train.py"; may be empty */
  /* Rendezvous of the job: host or host:port of the service of one of its nodes, the same on all
   * ranks. The default port is 7733. Empty: all ranks are on this node, unless this node's service
   * has a rendezvous in its configuration. */
  char rendezvous[HR_RENDEZVOUS_SIZE];
  /* Who sums between nodes: "all-reduce" (the nodes themselves) or "parameter-server" (services
   * with the role "server"). Empty: as the service at the rendezvous is configured. All ranks that
   * set it must set the same. */
  char architecture[HR_ARCHITECTURE_SIZE];
  /* How many seconds hr_session_reconnect waits for a service that went away; 0: off, so that
   * each call needs a timeout. The C library never reconnects by itself. */
  uint32_t reconnect_s;
  /* The least number of ranks with which the job may go on after hr_session_reconnect found ranks
   * lost; 0: the job needs all of its ranks. */
  uint32_t shrink_min_world;
  /* How long such a reconnect waits for ranks of which no service knows anything. */
  uint32_t shrink_grace_ms;
  /* An hr_role. With another role than HR_ROLE_RANK, rank and world_size need not be set. */
  uint32_t role;
  /* Order between the job's blocks. "above": sends and receives go first, then operations that
   * only copy (all-gather, broadcast, all-to-all, gather, scatter), then sums and gradients.
   * "same": all go in turn. The value of rank 0 counts. Empty: unchanged; a job begins with
   * "above". `headracectl sends` changes it later. */
  char sends_class[HR_SENDS_CLASS_SIZE];
  /* A rank is reported as slow if its own work between its waits has taken at least 1.5 times as
   * long as the median of the others for this many seconds without a break. Events, the log and
   * `headracectl jobs` name it. 0: no rank is reported. The same number of seconds after the start
   * is not counted. A rank that does nothing for that long while others wait for it is reported,
   * too. The value of rank 0 counts, so set the same on all ranks; it should cover at least ten
   * iterations, and whatever one rank may do alone, and be less than timeout_ms. Time that a rank
   * waits outside of this session counts as its own work, and so does the time that GPU streams
   * wait. */
  uint32_t slow_bound_s;
  /* 1: a slow rank is also evicted, as by `headracectl evict`, if at least shrink_min_world ranks
   * are left. Its calls end with HR_PEER_LOST and the reason. It may come back with HR_ROLE_JOIN.
   */
  uint32_t slow_evict;
} hr_options;

/* The part that a process has in its job. */
typedef enum hr_role {
  HR_ROLE_RANK = 0,  /* one of the ranks with which the job begins */
  HR_ROLE_JOIN = 1,  /* joins a running job, whose world grows by it */
  HR_ROLE_SPARE = 2, /* joins a running job in the place of a lost rank */
  /* HR_ROLE_JOIN where torchrun has started the process again (TORCHELASTIC_RESTART_COUNT is not
   * 0), else HR_ROLE_RANK; hr_session_role tells which. */
  HR_ROLE_REJOIN = 3
} hr_role;

/* Fills `options` with defaults and with values from the environment:
 *   socket_path  HEADRACE_SOCKET, else /run/headrace/headrace.sock
 *   job          HEADRACE_JOB, else TORCHELASTIC_RUN_ID where torchrun was given a run id, else
 *                MASTER_ADDR:MASTER_PORT, else empty
 *   rank         RANK, else HR_UNSET
 *   world_size   WORLD_SIZE, else HR_UNSET
 *   timeout_ms   HEADRACE_TIMEOUT_MS, else 0
 *   spin_us      HEADRACE_SPIN_US, else 0
 *   rendezvous   HEADRACE_RENDEZVOUS, else MASTER_ADDR where LOCAL_WORLD_SIZE is less than
 *                WORLD_SIZE (so torchrun tells that a job spans nodes), else empty
 *   architecture HEADRACE_ARCHITECTURE, else empty
 *   reconnect_s  HEADRACE_RECONNECT, else 30 with HEADRACE_SHRINK, else 0
 *   shrink_min_world  HEADRACE_SHRINK, else 0
 *   shrink_grace_ms   HEADRACE_SHRINK_GRACE_MS, else 5000
 *   role         HEADRACE_ROLE: rank, join, spare, or rejoin, which is join where torchrun has
 *                started the process again (TORCHELASTIC_RESTART_COUNT is not 0), and else rank;
 *                else HR_ROLE_RANK
 *   sends_class  HEADRACE_SENDS_CLASS, else empty
 *   slow_bound_s, slow_evict  HEADRACE_SLOW: SECONDS or SECONDS:evict, else 0
 * An empty variable counts as unset. Fields that the program sets afterwards override these values.
 * Returns HR_INVALID_ARGUMENT if a variable has an invalid value (the text names it); that field
 * then has its default and all others are filled, so a caller that sets the field itself may go on.
 * Must not run at the same time as setenv.
 *
 * Programs call hr_options_init(options, error). It is a macro that passes the size of the
 * structure with which they were compiled. The function of the same name is for programs compiled
 * before the structure had a rendezvous: it fills the fields that they know. hr_open takes fields
 * that a program's structure does not have from the environment. */
HR_API hr_status hr_options_init_sized(hr_options* options, size_t size, hr_error* error);
HR_API hr_status hr_options_init(hr_options* options, hr_error* error);
#define hr_options_init(options, error) \
  hr_options_init_sized((options), sizeof(hr_options), (error))

/* Attaches this process to the service as one rank of a job. Returns as soon as the service has
 * accepted it, without waiting for other ranks. Errors: HR_INVALID_ARGUMENT (a field is missing or
 * wrong, another world size than the job's), HR_UNAVAILABLE (no service at the path),
 * HR_PERMISSION_DENIED, HR_VERSION_MISMATCH, HR_ALREADY_EXISTS (the rank is attached), HR_TIMEOUT
 * (the service does not answer), HR_EXHAUSTED.
 *
 * With HR_ROLE_JOIN or HR_ROLE_SPARE it waits until the ranks of the job, which has the same user,
 * admit this process: they do so when all of them call hr_session_shrink. It waits for at most
 * reconnect_s (0: 30 s; a spare waits without a limit) and then returns HR_TIMEOUT. It returns when
 * all ranks have attached, at the same time as their calls do. The number of such a rank in
 * hr_session_members was never used before. */
HR_API hr_status hr_open(const hr_options* options, hr_session** session, hr_error* error);

/* Leaves the job and frees the session with all of its handles; segments are unmapped. Operations
 * of this rank that are still open end for the other ranks with an error that names this rank. NULL
 * is allowed. The session is freed in any case; the status says whether the service confirmed it.
 */
HR_API hr_status hr_close(hr_session* session, hr_error* error);

/* Restores the session after its service went away or its job failed. Waits for at most
 * `timeout_ns` (0: hr_options.reconnect_s) until a service listens at the same socket, attaches to
 * it as the same rank of the same job, registers every segment, tensor and the layout again, and
 * waits until all other ranks have done the same. After that, operations can be posted again. All
 * ranks of the job must call it, also those whose service is alive, because a job that ends on one
 * node ends on all.
 *
 * Handles, addresses, the contents of memory, descriptors, counters, the numbers of operations and
 * their outcomes are kept. Operations that were open have failed, and the memory that they would
 * have written is undefined. A layout is between iterations: hr_layout_begin_backward comes next.
 * The caller must see to it that all ranks continue from the same iteration, because the last
 * operation may have succeeded on one rank and failed on another. The call counts as one operation,
 * a barrier.
 *
 * The job continues in a new epoch, greater than all former ones; `headracectl jobs` shows it.
 * Ranks that reconnect and ranks that have just called hr_open are never in the same epoch. If the
 * service went away before all ranks had attached, end all of them and start the job again.
 *
 * Only one thread may call it. Meanwhile calls of other threads end with HR_UNAVAILABLE, except
 * hr_discard, which waits. After a failure the session is still lost, and the call may be repeated.
 * Errors: HR_INVALID_ARGUMENT (nothing is lost: the service is there and no operation has failed; a
 * timeout of 0 without reconnect_s; a forked child), HR_BUSY (another thread is in this call),
 * HR_TIMEOUT (the text says what was missing: the service, or which rank). Errors that waiting
 * cannot fix are returned at once: HR_VERSION_MISMATCH (the new service is of another release),
 * HR_PERMISSION_DENIED, HR_MISMATCH, HR_CANCELLED (a user ended the job). */
HR_API hr_status hr_session_reconnect(hr_session* session, int64_t timeout_ns, hr_error* error);

/* Like hr_session_reconnect, but continues without lost ranks if at least `min_world` are left
 * (hr_session_reconnect does the same with hr_options.shrink_min_world). All remaining ranks must
 * call it with the same numbers. Which ranks remain is decided once for all of them, before any
 * attaches. A rank is lost if its process is gone, if it left or was evicted, or if no service has
 * known anything of it for `grace_ms`. A rank that has not called yet is waited for, within the
 * timeout, once another rank of its node has called. A lost rank that comes later is refused.
 *
 * Afterwards ranks are renumbered from 0 without gaps, in their former order, and the world size is
 * smaller; averages are divided by the new size. hr_session_rank, hr_session_world_size and
 * hr_session_members return the new values from the return of this call on. It may also be called
 * when nothing is lost: then the epoch changes. In both cases processes that wait with HR_ROLE_JOIN
 * are admitted, and processes with HR_ROLE_SPARE replace lost ranks, so that the world size stays.
 *
 * If a job is split into two halves that cannot reach each other, each half with at least
 * `min_world` ranks continues by itself. A `min_world` of more than half of the world prevents
 * that.
 *
 * Errors: as above; HR_MISMATCH, which names every rank that is lost, when fewer than `min_world`
 * are left, and when the job has gone on without this rank. */
HR_API hr_status hr_session_shrink(hr_session* session, int64_t timeout_ns, uint32_t min_world,
                                   uint32_t grace_ms, hr_error* error);

/* The current rank and world size. hr_session_shrink changes them. */
HR_API uint32_t hr_session_rank(const hr_session* session);
HR_API uint32_t hr_session_world_size(const hr_session* session);
/* Writes to `members`, for each current rank, its rank when the job began: at most `room` of them.
 * Returns the world size. Must not run at the same time as a reconnect. */
HR_API uint32_t hr_session_members(const hr_session* session, uint32_t* members, uint32_t room);
/* Returns 1 if this rank's service knows of processes that wait with HR_ROLE_JOIN, else 0. A
 * reconnect resets it. */
HR_API int hr_session_members_wait(const hr_session* session);
/* As what this process came to the job, an hr_role: HR_ROLE_RANK, HR_ROLE_JOIN or HR_ROLE_SPARE. */
HR_API uint32_t hr_session_role(const hr_session* session);
/* From now on the time that threads wait for operations of `session` counts as waits in the session
 * `in`, too: of a process that is in several jobs at once, ranks that are slow or stand still
 * (hr_options.slow_bound_s) are then found in the job of `in`. Call it before anything is waited
 * for in `session`. Either session may be closed first. Errors: HR_INVALID_ARGUMENT (a session is
 * NULL, or both are one). */
HR_API hr_status hr_session_count_waits(hr_session* session, const hr_session* in, hr_error* error);
/* The rendezvous of the job: "host:port", or as in hr_options.rendezvous. After a reconnect, the
 * one at which this rank has attached last. Empty: all ranks are on this node, or the service's own
 * rendezvous is used. Valid until the next reconnect; must not be called during one. */
HR_API const char* hr_session_rendezvous(const hr_session* session);
/* The job's name; lives as long as the session. */
HR_API const char* hr_session_job(const hr_session* session);
/* The service's process id, for messages; 0 if the kernel does not know it. A reconnect changes it.
 */
HR_API int32_t hr_session_service_pid(const hr_session* session);

/* ---- Memory --------------------------------------------------------------------------------- */

/* Allocates `size` bytes (rounded up to whole pages) of zeroed memory shared with the service. All
 * pages are allocated by this call and not by the first operation. Errors: HR_INVALID_ARGUMENT,
 * HR_EXHAUSTED, and those of a lost service. */
HR_API hr_status hr_segment_create(hr_session* session, size_t size, hr_segment** segment,
                                   hr_error* error);

/* The first byte, aligned to a page; valid until the segment is released. For GPU memory, a device
 * address. */
HR_API void* hr_segment_address(const hr_segment* segment);
/* The size in bytes, after rounding up. */
HR_API size_t hr_segment_size(const hr_segment* segment);
/* The segment's memfd, for a mapping of the caller's own that outlives the session. The segment
 * owns it; duplicate it to keep it. -1 for GPU memory: see hr_segment_keep. */
HR_API int hr_segment_descriptor(const hr_segment* segment);

/* Unmaps the segment here and in the service, and frees the handle. Returns HR_BUSY and changes
 * nothing while tensors are registered in it or operations on it are open. */
HR_API hr_status hr_segment_release(hr_session* session, hr_segment* segment, hr_error* error);

/* ---- GPU memory -----------------------------------------------------------------------------
 *
 * Needs the CUDA driver, libcuda.so.1. The first of these calls opens it, and no other function
 * does; the environment variable HEADRACE_CUDA_LIBRARY names another file if it is set when hr_open
 * is called. Segments and tensors on a GPU are used like others. A post declares that the memory is
 * ready now: kernels that write it must have finished. The functions below that end in _on_stream
 * need no such wait. All ranks of one node must post an operation on the same kind of memory. The
 * library uses the GPU's primary context, as the CUDA runtime does, and leaves the calling thread's
 * current context as it was.
 *
 * Errors of both functions: HR_NOT_FOUND (no driver; the text says what to install), HR_UNAVAILABLE
 * (no GPU, or one that cannot export memory), HR_VERSION_MISMATCH (a driver before CUDA 12.0),
 * HR_EXHAUSTED (not enough GPU memory), HR_INVALID_ARGUMENT, the service's error if it cannot map
 * the memory, and those of a lost service. */

/* Allocates `size` bytes (rounded up to the GPU's granularity, usually 2 MiB) of zeroed memory on
 * GPU `device`, shared with the service. `device` is the CUDA device ordinal in this process. */
HR_API hr_status hr_segment_create_on_device(hr_session* session, size_t size, int device,
                                             hr_segment** segment, hr_error* error);

/* Shares GPU memory that the caller has allocated: `size` bytes from `address`. It comes from
 * cudaMalloc, or from cuMemCreate with handles that can be exported as file descriptors; PyTorch's
 * caching allocator gives such memory with and without expandable segments. The segment begins at
 * `address`. Memory that cannot be shared is refused with HR_INVALID_ARGUMENT, the reason and what
 * to do instead: host memory, managed memory, memory that was not allocated as exportable, and
 * memory of more than 253 allocations or of allocations of different sizes. The caller keeps
 * ownership. The memory must stay allocated until hr_segment_release has returned, or until the
 * service has noticed the end of the session, which takes less than a second unless the service is
 * stopped. */
HR_API hr_status hr_segment_share_device(hr_session* session, void* address, size_t size,
                                         hr_segment** segment, hr_error* error);

/* The allocation that a GPU address belongs to: that of cudaMalloc, or one mapping of cuMemMap. A
 * caller that shares whole allocations needs one segment for all tensors in it. */
typedef struct hr_allocation {
  void* base;
  size_t size;     /* bytes */
  uint64_t number; /* identifies this allocation, never used again; 0: the driver has no number */
  int device;      /* CUDA device ordinal in this process */
} hr_allocation;

/* Finds the allocation of `address`. Asks the driver only, without a round trip to the service.
 * Errors: those of hr_segment_share_device; HR_INVALID_ARGUMENT if `address` is not GPU memory. */
HR_API hr_status hr_device_allocation(hr_session* session, const void* address,
                                      hr_allocation* allocation, hr_error* error);

/* The CUDA device ordinal in this process; -1 for host memory. */
HR_API int hr_segment_device(const hr_segment* segment);

/* A reference to the memory of hr_segment_create_on_device. The memory stays at its address until
 * the segment is released or its session closed and all references are freed. NULL for other
 * segments, or if the host is out of memory. Freeing the last one waits until the GPU has finished
 * all work in its streams, as cudaFree does. */
typedef struct hr_memory hr_memory;
HR_API hr_memory* hr_segment_keep(const hr_segment* segment);
/* May be called from any thread, also after hr_close. NULL is allowed. No effect in a forked child.
 */
HR_API void hr_memory_free(hr_memory* memory);

/* ---- Tensors -------------------------------------------------------------------------------- */

/* A range of a segment that is registered as a tensor. */
typedef struct hr_tensor_spec {
  const hr_segment* segment;
  size_t offset;  /* bytes from the start of the segment; a multiple of the element size */
  uint64_t count; /* elements; at least 1 */
  hr_dtype dtype;
  const char* name; /* at most 255 bytes, for tables and errors; NULL: none */
  uint32_t order;   /* position in forward order; 0 is used first and moves first */
} hr_tensor_spec;

/* Registers one tensor. Errors: HR_INVALID_ARGUMENT (not within its segment, ...). */
HR_API hr_status hr_tensor_register(hr_session* session, const hr_tensor_spec* spec,
                                    hr_tensor** tensor, hr_error* error);
/* Registers `count` tensors in one round trip, all or none. Writes `count` handles to `tensors`, in
 * the order of `specs`. */
HR_API hr_status hr_tensors_register(hr_session* session, const hr_tensor_spec* specs, size_t count,
                                     hr_tensor** tensors, hr_error* error);
/* Deregisters tensors and frees their handles; the memory stays. Returns HR_BUSY while operations
 * on them are open. After an error some may have been released: their entries are set to NULL. */
HR_API hr_status hr_tensors_release(hr_session* session, hr_tensor** tensors, size_t count,
                                    hr_error* error);

/* The first element of the tensor. */
HR_API void* hr_tensor_address(const hr_tensor* tensor);
HR_API uint64_t hr_tensor_count(const hr_tensor* tensor);
HR_API hr_dtype hr_tensor_dtype(const hr_tensor* tensor);

/* ---- Operations on registered tensors (no copy) --------------------------------------------- */

/* Part of a tensor: `count` elements from element `offset`. */
typedef struct hr_range {
  uint64_t offset;
  uint64_t count;
} hr_range;

/* Each function below posts one operation and returns without waiting for it. A `range` of NULL
 * means the whole tensor. An operation of 0 elements also waits for the other ranks, and ends with
 * HR_MISMATCH if they posted more. If 1024 operations are open, which is the most, the post first
 * waits for the oldest to end. Errors of the post: HR_INVALID_ARGUMENT, HR_BUSY (the oldest did not
 * end within its timeout), HR_UNAVAILABLE. hr_wait returns all other errors. */

/* Replaces the range on every rank by the reduction over all ranks. */
HR_API hr_status hr_all_reduce(hr_session* session, hr_tensor* tensor, const hr_range* range,
                               hr_reduction reduction, hr_operation* operation, hr_error* error);
/* Sets the codec that compresses this session's later all-reduces between nodes: "none", "bf16",
 * "fp16", "int8-stochastic", "int4-stochastic" or "lossless"; NULL means "none". It applies to sums
 * and averages of float32 of at least 16 KiB. With gpu_network = nccl those on GPUs cross as they
 * are, which an event of the job says. All ranks must set the same codec between the same
 * operations; operations with different codecs end with HR_MISMATCH, small ones too, but for those
 * that NCCL carries between nodes. All ranks get the same bits. The other codecs need error
 * feedback, which only a layout has (hr_layout_options). Errors: HR_INVALID_ARGUMENT. */
HR_API hr_status hr_session_compress(hr_session* session, const char* codec, hr_error* error);
/* Replaces the range of every other rank by that of rank `root`. */
HR_API hr_status hr_broadcast(hr_session* session, hr_tensor* tensor, const hr_range* range,
                              uint32_t root, hr_operation* operation, hr_error* error);
/* The range consists of world_size equal parts; its count must be a multiple of world_size. Part r
 * of rank r is replaced by the reduction of part r over all ranks; other parts are unchanged. */
HR_API hr_status hr_reduce_scatter(hr_session* session, hr_tensor* tensor, const hr_range* range,
                                   hr_reduction reduction, hr_operation* operation,
                                   hr_error* error);
/* The range consists of world_size equal parts; part r of rank r replaces part r of every rank. */
HR_API hr_status hr_all_gather(hr_session* session, hr_tensor* tensor, const hr_range* range,
                               hr_operation* operation, hr_error* error);
/* Replaces the range of rank `root` by the reduction over all ranks; the other ranks' ranges are
 * unchanged. */
HR_API hr_status hr_reduce(hr_session* session, hr_tensor* tensor, const hr_range* range,
                           hr_reduction reduction, uint32_t root, hr_operation* operation,
                           hr_error* error);
/* Sends range sent[r] of `input` to rank r, and receives from rank r into range received[r] of
 * `output`. Each list has world_size ranges; NULL means equal parts of the whole tensor. Counts may
 * differ and may be 0, but a rank must expect as many elements from another as that one sends;
 * otherwise the operation ends with HR_MISMATCH on all ranks. The ranges of `received` must be in
 * growing order and must not overlap each other or anything between the first and the last element
 * that is sent. Both tensors must have the same element type and be in the same segment of host
 * memory; they may be the same tensor. */
HR_API hr_status hr_all_to_all(hr_session* session, const hr_tensor* input, const hr_range* sent,
                               hr_tensor* output, const hr_range* received, hr_operation* operation,
                               hr_error* error);
/* Sends the range of `input` (NULL: all of it) of rank r to range received[r] of rank `root`'s
 * `output`. Only the root reads `output` and `received` (NULL: equal parts). Otherwise like
 * hr_all_to_all. */
HR_API hr_status hr_gather(hr_session* session, const hr_tensor* input, const hr_range* range,
                           hr_tensor* output, const hr_range* received, uint32_t root,
                           hr_operation* operation, hr_error* error);
/* Sends range sent[r] of rank `root`'s `input` to the range of rank r's `output`. Otherwise like
 * hr_gather. */
HR_API hr_status hr_scatter(hr_session* session, const hr_tensor* input, const hr_range* sent,
                            hr_tensor* output, const hr_range* range, uint32_t root,
                            hr_operation* operation, hr_error* error);
/* Like hr_all_gather and hr_reduce_scatter, with parts of different sizes: part r has counts[r]
 * elements, may be empty, and follows part r - 1 without a gap. `counts` must be the same on every
 * rank. hr_all_gather_parts takes host memory only. */
HR_API hr_status hr_all_gather_parts(hr_session* session, hr_tensor* tensor, const hr_range* range,
                                     const uint64_t* counts, hr_operation* operation,
                                     hr_error* error);
HR_API hr_status hr_reduce_scatter_parts(hr_session* session, hr_tensor* tensor,
                                         const hr_range* range, const uint64_t* counts,
                                         hr_reduction reduction, hr_operation* operation,
                                         hr_error* error);
/* Like hr_all_gather_parts and hr_reduce_scatter_parts, from one tensor to another, of the same
 * element type and both of this session. `counts` NULL: equal parts. A rank's part has as many
 * elements as the one range, and all parts together as many as the other.
 * hr_all_gather_into: the range of `input` is copied during the call to this rank's part of the
 * range of `output`, and may be used again. Host memory only.
 * hr_reduce_scatter_into: the range of `input`, all parts, is only read, and stays as it is; the
 * reduction of this rank's part replaces the range of `output`. Both are in host memory or on one
 * GPU. The two may be in different segments, and must not overlap. Other ranks may use
 * hr_reduce_scatter_parts meanwhile, or, with equal parts, hr_reduce_scatter. */
HR_API hr_status hr_all_gather_into(hr_session* session, const hr_tensor* input,
                                    const hr_range* range, hr_tensor* output,
                                    const hr_range* output_range, const uint64_t* counts,
                                    hr_operation* operation, hr_error* error);
HR_API hr_status hr_reduce_scatter_into(hr_session* session, const hr_tensor* input,
                                        const hr_range* range, hr_tensor* output,
                                        const hr_range* output_range, const uint64_t* counts,
                                        hr_reduction reduction, hr_operation* operation,
                                        hr_error* error);
/* Ends when every rank has posted it. Moves no data. */
HR_API hr_status hr_barrier(hr_session* session, hr_operation* operation, hr_error* error);

/* ---- Between two ranks ------------------------------------------------------------------------
 *
 * A send and a receive are matched by source, target and tag, in the order of their posts, inside a
 * node and between nodes. HR_ANY_SOURCE matches the send to this rank with this tag that was posted
 * first or, between nodes, that the receiver's node was told of first. Either side may be posted
 * first, at any time between other operations; data moves when both are posted. A receive ends when
 * its data has arrived. A send ends when its memory may be used again: inside a node that is the
 * same moment, between nodes the data has been handed to the network by then. So a send of 64 KiB
 * or less from host memory to another node may end well before its receive is posted. If that
 * message is not received then, the receive has the error and the job's events name the send. Both
 * sides must have the same count and element type; otherwise both, if they are open, end with
 * HR_MISMATCH. Sends and receives have credits of their own and go before the job's other blocks.
 *
 * The earlier of the two timeouts ends both sides with HR_TIMEOUT. A send that failed without its
 * receive also fails that receive, with the same cause, so that a later message never takes the
 * place of a lost one. If a rank dies or leaves without posting its side, the other ends with
 * HR_PEER_LOST. A rank may have 1024 open sends and receives whose other side is not posted; a
 * further one ends with HR_EXHAUSTED. */

/* Sends the range to rank `target`, which must be another rank. */
HR_API hr_status hr_send(hr_session* session, hr_tensor* tensor, const hr_range* range,
                         uint32_t target, uint64_t tag, hr_operation* operation, hr_error* error);
/* Receives the range from rank `source`, or from any rank with HR_ANY_SOURCE. */
HR_API hr_status hr_recv(hr_session* session, hr_tensor* tensor, const hr_range* range,
                         uint32_t source, uint64_t tag, hr_operation* operation, hr_error* error);
/* The same on one-off arrays; see below. */
HR_API hr_status hr_send_array(hr_session* session, const void* array, uint64_t count,
                               hr_dtype dtype, uint32_t target, uint64_t tag,
                               hr_operation* operation, hr_error* error);
HR_API hr_status hr_recv_array(hr_session* session, void* array, uint64_t count, hr_dtype dtype,
                               uint32_t source, uint64_t tag, hr_operation* operation,
                               hr_error* error);
/* The same in stream order; see below. */
HR_API hr_status hr_send_on_stream(hr_session* session, hr_tensor* tensor, const hr_range* range,
                                   uint32_t target, uint64_t tag, void* stream,
                                   hr_operation* operation, hr_error* error);
HR_API hr_status hr_recv_on_stream(hr_session* session, hr_tensor* tensor, const hr_range* range,
                                   uint32_t source, uint64_t tag, void* stream,
                                   hr_operation* operation, hr_error* error);
/* Writes the rank that a receive got its data from to *source. Errors: HR_INVALID_ARGUMENT (never
 * posted), HR_BUSY (still open, or failed), HR_NOT_FOUND (1024 operations were posted since, or the
 * session was reconnected). Undefined for other operations than receives. */
HR_API hr_status hr_recv_source(hr_session* session, hr_operation operation, uint32_t* source,
                                hr_error* error);

/* ---- Operations in stream order ---------------------------------------------------------------
 *
 * `stream` is a CUstream or cudaStream_t; NULL is the legacy default stream, as in CUDA. The host
 * does not wait. If the GPU cannot write and wait for memory words by itself, a thread of its
 * driver does so in stream order. Then only one stream at a time may have such calls outstanding,
 * and calls for another return HR_BUSY. HR_BUSY is also returned if 256 streams have work of the
 * session outstanding. A stream that is being captured into a graph is refused with
 * HR_INVALID_ARGUMENT, because each operation has its own number and a replay would not post it
 * again.
 *
 * An operation is posted when the stream reaches it; if the stream never does, the operation of the
 * other ranks ends with HR_TIMEOUT. hr_close waits for at most 10 seconds until the streams have
 * passed the session's work. Then it ends every operation, so that no stream waits for ever, and
 * waits once more for at most 10 seconds. The end of the service ends all operations, too. Memory
 * that a stream may still touch, because something else holds it up, stays allocated until the
 * process ends. */

/* Like hr_all_reduce and the others, on GPU memory. The memory is ready when `stream`, which
 * belongs to the same GPU, has finished all work that it has now. */
HR_API hr_status hr_all_reduce_on_stream(hr_session* session, hr_tensor* tensor,
                                         const hr_range* range, hr_reduction reduction,
                                         void* stream, hr_operation* operation, hr_error* error);
HR_API hr_status hr_broadcast_on_stream(hr_session* session, hr_tensor* tensor,
                                        const hr_range* range, uint32_t root, void* stream,
                                        hr_operation* operation, hr_error* error);
HR_API hr_status hr_reduce_scatter_on_stream(hr_session* session, hr_tensor* tensor,
                                             const hr_range* range, hr_reduction reduction,
                                             void* stream, hr_operation* operation,
                                             hr_error* error);
HR_API hr_status hr_reduce_scatter_into_on_stream(hr_session* session, const hr_tensor* input,
                                                  const hr_range* range, hr_tensor* output,
                                                  const hr_range* output_range,
                                                  const uint64_t* counts, hr_reduction reduction,
                                                  void* stream, hr_operation* operation,
                                                  hr_error* error);
HR_API hr_status hr_reduce_on_stream(hr_session* session, hr_tensor* tensor, const hr_range* range,
                                     hr_reduction reduction, uint32_t root, void* stream,
                                     hr_operation* operation, hr_error* error);
HR_API hr_status hr_all_gather_on_stream(hr_session* session, hr_tensor* tensor,
                                         const hr_range* range, void* stream,
                                         hr_operation* operation, hr_error* error);

/* Makes `stream` wait for the operation: later work in the stream starts after the operation has
 * ended. The stream also goes on after a failure, which leaves the memory undefined; hr_wait
 * returns the error. In sessions with memory on several GPUs, a NULL `stream` is that of the
 * calling thread's current GPU. Errors: HR_INVALID_ARGUMENT (never posted; the session has no GPU
 * memory), HR_BUSY, HR_UNAVAILABLE. */
HR_API hr_status hr_stream_wait(hr_session* session, hr_operation operation, void* stream,
                                hr_error* error);

/* ---- Operations on one-off arrays (copied in and out) ---------------------------------------- */

/* Like the functions above, in place on `count` elements at `array`, which need not be registered
 * and may be NULL if `count` is 0. The input is copied during the call. `array` must stay valid and
 * untouched until hr_wait has returned for this operation. hr_wait copies the result into it; after
 * an error the array has its old values. Staging memory grows when needed, by a round trip, and is
 * reused; memory is the only limit on open operations. If the result is no longer wanted, the
 * operation must be passed to hr_discard. */
HR_API hr_status hr_all_reduce_array(hr_session* session, void* array, uint64_t count,
                                     hr_dtype dtype, hr_reduction reduction,
                                     hr_operation* operation, hr_error* error);
HR_API hr_status hr_broadcast_array(hr_session* session, void* array, uint64_t count,
                                    hr_dtype dtype, uint32_t root, hr_operation* operation,
                                    hr_error* error);
HR_API hr_status hr_reduce_scatter_array(hr_session* session, void* array, uint64_t count,
                                         hr_dtype dtype, hr_reduction reduction,
                                         hr_operation* operation, hr_error* error);
HR_API hr_status hr_all_gather_array(hr_session* session, void* array, uint64_t count,
                                     hr_dtype dtype, hr_operation* operation, hr_error* error);

HR_API hr_status hr_reduce_array(hr_session* session, void* array, uint64_t count, hr_dtype dtype,
                                 hr_reduction reduction, uint32_t root, hr_operation* operation,
                                 hr_error* error);

/* `count` elements at `memory`, which may be NULL if `count` is 0. */
typedef struct hr_array {
  void* memory;
  uint64_t count;
} hr_array;

/* Like hr_all_to_all, hr_gather and hr_scatter, on arrays. `sent` and `received` are lists of
 * world_size arrays, one for each rank; in a gather or scatter only the root reads the list. Arrays
 * that are sent are copied during the call. Arrays that are received must stay valid and untouched
 * until hr_wait has returned, which copies the results into them. A rank's part for itself is
 * copied during the call. */
HR_API hr_status hr_all_to_all_arrays(hr_session* session, hr_dtype dtype, const hr_array* sent,
                                      const hr_array* received, hr_operation* operation,
                                      hr_error* error);
HR_API hr_status hr_gather_arrays(hr_session* session, hr_dtype dtype, const hr_array* array,
                                  const hr_array* received, uint32_t root, hr_operation* operation,
                                  hr_error* error);
HR_API hr_status hr_scatter_arrays(hr_session* session, hr_dtype dtype, const hr_array* sent,
                                   const hr_array* array, uint32_t root, hr_operation* operation,
                                   hr_error* error);
/* With parts of any size: `array` is this rank's part, and the list has world_size parts, one for
 * each rank. An all-gather skips parts whose memory is NULL. */
HR_API hr_status hr_all_gather_arrays(hr_session* session, hr_dtype dtype, const hr_array* array,
                                      const hr_array* received, hr_operation* operation,
                                      hr_error* error);
HR_API hr_status hr_reduce_scatter_arrays(hr_session* session, hr_dtype dtype, const hr_array* sent,
                                          const hr_array* array, hr_reduction reduction,
                                          hr_operation* operation, hr_error* error);

/* A piece of an operation's array that has memory of its own: `count` elements, at least one, from
 * element `offset` of the array. */
typedef struct hr_piece {
  void* memory;
  uint64_t offset;
  uint64_t count;
} hr_piece;

/* Like the functions above, on an array of `count` elements that is given as pieces. The input is
 * copied from the `read` pieces during the call. The `written` pieces must stay valid and untouched
 * until hr_wait has returned, which copies the results into them. Pieces may overlap and need not
 * cover the array: a rank leaves out what it does not need. Elements that the operation reads and
 * that no piece covers are undefined. A piece outside of the array is refused with
 * HR_INVALID_ARGUMENT. */
HR_API hr_status hr_all_reduce_pieces(hr_session* session, uint64_t count, hr_dtype dtype,
                                      hr_reduction reduction, const hr_piece* read,
                                      size_t read_count, const hr_piece* written,
                                      size_t written_count, hr_operation* operation,
                                      hr_error* error);
HR_API hr_status hr_broadcast_pieces(hr_session* session, uint64_t count, hr_dtype dtype,
                                     uint32_t root, const hr_piece* read, size_t read_count,
                                     const hr_piece* written, size_t written_count,
                                     hr_operation* operation, hr_error* error);
HR_API hr_status hr_reduce_scatter_pieces(hr_session* session, uint64_t count, hr_dtype dtype,
                                          hr_reduction reduction, const hr_piece* read,
                                          size_t read_count, const hr_piece* written,
                                          size_t written_count, hr_operation* operation,
                                          hr_error* error);
HR_API hr_status hr_reduce_pieces(hr_session* session, uint64_t count, hr_dtype dtype,
                                  hr_reduction reduction, uint32_t root, const hr_piece* read,
                                  size_t read_count, const hr_piece* written, size_t written_count,
                                  hr_operation* operation, hr_error* error);
HR_API hr_status hr_all_gather_pieces(hr_session* session, uint64_t count, hr_dtype dtype,
                                      const hr_piece* read, size_t read_count,
                                      const hr_piece* written, size_t written_count,
                                      hr_operation* operation, hr_error* error);

/* ---- Waiting ----------------------------------------------------------------------------------
 */

/* Sets *ended to 1 if the operation has ended, else to 0, without waiting. hr_wait returns how it
 * ended. Errors: HR_INVALID_ARGUMENT (never posted). */
HR_API hr_status hr_test(hr_session* session, hr_operation operation, int* ended, hr_error* error);

/* Waits until the operation ends and returns its status: HR_OK or its error. Also returns
 * HR_TIMEOUT if timeout_ns passed first; then hr_test says that the operation is open, and it can
 * be waited for again. May be called repeatedly: outcomes are kept, at least those of the last 1024
 * failures. */
HR_API hr_status hr_wait(hr_session* session, hr_operation operation, int64_t timeout_ns,
                         hr_error* error);

/* Waits for `count` operations within one timeout. After all have ended it returns the first error
 * in the order of the list. Returns HR_TIMEOUT as soon as the timeout has passed. */
HR_API hr_status hr_wait_all(hr_session* session, const hr_operation* operations, size_t count,
                             int64_t timeout_ns, hr_error* error);

/* Discards the result of an operation on a one-off array: the array is no longer written, and the
 * staging memory is reused after the operation has ended. No effect on other operations. */
HR_API void hr_discard(hr_session* session, hr_operation operation);

/* ---- A model's gradients, moved by the job's plan -----------------------------------------------
 *
 * A layout is all gradients of a model in forward order. The service decides in which blocks and in
 * which order they are reduced. Blocks split and fuse gradients, so that communication overlaps
 * with the backward pass and the next forward pass. One iteration of training is, on every rank:
 *
 *   hr_layout_wait(0), forward of what uses gradient 0, hr_layout_wait(1), ...   (in any order)
 *   hr_layout_end_forward(), the loss
 *   hr_layout_begin_backward(), then hr_layout_post(i) as each gradient appears   (in any order)
 *
 * Every gradient must be posted once in each iteration; if a rank has no value for one, it sets it
 * to zero and posts it. From the post until the wait returns, the gradient's memory belongs to the
 * service. The calls measure the times from which the plan is made. If there are several forward
 * passes between two backward passes, only the first is measured, because gradients can be late in
 * no other; a gradient that is waited for twice in it is given both parts of the time. */

typedef struct hr_layout hr_layout;

#define HR_POLICY_SIZE 32 /* with the NUL */
#define HR_CODEC_SIZE 64  /* with the NUL */

typedef struct hr_layout_options {
  size_t size;            /* of this structure; set by hr_layout_options_init */
  hr_reduction reduction; /* HR_AVERAGE (the default) or HR_SUM */
  /* The policy that makes the plans, e.g. "auto" or "exact"; `headracectl policy --help` lists all.
   * Empty: as the service at the rendezvous is configured. All ranks that set it must set the same.
   * Environment variable: HEADRACE_POLICY. */
  char policy[HR_POLICY_SIZE];
  /* The codec that compresses float32 gradients of at least 4 KiB between nodes: none, bf16, fp16,
   * int8, int4, fp8-e4m3, fp8-e5m2, int8-stochastic, int4-stochastic, sign, topk, randomk,
   * lossless or powersgd. Empty: none. "auto:int8,bf16" lets each plan choose for each gradient
   * among one to three codecs and no compression, by their measured cost. "topk:16" and
   * "randomk:16" send 16 of every 256 elements (1 to 64; default: 8). "powersgd:2" sends two
   * factors of rank 2 (1 to 32; default: 4) of each matrix (`rows`) whose factors have less than
   * half of its elements, and nothing else compressed. Error feedback: what an encoding leaves out
   * is added to the next iteration's gradient; lossless leaves nothing out. All ranks get the same
   * bits. Gradients on GPUs take codecs only with gpu_network = staged, and their residuals are
   * kept in the host's memory (`residuals_segment`). Environment variable: HEADRACE_COMPRESS. */
  char codec[HR_CODEC_SIZE];
  /* NULL, or a list with one codec name for each gradient. An entry that is not NULL sets the codec
   * of its gradient, whatever its size; `codec` and `headracectl compress` do not apply to it. Read
   * during hr_layout_create only. */
  const char* const* codecs;
  /* The number of iterations without compression at the start: the first plan that is made after
   * them compresses. After the loss of the service, counting continues from
   * hr_layout_set_iterations. */
  uint64_t compress_after;
  /* Offset, in `residuals_segment`, of memory for the residuals of error feedback: a multiple of
   * 64, with as much room as the gradients take and the same layout, from the lowest on. In the
   * gradients' own segment it is behind them, and 0 means none. The
   * service keeps the residuals of the whole node in the memory of the lowest rank that has some.
   * There they outlive the service, and may be saved and loaded while none of the rank's gradients
   * is open. Without such memory they are lost with the service. */
  uint64_t residuals;
  /* Not 0: the optimizer is adaptive, like Adam: it divides by a running mean of the gradients.
   * Training with sign, topk or randomk can diverge with such optimizers, so `headracectl compress`
   * refuses these codecs unless it is forced. */
  int adaptive;
  /* NULL, or for each gradient its number of rows where it is a matrix, row by row in memory, and 0
   * where it is none; for powersgd. Read during hr_layout_create only. */
  const uint64_t* rows;
  /* A segment of host memory in which `residuals` is an offset, for gradients on a GPU for
   * instance; NULL: the gradients' segment. It cannot be released before the session ends. */
  hr_segment* residuals_segment;
  /* Not 0: behind the residuals, at the next multiple of 64 bytes, there is room for the right
   * factors of powersgd up to that rank (at most 32), from each of which the next sum of a matrix
   * begins: of each gradient in its order, min(factors_rank, rows / 2) * (count / rows) elements of
   * float32, and none of one without rows. They outlive the service, and are saved and loaded, as
   * residuals. */
  uint32_t factors_rank;
} hr_layout_options;

/* Fills `options` with defaults and with values from the environment; a macro, see hr_options_init.
 */
HR_API hr_status hr_layout_options_init_sized(hr_layout_options* options, size_t size,
                                              hr_error* error);
#define hr_layout_options_init(options, error) \
  hr_layout_options_init_sized((options), sizeof(hr_layout_options), (error))

/* Registers `count` gradients, at most 768, in forward order as the session's layout. A session has
 * at most one layout. All gradients must be in one segment and must not overlap; their `order` is
 * not read. Place them in this order without gaps, so that neighbours move as one range of memory.
 * Element types may differ; a block with several types moves as one block for each. All ranks of a
 * job must register equal layouts (counts, rows, offsets, types, reduction, names); gradients
 * move after all ranks have. Set the names: they tell gradients of equal size apart. Errors:
 * HR_INVALID_ARGUMENT, HR_ALREADY_EXISTS (the session has a layout), HR_MISMATCH (another rank's
 * layout differs; the text says where), and those of hr_tensors_register. */
HR_API hr_status hr_layout_create(hr_session* session, const hr_tensor_spec* specs, size_t count,
                                  const hr_layout_options* options, hr_layout** layout,
                                  hr_error* error);
/* Frees the handle; the service keeps the layout until the session ends. hr_close frees it, too.
 * NULL is allowed. */
HR_API void hr_layout_free(hr_layout* layout);

/* Begins the backward pass of the next iteration. Must be called before hr_layout_post. A backward
 * pass without posts, as of a micro-batch, does not count as an iteration. Errors:
 * HR_INVALID_ARGUMENT (some but not all gradients of the last backward pass were posted; the text
 * names one that is missing), and those of a lost service. */
HR_API hr_status hr_layout_begin_backward(hr_layout* layout, hr_error* error);

/* Posts gradient `index` of this iteration, which must be in its memory. Returns without waiting.
 * `operation` (NULL is allowed) can be passed to hr_test and hr_wait. Errors: HR_INVALID_ARGUMENT
 * (no such gradient), HR_BUSY (its last operation has not ended, or no backward pass has begun
 * since its last post), HR_UNAVAILABLE. */
HR_API hr_status hr_layout_post(hr_layout* layout, uint32_t index, hr_operation* operation,
                                hr_error* error);

/* Call it when the forward pass needs gradient `index`. Waits until the last post of the gradient
 * has ended and returns its status; returns at once if it is not open. The time of the call is
 * recorded as the start of the gradient's part of the forward pass. HR_TIMEOUT as in hr_wait. */
HR_API hr_status hr_layout_wait(hr_layout* layout, uint32_t index, int64_t timeout_ns,
                                hr_error* error);
/* The same in stream order, for a layout on a GPU; see above. The post must come after the wait for
 * the same gradient of the previous iteration, in the same stream or in one that waits for it. The
 * wait does not stop the host, so it returns the error of an operation only if that has already
 * ended; otherwise hr_wait returns it. The host may run one iteration ahead of the GPU: a post
 * waits until the post of the same gradient in the previous iteration has ended. The times of the
 * forward pass from which plans are made are then those of the host. */
HR_API hr_status hr_layout_post_on_stream(hr_layout* layout, uint32_t index, void* stream,
                                          hr_operation* operation, hr_error* error);
HR_API hr_status hr_layout_wait_on_stream(hr_layout* layout, uint32_t index, void* stream,
                                          hr_error* error);
/* Like hr_barrier; ends when every rank has posted it and has the averages of all gradients that it
 * posted before. Posted directly after the last gradient of an iteration, it ends together with the
 * last average, and a rank that has seen its end knows that no other rank lacks one. The service
 * does not wait for ranks to run again in between. All gradients of the backward pass are posted,
 * or none (HR_INVALID_ARGUMENT). */
HR_API hr_status hr_layout_barrier(hr_layout* layout, hr_operation* operation, hr_error* error);
/* Ends the forward pass: the time after this call is not counted for any gradient. */
HR_API hr_status hr_layout_end_forward(hr_layout* layout, hr_error* error);
/* Sets the number of iterations that this rank has completed, for the next hr_session_reconnect:
 * the next iteration is the one after them. The largest number of all ranks counts; a rank that was
 * ahead repeats an iteration. The service continues its counts of iterations from there:
 * compress_after, and the random numbers of int8-stochastic, int4-stochastic and randomk, so that a
 * repeated iteration has the same bits. Without this call iterations start at 1 again. At most
 * 2^48; the reconnect refuses larger numbers. */
HR_API hr_status hr_layout_set_iterations(hr_layout* layout, uint64_t iterations, hr_error* error);
/* From the next backward pass on averages are divided by `count` instead of the world size (0: by
 * the world size again), for ranks that post zeros and do not count, as one that is still receiving
 * parameters. Negative zeros leave every sum as it is, to the bit. All ranks make this call between
 * the same two iterations (else HR_MISMATCH ends them). hr_session_reconnect sets it back to 0.
 * HR_INVALID_ARGUMENT where gradients are summed, or within an iteration; more than the world size
 * ends the gradients. */
HR_API hr_status hr_layout_set_contributors(hr_layout* layout, uint32_t count, hr_error* error);

/* ---- Counters ---------------------------------------------------------------------------------
 */

typedef struct hr_counters {
  size_t size;            /* of this structure, set by the caller */
  uint64_t posted;        /* operations posted */
  uint64_t waits;         /* waits that found their operation still open */
  uint64_t waited_ns;     /* time in those waits, summed over threads */
  uint64_t doorbells;     /* posts that had to wake the service (a system call) */
  uint64_t full_waits;    /* posts that had to wait for the oldest operation */
  uint64_t arrays;        /* operations on one-off arrays */
  uint64_t copied_bytes;  /* bytes copied into and out of staging memory */
  uint64_t staging_bytes; /* current size of the staging memory */
} hr_counters;

/* Reads the counters of this session since hr_open. Cheap; the counters are read one after another.
 */
HR_API hr_status hr_session_counters(const hr_session* session, hr_counters* counters,
                                     hr_error* error);

#ifdef __cplusplus
}
#endif

#endif /* HEADRACE_HEADRACE_H */

/* headrace.h: how a training process hands its gradients to headraced, the service of its node.
 *
 * Conventions, which hold for every function unless it says otherwise:
 *
 *  1. Order of use. hr_options_init, hr_open; segments, tensors, operations; hr_close. Nothing may
 *     be used after the session it came from was closed.
 *  2. Agreement. Ranks post the same operations in the same order: the nth operation of one rank
 *     is matched with the nth of every other. A mismatch ends that operation on all ranks with an
 *     error that names both sides. When several threads of a rank post, they must agree on an order
 *     among themselves. Sends and receives are not counted among these: they are matched by
 *     source, target and tag, each such triple in the order of its posts.
 *  3. Errors. Functions that can fail return an hr_status; HR_OK is 0. The last parameter is an
 *     optional hr_error (NULL: no text wanted) that is filled on failure with the same status and a
 *     sentence that names the cause and, where there is one, the remedy. On success it is
 *     untouched; outputs are written on success only.
 *  4. Threads. All functions on one session may be called from any thread at the same time, except
 *     hr_close, which must come last and alone. The library keeps no global and no thread-local
 *     state; each session has one thread of its own, with all signals blocked. Signal handlers stay
 *     the program's; one that uses kj itself must ignore SIGPIPE by its own doing.
 *  5. Ownership. Handles belong to the session and live until they are released or the session is
 *     closed. Strings and arrays given to a function are read during the call only, except where
 *     a function for one-off arrays says otherwise.
 *  6. Units. Sizes and the offsets of segments are bytes; counts and the offsets of ranges are
 *     elements; times are nanoseconds where the name ends in _ns, milliseconds where in _ms. A
 *     negative timeout_ns means no limit.
 *  7. Memory. While an operation is open (from its post to its end) its memory belongs to the
 *     service: neither read nor write it, and post no other operation on it, which ends with
 *     HR_INVALID_ARGUMENT unless both only read it (as a broadcast's root does). Operations that a
 *     stream is to start are open from when the stream has come to them. A failed operation leaves
 *     the memory it would have written in an undefined state.
 *  8. Ends. Every operation ends exactly once, with success or an error, within its timeout or a
 *     second after the cause is known (a rank died, the service went away). After an error the
 *     session stays usable unless the service itself is gone or the job has failed; then every
 *     later call returns the same named error, until hr_session_reconnect has brought it back.
 *     A service that is stopped or stuck counts as gone: when an operation is open for longer than
 *     the session's timeout and the service does not answer within a further quarter of it (1 to
 *     10 s), or when it does not answer a round trip within call_timeout_ms, every wait ends with
 *     HR_UNAVAILABLE, streams that wait go on, and the session is lost as if the service had died.
 *     That holds for waits without a limit, too. A job that is paused is waited for, as long as the
 *     service answers. Memory stays mapped and its addresses valid; a service that goes on later
 *     may still write into the memory of operations that were open, ends them for nobody, and lets
 *     the memory go; the outcome of an operation never changes.
 *  9. Cost. Posting an operation on a registered tensor makes no system call while the service is
 *     awake, no allocation and no round trip. Everything that is not an operation is a round trip
 *     to the service: do it before training starts.
 * 10. fork. A session belongs to the process that opened it. In a forked child every function
 *     returns HR_INVALID_ARGUMENT, except hr_close, which drops the child's copies of the
 *     descriptors and disturbs nothing; do so early, since an inherited socket keeps the
 *     session attached after the parent has died.
 * 11. Versions. Structures begin with their size as the caller compiled it; hr_options_init sets
 *     it. Fields are added at the end; a program compiled before goes on as it was. Numbers and
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

/* ---- Words ---------------------------------------------------------------------------------- */

/* What the caller may do about it. */
typedef enum hr_status {
  HR_OK = 0,
  HR_INVALID_ARGUMENT = 1,  /* the call is wrong: fix it */
  HR_NOT_FOUND = 2,         /* no such thing */
  HR_ALREADY_EXISTS = 3,    /* the rank or name is taken */
  HR_PERMISSION_DENIED = 4, /* belongs to another user */
  HR_VERSION_MISMATCH = 5,  /* library and service speak different versions: both are named */
  HR_UNAVAILABLE = 6,       /* the service is absent or went away */
  HR_BUSY = 7,              /* too much is open: wait for an operation, then try again */
  HR_TIMEOUT = 8,           /* the operation, or the wait for it, outlived its time */
  HR_MISMATCH = 9,          /* ranks posted different operations */
  HR_PEER_LOST = 10,        /* a rank this operation needs is gone */
  HR_CORRUPT = 11,          /* bytes no honest peer can have written */
  HR_EXHAUSTED = 12,        /* a limit of the service or the machine was reached */
  HR_CANCELLED = 13,        /* someone ended it on purpose */
  HR_INTERNAL = 14          /* a bug, or an unexpected answer of the system */
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

#define HR_JOB_NAME_SIZE 64      /* with the NUL */
#define HR_SOCKET_PATH_SIZE 108  /* with the NUL; what a unix socket address holds */
#define HR_RENDEZVOUS_SIZE 256   /* with the NUL */
#define HR_ARCHITECTURE_SIZE 32  /* with the NUL */
#define HR_SENDS_CLASS_SIZE 8    /* with the NUL */
#define HR_ERROR_TEXT_SIZE 512   /* with the NUL */
#define HR_UNSET UINT32_MAX      /* a rank or world size nobody has given */
#define HR_ANY_SOURCE UINT32_MAX /* to receive from whichever rank sends first */

typedef struct hr_error {
  hr_status code;
  char text[HR_ERROR_TEXT_SIZE]; /* UTF-8, ends in NUL */
} hr_error;

typedef struct hr_session hr_session;
typedef struct hr_segment hr_segment;
typedef struct hr_tensor hr_tensor;

/* An operation: its number within the session, from 1. Not owned and never released. */
typedef uint64_t hr_operation;

/* The library's version, "0.1.0". Static storage. */
HR_API const char* hr_version(void);

/* The name of a status as logs and tables spell it, "peer lost". Static storage. */
HR_API const char* hr_status_name(hr_status status);

/* ---- Opening and closing a session ---------------------------------------------------------- */

typedef struct hr_options {
  size_t size;                           /* of this structure; set by hr_options_init */
  char socket_path[HR_SOCKET_PATH_SIZE]; /* of the service */
  char job[HR_JOB_NAME_SIZE];            /* the same on all ranks; printable ASCII, no blanks */
  uint32_t rank;                         /* 0 .. world_size - 1 */
  uint32_t world_size;
  uint32_t timeout_ms;      /* of every operation; 0: the service's default */
  uint32_t call_timeout_ms; /* of a round trip to the service, hr_open included; registering memory
                             * may take longer, for as long as the service gets on with it */
  uint32_t spin_us;         /* how long a wait looks at the word before it sleeps */
  char program[64];         /* for the service's log, e.g. "train.py"; may be empty */
  /* Where the services of the job's nodes meet: host or host:port of one of them, the same on all
   * ranks; the port of a service is 7733 unless its configuration says otherwise. Empty: all ranks
   * are on this node, unless this node's service has a rendezvous of its own for such jobs. */
  char rendezvous[HR_RENDEZVOUS_SIZE];
  /* Who sums a job of several nodes: "all-reduce" (the nodes among themselves) or
   * "parameter-server" (services with the role of a server). Empty: as the service at the
   * rendezvous is configured. Ranks that say something say the same. */
  char architecture[HR_ARCHITECTURE_SIZE];
  /* For how many seconds a service that went away is waited for, where hr_session_reconnect is
   * called; 0: it is off. The C library never reconnects by itself. */
  uint32_t reconnect_s;
  /* With how many ranks the job may go on when hr_session_reconnect finds that others are lost; 0:
   * with all of them only. */
  uint32_t shrink_min_world;
  /* How long such a reconnect waits for ranks of which no service knows anything. */
  uint32_t shrink_grace_ms;
  /* An hr_role; what is not HR_ROLE_RANK needs no rank and no world size. */
  uint32_t role;
  /* When the job's sends and receives go, and behind them its operations that only copy
   * (all-gather, broadcast, all-to-all, gather, scatter): "above", before its sums and gradients,
   * or "same", in turn with them. What rank 0 says counts. Empty: as the job has it, which begins
   * with above. `headracectl sends` changes it later. */
  char sends_class[HR_SENDS_CLASS_SIZE];
  /* A rank whose own work, between its waits, takes half as long again as the median of the
   * others', or more, for so many seconds without a break, is named in events, in the log and by
   * `headracectl jobs`; 0: nobody looks. As long after its begin does not count. What rank 0 says
   * counts, so say the same on all ranks. Choose ten iterations at least. Time that a rank waits
   * elsewhere than in this session counts as its own, and what streams of a GPU wait does, too. */
  uint32_t slow_bound_s;
  /* 1: such a rank is evicted, too, where shrink_min_world ranks are left, as if by `headracectl
   * evict`: its calls end with HR_PEER_LOST and say why. It may come again with HR_ROLE_JOIN. */
  uint32_t slow_evict;
} hr_options;

/* What a process is to a job. */
typedef enum hr_role {
  HR_ROLE_RANK = 0, /* one of those with which the job begins */
  HR_ROLE_JOIN = 1, /* comes to one that runs, which grows by it */
  HR_ROLE_SPARE = 2 /* comes to one that runs, and takes the place of a rank that is lost */
} hr_role;

/* Fills `options` with defaults and with what the environment says:
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
 *   role         HEADRACE_ROLE: rank, join or spare, else HR_ROLE_RANK
 *   sends_class  HEADRACE_SENDS_CLASS, else empty
 *   slow_bound_s, slow_evict  HEADRACE_SLOW: SECONDS or SECONDS:evict, else 0
 * An empty variable is like none. Fields written afterwards win. HR_INVALID_ARGUMENT when a
 * variable does not hold what it should (it is named); that field then has its default, all others
 * are filled, and a caller that sets the field itself may go on. Reads the environment: not at the
 * same time as setenv.
 *
 * Programs call hr_options_init(options, error), which is a macro: it passes the size of the
 * structure that they were compiled with. Behind the function of that name are programs compiled
 * before the structure had a rendezvous: it fills what they know, and hr_open takes the rest from
 * the environment, as it does for what a program's structure does not have. */
HR_API hr_status hr_options_init_sized(hr_options* options, size_t size, hr_error* error);
HR_API hr_status hr_options_init(hr_options* options, hr_error* error);
#define hr_options_init(options, error) \
  hr_options_init_sized((options), sizeof(hr_options), (error))

/* Attaches this process to the service as one rank of a job; returns as soon as the service has
 * accepted it, not when other ranks have come. Errors: HR_INVALID_ARGUMENT (a field is missing or
 * wrong, another world size than the job's), HR_UNAVAILABLE (no service at the path),
 * HR_PERMISSION_DENIED, HR_VERSION_MISMATCH, HR_ALREADY_EXISTS (the rank is attached), HR_TIMEOUT
 * (the service does not answer), HR_EXHAUSTED.
 *
 * With HR_ROLE_JOIN or HR_ROLE_SPARE it waits until the ranks of the job, of the same user, let
 * this process in, which happens when all of them call hr_session_shrink: for at most reconnect_s
 * (0: 30 s; a spare without end), else HR_TIMEOUT. It returns when all of them are there, as they
 * do. Such a rank has a number among hr_session_members that no other has had. */
HR_API hr_status hr_open(const hr_options* options, hr_session** session, hr_error* error);

/* Leaves the job in an orderly way and frees the session with everything in it; segments are
 * unmapped. Operations of this rank that are still open end for the other ranks with an error that
 * names this rank. NULL is allowed. Always frees; the status tells whether the service took
 * leave. */
HR_API hr_status hr_close(hr_session* session, hr_error* error);

/* After the service of this session went away, or the job failed: waits for at most `timeout_ns`
 * (0: hr_options.reconnect_s) until a service listens at the same socket, attaches to it as the
 * same rank of the same job, hands in every segment, tensor and the layout again, and waits until
 * all other ranks have done so, too. Then posts work again at once. All ranks of the job call it,
 * those whose own service lives included: what ended the job on one node ended it on all.
 *
 * What stays: every handle, every address with what stands in memory, the descriptors, the
 * counters, the numbers of operations and how they ended. What does not: an operation that was open
 * has failed for good, so that the memory it would have written is undefined; of a layout no
 * iteration is under way, so hr_layout_begin_backward comes next. It is for the caller to see to it
 * that all ranks go on from the same iteration: a rank may have seen the last operation end well
 * that another saw fail. One operation, a barrier, is counted.
 *
 * The job goes on under a new epoch, greater than those its ranks were in; `headracectl jobs` shows
 * it. Ranks that go on and ranks that hr_open has just opened are never in one epoch: when not
 * all ranks had come before the service went, end them all and begin anew.
 *
 * One thread calls it. Those that wait in other calls get HR_UNAVAILABLE, and so do calls made
 * until it returns, except hr_discard, which waits. When it fails the session is as after the loss,
 * and it may be called again. Errors: HR_INVALID_ARGUMENT (nothing is lost: the service is there,
 * and no operation has failed; a timeout of 0 without reconnect_s; a forked child), HR_BUSY
 * (another thread is at it), HR_TIMEOUT (the text says what was missing last: the service, or which
 * rank), and at once what time does not mend: HR_VERSION_MISMATCH (the new service is of another
 * release), HR_PERMISSION_DENIED, HR_MISMATCH, HR_CANCELLED (somebody ended the job on purpose). */
HR_API hr_status hr_session_reconnect(hr_session* session, int64_t timeout_ns, hr_error* error);

/* As hr_session_reconnect, and goes on without the ranks that are lost, as long as `min_world` are
 * left (hr_session_reconnect does so by hr_options.shrink_min_world). All ranks that are left call
 * it with the same numbers. Who is left is decided once for all of them, before any attaches: a
 * rank is lost when its process is gone, when it left or was evicted, or when no service has known
 * anything of it for `grace_ms`; one that has yet to notice is waited for once another rank of its
 * node has, within the timeout. A rank that was lost stays so: one that comes later is refused.
 *
 * Then ranks are dense again, in the order of before, and the world is smaller; averages are
 * divided by the new one. hr_session_rank, hr_session_world_size and hr_session_members say what
 * holds, from this call's return on. It may be called when nothing is lost, too: then the epoch
 * changes, and those come in that wait with HR_ROLE_JOIN, as they do after a loss; those with
 * HR_ROLE_SPARE fill the places of ranks that are lost, so that the world stays as large.
 *
 * Two halves of a job that cannot reach each other go on each by itself, if both have `min_world`:
 * more than half of the world rules that out.
 *
 * Errors: as above; HR_MISMATCH, which names every rank that is lost, when fewer than `min_world`
 * are left, and when the job has gone on without this rank. */
HR_API hr_status hr_session_shrink(hr_session* session, int64_t timeout_ns, uint32_t min_world,
                                   uint32_t grace_ms, hr_error* error);

/* Of this process and of its job, as they are now: hr_session_shrink changes them. */
HR_API uint32_t hr_session_rank(const hr_session* session);
HR_API uint32_t hr_session_world_size(const hr_session* session);
/* Writes the first `room` of these to `members`: of each rank of now, the rank that it had when the
 * job began. Returns how many there are, the world size. Not at the same time as a reconnect. */
HR_API uint32_t hr_session_members(const hr_session* session, uint32_t* members, uint32_t room);
/* 1: this rank's service knows of others that wait with HR_ROLE_JOIN; until the next reconnect. */
HR_API int hr_session_members_wait(const hr_session* session);
/* The job's name; lives as long as the session. */
HR_API const char* hr_session_job(const hr_session* session);
/* The service's process id, for messages; 0 when the kernel does not tell. A reconnect changes it.
 */
HR_API int32_t hr_session_service_pid(const hr_session* session);

/* ---- Memory --------------------------------------------------------------------------------- */

/* Allocates `size` bytes (rounded up to whole pages) of zeroed memory shared with the service. All
 * pages are allocated now, so that the first operation does not pay for them. Errors:
 * HR_INVALID_ARGUMENT, HR_EXHAUSTED, and those of a lost service. */
HR_API hr_status hr_segment_create(hr_session* session, size_t size, hr_segment** segment,
                                   hr_error* error);

/* First byte; page aligned; the caller's to read and write until the segment is released. Of a
 * GPU's memory, its address on the GPU. */
HR_API void* hr_segment_address(const hr_segment* segment);
/* Bytes, after rounding up. */
HR_API size_t hr_segment_size(const hr_segment* segment);
/* The memfd behind the segment, for a second mapping of one's own that outlives the session. The
 * segment owns it; duplicate it to keep it. -1 for memory of a GPU: see hr_segment_keep. */
HR_API int hr_segment_descriptor(const hr_segment* segment);

/* Unmaps the segment at both ends and frees the handle. Refused with HR_BUSY while tensors lie in
 * it or operations on it are open; the segment is then as before. */
HR_API hr_status hr_segment_release(hr_session* session, hr_segment* segment, hr_error* error);

/* ---- Memory of a GPU ------------------------------------------------------------------------
 *
 * Needs CUDA's driver, libcuda.so.1, which is opened by the first of these calls and by no other;
 * the file is named by HEADRACE_CUDA_LIBRARY where hr_open finds that variable. Segments and
 * tensors on a GPU are used as others are. A post says that the memory is ready now, whatever still
 * stands in the GPU's streams; the functions that end in _on_stream, below, need no such wait. All
 * ranks of one node post an operation on memory of the same kind. The library uses the GPU's
 * primary context, as CUDA's run time does, and makes what it needs current for its own calls only.
 *
 * Errors of both functions: HR_NOT_FOUND (no driver; the text says what to install), HR_UNAVAILABLE
 * (no GPU, or one that cannot export memory), HR_VERSION_MISMATCH (a driver before CUDA 12.0),
 * HR_EXHAUSTED (the GPU has no room), HR_INVALID_ARGUMENT, what the service says to memory that it
 * cannot map, and those of a lost service. */

/* Allocates `size` bytes (rounded up to the GPU's granularity, 2 MiB as a rule) of zeroed memory,
 * shared with the service, on GPU `device`: its number among those that this process sees, from 0.
 */
HR_API hr_status hr_segment_create_on_device(hr_session* session, size_t size, int device,
                                             hr_segment** segment, hr_error* error);

/* Shares memory that somebody else allocated: `size` bytes from `address`, of cudaMalloc or of
 * cuMemCreate with file descriptors for export, so also of PyTorch's caching allocator with and
 * without expandable segments. The segment begins at `address`. What cannot be shared is refused
 * with HR_INVALID_ARGUMENT, the reason and what to do instead: memory of the host, managed memory,
 * memory that was allocated without leave to export it, or in more than 253 pieces or pieces of
 * different sizes. The memory stays the caller's, and must stay allocated until hr_segment_release
 * has returned or the service has noticed the session's end, which takes it less than a second, or,
 * while it is stopped, until it runs again. */
HR_API hr_status hr_segment_share_device(hr_session* session, void* address, size_t size,
                                         hr_segment** segment, hr_error* error);

/* What an address of a GPU lies in: of cudaMalloc the whole allocation, of memory that is mapped in
 * pieces that piece. Whoever shares it as a whole once need not share each part of it. */
typedef struct hr_allocation {
  void* base;
  size_t size;     /* bytes */
  uint64_t number; /* of this allocation and no other, before or after; 0: the driver tells none */
  int device;      /* the GPU's number in this process */
} hr_allocation;

/* Asks the driver; no round trip. Errors: those of hr_segment_share_device for memory that is none
 * of a GPU. */
HR_API hr_status hr_device_allocation(hr_session* session, const void* address,
                                      hr_allocation* allocation, hr_error* error);

/* The GPU's number in this process; -1: memory of the host. */
HR_API int hr_segment_device(const hr_segment* segment);

/* A share in memory of hr_segment_create_on_device, which stays at its address until the segment is
 * released or its session closed, and until all its shares are freed. NULL for other segments, or
 * without memory. The last to let go waits until the GPU has done all that stands in its streams,
 * as cudaFree does. */
typedef struct hr_memory hr_memory;
HR_API hr_memory* hr_segment_keep(const hr_segment* segment);
/* Any thread, also after hr_close. NULL is allowed. Does nothing in a forked child. */
HR_API void hr_memory_free(hr_memory* memory);

/* ---- Tensors -------------------------------------------------------------------------------- */

/* A gradient in a segment. */
typedef struct hr_tensor_spec {
  const hr_segment* segment;
  size_t offset;  /* bytes from the start of the segment; a multiple of the element size */
  uint64_t count; /* elements; at least 1 */
  hr_dtype dtype;
  const char* name; /* at most 255 bytes, for tables and errors; NULL: none */
  uint32_t order;   /* place in forward order, 0 = used first; decides what moves first */
} hr_tensor_spec;

/* Registers one tensor. Errors: HR_INVALID_ARGUMENT (does not lie within its segment, ...). */
HR_API hr_status hr_tensor_register(hr_session* session, const hr_tensor_spec* spec,
                                    hr_tensor** tensor, hr_error* error);
/* Registers `count` tensors in one round trip, all or none; `tensors` gets `count` handles in the
 * order of `specs`. */
HR_API hr_status hr_tensors_register(hr_session* session, const hr_tensor_spec* specs, size_t count,
                                     hr_tensor** tensors, hr_error* error);
/* Forgets tensors and frees their handles; the memory stays. Refused with HR_BUSY while operations
 * on them are open. On an error some may be released: those entries are set to NULL. */
HR_API hr_status hr_tensors_release(hr_session* session, hr_tensor** tensors, size_t count,
                                    hr_error* error);

/* First element of the tensor, within its segment. */
HR_API void* hr_tensor_address(const hr_tensor* tensor);
HR_API uint64_t hr_tensor_count(const hr_tensor* tensor);
HR_API hr_dtype hr_tensor_dtype(const hr_tensor* tensor);

/* ---- Operations on registered tensors (no copy) --------------------------------------------- */

/* Part of a tensor: `count` elements from element `offset`. */
typedef struct hr_range {
  uint64_t offset;
  uint64_t count;
} hr_range;

/* Each function below posts one operation and returns without waiting for it; `range` NULL means
 * the whole tensor. When the most operations the channel holds (1024) are open, the post first
 * waits for the oldest to end. Errors at post: HR_INVALID_ARGUMENT, HR_BUSY (the oldest did not end
 * in its time), HR_UNAVAILABLE. All others come from hr_wait. */

/* The reduction over all ranks replaces the range on every rank. */
HR_API hr_status hr_all_reduce(hr_session* session, hr_tensor* tensor, const hr_range* range,
                               hr_reduction reduction, hr_operation* operation, hr_error* error);
/* In which codec all-reduces that this session posts from now on cross between nodes, as long as
 * they are sums or averages of float32 in the host's memory and have 16 KiB or more: "none",
 * "bf16", "fp16", "int8-stochastic", "int4-stochastic" or "lossless"; NULL: none. All ranks set the
 * same between the same operations; those that differ end with HR_MISMATCH. All ranks get the same
 * bits. Other codecs need what they left out before: give the gradients in a layout
 * (hr_layout_options). Errors: HR_INVALID_ARGUMENT. */
HR_API hr_status hr_session_compress(hr_session* session, const char* codec, hr_error* error);
/* Rank `root`'s range replaces that of every other rank. */
HR_API hr_status hr_broadcast(hr_session* session, hr_tensor* tensor, const hr_range* range,
                              uint32_t root, hr_operation* operation, hr_error* error);
/* The range consists of world_size equal parts; its count is a multiple of world_size. Rank r gets
 * the reduction of all ranks' part r into its own part r; its other parts keep their values. */
HR_API hr_status hr_reduce_scatter(hr_session* session, hr_tensor* tensor, const hr_range* range,
                                   hr_reduction reduction, hr_operation* operation,
                                   hr_error* error);
/* The range consists of world_size equal parts; part r of rank r replaces part r of every rank. */
HR_API hr_status hr_all_gather(hr_session* session, hr_tensor* tensor, const hr_range* range,
                               hr_operation* operation, hr_error* error);
/* The reduction over all ranks replaces the range of rank `root`; the others keep theirs. */
HR_API hr_status hr_reduce(hr_session* session, hr_tensor* tensor, const hr_range* range,
                           hr_reduction reduction, uint32_t root, hr_operation* operation,
                           hr_error* error);
/* What lies in range sent[r] of `input` goes to rank r, and what rank r has for this one into range
 * received[r] of `output`; world_size ranges each, or NULL: equal parts of the whole tensor. Counts
 * may differ, also be 0, but each rank expects of another as many elements as that one sends, or
 * all end with HR_MISMATCH. Ranges of `received` follow each other without overlap and are all
 * outside of what lies between the first and the last element that is sent. Both tensors are of
 * one segment, of the host, and of one element type; they may be one tensor. */
HR_API hr_status hr_all_to_all(hr_session* session, const hr_tensor* input, const hr_range* sent,
                               hr_tensor* output, const hr_range* received, hr_operation* operation,
                               hr_error* error);
/* The range of `input`, NULL: all of it, goes to range received[r] of rank `root`'s `output`, where
 * r is this rank. `output` and `received`, NULL: equal parts, are read by the root only. Otherwise
 * as hr_all_to_all. */
HR_API hr_status hr_gather(hr_session* session, const hr_tensor* input, const hr_range* range,
                           hr_tensor* output, const hr_range* received, uint32_t root,
                           hr_operation* operation, hr_error* error);
/* The reverse: range sent[r] of rank `root`'s `input` goes to the range of rank r's `output`. */
HR_API hr_status hr_scatter(hr_session* session, const hr_tensor* input, const hr_range* sent,
                            hr_tensor* output, const hr_range* range, uint32_t root,
                            hr_operation* operation, hr_error* error);
/* hr_all_gather and hr_reduce_scatter of a range that consists of world_size parts of any size, one
 * behind the other: part r has counts[r] elements, which may be none, the same on every rank. Of
 * memory of the host. */
HR_API hr_status hr_all_gather_parts(hr_session* session, hr_tensor* tensor, const hr_range* range,
                                     const uint64_t* counts, hr_operation* operation,
                                     hr_error* error);
HR_API hr_status hr_reduce_scatter_parts(hr_session* session, hr_tensor* tensor,
                                         const hr_range* range, const uint64_t* counts,
                                         hr_reduction reduction, hr_operation* operation,
                                         hr_error* error);
/* Ends when every rank has posted it. Moves nothing. */
HR_API hr_status hr_barrier(hr_session* session, hr_operation* operation, hr_error* error);

/* ---- Between two ranks ------------------------------------------------------------------------
 *
 * A send and a receive are matched by source, target and tag, in the order of their posts, on one
 * node or between nodes; HR_ANY_SOURCE takes the send to this rank and tag that was posted first,
 * or, between nodes, that the receiver's node heard of first. Each may be posted first, at any time
 * between other operations. Nothing moves before both are. A receive ends when the bytes are in its
 * memory, a send when its memory may be used again: on one node that is the same, between nodes the
 * bytes have been given to the network by then. Both have the same count and type; otherwise both
 * end with HR_MISMATCH. Their traffic has credits of its own and goes before the job's other
 * blocks.
 *
 * The earlier of both timeouts ends both with HR_TIMEOUT; a send that ended without its receive
 * fails that receive too, with the same cause, so that none takes the place of a message that was
 * lost. A rank that leaves without posting its part, or dies, ends them with HR_PEER_LOST. A rank
 * may have 1024 sends and receives open whose other side was not posted: a further one ends with
 * HR_EXHAUSTED. */

/* The range goes to rank `target`, which is not this one. */
HR_API hr_status hr_send(hr_session* session, hr_tensor* tensor, const hr_range* range,
                         uint32_t target, uint64_t tag, hr_operation* operation, hr_error* error);
/* What rank `source` sends, or any rank (HR_ANY_SOURCE), replaces the range. */
HR_API hr_status hr_recv(hr_session* session, hr_tensor* tensor, const hr_range* range,
                         uint32_t source, uint64_t tag, hr_operation* operation, hr_error* error);
/* Both on one-off arrays, as below. */
HR_API hr_status hr_send_array(hr_session* session, const void* array, uint64_t count,
                               hr_dtype dtype, uint32_t target, uint64_t tag,
                               hr_operation* operation, hr_error* error);
HR_API hr_status hr_recv_array(hr_session* session, void* array, uint64_t count, hr_dtype dtype,
                               uint32_t source, uint64_t tag, hr_operation* operation,
                               hr_error* error);
/* Both in the order of a GPU's stream, as below. */
HR_API hr_status hr_send_on_stream(hr_session* session, hr_tensor* tensor, const hr_range* range,
                                   uint32_t target, uint64_t tag, void* stream,
                                   hr_operation* operation, hr_error* error);
HR_API hr_status hr_recv_on_stream(hr_session* session, hr_tensor* tensor, const hr_range* range,
                                   uint32_t source, uint64_t tag, void* stream,
                                   hr_operation* operation, hr_error* error);
/* Says in *source whose send a receive has taken. Errors: HR_INVALID_ARGUMENT (never posted),
 * HR_BUSY (it is open, or has failed), HR_NOT_FOUND (1024 operations were posted since, or the
 * session was reconnected). Means nothing of other operations. */
HR_API hr_status hr_recv_source(hr_session* session, hr_operation operation, uint32_t* source,
                                hr_error* error);

/* ---- Operations in the order of a GPU's stream ------------------------------------------------
 *
 * `stream` is a CUstream or cudaStream_t; NULL is the legacy default stream, as in CUDA. The host
 * waits for nothing. Where the GPU cannot write and await words by itself, a thread of its driver
 * does, in stream order; then one stream at a time may have such calls that are not yet made, and
 * those of another get HR_BUSY (also HR_BUSY: 256 streams in which something of the session
 * stands). A stream that is being captured into a graph is refused with HR_INVALID_ARGUMENT: an
 * operation has its own number, and a replay would not post it again.
 *
 * A rank whose stream never comes so far has not posted: the others' operations end with
 * HR_TIMEOUT, as ever. hr_close first waits, for at most 10 seconds, until the streams have passed
 * what was put into them here; then it ends every operation, as the end of the service does too, so
 * that no stream is held up for good, and waits as long once more. What a stream that is held up by
 * something else may still touch stays allocated until the process ends. */

/* As hr_all_reduce and the others, on memory of a GPU: it is ready once `stream`, of that GPU, has
 * done all that stands in it now. */
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
HR_API hr_status hr_reduce_on_stream(hr_session* session, hr_tensor* tensor, const hr_range* range,
                                     hr_reduction reduction, uint32_t root, void* stream,
                                     hr_operation* operation, hr_error* error);
HR_API hr_status hr_all_gather_on_stream(hr_session* session, hr_tensor* tensor,
                                         const hr_range* range, void* stream,
                                         hr_operation* operation, hr_error* error);

/* What is put into `stream` from now on starts once the operation has ended, well or badly: a
 * failure lets the stream go on, with the memory in an undefined state, and hr_test and hr_wait
 * tell how it ended. In sessions with memory on several GPUs, a NULL `stream` is that of the
 * calling thread's current GPU. Errors: HR_INVALID_ARGUMENT (never posted; the session has no
 * memory on a GPU), HR_BUSY, HR_UNAVAILABLE. */
HR_API hr_status hr_stream_wait(hr_session* session, hr_operation operation, void* stream,
                                hr_error* error);

/* ---- Operations on one-off arrays (copied in and out) ---------------------------------------- */

/* As above, on memory that was not registered: `count` elements at `array`, in place. What the
 * operation reads is copied during the call; `array` must stay valid and untouched until hr_wait
 * has returned for this operation, which copies the results back (only when it succeeded: after an
 * error the array has its old values). Exactly as many may be in flight as fit in memory; the
 * staging memory grows by a round trip when needed and is used again. An operation whose result is
 * no longer wanted must be given to hr_discard. */
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

/* `count` elements at `memory`, which may be NULL where there are none. */
typedef struct hr_array {
  void* memory;
  uint64_t count;
} hr_array;

/* As hr_all_to_all, hr_gather and hr_scatter, of arrays: world_size of them where there is one for
 * each rank, which only the root reads of a gather or scatter. What is sent is copied during the
 * call and may be used again when it returns; what is received must stay valid and untouched until
 * hr_wait has returned, which copies the results into it. What a rank has for itself is copied
 * during the call. */
HR_API hr_status hr_all_to_all_arrays(hr_session* session, hr_dtype dtype, const hr_array* sent,
                                      const hr_array* received, hr_operation* operation,
                                      hr_error* error);
HR_API hr_status hr_gather_arrays(hr_session* session, hr_dtype dtype, const hr_array* array,
                                  const hr_array* received, uint32_t root, hr_operation* operation,
                                  hr_error* error);
HR_API hr_status hr_scatter_arrays(hr_session* session, hr_dtype dtype, const hr_array* sent,
                                   const hr_array* array, uint32_t root, hr_operation* operation,
                                   hr_error* error);
/* Of parts of any size: `array` is this rank's own, and the world_size others are those of every
 * rank. An all-gather does not write parts whose memory is NULL. */
HR_API hr_status hr_all_gather_arrays(hr_session* session, hr_dtype dtype, const hr_array* array,
                                      const hr_array* received, hr_operation* operation,
                                      hr_error* error);
HR_API hr_status hr_reduce_scatter_arrays(hr_session* session, hr_dtype dtype, const hr_array* sent,
                                          const hr_array* array, hr_reduction reduction,
                                          hr_operation* operation, hr_error* error);

/* `count` elements, at least one, that stand in an operation's array from element `offset` on, and
 * lie in memory of their own. */
typedef struct hr_piece {
  void* memory;
  uint64_t offset;
  uint64_t count;
} hr_piece;

/* As above, of an array of `count` elements that has no memory of its own: what the operation reads
 * is copied during the call from the `read` pieces, which may be used again when it returns; the
 * `written` pieces must stay valid and untouched until hr_wait has returned, which copies the
 * results into them. Pieces may be left out and may overlap: no piece of a gathered array need be
 * written by a rank that has no use for it. Elements that the operation reads and no piece has are
 * undefined. Errors: HR_INVALID_ARGUMENT also for a piece outside the array. */
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

/* Says whether the operation has ended, without waiting, in *ended (0 or 1). How it ended is
 * hr_wait's to say. Errors: HR_INVALID_ARGUMENT (never posted). */
HR_API hr_status hr_test(hr_session* session, hr_operation operation, int* ended, hr_error* error);

/* Waits until the operation ends and returns how: HR_OK or its error. HR_TIMEOUT also when
 * timeout_ns passed first: hr_test then says that it is still open, and it can be waited for again.
 * May be called repeatedly; the outcome stays known (of failures, the last 1024 at least). */
HR_API hr_status hr_wait(hr_session* session, hr_operation operation, int64_t timeout_ns,
                         hr_error* error);

/* Waits for all of them within one timeout; returns the first error in the order given, after all
 * have ended. Returns HR_TIMEOUT at once when the time is over. */
HR_API hr_status hr_wait_all(hr_session* session, const hr_operation* operations, size_t count,
                             int64_t timeout_ns, hr_error* error);

/* Gives up the result of an operation on a one-off array: from now on `array` is not touched, and
 * the staging memory is used again when the operation has ended. Without effect on others. */
HR_API void hr_discard(hr_session* session, hr_operation operation);

/* ---- A model's gradients, moved by the job's plan -----------------------------------------------
 *
 * A layout is all gradients of a model in forward order. The service decides in which blocks, and
 * in which order, they travel: blocks split and fuse gradients, so that communication hides behind
 * the backward pass and the next forward pass. One iteration of training is, on every rank:
 *
 *   hr_layout_wait(0), forward of what uses gradient 0, hr_layout_wait(1), ...   (in any order)
 *   hr_layout_end_forward(), the loss
 *   hr_layout_begin_backward(), then hr_layout_post(i) as each gradient appears   (in any order)
 *
 * Every gradient is posted once an iteration; one that this rank has no value for is set to zero
 * and posted all the same. Between the post and the return of the wait the gradient's memory is the
 * service's. The calls take the time as they go: that is what the plan is made from. Of the forward
 * passes between two backward passes only the first counts, in which gradients can be late; a
 * gradient that is waited for twice in it gets both parts. */

typedef struct hr_layout hr_layout;

#define HR_POLICY_SIZE 32 /* with the NUL */
#define HR_CODEC_SIZE 64  /* likewise */

typedef struct hr_layout_options {
  size_t size;            /* of this structure; set by hr_layout_options_init */
  hr_reduction reduction; /* HR_AVERAGE (the default) or HR_SUM */
  /* One of those that headracectl policy --help lists, "auto" or "exact" say;
   * empty: as the service at the rendezvous is configured. Ranks that say something say the same.
   * From the environment: HEADRACE_POLICY. */
  char policy[HR_POLICY_SIZE];
  /* How sums of float32 gradients of 4 KiB or more cross between nodes: none, bf16, fp16, int8,
   * int4, fp8-e4m3, fp8-e5m2, int8-stochastic, int4-stochastic, sign, topk, randomk or lossless;
   * empty: none. "auto:int8,bf16" leaves it to each plan which gradients cross so, by what codecs
   * cost here, if that pays: one to three codecs, separated by commas. "topk:16" and "randomk:16"
   * say how many of each 256 elements cross (1 to 64; default: 8). What an encoding leaves out is
   * added the next time, so nothing is lost over iterations; lossless leaves nothing out. All ranks
   * get the same bits. Gradients on GPUs cannot be compressed. From the environment:
   * HEADRACE_COMPRESS. */
  char codec[HR_CODEC_SIZE];
  /* The same for each gradient by itself, as many texts as there are gradients, or NULL. Where a
   * text is not NULL, it says how that gradient crosses, however small it is, and `codec` and
   * `headracectl compress` do not. Read by hr_layout_create only. */
  const char* const* codecs;
  /* So many iterations cross as they are before any gradient is encoded: from the first plan on
   * that is made after them. They are counted anew when the service was lost. */
  uint64_t compress_after;
  /* Where in the gradients' segment, behind them and at a multiple of 64 bytes, there is as much
   * room again for what encodings leave out, laid out as the gradients are; 0: nowhere. The service
   * keeps it there for the whole node, in the memory of the lowest rank that has some, where it
   * outlives the service and may be saved and loaded while none of the rank's gradients is open.
   * Without it what was left out is lost with the service. */
  uint64_t residuals;
} hr_layout_options;

/* Fills in the defaults and what the environment says; a macro as hr_options_init is. */
HR_API hr_status hr_layout_options_init_sized(hr_layout_options* options, size_t size,
                                              hr_error* error);
#define hr_layout_options_init(options, error) \
  hr_layout_options_init_sized((options), sizeof(hr_layout_options), (error))

/* Registers `count` gradients in forward order as the session's layout; it has at most one. All lie
 * in one segment and do not overlap; their `order` is not read. Lay them out in this order without
 * gaps: then neighbours travel as one piece of memory. Element types may differ; a block of the
 * plan that holds several travels as one for each. At most 768. Ranks of a job hand in equal
 * layouts (counts, places, element types, reduction, names); gradients move when all ranks have.
 * Names are how two gradients of one size are told apart: give them. Errors: HR_INVALID_ARGUMENT,
 * HR_ALREADY_EXISTS (the session has a layout), HR_MISMATCH (another rank's differs; the text says
 * where), and those of hr_tensors_register. */
HR_API hr_status hr_layout_create(hr_session* session, const hr_tensor_spec* specs, size_t count,
                                  const hr_layout_options* options, hr_layout** layout,
                                  hr_error* error);
/* Frees the handle; the service keeps the layout as long as the session lasts, and hr_close frees
 * what was not freed before. NULL is allowed. */
HR_API void hr_layout_free(hr_layout* layout);

/* The backward pass of the next iteration begins now. Before it, hr_layout_post is refused. A pass
 * that posts nothing, as of a micro-batch, is no iteration. Errors: HR_INVALID_ARGUMENT (some but
 * not all gradients of the last backward pass were posted: one that is missing is named), and
 * those of a lost service. */
HR_API hr_status hr_layout_begin_backward(hr_layout* layout, hr_error* error);

/* Gradient `index` of this iteration is in its memory. Returns without waiting. Any thread.
 * `operation` (NULL is allowed) can be given to hr_test and hr_wait. Errors: HR_INVALID_ARGUMENT
 * (no such gradient), HR_BUSY (its last operation has not ended, or no backward pass has begun
 * since its last post), HR_UNAVAILABLE. */
HR_API hr_status hr_layout_post(hr_layout* layout, uint32_t index, hr_operation* operation,
                                hr_error* error);

/* The forward pass has reached gradient `index`: waits until its last post has ended and returns
 * how, at once where nothing of it is open. Counts as the begin of its part of the forward pass.
 * HR_TIMEOUT as in hr_wait. */
HR_API hr_status hr_layout_wait(hr_layout* layout, uint32_t index, int64_t timeout_ns,
                                hr_error* error);
/* Both in the order of a stream, for a layout on a GPU; see above. The post comes after the wait
 * for the same gradient of the iteration before, in the same stream or one that waits for it. The
 * wait does not stop the host, so that it tells a failure only of an operation that has ended by
 * now; of the others hr_wait tells it. The host may run an iteration ahead of the GPU: a post waits
 * until the same gradient's of the iteration before has ended. Of the times that plans are made
 * from, those of the forward pass are then the host's. */
HR_API hr_status hr_layout_post_on_stream(hr_layout* layout, uint32_t index, void* stream,
                                          hr_operation* operation, hr_error* error);
HR_API hr_status hr_layout_wait_on_stream(hr_layout* layout, uint32_t index, void* stream,
                                          hr_error* error);
/* The forward pass has ended: time that passes from now on belongs to no gradient. */
HR_API hr_status hr_layout_end_forward(hr_layout* layout, hr_error* error);

/* ---- What it cost -----------------------------------------------------------------------------
 */

typedef struct hr_counters {
  size_t size;            /* of this structure, set by the caller */
  uint64_t posted;        /* operations */
  uint64_t waits;         /* waits that found their operation still open */
  uint64_t waited_ns;     /* time threads spent in them, summed over threads */
  uint64_t doorbells;     /* posts that had to wake the service (a system call) */
  uint64_t full_waits;    /* posts that had to wait for the oldest operation */
  uint64_t arrays;        /* operations on one-off arrays */
  uint64_t copied_bytes;  /* into and out of staging memory */
  uint64_t staging_bytes; /* staging memory at present */
} hr_counters;

/* The counters of this session since hr_open. Cheap; not one consistent moment. */
HR_API hr_status hr_session_counters(const hr_session* session, hr_counters* counters,
                                     hr_error* error);

#ifdef __cplusplus
}
#endif

#endif /* HEADRACE_HEADRACE_H */

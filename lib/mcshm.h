/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libmcshm: the client of mcshmd, the agent that moves KV-cache bytes on a host.
 *
 * A process connects to its host's agent, takes memory from the agent's pool, publishes
 * buffers under a segment name, opens the segments of others, and has bytes copied
 * between them.  Requests go through a ring in shared memory and completions come back
 * in slots in shared memory: submitting and polling make no system call.
 *
 *   mcshm          one connection; its control calls are serialised inside, so any thread
 *                  may make them; each waits for the agent's answer (control_timeout_ms)
 *   mcshm_queue    a ring with its slots; used by one thread at a time, which is the
 *                  caller's to see to; submit, poll, wait, cancel take no lock
 *   mcshm_batch    requests submitted and tracked together; belongs to one queue
 *
 * Every call returns a mcshm_status.  mcshm_last_error() has the sentence behind the
 * last failed control call.  The library never prints, exits, installs signal handlers or
 * reads the environment; it logs through the caller's callback.  It starts one thread a
 * connection, which sleeps while the agent lives; none with options.reconnect_ms = 0.
 *
 * When the agent dies or is restarted, and something keeps its table (mcshmd --supervise,
 * systemd), the connection comes back by itself to the agent that takes over: memory, queues,
 * segments and handles are what they were, submissions and polls go on in the meantime, control
 * calls wait.  A task that was in the dead agent's hands ends FAILED with AGENT_RESTARTED, unless
 * it had ended: its bytes may or may not have moved, wholly or in part; ask for it again.
 *
 * After fork() the handles belong to the parent; in the child every call returns
 * MCSHM_FORKED, except mcshm_close(), and the child opens a connection of its own.
 */
#ifndef MCSHM_H
#define MCSHM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MCSHM_VERSION "0.1.0"

#define MCSHM_DEFAULT_SOCKET "/run/mcshm/mcshmd.sock"

typedef enum mcshm_status {
    MCSHM_OK = 0,
    MCSHM_INVALID_ARGUMENT = 1, /* a NULL, a zero length, a value out of its range */
    MCSHM_INVALID_HANDLE = 2,   /* unknown, closed, freed, or another session's */
    MCSHM_BAD_RANGE = 3,        /* outside one buffer or extent, or across two */
    MCSHM_ACCESS = 4,           /* the buffer does not grant this */
    MCSHM_NOT_REGISTERED = 5,   /* local address in no allocation or registration */
    MCSHM_NO_MEMORY = 6,        /* the pool or the process is out of memory */
    MCSHM_NO_HUGEPAGES = 7,
    MCSHM_RING_FULL = 8,  /* nothing was submitted: poll, then retry */
    MCSHM_NO_SLOTS = 9,   /* nothing was submitted: free finished batches, then retry */
    MCSHM_ARGS_FULL = 10, /* nothing was submitted: poll, then retry */
    MCSHM_TOO_MANY_TASKS = 11,
    MCSHM_NO_BATCHES = 12,
    MCSHM_BUSY = 13, /* unfinished work still uses it */
    MCSHM_TIMEOUT = 14,
    MCSHM_CANCELED = 15,
    MCSHM_NOT_FOUND = 16,
    MCSHM_EXISTS = 17,
    MCSHM_VERSION_MISMATCH = 18,
    MCSHM_AGENT_DOWN = 19,
    MCSHM_PERMISSION = 20,
    MCSHM_NOT_SUPPORTED = 21,
    MCSHM_BAD_SHM = 22,
    MCSHM_REVOKED = 23, /* the buffer went away while or before the task ran */
    MCSHM_OVERLAP = 24,
    MCSHM_FORKED = 25,
    MCSHM_INBOX_FULL = 26, /* a receiver let its notifications pile up until the deadline */
    MCSHM_STRICT = 27,
    MCSHM_LIMIT = 28,
    MCSHM_PROTOCOL = 29,
    MCSHM_MEMORY_FAULT = 30,
    MCSHM_INTERNAL = 31,
    MCSHM_PEER_UNREACHABLE = 32, /* the agent of the segment's host */
    MCSHM_STALE = 33,            /* the segment's owner or its agent was replaced: open it again */
    MCSHM_CHECKSUM = 34,
    MCSHM_RAIL = 35,       /* every rail failed, or the only ones left are slower and strict */
    MCSHM_METADATA = 36,   /* etcd or http: running transfers and open segments are not touched */
    MCSHM_AUTH = 37,       /* between agents */
    MCSHM_ENCRYPTION = 38, /* [peer] require_encryption */
    MCSHM_LOCAL_RESOURCE = 39,
    MCSHM_AGENT_RESTARTED = 40, /* it was in the hands of an agent that died */
    /* objects */
    MCSHM_REBUILDING = 41,   /* the directory has a new leader, which does not know yet: retry */
    MCSHM_NO_DIRECTORY = 42, /* no master answers; what this host holds can be read */
    MCSHM_NO_SPACE = 43,     /* everything is leased, pinned or in use */
    MCSHM_IN_USE = 44,    /* leased, pinned, or just being filled in place or written elsewhere */
    MCSHM_BAD_KEY = 45,   /* empty, or longer than MCSHM_KEY_MAX */
    MCSHM_TOO_SMALL = 46, /* the buffer; the result's size says what it takes */
    MCSHM_LEASE = 47,     /* a read from another host took longer than its lease */
    MCSHM_FENCED = 48,    /* an order of an earlier leader */
    MCSHM_DISK = 49,
    MCSHM_NOT_OWNER = 50, /* the hold of a put that is over, or another session's */
    /* GPU memory */
    MCSHM_NO_GPU = 51,      /* no such device, no driver, or [gpu] enable = off */
    MCSHM_GPU_CONTEXT = 52, /* the driver refused: its word for it is in the sentence */
    MCSHM_GPU_LOST = 53,    /* a sticky error: the device needs its processes to end */
    MCSHM_GPU_ORDER = 54 /* local GPU memory, and neither MCSHM_GPU_SYNCED nor a gate to wait for */
} mcshm_status;

/* States of a task: the values of Mooncake's TransferStatusEnum. */
typedef enum mcshm_state {
    MCSHM_STATE_WAITING = 0, /* submitted, not taken yet */
    MCSHM_STATE_PENDING = 1, /* bytes are moving */
    MCSHM_STATE_INVALID = 2, /* refused: bad request; nothing moved */
    MCSHM_STATE_CANCELED = 3,
    MCSHM_STATE_COMPLETED = 4, /* visible at the destination */
    MCSHM_STATE_TIMEOUT = 5,   /* the deadline passed */
    MCSHM_STATE_FAILED = 6
} mcshm_state;

/* How the bytes of a task went. */
typedef enum mcshm_path {
    MCSHM_PATH_NONE = 0,
    MCSHM_PATH_LOCAL = 1,  /* the agent copied between two extents of this host */
    MCSHM_PATH_CALLER = 2, /* the library copied in the caller's thread */
    MCSHM_PATH_STAGED = 3, /* private memory: through pool memory, one copy more */
    MCSHM_PATH_TCP = 4,
    MCSHM_PATH_RDMA = 5,
    MCSHM_PATH_CUDA = 6,
    MCSHM_PATH_FILE = 7,
    MCSHM_PATH_MOONCAKE = 8 /* stock Mooncake's TCP protocol */
} mcshm_path;

typedef enum mcshm_class {
    MCSHM_CLASS_HIGH = 0,
    MCSHM_CLASS_NORMAL = 1,
    MCSHM_CLASS_BACKGROUND = 2
} mcshm_class;

typedef enum mcshm_opcode {
    MCSHM_READ = 1, /* remote -> local */
    MCSHM_WRITE = 2 /* local -> remote */
} mcshm_opcode;

typedef struct mcshm mcshm;
typedef struct mcshm_queue mcshm_queue;
typedef uint64_t mcshm_batch;   /* belongs to the queue it was allocated from */
typedef uint32_t mcshm_segment; /* handle of an open segment; 0 is never one */

#define MCSHM_INVALID_BATCH UINT64_MAX

/* ---- errors ---------------------------------------------------------------------- */

/* A short text for a status; never NULL, static. Unknown values say so. */
const char *mcshm_strerror(mcshm_status status);
/* The word for a state ("COMPLETED") or path ("local"); never NULL, static. */
const char *mcshm_state_name(mcshm_state state);
const char *mcshm_path_name(mcshm_path path);
/* The version of the library, "major.minor.patch"; static. */
const char *mcshm_version(void);

/*
 * The sentence behind the last failed control call of the calling thread (value, limit,
 * remedy); "" when there is none. Valid until the thread's next call. Works with c == NULL
 * after a failed mcshm_connect().
 */
const char *mcshm_last_error(const mcshm *c);

/* ---- connection ------------------------------------------------------------------ */

typedef enum mcshm_log_level {
    MCSHM_LOG_ERROR = 0,
    MCSHM_LOG_WARNING = 1,
    MCSHM_LOG_INFO = 2,
    MCSHM_LOG_DEBUG = 3
} mcshm_log_level;

/* May be called from any thread that is inside a call of the library, and from the library's own.
 * Must not call back. */
typedef void (*mcshm_log_fn)(void *context, mcshm_log_level level, const char *text);

typedef struct mcshm_options {
    size_t size;                 /* sizeof(struct mcshm_options), set by mcshm_options_init() */
    const char *socket_path;     /* the agent's socket; NULL: MCSHM_DEFAULT_SOCKET */
    const char *name;            /* shown by `mcshm ls sessions`; NULL: none; at most 255 bytes */
    uint32_t connect_timeout_ms; /* 1 .. 600,000; default 5,000 */
    /* Each control call; 1 .. 600,000; default 30,000. An answer that does not come in time
     * ends the connection: nobody knows then what the agent has done. */
    uint32_t control_timeout_ms;
    /* Largest transfer in bytes that may be copied in the caller's thread where the caller
     * has both sides mapped writable. MCSHM_CALLER_DEFAULT: what the agent suggests;
     * 0: never. */
    uint64_t caller_max;
    bool strict;      /* a slow path (private memory) is an error, not a fallback */
    mcshm_log_fn log; /* NULL: no log */
    void *log_context;
    /* How long to look for a later agent when this one is gone; 0 .. 600,000; default 10,000. When
     * none came by then, the session has ended: AGENT_DOWN. So it has at once when the agent
     * ends it for good, when nothing keeps the agent's table, and with 0. Unless it is 0, the
     * process keeps a descriptor of each extent and queue: mind RLIMIT_NOFILE. */
    uint32_t reconnect_ms;
} mcshm_options;

#define MCSHM_CALLER_DEFAULT UINT64_MAX

/* Fills in the defaults. Call it before setting fields. */
void mcshm_options_init(mcshm_options *o);

/*
 * Connects to the agent. *out is the caller's, to be closed by mcshm_close(). o may be
 * NULL. Errors: AGENT_DOWN (no socket, nobody listens), PERMISSION (on the socket),
 * VERSION_MISMATCH, TIMEOUT, LIMIT (too many sessions), NO_MEMORY.
 */
mcshm_status mcshm_connect(const mcshm_options *o, mcshm **out);

/*
 * Ends the session: unfinished tasks are canceled, queues, memory, segment and grants of
 * the session are given back, their mappings removed from the process. Waits for the agent to
 * let go, at most control_timeout_ms, and not at all while the agent is away; then for the GPU driver, where it was used, as long
 * at most. No other call of this connection may run or follow. NULL is fine. In a child of fork() it frees what the child inherited
 * and leaves the session alone.
 */
void mcshm_close(mcshm *c);

typedef struct mcshm_info {
    uint64_t agent_incarnation;
    uint64_t session_incarnation;
    uint64_t tenant;
    uint64_t page_size;   /* bytes; of the newest allocation, before the first as configured */
    uint64_t caller_max;  /* in force, bytes */
    uint64_t tick_hz;     /* rate of the processor's counter as the agent measured it */
    uint32_t deadline_us; /* the agent's default deadline of a task */
    bool never_sleeps;    /* the agent's engines never sleep: no doorbell, ever */
    char agent_version[32];
    uint64_t restarts; /* how often a later agent has taken over, which agent_incarnation names */
} mcshm_info;

mcshm_status mcshm_get_info(mcshm *c, mcshm_info *out);

/* ---- memory ---------------------------------------------------------------------- */

/*
 * Allocates pool memory, zeroed when the extent is new, mapped into the process. size: 1 .. the pool's limit, bytes. align: a power
 * of two up to 1 GiB, or 0 for 64. location: NULL, "cpu" or "cpu:N" (NUMA node N), or a GPU: see below. Freed by mcshm_free() or
 * with the connection. Errors: NO_MEMORY, NO_HUGEPAGES, LIMIT, NOT_SUPPORTED (location).
 *
 * "cuda:N": memory of the GPU that this process's CUDA calls device N, under its CUDA_VISIBLE_DEVICES; "cuda:GPU-..." by
 * UUID. *out is a device address, mapped for that device and for those that reach it directly, in their primary
 * contexts; a host access to it is a fault. Needs libcuda.so.1, which the library loads now. align: up to 1 GiB, 0 for
 * 256. NO_GPU, GPU_CONTEXT (the driver refused), NO_MEMORY: the device has no more, TIMEOUT: no answer of the driver in [gpu] call_s.
 */
mcshm_status mcshm_alloc(mcshm *c, size_t size, size_t align, const char *location, void **out);

/* Gives an allocation back: unpublishes what lay in it, returns when nothing can reach it. */
mcshm_status mcshm_free(mcshm *c, void *address);

/*
 * Maps and registers a memfd of the caller's that is sealed against shrinking: zero-copy like pool memory. size bytes from its
 * start, all of which count against the session. *out is mapped until mcshm_unregister(). The fd stays the caller's. BAD_SHM.
 */
mcshm_status mcshm_register_memfd(mcshm *c, int fd, size_t size, void **out);

/*
 * Registers private memory (malloc, stack, mmap) as the local side of transfers. It is staged: the library keeps as much pool memory
 * beside it and copies in the caller's thread, WRITE at submission and READ when the completion is polled. Such tasks report
 * MCSHM_PATH_STAGED. It cannot be published. Registering the same range again counts; another overlap is OVERLAP. With
 * options.strict: STRICT.
 */
mcshm_status mcshm_register(mcshm *c, void *address, size_t size);

/*
 * Registers GPU memory that another library has allocated (a framework's tensor): size bytes at the device address, wherever it
 * begins. The agent maps the same memory: by exported handles where it was made with such (cuMemCreate() with POSIX descriptors, as
 * PyTorch's expandable segments; the range may span many that are mapped one behind the other), else by a CUDA IPC handle of its one
 * cuMemAlloc() allocation. It must not be freed before mcshm_unregister(). The process keeps a descriptor of each handle, as of extents.
 * Registering the same range again counts; another overlap is OVERLAP.
 * Errors: NO_GPU; NOT_SUPPORTED: neither way is open (managed memory, another process's, a pool's); NOT_REGISTERED: no
 * device memory lies there; GPU_CONTEXT; LIMIT; NO_MEMORY; TIMEOUT: as mcshm_alloc().
 */
mcshm_status mcshm_register_gpu(mcshm *c, void *address, size_t size);

/*
 * A gate: a word in pool memory that a device's streams reach, by which a request waits for a stream, or a stream
 * for a request, and no thread for either.  Values count up; what it stands for in both directions takes two gates. One thread at a time.
 */
typedef struct mcshm_gate {
    uint32_t *word;  /* as order.wait and order.signal want it */
    uint64_t device; /* the same word, for cuStreamWriteValue32() and cuStreamWaitValue32() */
    uint32_t last;   /* the value recorded last */
    uint32_t reserved;
    void *state;
} mcshm_gate;

/* location: "cuda:N" or "cuda:GPU-...". Errors as of mcshm_alloc(). */
mcshm_status mcshm_gate_create(mcshm *c, const char *location, mcshm_gate *out);
/* No request and no stream uses it any more. */
mcshm_status mcshm_gate_destroy(mcshm *c, mcshm_gate *gate);
/* Queues on the stream (a CUstream of the gate's device, current or not) a write of the next value, behind what it has so
 * far. *value: what order.wait_value is to be. GPU_CONTEXT. */
mcshm_status mcshm_gate_record(mcshm *c, mcshm_gate *gate, void *stream, uint32_t *value);
/* Queues on the stream a wait for the value: what is queued later begins when a request has signalled it. */
mcshm_status mcshm_gate_follow(mcshm *c, mcshm_gate *gate, void *stream, uint32_t value);

/*
 * Undoes one mcshm_register(), mcshm_register_memfd() or mcshm_register_gpu(); address is the start of the range. Returns when nothing
 * can reach the memory any more; tasks that used it end FAILED with REVOKED. BUSY: staged tasks are unfinished. NOT_REGISTERED.
 */
mcshm_status mcshm_unregister(mcshm *c, void *address);

/* ---- segments -------------------------------------------------------------------- */

#define MCSHM_SEGMENT_PUBLIC 0x1u /* open to other tenants */

#define MCSHM_ACCESS_READ 0x1u
#define MCSHM_ACCESS_WRITE 0x2u
#define MCSHM_ACCESS_MAP_READ 0x4u /* clients of the same tenant may map it read-only */
/* Clients of the same tenant may map it writable, and libmcshm then copies small pieces in
 * the caller's thread. Trusts them with the whole extent: see mcshm_revoke(). */
#define MCSHM_ACCESS_MAP_WRITE 0x8u

/*
 * Publishes this connection's address space under a name of 1 .. 255 bytes of UTF-8
 * without control characters. One name per connection. EXISTS: a living session has that name.
 */
mcshm_status mcshm_segment_publish(mcshm *c, const char *name, uint32_t flags);
/* Takes the name and all buffers back; returns when no transfer can reach them, and when the cluster's
 * metadata has let go of the name: while that is out of order after [meta] timeout_ms, and the name
 * is free once its lease has run out. */
mcshm_status mcshm_segment_withdraw(mcshm *c);

/*
 * Publishes size bytes at address (inside one allocation, registered memfd or registered GPU memory) with MCSHM_ACCESS_* rights.
 * *published: the address others name it by; it equals the pointer wherever the process could map the extent at its own place. May be
 * called before or after mcshm_segment_publish(). The same range with the same rights again is OK and counted; another overlap is OVERLAP.
 * GPU memory cannot be mapped read-only: MAP_READ without MAP_WRITE is NOT_SUPPORTED there.
 */
mcshm_status mcshm_buffer_publish(mcshm *c, void *address, size_t size, uint32_t access,
                                  uint64_t *published);
/* Undoes one mcshm_buffer_publish() of exactly this range; returns when nothing can land there. */
mcshm_status mcshm_buffer_withdraw(mcshm *c, void *address, size_t size);

/*
 * Takes remote access to a range away, whatever was published there (buffers that reach beyond it keep the rest). Returns when no
 * rail can write there any more: the range may be reused at once. Tasks under way end FAILED with REVOKED. TIMEOUT: a peer that was
 * given MAP_WRITE is in the middle of a copy and does not come back; its session was ended, but only the death of that process takes
 * its mapping away. A mapping of GPU memory (MAP_WRITE) stays with who has it: its kernels are his.
 */
mcshm_status mcshm_revoke(mcshm *c, void *address, size_t size);

/*
 * Opens a segment by name: one of this host, one that the cluster's metadata knows, or
 * "HOST:PORT/NAME", whose agent's [peer] listen is HOST:PORT; "mooncake:NAME" for a stock Mooncake
 * process. NOT_FOUND, ACCESS (another tenant's, not public), METADATA, PEER_UNREACHABLE, AUTH, TIMEOUT
 * ([peer] open_ms), ENCRYPTION.
 */
mcshm_status mcshm_segment_open(mcshm *c, const char *name, mcshm_segment *out);
/* Tasks under way on it end FAILED. INVALID_HANDLE when it is not open. */
mcshm_status mcshm_segment_close(mcshm *c, mcshm_segment segment);

typedef struct mcshm_buffer {
    uint64_t address; /* in the segment's address space */
    uint64_t size;    /* bytes */
    uint32_t access;  /* MCSHM_ACCESS_* */
    char location[32];
} mcshm_buffer;

/*
 * Asks for the segment's buffers, by rising address. *count: in, room in `buffers`; out,
 * how many there are, which may be more than fit. buffers may be NULL when *count is 0.
 */
mcshm_status mcshm_segment_describe(mcshm *c, mcshm_segment segment, mcshm_buffer *buffers,
                                    size_t *count);

/*
 * Maps a granted range of an open segment read-only, to be read in place: no bytes move.
 * Needs MAP_READ and the same tenant. *out is valid until mcshm_unmap() or close; the
 * owner's death does not take it away. The whole extent counts against this session.
 * Of GPU memory *out is a device address, and MAP_WRITE is needed, since no such mapping is read-only; what its owner
 * registered by mcshm_register_gpu() is NOT_SUPPORTED. NO_GPU: the device is none of this process's.
 */
mcshm_status mcshm_map(mcshm *c, mcshm_segment segment, uint64_t address, size_t size,
                       const void **out);
mcshm_status mcshm_unmap(mcshm *c, const void *mapped);

/* ---- queues and batches ---------------------------------------------------------- */

typedef struct mcshm_queue_options {
    size_t size;        /* sizeof(struct mcshm_queue_options) */
    uint32_t depth;     /* descriptors in the ring; power of two 2 .. 65,536; 0: agent's default */
    uint32_t slots;     /* unfinished and unfreed tasks; 0: default, 4 x depth */
    uint32_t batches;   /* batches alive; 0: default */
    uint64_t args_size; /* bytes for lists, strides and notifications; 0: default */
} mcshm_queue_options;

mcshm_status mcshm_queue_open(mcshm *c, const mcshm_queue_options *o, mcshm_queue **out);
/* Unfinished tasks are canceled; returns when they are quiet. Before mcshm_close(). The queue is gone whatever is returned,
 * except after INVALID_ARGUMENT and FORKED. */
mcshm_status mcshm_queue_close(mcshm_queue *q);

#define MCSHM_FENCE 0x1u  /* start after all earlier tasks of the queue have ended */
#define MCSHM_NOTIFY 0x2u /* then deliver `notify` to the segment's owner */
/* Local memory is a GPU's, and everything that was queued on its streams and touches the range has ended: the
 * stream was synchronised. A request on local GPU memory has this or order->wait. */
#define MCSHM_GPU_SYNCED 0x20u

/*
 * What a request comes after and what comes after it, beside the queue's own order.  Words are 4-byte aligned, in host memory of
 * mcshm_alloc() or of a gate.  Of a task that ends with AGENT_RESTARTED nobody sets the word: whoever sees that does.
 */
typedef struct mcshm_order {
    const uint32_t
        *wait; /* NULL, or the first byte moves once (int32_t)(*wait - wait_value) >= 0 */
    uint32_t wait_value;
    uint32_t signal_value;
    uint32_t *signal; /* NULL, or set to signal_value when the task has ended, however it ended */
} mcshm_order;

typedef struct mcshm_notification {
    const char *name; /* not NUL-terminated when received */
    size_t name_size; /* at most 256 bytes */
    const void *message;
    size_t message_size; /* at most 4,096 bytes */
} mcshm_notification;

/* One request; zero the struct, then set what matters. */
typedef struct mcshm_request {
    mcshm_opcode opcode;
    uint32_t flags;       /* MCSHM_FENCE, MCSHM_NOTIFY, MCSHM_GPU_SYNCED */
    mcshm_class priority; /* MCSHM_CLASS_HIGH is 0 */
    uint32_t deadline_us; /* after submission; 0: the agent's default; about 71 min at most */
    void *local;          /* in an allocation or registration of this connection */
    mcshm_segment segment;
    uint64_t remote_address;          /* in the segment's address space */
    uint64_t length;                  /* bytes, not 0 */
    uint64_t cookie;                  /* comes back in the status */
    const mcshm_notification *notify; /* with MCSHM_NOTIFY; copied at submission */
    const mcshm_order *order;         /* NULL: none; copied at submission */
} mcshm_request;

/* A piece of a list: offsets are added to request.local and request.remote_address. */
typedef struct mcshm_piece {
    uint64_t local_offset;
    uint64_t remote_offset;
    uint64_t length; /* bytes, not 0 */
} mcshm_piece;

typedef struct mcshm_stride {
    uint64_t count;        /* blocks, not 0 */
    uint64_t block;        /* bytes of each, not 0 */
    uint64_t local_stride; /* bytes from one to the next */
    uint64_t remote_stride;
} mcshm_stride;

/* A batch for up to `tasks` tasks (1 .. the queue's slots). NO_BATCHES when all are in use. */
mcshm_status mcshm_batch_alloc(mcshm_queue *q, uint32_t tasks, mcshm_batch *out);
/* Frees a batch whose tasks have all ended; BUSY otherwise. When the agent is down, any batch. */
mcshm_status mcshm_batch_free(mcshm_queue *q, mcshm_batch batch);

/*
 * Submits n requests as the batch's next tasks: all of them, or, with an error, none. n is at most the queue's depth - 1
 * (INVALID_ARGUMENT: the ring never holds more). Pure argument errors are told here; what only the agent can know (range, access,
 * closed segments) ends the task as INVALID or FAILED.
 * Errors: RING_FULL, NO_SLOTS, ARGS_FULL (retry later), TOO_MANY_TASKS, NOT_REGISTERED,
 * BAD_RANGE, INVALID_ARGUMENT, INVALID_HANDLE, AGENT_DOWN, STRICT; BUSY: a WRITE from private
 * memory into which a READ of this queue has not been polled to its end; GPU_ORDER: of local GPU memory
 * without MCSHM_GPU_SYNCED or order->wait; NOT_SUPPORTED: an order for private memory, or a word in it.
 */
mcshm_status mcshm_submit(mcshm_queue *q, mcshm_batch batch, const mcshm_request *requests,
                          size_t n);
/* One task of many pieces (1 .. what the argument area holds, INVALID_ARGUMENT beyond), in one
 * descriptor. request.length is ignored. All ranges are checked before the first byte moves. Pieces are copied in order. */
mcshm_status mcshm_submit_list(mcshm_queue *q, mcshm_batch batch, const mcshm_request *request,
                               const mcshm_piece *pieces, size_t n);
mcshm_status mcshm_submit_stride(mcshm_queue *q, mcshm_batch batch, const mcshm_request *request,
                                 const mcshm_stride *stride);
/* A notification alone, a task like any other; local, remote_address, length are ignored. */
mcshm_status mcshm_submit_notify(mcshm_queue *q, mcshm_batch batch, const mcshm_request *request);

typedef struct mcshm_batch_status {
    uint32_t tasks; /* submitted */
    uint32_t ended;
    uint32_t failed; /* of the ended: in another state than COMPLETED */
    uint64_t bytes;  /* moved by the ended tasks */
} mcshm_batch_status;

/* How far the batch is. Touches one cache line; out may be NULL. OK: all submitted tasks have ended; BUSY: not yet; AGENT_DOWN:
 * the session was ended, tasks will not end by themselves. */
mcshm_status mcshm_batch_poll(mcshm_queue *q, mcshm_batch batch, mcshm_batch_status *out);

/* Waits for all submitted tasks to end: spins, then sleeps. timeout_us < 0: for ever.
 * OK, TIMEOUT (they still run), AGENT_DOWN. */
mcshm_status mcshm_batch_wait(mcshm_queue *q, mcshm_batch batch, int64_t timeout_us);

typedef struct mcshm_task_status {
    mcshm_state state;
    mcshm_status error; /* the cause when state is INVALID, CANCELED, TIMEOUT or FAILED */
    mcshm_path path;
    bool remote_quiesced; /* the target's side has confirmed that nothing can land any more */
    uint64_t bytes;       /* moved so far as reported; exact once ended */
    uint64_t cookie;
    uint32_t queue_ns;  /* submission to start */
    uint32_t move_ns;   /* start to last byte */
    uint32_t notify_ns; /* last byte to delivery of the notification */
} mcshm_task_status;

/* Status of task `index` of the batch, in order of submission. Never blocks. OK whenever the
 * handle and index are good: look at out->state. */
mcshm_status mcshm_task_poll(mcshm_queue *q, mcshm_batch batch, uint32_t index,
                             mcshm_task_status *out);

/* Asks for a task to be canceled. Its end still arrives in its slot: CANCELED, or what it had
 * come to before. OK also when it has ended already. RING_FULL: retry. AGENT_DOWN. */
mcshm_status mcshm_cancel(mcshm_queue *q, mcshm_batch batch, uint32_t index);

/* ---- objects --------------------------------------------------------------------- */

/*
 * The object store: immutable byte strings under keys, in memory of the agents, so no client's death costs one.  A key is 1 ..
 * MCSHM_KEY_MAX bytes of any kind, of the connection's tenant.  An object is written once, whole: readers see all of it or
 * nothing.  docs/consistency.md says what is promised.
 *
 * One request names up to MCSHM_KEYS_MAX keys and is one task of a batch; it ends COMPLETED when every key has a result of
 * its own, mcshm_object_results().  The queue's argument area must have room for keys, spans and results (roughly 100 bytes and
 * the key for each): mcshm_queue_options.args_size.
 */
#define MCSHM_KEY_MAX 4096
#define MCSHM_KEYS_MAX 65536

typedef enum mcshm_object_op {
    MCSHM_PUT = 5,    /* spans -> a new object; where one is, nothing is written, and that is OK */
    MCSHM_GET = 6,    /* object -> spans */
    MCSHM_EXIST = 7,  /* OK or NOT_FOUND for each key */
    MCSHM_PREFIX = 8, /* how many keys, from the first on, exist: mcshm_task_status.bytes */
    MCSHM_REMOVE = 9, /* IN_USE: leased or pinned, without MCSHM_OBJECT_FORCE */
    /* space for an object that the caller fills in place: result.address. EXISTS where one is */
    MCSHM_CREATE = 10,
    MCSHM_SEAL = 11, /* what was created and filled is an object now */
    MCSHM_HOLD = 12  /* to be read in place: result.address, until mcshm_object_release() */
} mcshm_object_op;

#define MCSHM_OBJECT_UPSERT 0x001u   /* PUT, CREATE: fresh space, then the switch for new readers */
#define MCSHM_OBJECT_NEW 0x002u      /* PUT, CREATE: a key that is there is EXISTS */
#define MCSHM_OBJECT_HARD_PIN 0x004u /* PUT, CREATE: never evicted */
#define MCSHM_OBJECT_RANGES 0x008u /* GET: each span has its own place in the object, span.offset */
#define MCSHM_OBJECT_VERIFY 0x010u /* GET, HOLD: compute the checksum of what this host holds */
#define MCSHM_OBJECT_FORCE 0x020u  /* REMOVE */
#define MCSHM_OBJECT_LOCAL 0x040u  /* only what this host's agent holds */
#define MCSHM_OBJECT_CHAIN 0x080u  /* keys are successive blocks of one prefix: for eviction */
#define MCSHM_OBJECT_LEASE 0x100u  /* EXIST, PREFIX: what exists stays for lease_ms at least */

typedef struct mcshm_key {
    const void *bytes;
    size_t size;
} mcshm_key;

/* Memory of the caller, as mcshm_request.local; spans of a key in memory of several kinds are fine. */
typedef struct mcshm_span {
    void *address;
    uint64_t size;   /* bytes, not 0 */
    uint64_t offset; /* MCSHM_OBJECT_RANGES: in the object; else ignored */
} mcshm_span;

/* Zero the struct, then set what matters. Nothing of it is used after the call. */
typedef struct mcshm_object_request {
    mcshm_object_op op;
    uint32_t flags;  /* MCSHM_OBJECT_* */
    bool fence;      /* start after all earlier tasks of the queue have ended */
    bool gpu_synced; /* as MCSHM_GPU_SYNCED: spans in GPU memory need this, or order->wait */
    mcshm_class priority;
    uint32_t deadline_us; /* after submission; 0: the agent's default */
    uint64_t cookie;
    const mcshm_key *keys; /* all but SEAL */
    size_t count;          /* 1 .. MCSHM_KEYS_MAX */
    /* PUT, GET: spans of the first key, then of the second, ...; span_counts[i] are key i's; NULL: one each */
    const mcshm_span *spans;
    const uint32_t *span_counts;
    const uint64_t *sizes; /* CREATE: bytes */
    const uint64_t *holds; /* SEAL: of CREATE's results */
    /* PUT, CREATE */
    const mcshm_key
        *groups;          /* evicted together: per key, 256 bytes at most, size 0 or NULL: none */
    uint32_t replicas;    /* hosts that are to hold it, 0 .. 8; 0 is 1 */
    uint32_t soft_pin_ms; /* evicted last for so long; at most a day */
    const char *host;     /* an agent's "host:port" where it is to be if it can; NULL: here */
    uint32_t lease_ms;    /* EXIST, PREFIX with MCSHM_OBJECT_LEASE, 0: the agent's default */
    uint32_t position;    /* MCSHM_OBJECT_CHAIN: of the first key in its chain */
    const mcshm_order *order; /* NULL: none; copied at submission */
} mcshm_object_request;

typedef enum mcshm_tier {
    MCSHM_TIER_NONE = 0,
    MCSHM_TIER_MEMORY = 1, /* of this host */
    MCSHM_TIER_DISK = 2,
    MCSHM_TIER_REMOTE = 3
} mcshm_tier;

typedef struct mcshm_object_result {
    mcshm_status status;
    mcshm_tier tier;
    mcshm_path path;
    uint32_t copies;  /* PUT, SEAL: hosts that hold it now */
    uint64_t size;    /* of the object, bytes */
    uint64_t version; /* grows from one life of a key to the next */
    uint32_t crc;     /* CRC32C */
    void *address;    /* CREATE: write here; HOLD: read here only; else, or empty: NULL */
    uint64_t hold;    /* CREATE, HOLD */
} mcshm_object_result;

/* Submits one request as the batch's next task. Errors as mcshm_submit(), and: BAD_KEY; TOO_MANY_TASKS; ARGS_FULL (free batches
 * whose results have been taken, which keep their place until then; INVALID_ARGUMENT when it will never fit). Nothing was
 * submitted then. */
mcshm_status mcshm_submit_objects(mcshm_queue *q, mcshm_batch batch, const mcshm_object_request *r);

/*
 * Results of keys first .. first + n - 1 of task `index` of the batch, once it has ended; before the batch is freed.
 * Of CREATE and HOLD: maps what is not mapped yet, which takes a control call the first time an extent is
 * met. BUSY: it has not ended. The task's own state says whether there are results: not COMPLETED: none, and
 * its error is returned.
 */
mcshm_status mcshm_object_results(mcshm_queue *q, mcshm_batch batch, uint32_t index, size_t first,
                                  mcshm_object_result *out, size_t n);

/*
 * Gives back what HOLD and CREATE gave: objects may be evicted again, creations that were not sealed are undone. Holds end with
 * the connection, too. Addresses must not be used any more. RING_FULL: retry; holds up to there are given back, *done
 * (may be NULL) says how many.
 */
mcshm_status mcshm_object_release(mcshm_queue *q, const uint64_t *holds, size_t n, size_t *done);

/* Submits, waits for it to end (timeout as mcshm_batch_wait()), takes all results and frees the batch. *status (may be NULL):
 * the task's. TIMEOUT: the task was canceled, what it had done counts. */
mcshm_status mcshm_objects(mcshm_queue *q, const mcshm_object_request *r,
                           mcshm_object_result *results, mcshm_task_status *status,
                           int64_t timeout_us);

/* Removes by pattern; *removed (may be NULL): how many. Control calls: may take long. flags: MCSHM_OBJECT_FORCE, _LOCAL. */
mcshm_status mcshm_objects_remove_prefix(mcshm *c, const void *prefix, size_t size, uint32_t flags,
                                         uint64_t *removed);
/* A regular expression of PCRE2's, of which POSIX extended ones are a part, matched anywhere in a key, which may have any
 * bytes. INVALID_ARGUMENT: PCRE2 refuses it, or it takes too much time or memory. */
mcshm_status mcshm_objects_remove_regex(mcshm *c, const char *regex, uint32_t flags,
                                        uint64_t *removed);
mcshm_status mcshm_objects_remove_all(mcshm *c, uint32_t flags, uint64_t *removed);

/* Objects of the tenant whose keys begin with prefix, as far as this host knows them: one JSON object, free() it. At most
 * `limit` (1 .. 1,000,000) after the first `skip`, in no order that stays. With MCSHM_OBJECT_LOCAL: what this host holds. */
mcshm_status mcshm_objects_list(mcshm *c, const void *prefix, size_t size, uint32_t flags,
                                uint64_t skip, uint64_t limit, char **json);
/* One object: size, version, checksum, holders, pins, leases: JSON, free() it. NOT_FOUND. */
mcshm_status mcshm_object_stat(mcshm *c, const mcshm_key *key, char **json);
/* Events from number `from` on, `limit` at most: JSON {"first":..,"next":..,"lost":..,"events":[..]}, free() it. `lost`: how many
 * before `first` are not kept any more: list the objects anew. */
mcshm_status mcshm_objects_events(mcshm *c, uint64_t from, uint64_t limit, char **json);
/* Has the agent `to` ("host:port") hold an object, too; with `from` (NULL: none) that one no more. Pins and groups go with it, and it is
 * to have one holder more from now on, as if it had been put so. *json (free() it): the object as mcshm_object_stat() has it, when
 * that is so. NOT_FOUND: there is no such object, or host, or `from` does not hold it; NO_SPACE: `to` has no room or is drained;
 * LIMIT: 8 hosts have it; TIMEOUT: it goes on, ask again. */
mcshm_status mcshm_object_place(mcshm *c, const mcshm_key *key, const char *from, const char *to,
                                char **json);
/* Has an agent ("host:port") give its objects to others, and take no new ones until `drain` is false. *json: how far it is;
 * call again to see. PERMISSION: neither root nor the agent's user. */
mcshm_status mcshm_drain(mcshm *c, const char *host, bool drain, char **json);

/* ---- notifications --------------------------------------------------------------- */

/*
 * Takes the next notification sent to this connection's segment. *out points into memory that stays valid until the next
 * mcshm_notify_recv() of any thread: one thread at a time. timeout_us 0: never blocks; < 0: waits for ever. TIMEOUT: none came.
 */
mcshm_status mcshm_notify_recv(mcshm *c, mcshm_notification *out, int64_t timeout_us);

/* ---- statistics ------------------------------------------------------------------ */

typedef struct mcshm_stats { /* of the whole connection, since it began */
    uint64_t submitted;      /* tasks put into rings */
    uint64_t caller_tasks;   /* tasks copied in the caller's thread */
    uint64_t caller_bytes;
    uint64_t staged_tasks;
    uint64_t staged_bytes;
    uint64_t doorbells;     /* system calls made to wake an engine */
    uint64_t sleeps;        /* waits that went to sleep */
    uint64_t ring_full;     /* submissions refused for want of ring, slots or arguments */
    uint64_t notifications; /* received */
} mcshm_stats;

mcshm_status mcshm_get_stats(mcshm *c, mcshm_stats *out);

typedef enum mcshm_query_what {
    MCSHM_QUERY_STATUS = 0,
    MCSHM_QUERY_SEGMENTS = 1, /* with their buffers */
    MCSHM_QUERY_EXTENTS = 2,
    MCSHM_QUERY_SESSIONS = 3,
    MCSHM_QUERY_RAILS = 4,   /* to other hosts: states, rates, what they carried */
    MCSHM_QUERY_PEERS = 5,   /* agents of other hosts */
    MCSHM_QUERY_TENANTS = 6, /* what each has, may have, was given and was refused */
    MCSHM_QUERY_NICS = 7,    /* ports of RDMA devices; NOT_SUPPORTED by an agent that knows none */
    MCSHM_QUERY_STORE = 8,   /* objects: what is held, hit, evicted, leased; tiers; the directory */
    MCSHM_QUERY_GPUS = 9     /* devices, their memory here, copies */
} mcshm_query_what;

/* Asks the agent about itself. *json: one JSON object, free() it. A client sees its own tenant's resources; root, agent's user: all. */
mcshm_status mcshm_query(mcshm *c, mcshm_query_what what, char **json);

typedef struct mcshm_peer {
    uint64_t rtt_ns;      /* of one control message between the agents */
    uint64_t incarnation; /* of the other agent */
    char agent_version[32];
} mcshm_peer;

/*
 * Has this host's agent ask another one, at address "host:port" (its [peer] listen), whether it
 * lives: connects the two if they are not. timeout_ms: 1 .. 600,000. Errors: PEER_UNREACHABLE, AUTH,
 * VERSION_MISMATCH, TIMEOUT, INVALID_ARGUMENT, NOT_SUPPORTED ([peer] listen = off here).
 */
mcshm_status mcshm_ping(mcshm *c, const char *address, uint32_t timeout_ms, mcshm_peer *out);

/*
 * The last tasks of clients of this host as the agent recorded them, with the time of each stage: one JSON object, free() it. client: a
 * session's id, a pid, or a client's name; whoever matches, first by id, then by pid, then by name. count: 1 .. 4096 tasks at most, the
 * newest. A client sees its own tenant's; root and the agent's own user see all. NOT_FOUND: nobody (that it may see) is called so.
 */
mcshm_status mcshm_trace(mcshm *c, const char *client, uint32_t count, char **json);

/*
 * Has the agent read its configuration again, as SIGHUP does. *json: {"changed":[...],"waiting":[...]},
 * the keys that changed and those that wait for the agent's next start; free() it. PERMISSION: neither
 * root nor the agent's user. INVALID_ARGUMENT: the configuration is wrong and the one in force stays;
 * mcshm_last_error() says where.
 */
mcshm_status mcshm_reload(mcshm *c, char **json);

/* ---- watching an agent ----------------------------------------------------------- */

/*
 * Reads the counters that an agent keeps in a file next to its socket. Needs no connection and no
 * answer: it works while the agent hangs, and its last words can be read after it was killed.
 * Sums grow from each thing's beginning on; two reads give a rate. One thread at a time.
 */
typedef struct mcshm_monitor mcshm_monitor;

typedef struct mcshm_monitor_agent {
    uint64_t incarnation;
    uint32_t pid; /* as the agent's own PID namespace knows it */
    char version[32];
    uint64_t uptime_ns;
    uint64_t silent_ns;  /* since the control thread's last sign of life; a few seconds: it hangs */
    uint64_t sampled_ns; /* CLOCK_MONOTONIC: what the counts are as of */
    bool copied;         /* the file is on no tmpfs: the control thread writes it once a second */
    uint64_t pool_size, pool_used, pool_page_size; /* bytes */
    uint32_t extents, sessions;
    uint32_t sessions_left_out, queues_left_out; /* for want of rows */
} mcshm_monitor_agent;

typedef struct mcshm_monitor_engine {
    uint32_t id;
    int32_t core; /* -1 unknown */
    bool asleep;  /* waits to be woken */
    bool never_sleeps;
    uint64_t silent_ns; /* since its last sign of life; 0 while it sleeps */
    uint64_t idle_ns;   /* without work, sleep included */
    uint64_t turns, sleeps;
    uint64_t tasks, bytes, failed;
    uint32_t hot, cold; /* queues it looks at every turn, and now and then */
} mcshm_monitor_engine;

#define MCSHM_MONITOR_BUCKETS 32

typedef struct mcshm_monitor_client {
    uint32_t session, pid, uid;
    uint64_t tenant;
    char tenant_name[32]; /* empty: the tenant is the uid */
    char name[256];
    uint64_t incarnation;
    uint32_t queues, extents;
    uint64_t memory;                                 /* bytes */
    uint64_t depth;                                  /* tasks that have not ended */
    uint64_t tasks, failed, bytes;                   /* ended; of them, not COMPLETED; moved */
    uint64_t queue_ns, move_ns, notify_ns, notified; /* sums; notified: how many notify_ns is of */
    uint64_t caller_tasks, caller_bytes; /* copies in its own threads, as it says; once a second */
    uint64_t latency[MCSHM_MONITOR_BUCKETS]; /* tasks by log2 of the stages' sum in ns */
} mcshm_monitor_client;

typedef struct mcshm_monitor_view {
    mcshm_monitor_agent agent;
    const mcshm_monitor_engine *engines;
    size_t nengines;
    const mcshm_monitor_client *clients; /* by session id */
    size_t nclients;
} mcshm_monitor_view;

/* socket_path: the agent's socket; NULL: MCSHM_DEFAULT_SOCKET. Errors: AGENT_DOWN (no such file),
 * PERMISSION, BAD_SHM (not a file of an agent), VERSION_MISMATCH, NO_MEMORY. */
mcshm_status mcshm_monitor_open(const char *socket_path, mcshm_monitor **out);
/* *out stays the monitor's, valid until the next read or close. */
mcshm_status mcshm_monitor_read(mcshm_monitor *m, const mcshm_monitor_view **out);
/* Is the file still the one that was opened? False once another agent has replaced it, or it was removed. */
bool mcshm_monitor_current(const mcshm_monitor *m);
void mcshm_monitor_close(mcshm_monitor *m); /* NULL is fine */

#ifdef __cplusplus
}
#endif

#endif

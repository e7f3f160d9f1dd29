/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the double share. One lock guards all of a process's state; streams move bytes without it. */
#ifndef FAKE_CUDA_INSIDE_H
#define FAKE_CUDA_INSIDE_H

#include <pthread.h>
#include <stdbool.h>
#include <sys/types.h>

#include "fake.h"
#include "shm/atomic.h"
#include "shm/cuda.h"

#define FAKE_PAGE UINT64_C(4096)
#define FAKE_GRANULE (UINT64_C(2) << 20)

/* Beyond what mcshm calls, for tests that play an application. */
#define FAKE_MORE_FUNCTIONS(X)                                                                     \
    X(0, x, cuCtxSetCurrent, (CUcontext c))                                                        \
    X(0, x, cuCtxSynchronize, (void))                                                              \
    X(0, x, cuEventSynchronize, (CUevent e))

enum fake_call {
#define FAKE_CALL(required, field, symbol, arguments) FAKE_##symbol,
    MCS_CUDA_FUNCTIONS(FAKE_CALL) FAKE_MORE_FUNCTIONS(FAKE_CALL)
#undef FAKE_CALL
        FAKE_RUN_COPY,
    FAKE_RUN_FILL,
    FAKE_RUN_WRITE,
    FAKE_RUN_WAIT,
    FAKE_RUN_HOST,
    FAKE_CALL_COUNT
};
static_assert(FAKE_CALL_COUNT <= FAKE_CUDA_CALLS, "the control file has too few places for calls");

#define FAKE_DECLARE(required, field, symbol, arguments) CUresult fake_##symbol arguments;
MCS_CUDA_FUNCTIONS(FAKE_DECLARE)
FAKE_MORE_FUNCTIONS(FAKE_DECLARE)
#undef FAKE_DECLARE

enum fake_kind { FAKE_KIND_CONTEXT = 1, FAKE_KIND_HANDLE, FAKE_KIND_STREAM, FAKE_KIND_EVENT };

/* What the environment says, read once. */
struct fake_settings {
    unsigned devices; /* there; visible are fewer */
    bool peer, vmm, posix, dmabuf, rdma, flush, mig, abort, leaks;
    int version, compute_mode;
    uint64_t memory, granularity; /* bytes */
    uint32_t delay_us;
    struct fake_rule rules[FAKE_CUDA_RULES];
};

struct fake_stream;

struct fake_context {
    int device; /* physical */
    unsigned retains;
    uint64_t handle;
    CUresult lost; /* 0, or what every call returns */
    uint32_t peers;
    unsigned
        things; /* streams, events, allocations, opened and registered memory that go with it */
    struct fake_stream *streams, *null_stream;
};

/* Device memory: one memfd. */
struct fake_physical {
    struct fake_physical *next;
    int fd, device;
    uint64_t size, inode;
    unsigned users; /* handles, ranges */
    bool vmm, exportable, rdma;
    uint8_t *bytes; /* our own mapping of it; NULL until the first copy */
};

struct fake_handle { /* of an allocation */
    struct fake_physical *p;
    unsigned references; /* by the application, and by mappings that can give it back to it */
    unsigned held;       /* by the application */
    uint64_t id;
    uint64_t value;
};

enum fake_range_kind { FAKE_MAPPED, FAKE_ALLOCATED, FAKE_OPENED_IPC };

struct fake_range {
    uint64_t at, size;
    enum fake_range_kind kind;
    struct fake_physical *p;
    uint64_t offset;
    uint8_t access[FAKE_CUDA_DEVICES]; /* of mapped ones: CUmemAccess_flags */
    uint64_t id;                       /* CU_POINTER_ATTRIBUTE_BUFFER_ID */
    struct fake_handle *h;
    struct fake_context *c;
    uint64_t ipc_inode; /* of opened ones */
    unsigned busy;      /* operations under way */
};

struct fake_host {
    struct fake_host *next;
    uint64_t at, size;
    struct fake_context *c;
    bool portable, mapped, ours; /* by cuMemHostAlloc */
    unsigned busy;
    uint64_t id;
};

struct fake_state {
    pthread_mutex_t lock;
    pthread_cond_t changed; /* an operation has ended */
    struct fake_settings settings;
    struct fake_control *control;
    int control_fd; /* -1: nobody else sees it */
    struct fake_process *me;
    unsigned place; /* of this process */
    pid_t pid;
    bool initialised;
    unsigned visible;
    int order[FAKE_CUDA_DEVICES]; /* physical device of an ordinal */
    struct fake_context contexts[FAKE_CUDA_DEVICES];
    struct fake_physical *physicals;
    struct fake_range **ranges; /* by address */
    unsigned nranges, ranges_room;
    struct fake_host *hosts;
    uint64_t next_id, next_seq;
};
extern struct fake_state fake;

/* ---- control.c */

/* What a call needs beside what it says itself. */
#define FAKE_ANY 0u
#define FAKE_INIT 1u
#define FAKE_CURRENT 3u /* a context on this thread */

/*
 * The way into every call: counts it, lets rules act, and takes the lock.  Anything but CUDA_SUCCESS is what the call
 * returns, without the lock.
 */
CUresult fake_enter(enum fake_call call, unsigned needs);
CUresult fake_leave(CUresult result);
const char *fake_call_name(enum fake_call call);
/* Only a bug of the caller's explains it: says so and aborts, or, with FAKE_CUDA_ABORT=0, gives `otherwise`. */
CUresult fake_misuse(CUresult otherwise, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Lets rules act on what a stream is about to do; not under the lock. */
CUresult fake_obey(enum fake_call call, struct fake_context *c);
void fake_count(int device, enum fake_count what, int64_t by);
/* Something that goes with a context. */
void fake_count_thing(struct fake_context *c, enum fake_count what, int by);
uint32_t fake_delay_us(void);
/* Handles that the application holds: never a pointer, never the same again. */
uint64_t fake_object_add(enum fake_kind kind, void *it);
void *fake_object_find(enum fake_kind kind, uint64_t handle); /* NULL after a sentence */
void fake_object_remove(uint64_t handle);
/* Over processes; false: not so much is left on the device. */
bool fake_memory_add(int device, uint64_t inode, uint64_t size);
void fake_memory_join(int device, uint64_t inode, uint64_t size);
void fake_memory_drop(uint64_t inode);
uint64_t fake_memory_used(int device);
/* Whether another live process has a context there. */
bool fake_others_on(int device);
bool fake_number(const char *name, uint64_t *out); /* of the environment */

/* ---- errors.c */
const char *fake_error_name(CUresult e); /* NULL: none such */
bool fake_error_parse(const char *text, size_t length, CUresult *out);

/* ---- device.c */
struct fake_context *fake_current(void); /* of this thread, or NULL */
void fake_in_host_function(bool in);
bool fake_is_in_host_function(void);
int fake_device_of(CUdevice d); /* physical, or -1 */
int fake_ordinal_of(int device);
bool fake_reaches(int device, int peer);

/* ---- physical.c */
int fake_physical_create(int device, uint64_t size, bool vmm, bool exportable, bool rdma,
                         struct fake_physical **out); /* 0, -ENOMEM: device, -errno: host */
/* Takes the descriptor. NULL: no such memory. */
struct fake_physical *fake_physical_open(int fd);
void fake_physical_put(struct fake_physical *p);
uint8_t *fake_physical_bytes(struct fake_physical *p);
void fake_handle_put(struct fake_handle *h);

/* ---- space.c */
struct fake_range *fake_range_find(uint64_t at); /* that holds it */
void fake_range_insert(struct fake_range *r);
void fake_range_remove(struct fake_range *r);
uint64_t fake_addresses_get(uint64_t size, uint64_t align, uint64_t hint); /* 0: none */
void fake_addresses_put(uint64_t at, uint64_t size);
/* Of a device, whether or not something is there. */
bool fake_is_device_address(uint64_t at);
/* How a device may use it: CUmemAccess_flags. */
unsigned fake_range_access(const struct fake_range *r, int device);

/* ---- host.c */
struct fake_host *fake_host_find(uint64_t at);
bool fake_host_is_mapped(uint64_t at, uint64_t size); /* for the CPU */

/* ---- stream.c, copy.c */
struct fake_mark { /* one recording of an event */
    unsigned users;
    bool done;
};

struct fake_piece {
    uint8_t *to;
    const uint8_t *from;
    size_t size;
};

struct fake_op {
    struct fake_op *next;
    enum {
        FAKE_OP_COPY,
        FAKE_OP_FILL,
        FAKE_OP_RECORD,
        FAKE_OP_WAIT_EVENT,
        FAKE_OP_WRITE,
        FAKE_OP_WAIT,
        FAKE_OP_HOST
    } kind;
    uint64_t seq;
    struct fake_context *c;
    CUresult fault; /* what it ends with, for good */
    struct fake_piece *pieces;
    size_t npieces, room;
    struct fake_range **ranges;
    size_t nranges, ranges_room;
    struct fake_host **hosts;
    size_t nhosts, hosts_room;
    uint32_t value, flags;
    unsigned width; /* of a fill */
    struct fake_mark *mark;
    CUhostFn f;
    void *f_context;
    bool staged, pageable;
    bool waited, done; /* somebody waits, and frees it */
};

struct fake_op *fake_op_create(int kind);
void fake_op_destroy(struct fake_op *op); /* lets go of what it holds */
/* The stream of that handle, in the current context; NULL after a sentence. */
struct fake_stream *fake_stream_find(CUstream s);
/* The context has ended. */
void fake_null_stream_end(struct fake_context *c);
/* Takes the operation. */
CUresult fake_stream_push(struct fake_stream *s, struct fake_op *op);
/* The same, and waits until it is done; under the lock, which is let go meanwhile. */
CUresult fake_stream_push_wait(struct fake_stream *s, struct fake_op *op);
/* Moves the bytes of a copy or fill; not under the lock. */
void fake_op_move(struct fake_op *op);
/*
 * What lies at an address, for an operation in its context, and for how many bytes; it is held until the operation ends.
 * Memory that the device may not use makes a fault of it.
 */
CUresult fake_op_hold(struct fake_op *op, uint64_t at, uint64_t size, bool writes, uint8_t **out,
                      size_t *run);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The host's GPUs as one agent uses them: device memory made, imported and freed; copies.
 *
 * Threads.  No caller ever waits for the driver: a hanging call holds up nobody but what it was about.
 *   control thread   mct_cuda_begin() hands a call over; mct_cuda_poll() brings results, each once, by the call's done().
 *   hands            carry calls out, each thread one at a time; when all hang, another one is started, up to MCT_CUDA_HANDS.
 *                    Calls of one `order` (a session, say) are carried out one after the other, in order; those of one `owner`
 *                    (a tenant) have at most MCT_CUDA_SHARE hands, so that those that hang stop nobody else.
 *   copiers          one a device (copier.c); it makes every call about copies from it, and to it from the host, and no others
 *   engines          each has a port: posts jobs without locks, takes them back by mct_cuda_port_take()
 * The driver is loaded by the first MCT_CUDA_OPEN, never before; a host without GPU traffic has no context and no thread.
 *
 * A device that is lost (a sticky error) fails every job on it with MCS_GPU_LOST from then on, and says so in its
 * info; its memory goes with the process.  Other devices go on.
 */
#ifndef MCT_CUDA_H
#define MCT_CUDA_H

#include "shm/abi.h"
#include "shm/cuda.h"

#define MCT_CUDA_DEVICES 32u /* of a host */
#define MCT_CUDA_HANDS 64u
#define MCT_CUDA_SHARE 8u
#define MCT_CUDA_STUCK_MS 5000u /* a call that takes longer is counted and said once */

enum mct_cuda_log { MCT_CUDA_LOG_ERROR, MCT_CUDA_LOG_WARNING, MCT_CUDA_LOG_INFO };

struct mct_cuda;        /* all of it; one an agent */
struct mct_cuda_memory; /* device memory that this process has mapped */
struct mct_cuda_port;   /* an engine's way to the copiers */

/* What a device is. Constant once it was discovered, but for the last ones. */
struct mct_cuda_device {
    struct mcs_gpu_id id;
    char name[128];
    char pci[16];                          /* "0000:41:00.0" */
    int node;                              /* NUMA, -1 unknown */
    bool vmm, posix_handles, dmabuf, rdma; /* cuMemCreate; as descriptors; dmabuf; GPUDirect RDMA */
    bool mig, exclusive;
    uint64_t total, granularity; /* bytes */
    uint32_t peers;              /* a bit a device that it reaches directly */
    /* read relaxed by anybody */
    uint32_t lost; /* 1: a sticky error */
};

struct mct_cuda_stats {              /* relaxed, by the copiers and hands */
    uint64_t copies, batches, bytes; /* pieces; driver calls that carried several */
    uint64_t unpinned;    /* pieces to or from host memory that could not be registered */
    uint64_t peer_staged; /* pieces between devices that do not reach each other */
    uint64_t unreached;   /* times that a device got no access to memory that it should reach */
    uint64_t calls, failed_calls, stuck, stuck_now;
    uint64_t imports, imports_open; /* of others' memory */
    uint64_t contexts;              /* primary contexts held */
    uint64_t registered_bytes;      /* of host memory, with the driver */
};

struct mct_cuda_env {
    /* Any thread. level: enum mct_cuda_log */
    void (*log)(int level, const char *format, ...) __attribute__((format(printf, 2, 3)));
    int control_fd;   /* eventfd: written when mct_cuda_poll() has something; the caller reads it */
    unsigned streams; /* of a device, 1 .. 16 */
    uint64_t spin_ns; /* a copier looks for so long for more before it sleeps */
    unsigned stuck_ms; /* 0: MCT_CUDA_STUCK_MS */
};

/* control_fd stays the caller's. -ENOMEM. No thread, and no driver, until the first call. */
int mct_cuda_create(const struct mct_cuda_env *env, struct mct_cuda **out);
/*
 * All ports are closed, all memory is freed and all calls have come back, but for those that hang: threads that do not
 * end within stuck_ms are left behind, with what they may touch, and what such a call was about is not touched any more.
 */
void mct_cuda_destroy(struct mct_cuda *c);

/* ---- control thread: calls ------------------------------------------------------------------- */

enum mct_cuda_call_kind {
    MCT_CUDA_OPEN, /* loads the driver, discovers devices; contexts only when a device is first used */
    /* size (a multiple of the device's granularity), device, hint -> memory, address, fd (exported, the caller's). Zeros. */
    MCT_CUDA_MAKE,
    MCT_CUDA_IMPORT, /* parts, device, hint -> memory, address */
    /* memory: unmapped and let go; it is gone whatever the status. Nothing is under way into or out of it */
    MCT_CUDA_FREE,
    MCT_CUDA_EXPORT, /* memory, made here -> fd, one more */
    MCT_CUDA_DMABUF, /* memory, offset, size -> fd of a dmabuf; NOT_SUPPORTED where the device has none */
    /* Host memory (host, size) is registered with the driver, for all devices: with a context that is there already, else
     * with one that is made on `device` */
    MCT_CUDA_PIN,
    MCT_CUDA_UNPIN
};

/*
 * A part of imported memory: what lies one behind the other there lies so here.  Of exported handles only the first may begin
 * inside its allocation and only the last may end before it, since the driver maps an allocation as a whole; an IPC handle is
 * the only part.
 */
struct mct_cuda_part {
    int fd; /* an exported cuMem handle (POSIX descriptor); -1: it is the IPC handle. Stays the caller's */
    CUipcMemHandle ipc; /* of the base of its allocation */
    /* IPC: id of the allocation, unique in its process. One open for each handle and id, however many imports there are */
    uint64_t allocation;
    uint64_t
        tenant; /* IPC: whose it is. What is open for one is refused to another: a handle proves nothing */
    uint64_t offset; /* of the part in its allocation, bytes */
    uint64_t size;
    uint64_t whole; /* bytes of the allocation; IPC: the driver tells */
};

struct mct_cuda_call {
    enum mct_cuda_call_kind kind;
    uint64_t order; /* calls with the same one, not 0, are carried out in order */
    uint64_t owner; /* whose share of the hands it is; 0: nobody's */
    unsigned device;
    uint64_t size, offset;
    uint64_t hint; /* address wanted */
    void *host;
    struct mct_cuda_memory *memory;
    const struct mct_cuda_part *parts; /* stay until done() */
    unsigned nparts;
    /* results */
    enum mcs_status
        status; /* OK; NO_GPU; GPU_CONTEXT; GPU_LOST; NO_MEMORY; NOT_SUPPORTED; BAD_SHM (not such a handle); ... */
    char text[224]; /* the sentence behind it */
    uint64_t address;
    int fd;
    /* Control thread, from mct_cuda_poll(). */
    void (*done)(struct mct_cuda_call *call);
    void *context;
    /* its own */
    struct mct_cuda_call *next;
    struct mct_cuda_call *behind, *behind_last; /* of the same order, waiting for it */
    struct mct_cuda_call *beside;               /* another order's, in the same bucket */
};

/* The call stays where it is until done(). */
void mct_cuda_begin(struct mct_cuda *c, struct mct_cuda_call *call);
/* True when something was brought. Looks for what is stuck, too: about once a second, also when nothing was written. */
bool mct_cuda_poll(struct mct_cuda *c);

/* After an OPEN that went well. NULL: beyond the last one. */
const struct mct_cuda_device *mct_cuda_device_get(const struct mct_cuda *c, unsigned index);
/* Index of the device with this id, or -1. */
int mct_cuda_device_find(const struct mct_cuda *c, const struct mcs_gpu_id *id);
/* 13000: 13.0; 0: no OPEN went well yet. */
int mct_cuda_driver_version(const struct mct_cuda *c);
const struct mct_cuda_stats *mct_cuda_stats(const struct mct_cuda *c);

/* Constant while it is there. */
unsigned mct_cuda_memory_device(const struct mct_cuda_memory *m);

/* ---- engine: copies --------------------------------------------------------------------------- */

#define MCT_CUDA_HOST (-1)

/* Addresses as this process has them mapped: of device or host memory. */
struct mct_cuda_piece {
    uint64_t to, from, length; /* bytes, not 0 */
};

/*
 * Pieces that are copied in no particular order, none overlapping another's target. All `to` lie in memory of one device
 * (or of the host), all `from` likewise; not both on the host. No piece crosses the end of an extent: the driver refuses a
 * copy across two registrations. Host memory that was not pinned is copied by the driver's own staging, and counted.
 * A job that fails is quiet when it comes back, as far as the driver can be asked; after GPU_LOST nothing runs on the device.
 */
struct mct_cuda_job {
    int to_device, from_device; /* MCT_CUDA_HOST */
    bool strict; /* fails with STRICT rather than be staged (peers without access; not pinned) */
    bool pinned; /* the host's side was pinned */
    uint32_t n;
    struct mct_cuda_piece *pieces; /* stay until it comes back */
    uint64_t bytes;                /* of all of them */
    /* result */
    enum mcs_status
        status; /* OK: visible at the target. GPU_LOST, GPU_CONTEXT, STRICT: what was moved is not known */
    bool staged; /* by the driver, through host memory */
    void *context;
    /* its own */
    struct mct_cuda_job *next;
    struct mct_cuda_port *port;
};

/* wake_fd: this eventfd is written when jobs come back while the engine sleeps; stays the caller's. -ENOMEM, -EMFILE. */
int mct_cuda_port_open(struct mct_cuda *c, int wake_fd, struct mct_cuda_port **out);
/* Nothing is under way. */
void mct_cuda_port_close(struct mct_cuda_port *p);
/* Engine's thread. Every job comes back, once. */
void mct_cuda_post(struct mct_cuda_port *p, struct mct_cuda_job *job);
/* A job that has come back, or NULL. Engine's thread. */
struct mct_cuda_job *mct_cuda_port_take(struct mct_cuda_port *p);
/* Before the engine sleeps: true when whatever comes back from now on writes wake_fd; false: something has come back. */
bool mct_cuda_port_arm(struct mct_cuda_port *p);

#endif

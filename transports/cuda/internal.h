/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of this folder share; nobody else sees it.
 *
 *   cuda.c     all of it: made, ended, OPEN
 *   hands.c    threads that carry calls out
 *   device.c   devices: found, used for the first time, lost; what the driver's errors come to
 *   memory.c   device memory: made, exported, freed; host memory pinned
 *   import.c   others' memory: by exported handles, by IPC handles
 *   copier.c   a device's thread that copies
 *   stream.c   its streams: batches under way
 *   port.c     engines' ways to the copiers
 *
 * One mutex, mct_cuda.lock, guards the calls; no driver call is made under it.  gpu.lock is held over the driver calls of a device's
 * first use, and imports_lock over none.
 */
#ifndef MCT_CUDA_INTERNAL_H
#define MCT_CUDA_INTERNAL_H

#include <pthread.h>

#include "cuda.h"
#include "shm/atomic.h"
#include "transports/thread.h"

#define MCT_CUDA_STREAMS 16u
#define MCT_CUDA_BATCHES 64u  /* under way on a device */
#define MCT_CUDA_PIECES 1024u /* of one driver call */
#define MCT_CUDA_ORDERS 256u  /* buckets */
/* Bytes at which a batch takes no further job in: large enough that the driver's start of a batch is nothing beside it, small
 * enough that several are under way, each on its own stream. */
#define MCT_CUDA_BATCH_BYTES (UINT64_C(8) << 20)

/* So many batches that are refused for no piece of theirs, and the driver gets no more. */
#define MCT_CUDA_REFUSED_MAX 8u

/* Cannot be handed over by anybody: the last call, from mct_cuda_destroy(). */
#define MCT_CUDA_CLOSE ((enum mct_cuda_call_kind)100)

/* What jobs have in common that one driver call can carry: host memory either way, pinned or not, and each device. */
enum mct_cuda_way {
    MCT_CUDA_IN,
    MCT_CUDA_IN_UNPINNED,
    MCT_CUDA_OUT,
    MCT_CUDA_OUT_UNPINNED,
    MCT_CUDA_ACROSS, /* + the index of the target's device */
    MCT_CUDA_WAYS = MCT_CUDA_ACROSS + MCT_CUDA_DEVICES
};

struct mct_cuda_jobs {
    struct mct_cuda_job *first, *last;
};

/* Jobs whose copies were begun together, on one stream. */
struct mct_cuda_batch {
    struct mct_cuda_batch *next;
    CUevent event;
    bool recorded; /* else the stream tells when it is over */
    unsigned stream;
    uint64_t bytes, since; /* ms: when it was begun */
    struct mct_cuda_jobs jobs;
};

struct mct_cuda_stream {
    CUstream stream;
    struct mct_cuda_batch *first, *last; /* under way, in order */
    uint64_t bytes;                      /* of them */
};

struct mct_cuda_copier {
    struct mct_cuda_gpu *gpu;
    CUcontext primary;
    pthread_t thread;
    /* its thread */
    struct mct_cuda_jobs ways[MCT_CUDA_WAYS]; /* not begun */
    uint64_t some;                            /* a bit for each of them that has one */
    unsigned way;                             /* the one that was served last */
    struct mct_cuda_stream streams[MCT_CUDA_STREAMS];
    unsigned nstreams, under_way; /* batches */
    struct mct_cuda_batch *idle;
    struct mct_cuda_batch batches[MCT_CUDA_BATCHES];
    bool current;      /* the context is, on its thread */
    bool singly;       /* the driver has no batches, or does not want them here */
    unsigned refused;  /* batches, one after the other, of which each piece by itself was taken */
    uint32_t peers;    /* devices: asked whether they are reached */
    uint32_t unpeered; /* and are not, whatever the driver said at first */
    CUdeviceptr to[MCT_CUDA_PIECES], from[MCT_CUDA_PIECES];
    size_t sizes[MCT_CUDA_PIECES];
    /* control thread: `since` when it was last said to be stuck; 0: it is not */
    uint64_t said;
    /* shared: engines push jobs, as a stack */
    struct mct_cuda_job *posted __attribute__((aligned(64)));
    uint32_t sleeping __attribute__((aligned(64))); /* a futex */
    uint32_t stop;
    uint64_t
        since; /* ms: when the oldest that is not over was begun; 0: nothing is under way. Relaxed */
};

_Static_assert(MCT_CUDA_WAYS <= 64, "mct_cuda_copier.some has a bit for each");

/* One device, with what is our own of it. */
struct mct_cuda_gpu {
    struct mct_cuda_device device;
    struct mct_cuda *cuda;
    unsigned index;
    CUdevice handle; /* the driver's ordinal */
    uint64_t unit;   /* bytes: granularity of mappings */
    uint32_t apart;  /* a bit a device that it does not reach after all. Relaxed, set by hands */
    pthread_mutex_t lock; /* first use; held over driver calls */
    /* From the first use to the end. With the lock: release; acquire by anybody */
    CUcontext primary;
    struct mct_cuda_copier *copier;
    CUstream chores; /* of the hands: new memory is cleared there */
};

/* Others' memory that is open by its IPC handle. */
struct mct_cuda_opened {
    struct mct_cuda_opened *next;
    unsigned device;
    CUipcMemHandle ipc;
    uint64_t allocation, tenant;
    CUdeviceptr base;
    uint64_t size;
    unsigned users; /* memories, and hands that open or close it */
    bool ready;     /* open, and not being closed */
};

/* A range of our address space with one allocation behind it. */
struct mct_cuda_mapping {
    CUmemGenericAllocationHandle handle;
    CUdeviceptr at;
    uint64_t size;
    bool mapped;
};

struct mct_cuda_memory {
    struct mct_cuda_gpu *gpu;
    uint64_t address, size; /* of what was asked for */
    CUdeviceptr reserved;   /* 0: nothing */
    uint64_t reserved_size;
    struct mct_cuda_opened *opened; /* IPC; else NULL */
    bool made;                      /* here, so it can be exported */
    unsigned n;
    struct mct_cuda_mapping mappings[];
};

/* A thread that carries calls out. */
struct mct_cuda_hand {
    struct mct_cuda *cuda;
    pthread_t thread;
    /* lock */
    const struct mct_cuda_call *call; /* that it is at; NULL: none */
    uint64_t owner;
    uint64_t since; /* ms */
    bool said;      /* that it is stuck */
};

struct mct_cuda_port {
    struct mct_cuda *cuda;
    struct mct_cuda_port
        *next;   /* of all, until the end: a copier may still look at one that is closed */
    int wake_fd; /* a duplicate; -1: closed */
    /* engine */
    bool armed;
    struct mct_cuda_jobs taken; /* in the order in which they came back */
    /* shared with the copiers, each on its own line */
    struct mct_cuda_job *back __attribute__((aligned(64))); /* a stack */
    uint32_t sleeping __attribute__((aligned(64)));
};

struct mct_cuda {
    struct mct_cuda_env env;
    const struct mcs_cuda *driver; /* NULL before OPEN. Hand: release; acquire by anybody */
    struct mct_cuda_stats stats;
    unsigned ngpus; /* with the driver */
    struct mct_cuda_gpu gpus[MCT_CUDA_DEVICES];

    pthread_mutex_t lock;
    pthread_cond_t some, over; /* calls; CLOSE is done */
    /* calls that no other one of their order comes before, and that no hand has taken */
    struct mct_cuda_call *first, *last;
    struct mct_cuda_call *done_first, *done_last;
    /* of each order the one that is at work, or next */
    struct mct_cuda_call *orders[MCT_CUDA_ORDERS];
    struct mct_cuda_hand hands[MCT_CUDA_HANDS];
    unsigned nhands, idle, at_work;
    bool stop;   /* hands end; what they had is not touched any more */
    bool closed; /* CLOSE is done, */
    bool hung;   /* but not all of it */

    pthread_mutex_t open_lock; /* one OPEN at a time; held over driver calls */
    pthread_mutex_t imports_lock;
    pthread_cond_t imports_changed;
    struct mct_cuda_opened *imports;

    pthread_mutex_t ports_lock;
    struct mct_cuda_port *ports;
};

/* Any thread. */
#define MCT_CUDA_LOG(c, level, ...)                                                                \
    do {                                                                                           \
        if ((c)->env.log != NULL)                                                                  \
            (c)->env.log(MCT_CUDA_LOG_##level, __VA_ARGS__);                                       \
    } while (0)

/* hands.c, control thread */
void mct_cuda_hands_look(struct mct_cuda *c, uint64_t now);
/* Carries out what is left, the last one CLOSE, and ends the hands; false: some hang. */
bool mct_cuda_hands_end(struct mct_cuda *c, uint64_t end);

/* Hands: what they carry out. Each sets the call's results. */
void mct_cuda_open(struct mct_cuda *c, struct mct_cuda_call *call);
bool mct_cuda_close(struct mct_cuda *c, uint64_t end); /* false: something hangs */
void mct_cuda_make(struct mct_cuda *c, struct mct_cuda_call *call);
void mct_cuda_import(struct mct_cuda *c, struct mct_cuda_call *call);
void mct_cuda_free(struct mct_cuda *c, struct mct_cuda_call *call);
void mct_cuda_export(struct mct_cuda *c, struct mct_cuda_call *call);
void mct_cuda_dmabuf(struct mct_cuda *c, struct mct_cuda_call *call);
void mct_cuda_pin(struct mct_cuda *c, struct mct_cuda_call *call);
void mct_cuda_unpin(struct mct_cuda *c, struct mct_cuda_call *call);

/* The call has come to this. */
void mct_cuda_say(struct mct_cuda_call *call, enum mcs_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* The driver has refused: what it was asked for, its word for it, and the remedy. Marks the device lost when it is. */
void mct_cuda_refused(struct mct_cuda_gpu *g, struct mct_cuda_call *call, CUresult e,
                      const char *what);
/* The status of an error. */
enum mcs_status mct_cuda_status(CUresult e);

/* device.c. Hands */
int mct_cuda_discover(struct mct_cuda *c, const struct mcs_cuda *d, struct mct_cuda_call *call);
/* Of memory that is made on it. */
CUmemAllocationProp mct_cuda_properties(const struct mct_cuda_gpu *g);
/* The call's device, in use, with its primary context current until mct_cuda_leave(); NULL: the call says why. */
struct mct_cuda_gpu *mct_cuda_enter(struct mct_cuda *c, struct mct_cuda_call *call);
void mct_cuda_leave(const struct mct_cuda_gpu *g);
/* A device that has a context, current likewise, else the call's. */
struct mct_cuda_gpu *mct_cuda_enter_any(struct mct_cuda *c, struct mct_cuda_call *call);
/* false: its copier hangs, and keeps what it has. */
bool mct_cuda_device_close(struct mct_cuda_gpu *g, uint64_t end);
/* Any thread. "GPU-... (name)" */
#define MCT_CUDA_TITLE 96u
const char *mct_cuda_title(const struct mct_cuda_gpu *g, char text[MCT_CUDA_TITLE]);
/* Hands. The device was not given access to the other's memory: said once, and copies go through host memory from then on. */
void mct_cuda_part(struct mct_cuda_gpu *g, const struct mct_cuda_gpu *other, CUresult e);
/* A sticky error was seen: said once. */
void mct_cuda_lose(struct mct_cuda_gpu *g, CUresult e);
static inline bool mct_cuda_lost(const struct mct_cuda_gpu *g)
{
    return mcs_load_relaxed(&g->device.lost) != 0;
}
static inline bool mct_cuda_reaches(const struct mct_cuda_gpu *g, const struct mct_cuda_gpu *other)
{
    return g == other ||
           ((g->device.peers & ~mcs_load_relaxed(&g->apart)) >> other->index & 1u) != 0;
}

/* memory.c. Hands, the device's context current */
/* Room for n mappings in `reserve` bytes of addresses; reserve 0: none. NULL: *e, or CUDA_SUCCESS: out of memory here. */
struct mct_cuda_memory *mct_cuda_memory_create(struct mct_cuda_gpu *g, unsigned n, uint64_t reserve,
                                               uint64_t hint, CUresult *e);
/* Maps size bytes of an allocation behind those that are there. The handle is the memory's from here on in any case. */
CUresult mct_cuda_memory_map(struct mct_cuda_memory *m, CUmemGenericAllocationHandle handle,
                             uint64_t size);
/* Read and write, for the device and those of the others that can have it. */
CUresult mct_cuda_memory_allow(struct mct_cuda_memory *m);
/* All of it, whatever fails; the first failure, and in *what of what. */
CUresult mct_cuda_memory_destroy(struct mct_cuda_memory *m, const char **what);

/* Without the driver, which keeps what it has. */
void mct_cuda_memory_forget(struct mct_cuda_memory *m);

/* import.c. Hands, the device's context current: one user less. */
CUresult mct_cuda_opened_put(struct mct_cuda *c, struct mct_cuda_opened *o);
/* The same, but what the driver has stays open. */
void mct_cuda_opened_forget(struct mct_cuda *c, struct mct_cuda_opened *o);

/* copier.c. Hands, the device's context current; NULL: *e or *res tells. */
struct mct_cuda_copier *mct_cuda_copier_create(struct mct_cuda_gpu *g, CUcontext primary,
                                               CUresult *e, int *res);
/* Its thread ends; false: it hangs, and all of it stays. Nothing is under way. */
bool mct_cuda_copier_stop(struct mct_cuda_copier *p, uint64_t end);
/* current: the context is; else the driver's part is left to it. */
void mct_cuda_copier_destroy(struct mct_cuda_copier *p, bool current);
/* Any thread. */
void mct_cuda_copier_post(struct mct_cuda_copier *p, struct mct_cuda_job *j);
/* Control thread. */
void mct_cuda_copier_look(struct mct_cuda_copier *p, uint64_t now);

/* stream.c. The copier's thread, its context current. true: something was begun, or was over. */
bool mct_cuda_streams_begin(struct mct_cuda_copier *p);
bool mct_cuda_streams_poll(struct mct_cuda_copier *p);
/* All jobs, begun or not, come back with this. */
void mct_cuda_streams_fail(struct mct_cuda_copier *p, enum mcs_status status);

static inline void mct_cuda_jobs_put(struct mct_cuda_jobs *q, struct mct_cuda_job *j)
{
    j->next = NULL;
    if (q->last != NULL)
        q->last->next = j;
    else
        q->first = j;
    q->last = j;
}

static inline struct mct_cuda_job *mct_cuda_jobs_take(struct mct_cuda_jobs *q)
{
    struct mct_cuda_job *j = q->first;

    if (j != NULL) {
        q->first = j->next;
        if (q->first == NULL)
            q->last = NULL;
        j->next = NULL;
    }
    return j;
}

/* port.c. Copiers: what the jobs came to stands, and nobody else has them. */
void mct_cuda_give(struct mct_cuda_jobs *jobs);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What rdma.c, nic.c, memory.c and pair.c share; engines see nothing of it.
 *
 * A nic has one thread of its own (nic.c): it opens and closes it, takes events, makes and destroys queue pairs.  Others
 * beside it (worker.c) do what takes long: register, deregister, and connect.  Pinning a large pool takes seconds, and so
 * does looking for the address of a peer that is not there; neither a cancelled task's queue pair nor a revoked
 * buffer may wait for that.  They take jobs from queues; a job that is done goes back to the control thread as a
 * result.  Each memory has at most one job a nic at a time; what comes next is
 * decided by the control thread when it sees the result (rdma.c).
 *
 * A life of a nic: from opening to closing.  Its id is random and new each time, so that keys and queue pairs of an
 * old life are never taken for the present one's.  A nic closes in this order: its ports fail, the control
 * thread is told and lets all memories go, engines let pairs and ports go, and only then is the context closed.
 *
 * One mutex, mct_rdma.lock, guards the queues and what is marked so; no verbs call is made under it.
 */
#ifndef MCT_RDMA_DEVICES_H
#define MCT_RDMA_DEVICES_H

#include <pthread.h>
#include <sys/types.h>

#include "internal.h"
#include "transports/thread.h"

enum mct_rdma_job_kind {
    MCT_RDMA_JOB_REGISTER,
    MCT_RDMA_JOB_DEREGISTER,
    MCT_RDMA_JOB_PAIR_CREATE,
    MCT_RDMA_JOB_PAIR_CONNECT, /* nic's thread, then a worker, */
    MCT_RDMA_JOB_PAIR_MOVED,   /* then the nic's thread again */
    MCT_RDMA_JOB_PAIR_DESTROY,
    MCT_RDMA_JOB_INSTANCE_GONE
};

struct mct_rdma_job {
    struct mct_rdma_job *next;
    enum mct_rdma_job_kind kind;
    struct mct_rdma_device *device;
    void *subject; /* memory, pair or instance */
    /* result */
    int res;
    char *text; /* malloc'ed; NULL: none */
    /* of a deregistration that found the memory busy */
    uint64_t due;     /* ms: not before */
    uint64_t since;   /* ms: busy since; 0: it never was */
    unsigned step_ms; /* until the next try */
};

struct mct_rdma_jobs {
    struct mct_rdma_job *first, *last;
};

/* One life's registration of one memory. Of local ones never freed before the memory: engines may be reading it. */
struct mct_rdma_registration {
    struct mct_rdma_registration *retired_next;
    uint64_t id; /* of the nic's life */
    uint64_t nchunks;
    struct ibv_mr **mrs; /* NULL where there is none (any more) */
    uint32_t *lkeys, *rkeys;
};

struct mct_rdma_slot {
    /* What engines and the control thread find: set and withdrawn by the registering threads with
     * release, read with acquire; NULL: no keys on this nic. */
    struct mct_rdma_registration *keys;
    /* The registering thread's while the job is out, else the control thread's. */
    struct mct_rdma_registration *held; /* perhaps only a part of it, after a failure */
    /* control thread */
    struct mct_rdma_job job;
    bool busy;      /* the job is out */
    bool bad;       /* registering failed: what is held goes */
    uint64_t tried; /* in this life */
};

struct mct_rdma_memory {
    struct mct_rdma *rdma;
    struct mct_rdma_range range;
    uint64_t chunk, nchunks;
    /* control thread */
    struct mct_rdma_memory *next, *prev, *ripe_next;
    bool ripe;
    bool wanted; /* on all open nics; else nowhere */
    bool creating, destroying;
    int res;
    char *text;
    mct_rdma_done *done;
    void *context;
    struct mct_rdma_registration *retired;
    /* By nic, one for each in the table. Who works for a nic finds its slot: it is there before the nic's threads are. */
    struct mct_rdma_slot *slots[MCT_RDMA_NICS_MAX];
    unsigned nown;
    struct mct_rdma_slot own[]; /* of the nics that were there before the memory */
};

#define MCT_RDMA_WORKER_THREADS 4u

/* Threads that take jobs from one queue. */
struct mct_rdma_worker {
    struct mct_rdma_device *device;
    pthread_t threads[MCT_RDMA_WORKER_THREADS];
    unsigned n;                /* of them; control thread */
    pthread_cond_t wake;       /* lock */
    struct mct_rdma_jobs jobs; /* lock */
    unsigned at_work;          /* lock */
};

struct mct_rdma_nic_port {
    struct mct_rdma_port port;
    struct mct_rdma_nic_port *next;
    struct ibv_mr *mr; /* of the slab */
    size_t slab_size;
    unsigned pairs;
    bool ended;  /* its instance is gone */
    int wake_fd; /* a duplicate of the instance's */
};

struct mct_rdma_nic_pair {
    struct mct_rdma_pair pair;
    struct mct_rdma *rdma;
    struct mct_rdma_job job, destroy;
    struct mct_rdma_end wanted; /* the peer's end, for connecting */
    /* Nobody is told of it any more, and its instance may be gone. Control thread: release, nic's thread: acquire. */
    uint32_t dropped;
    /* control thread */
    mct_rdma_done *done;
    void *context;
    /* nic's thread */
    struct mct_rdma_nic_pair *next, *prev;
    bool listed;
    bool ending;   /* destroying it failed, it is tried again */
    bool dropping; /* the control thread wants it destroyed */
    bool moving;   /* a worker has it: it is not destroyed until that is over */
};

enum mct_rdma_phase {
    MCT_RDMA_PHASE_CLOSED,
    MCT_RDMA_PHASE_OPENING, /* open; the control thread has its memories registered */
    MCT_RDMA_PHASE_OPEN,
    MCT_RDMA_PHASE_CLOSING
};

/* What the nic's thread tells the control thread beside results. A life's OPENED comes before its CLOSED, and the
 * next life's only after the control thread has seen that. */
#define MCT_RDMA_NOTE_OPENED 1u
#define MCT_RDMA_NOTE_CLOSED 2u
#define MCT_RDMA_NOTE_CHANGED 4u

struct mct_rdma_device {
    struct mct_rdma *rdma;
    unsigned index;
    char name[MCT_RDMA_NAME_MAX]; /* "mlx5_0/1" */
    char device[IBV_SYSFS_NAME_MAX];
    uint8_t port;
    pthread_t thread;
    bool started;
    int kick_fd;
    struct mct_rdma_worker registering, deregistering, connecting;

    /* engines put pairs there (mct_rdma_pair_ask), the nic's thread takes all */
    struct mct_rdma_pair *asks;
    /* Engines write, relaxed; the nic's thread looks when it is kicked, which orders them. */
    uint32_t faults_in_row;
    uint64_t faults;
    /* registering threads write, relaxed */
    uint64_t memory_bytes, memory_regions, registrations_failed;

    /* lock */
    struct mct_rdma_jobs jobs; /* of the nic's thread */
    uint64_t posted, handled;  /* of them; `some` tells when `handled` grows */
    pthread_cond_t some;
    struct mct_rdma_nic shown;
    unsigned notes;
    bool settled; /* opened for the first time, or not */
    bool stop;
    bool ready;     /* control thread: the memories are registered */
    bool forgotten; /* control thread: it has seen CLOSED, no new registration will be asked for */
    bool suspect;   /* somebody saw EIO: look whether it is there */
    /* The life, for the registering threads: `context` set and not `dead`. */
    struct ibv_context *context;
    char verbs[IBV_SYSFS_NAME_MAX]; /* "uverbs0": stays, if it is given another name */
    struct ibv_pd *pd;
    uint64_t id;
    bool dead;
    unsigned uses; /* registering threads that work with it */
    struct ibv_device_attr limits;

    /* nic's thread */
    enum mct_rdma_phase phase;
    uint64_t due;              /* CLOSED: the next try; else the next look at the port; ms */
    uint64_t opened;           /* ms */
    uint64_t looked_all;       /* ms */
    struct ibv_port_attr seen; /* at the last look */
    unsigned backoff;          /* seconds */
    dev_t
        path_dev; /* of the device's folder in sysfs, 0: not known: another one is another device */
    ino_t path_ino;
    char path[IBV_SYSFS_PATH_MAX];
    struct mct_rdma_nic_port *ports;
    struct mct_rdma_nic_pair *pairs;
    uint64_t npairs;
    unsigned vector;    /* completion vectors are taken in turn */
    uint64_t out_until; /* ms; faults keep it out; 0: they do not */
    uint64_t out_ended; /* ms */
    unsigned out_seconds;
    uint64_t out_faults; /* faults, when it was put out */
    uint32_t out_row;

    /* control thread */
    bool usable;              /* between OPENED and CLOSED */
    bool opening;             /* the memories are being registered */
    uint64_t life;            /* id, as noted */
    unsigned registering_now; /* jobs out */
};

/* A port that the lists allow and that is in no nic's hands. */
struct mct_rdma_found {
    char device[IBV_SYSFS_NAME_MAX];
    unsigned port;
};

struct mct_rdma {
    struct mct_rdma_options options;
    char *devices_list, *deny_list, *sysfs;
    struct mct_rdma_host host;
    pthread_mutex_t lock;
    int fd;                       /* results and notes wait */
    struct mct_rdma_jobs results; /* lock */
    /* Only the control thread adds to them, with the lock held; others read with the lock held. */
    unsigned ndevices;
    struct mct_rdma_device *devices[MCT_RDMA_NICS_MAX];
    /* finder.c */
    pthread_t finder;
    bool finding;        /* control thread: the thread is there */
    pthread_cond_t find; /* lock */
    bool stop;           /* lock */
    bool full;           /* lock: a device was left out, nobody looks for others */
    unsigned nfound;     /* lock */
    struct mct_rdma_found found[MCT_RDMA_NICS_MAX]; /* lock */
    /* control thread */
    bool quiet; /* nobody is called: creating or destroying */
    bool keys_changed;
    struct mct_rdma_memory *memories, *ripe;
    struct mct_rdma *abandoned_next;
};

#define MCT_RDMA_LOG_ERROR 0 /* as the agent counts them */
#define MCT_RDMA_LOG_WARNING 1
#define MCT_RDMA_LOG_INFO 2

void mct_rdma_jobs_put(struct mct_rdma_jobs *q, struct mct_rdma_job *j);
struct mct_rdma_job *mct_rdma_jobs_take(struct mct_rdma_jobs *q);
/* A sentence for a job's result. */
char *mct_rdma_text(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Random and not 0; also where the kernel has no random bytes yet. */
uint64_t mct_rdma_random(void);

/* rdma.c, any thread: tells the control thread. */
void mct_rdma_result(struct mct_rdma_job *j);
void mct_rdma_note(struct mct_rdma_device *d, unsigned notes); /* with the lock held */
/* Any thread: gives the nic's thread a job. */
void mct_rdma_post(struct mct_rdma_device *d, struct mct_rdma_job *j);

/* select.c */
bool mct_rdma_select_allows(const char *devices, const char *deny, const char *device,
                            unsigned port);
/* Calls back for each name of a list that is no pattern: its device and port. */
void mct_rdma_select_names(const char *list,
                           void (*name)(void *context, const char *device, unsigned port),
                           void *context);
/* Calls back for each entry that matches none of `n` names. */
void mct_rdma_select_unmatched(const char *list, struct mct_rdma_device *const *devices, unsigned n,
                               void (*entry)(void *context, const char *text), void *context);

/* finder.c */
/* Calls back for each port that the lists allow, until that does not return 0; returns what it did, or -ENOMEM. */
int mct_rdma_find(struct mct_rdma *r,
                  int (*found)(struct mct_rdma *r, struct ibv_device *device, unsigned port));
/* A thread that looks for ports that came later: into r->found. 0 or a negative errno. */
int mct_rdma_finder_start(struct mct_rdma *r);

/* nic.c */
void *mct_rdma_nic_thread(void *device);
/* nic's thread: the device is gone; why: a sentence. */
void mct_rdma_nic_lose(struct mct_rdma_device *d, const char *why);
/* Any thread: somebody has got EIO or the like. */
void mct_rdma_nic_suspect(struct mct_rdma_device *d);

/* worker.c */
void mct_rdma_worker_init(struct mct_rdma_worker *w, struct mct_rdma_device *d);
/* So many threads, MCT_RDMA_WORKER_THREADS at most. 0 or a negative errno. They end with mct_rdma_device.stop. */
int mct_rdma_worker_start(struct mct_rdma_worker *w, unsigned n, const char *name);
void mct_rdma_worker_fini(struct mct_rdma_worker *w); /* its threads have ended */
void mct_rdma_worker_put(struct mct_rdma_worker *w, struct mct_rdma_job *j);
/* Takes one back that no thread has begun with; false: it is not there. */
bool mct_rdma_worker_drop(struct mct_rdma_worker *w, const struct mct_rdma_job *j);

/* memory.c, workers */
void mct_rdma_register(struct mct_rdma_device *d, struct mct_rdma_job *j);
/* false: some of it is busy; j->due says when to try again. */
bool mct_rdma_deregister(struct mct_rdma_device *d, struct mct_rdma_job *j);
/* Why ENOMEM, where memory that may be locked is limited; false: it is not. */
bool mct_rdma_memlock(char *out, size_t size);
/* Control thread: all memories get a slot for the nic that comes next. 0 or -ENOMEM. */
int mct_rdma_memories_reserve(struct mct_rdma *r);
/* Control thread: posts what the memory needs next; it is `ripe` when that is nothing. */
void mct_rdma_memory_advance(struct mct_rdma *r, struct mct_rdma_memory *m);
void mct_rdma_memory_result(struct mct_rdma *r, struct mct_rdma_job *j);
/* Control thread: tells of a ripe memory, frees it if it was destroyed. */
void mct_rdma_memory_finish(struct mct_rdma *r, struct mct_rdma_memory *m);

/* pair.c, nic's thread */
void mct_rdma_pair_job(struct mct_rdma_device *d, struct mct_rdma_job *j);
void mct_rdma_pair_asked(struct mct_rdma_device *d); /* does what engines have asked for */
/* Moves a pair to ERROR, or finds that it is there, and tells its engine. */
void mct_rdma_pair_fail(struct mct_rdma_device *d, struct mct_rdma_nic_pair *p);
void mct_rdma_port_fail(struct mct_rdma_device *d, struct mct_rdma_nic_port *p);
/* Destroys what may go: pairs whose end failed before, ports that have failed and are given up. `all`: the agent ends. */
void mct_rdma_pair_reap(struct mct_rdma_device *d, bool all);
void mct_rdma_instance_ended(struct mct_rdma_device *d, const struct mct *instance);
/* A worker: to RTR and RTS. */
void mct_rdma_pair_move(struct mct_rdma_device *d, struct mct_rdma_job *j);
/* control thread */
void mct_rdma_pair_result(struct mct_rdma_job *j);

static inline unsigned mct_rdma_mtu_bytes(enum ibv_mtu mtu)
{
    return 128u << (unsigned)mtu;
}

#endif

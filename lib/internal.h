/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inside of libmcshm.
 *
 * A connection (struct mcshm) keeps its lists under one mutex: extents, allocations,
 * private memory, own buffers, open segments, read-only mappings, queues.  From them a
 * *view* is built: an immutable snapshot that answers the two questions of a submission,
 * "in which extent does this pointer lie?" and "may I copy there myself?".  Each queue
 * pins the view it uses, so submitters read it without a lock, and a replaced view is
 * freed when no queue pins it any more.
 */
#ifndef MCL_INTERNAL_H
#define MCL_INTERNAL_H

#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "mcshm.h"
#include "shm/inbox.h"
#include "shm/message.h"
#include "shm/queue.h"
#include "shm/region.h"

#include "args.h"

#define MCSHM_API __attribute__((visibility("default")))
#define MCL_COLD __attribute__((cold, noinline))

#define MCL_GUARD_MAGIC 0x6d637368u
#define MCL_SLEEP_NS INT64_C(100000000) /* longest sleep before looking at the socket again */
#define MCL_TIMEOUT_MS_MAX 600000u
#define MCL_IDLE_POLLS 1024u /* polls in a row that found nothing, between looks at the clock */

/* ---- memory ---------------------------------------------------------------------- */

struct mcl_import;

/* What this session reaches through descriptors: pool memory, a memfd of ours, or device memory. */
struct mcl_extent {
    uint32_t handle;
    bool memfd;                /* came by mcshm_register_memfd(), goes as a whole */
    bool lost;                 /* a later agent would not have it */
    bool gpu;                  /* device memory: nobody here reads or writes at `base` */
    unsigned device;           /* with gpu: index in c->gpu */
    struct mcl_import *import; /* with gpu: another library's memory, ours to free; else NULL */
    int fd;                    /* to hand it back to a later agent; -1: none will come */
    uint8_t *base;             /* with gpu: a device address; NULL while it is being mapped */
    uint64_t size;             /* that descriptors may name */
    uint64_t map_size;         /* of the mapping, whole pages */
};

struct mcl_alloc {
    uint8_t *start; /* NULL while its extent is being mapped */
    uint64_t size;
    uint32_t extent;
    uint64_t offset; /* in the extent */
};

/* Private memory with its shadow in the pool. */
struct mcl_private {
    struct mcl_private *next; /* in c->privates, later in the view that dropped it */
    uint8_t *start;
    uint64_t size;
    uint8_t *shadow;
    uint32_t references; /* how often registered */
    uint32_t tasks;      /* unfinished, of all queues: atomic */
    uint32_t gone;       /* being unregistered: atomic */
};

/* A buffer this connection has published. */
struct mcl_buffer {
    uint8_t *start;
    uint64_t size;
    uint64_t address; /* published */
    uint32_t access;
    uint32_t references;
    bool gpu; /* device memory */
};

/* A granted buffer that is mapped for copies in the caller's thread. */
struct mcl_grant {
    uint64_t address, size; /* of the buffer */
    uint32_t access;
    bool writable;                     /* the mapping */
    bool sharing;                      /* another grant of the segment owns the mapping */
    uint32_t grant, life;              /* names it to the agent of that life */
    uint64_t extent_address, map_size; /* what is mapped: all of the buffer's extent */
    uint8_t *extent;
};

struct mcl_segment {
    uint32_t handle;
    uint32_t references;
    char *name; /* as it was opened */
    uint64_t incarnation;
    bool own, same_tenant;
    bool granted; /* had grants before they were dropped to be asked for anew */
    struct mcl_grant *grants;
    size_t ngrants;
};

/* A mapping made by mcshm_map(). */
struct mcl_map {
    uint32_t grant, life; /* names it to the agent of that life */
    uint32_t segment;
    uint64_t address, length; /* as they were asked for */
    uint8_t *base;
    uint64_t size;
    bool gpu; /* device memory, of this device in c->gpu */
    unsigned device;
    const void *start; /* what the caller got */
};

/* An extent of the store's, for what is held in place. */
struct mcl_object_map {
    uint32_t extent, life; /* as the agent of that life names it; 0: another one has the id now */
    uint64_t ino;          /* of its memfd: a later agent may begin its ids anew */
    bool writable;
    uint8_t *base;
    uint64_t size; /* of the extent */
    uint64_t map_size;
};

/* ---- view ------------------------------------------------------------------------ */

struct mcl_range {
    uintptr_t start;
    uint64_t size;
    uint64_t offset; /* of start in the extent */
    uint32_t extent;
    bool gpu;                   /* device memory */
    struct mcl_private *staged; /* NULL: shared memory */
};

/* A buffer that this process may copy to or from by itself. */
struct mcl_target {
    uint64_t address; /* published */
    uint64_t size;
    uint8_t *memory;
    uint32_t segment;
    bool readable, writable;
};

struct mcl_view {
    struct mcl_view *next;       /* retired after this one */
    struct mcl_private *dropped; /* list, freed with it: no later view knows them */
    uint64_t grants_version;     /* the targets hold for this value of the session's word */
    size_t nranges, ntargets;
    struct mcl_range *ranges;   /* by start */
    struct mcl_target *targets; /* by segment and address */
};

/* ---- connection ------------------------------------------------------------------ */

struct mcl_counters { /* one writer each, read relaxed by mcshm_get_stats() */
    uint64_t submitted, caller_tasks, caller_bytes, staged_tasks, staged_bytes;
    uint64_t doorbells, sleeps, ring_full;
};

/* Looks of one thread that found nothing. */
struct mcl_idle {
    uint32_t polls; /* in a row */
    uint64_t since; /* ticks; 0: not looked at the clock yet */
};

struct mcshm {
    uint32_t *guard; /* a page of its own, wiped in a forked child */
    struct mcl_view *view;
    uint32_t down;     /* atomic: the session has ended for good */
    uint32_t restarts; /* atomic: how often a later agent took over: the session's life */
    uint32_t objects;  /* atomic: the agent holds objects */
    uint32_t gpus;     /* atomic: the agent may be asked for GPU memory */
    uint32_t
        objects_gone; /* atomic: the last value of the session's word that the watcher was told of */
    int socket, doorbell; /* numbers for good; what they name changes with each life */
    struct mcs_session_region region;
    void *region_memory;
    uint64_t region_size;
    mcshm_info info;
    uint64_t spin_ticks;
    double tick_ns;      /* nanoseconds of one tick */
    uint64_t spin_alone; /* ticks that a wait spins before it lets others run in between */
    uint32_t tick_shift, control_timeout_ms;
    bool strict;
    mcshm_log_fn log;
    void *log_context;

    /* constant while the watcher runs */
    bool watched; /* there is one */
    pthread_t watcher;
    int stir;              /* eventfd that the watcher listens to */
    uint32_t closing;      /* atomic: it is to end */
    uint32_t reconnect_ms; /* how long a later agent is waited for */
    int region_fd;
    char *socket_path;

    pthread_mutex_t info_mutex; /* what of `info` a later agent may change */

    /* Around whatever brings new device memory, and taken before `mutex`, which nobody holds while the driver works:
     * it may wait for streams, which may wait for the agent. */
    pthread_mutex_t gpu_mutex;
    struct mcl_gpu *gpu; /* gpu.h: NULL until GPU memory is first asked for */

    pthread_mutex_t mutex; /* all below */
    bool broken;           /* the control channel is out of step: no more calls */
    bool kept;             /* a later agent will know this session */
    bool away;             /* the agent is gone, a later one is looked for */
    bool welcome;          /* it has answered RESTORE, not yet RESUME */
    bool inside;           /* the mutex is the watcher's */
    bool grants_off;       /* no view has targets in others' memory: grants of an earlier life */
    bool grants_due;       /* they are to be asked for anew */
    uint16_t calling;      /* type of the control call under way, 0: none */
    int half;              /* socket on which an answer to RESTORE is awaited, -1 */
    uint32_t pause_ms;     /* between two tries */
    int64_t away_until;    /* nanoseconds */
    uint32_t last_id;
    struct mcl_view *retired, *retired_last;
    struct mcl_view empty;
    struct mcl_extent *extents;
    size_t nextents, extents_room;
    struct mcl_alloc *allocs; /* by start */
    size_t nallocs, allocs_room;
    struct mcl_private *privates;
    uint64_t segment_incarnation; /* of the own segment, 0: not published */
    uint64_t grants_version;      /* of all grants in `segments` */
    struct mcl_buffer *buffers;
    size_t nbuffers, buffers_room;
    struct mcl_segment *segments;
    size_t nsegments, segments_room;
    struct mcl_map *maps;
    size_t nmaps, maps_room;
    struct mcl_object_map *object_maps;
    size_t nobject_maps, object_maps_room;
    uint32_t
        objects_swept; /* value of the session's objects_gone up to which they were looked through */
    struct mcshm_queue *queues;
    struct mcl_counters closed; /* what closed queues had counted */

    /* the one receiver of notifications */
    uint64_t notifications, notify_sleeps;
    struct mcl_idle notify_idle;
    char notify_name[MCS_NOTIFY_NAME_MAX];
    uint8_t notify_message[MCS_NOTIFY_MESSAGE_MAX];
};

/* ---- queue ----------------------------------------------------------------------- */

#define MCL_TASK_CALLER 0x1u /* copied in the caller's thread: ended when submitted */
#define MCL_TASK_STAGED 0x2u /* through private memory's shadow */
#define MCL_TASK_OPEN 0x4u   /* staged, and not yet settled by mcl_stage_finish() */
#define MCL_TASK_OBJECT 0x8u /* about objects: q->objects has more of it */
/* The session's life (mcshm.restarts) at submission, its low half, in the upper half. */
#define MCL_TASK_LIFE(restarts) ((uint32_t)(restarts) << 16)

/* Private half of a slot. */
struct mcl_task {
    uint32_t generation; /* grows with each use, never 0 */
    uint32_t flags;
    uint64_t cookie;
    uint64_t length;
    uint32_t args; /* unit of the argument block, MCS_ARGS_NONE */
    union {
        uint32_t move_ns; /* of a copy in the caller's thread */
        uint32_t place;   /* else: of its descriptor among all ever pushed */
    };
};
static_assert(sizeof(struct mcl_task) == 32, "two to a line, as the slots");

struct mcl_stage {
    struct mcl_private *memory;
    uint8_t *local;
    uint8_t op, shape;
};

struct mcl_batch {
    uint32_t generation; /* never 0 */
    uint32_t capacity;   /* 0: free */
    uint32_t tasks;      /* submitted */
    uint32_t caller_tasks;
    uint64_t caller_bytes;
    uint32_t staged;   /* tasks with MCL_TASK_OPEN */
    uint32_t room;     /* of slots */
    uint32_t *slots;   /* of its tasks, in order; kept when the batch is freed */
    uint32_t restarts; /* c->restarts when it was allocated */
    uint32_t pad32;
    uint64_t pad[2];
};
static_assert(sizeof(struct mcl_batch) == 64, "a batch is one cache line");

struct mcl_copy {
    void *to;
    const void *from;
    uint32_t slot;
    bool write; /* `to` is the remote side */
};

/* A piece of private memory in a request about objects. */
struct mcl_object_stage {
    struct mcl_private *memory;
    uint8_t *local;
    uint32_t piece; /* in the table of pieces */
};

/* Private half of a request about objects, by slot. */
struct mcl_object {
    uint8_t op;
    uint32_t count;   /* keys */
    uint32_t results; /* where they are in the block; 0: none */
    uint32_t nstages, stages_room;
    uintptr_t low, high;             /* all of them lie between */
    struct mcl_object_stage *stages; /* by piece; kept for the slot's next request */
};

#define MCL_OBJECT_MAPS 512u /* extents that a queue finds without the mutex, a power of two */

struct mcshm_queue {
    struct mcs_queue shm;
    struct mcshm *c;
    const uint32_t *guard;
    struct mcl_view *view;           /* the one this queue pins: atomic */
    const struct mcl_range *range;   /* last hit in it, or NULL */
    const struct mcl_target *target; /* the same */
    struct mcl_task *tasks;
    uint32_t *free_slots; /* stack */
    uint32_t nfree;
    struct mcl_batch *batches;
    uint32_t *free_batches; /* stack */
    uint32_t nfree_batches;
    struct mcs_desc *descs;             /* being built: shm.depth */
    struct mcl_copy *copies;            /* the same */
    struct mcl_stage *stages;           /* by slot; NULL until private memory is used */
    uint32_t staged_reads;              /* tasks with MCL_TASK_OPEN that write to private memory */
    struct mcl_object *objects;         /* by slot; NULL until there is a request about objects */
    struct mcl_object_map *object_maps; /* copies, by extent; NULL until one is mapped */
    mcshm_batch *abandoned;             /* of mcshm_objects(), which had waited for too long */
    size_t nabandoned, abandoned_room;
    struct mcl_args args;
    struct mcl_counters counters;
    uint64_t caller_max;
    struct mcl_idle idle;
    uint32_t resumed; /* atomic: place from which the present agent has the descriptors */
    uint32_t lost;    /* atomic: a later agent would not have the queue */
    uint32_t id;
    int fd; /* of the region, to hand it back; -1: none will come */
    void *memory;
    uint64_t memory_size;
    struct mcshm_queue *next;
};

/* ---- guards ---------------------------------------------------------------------- */

/* status.c: the answer to a NULL handle (guard NULL) or one of a parent process */
mcshm_status mcl_refuse(const uint32_t *guard) MCL_COLD;

static inline mcshm_status mcl_check_guard(const uint32_t *guard)
{
    if (__builtin_expect(guard != NULL && *guard == MCL_GUARD_MAGIC, 1))
        return MCSHM_OK;
    return mcl_refuse(guard);
}

static inline mcshm_status mcl_check(const struct mcshm *c)
{
    return mcl_check_guard(c != NULL ? c->guard : NULL);
}

static inline mcshm_status mcl_check_queue(const struct mcshm_queue *q)
{
    return mcl_check_guard(q != NULL ? q->guard : NULL);
}

static inline bool mcl_down(const struct mcshm *c)
{
    return mcs_load_relaxed(&c->down) != 0; /* set by mcl_hangup() of any thread, or the watcher */
}

/* status.c: keeps the sentence for mcshm_last_error(), returns status */
mcshm_status mcl_fail(mcshm_status status, const char *format, ...)
    __attribute__((format(printf, 2, 3))) MCL_COLD;
/* connect.c */
void mcl_log(const struct mcshm *c, mcshm_log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4))) MCL_COLD;

/* ---- control.c: needs the mutex -------------------------------------------------- */

struct mcl_fds {
    int fd[MCS_MSG_FDS_MAX];
    unsigned n;
};

/*
 * Sends m->b as a request of this type (with send_fd unless that is -1) and replaces it by
 * the reply's body.  fds receives the descriptors of a reply; NULL: they are closed.  When the
 * agent dies meanwhile and a later one takes over, the request is sent to that one: what the
 * lists say when this is called is what the session has there.
 */
mcshm_status mcl_call(struct mcshm *c, uint16_t type, struct mcs_msg *m, int send_fd,
                      struct mcl_fds *fds);
/* One request and its answer, whatever its status (m->h.status). Negative errno: there is none. */
int mcl_exchange(struct mcshm *c, uint16_t type, struct mcs_msg *m, int send_fd,
                 struct mcl_fds *fds, int64_t deadline);
/* -EPROTO: not the answer to that request. */
int mcl_check_reply(const struct mcs_msg *m, uint16_t type, uint32_t id);
/* The errors of mcl_exchange() that say: the other end is gone. */
bool mcl_is_hangup(int res);
/* Tells the agent to end the session; no more calls. */
void mcl_end_session(struct mcshm *c);
void mcl_close_fds(struct mcl_fds *fds);
/* Asks the kernel whether the agent has closed its end; any thread, no mutex. */
bool mcl_hangup(struct mcshm *c);
/* After many looks in vain: asks the kernel when that has lasted long. */
void mcl_idle_look(struct mcshm *c, struct mcl_idle *idle) MCL_COLD;

/* Notes a look in vain.  True: the agent is down, what is looked for will not come. */
static inline bool mcl_idle_down(struct mcshm *c, struct mcl_idle *idle)
{
    if (__builtin_expect(++idle->polls % MCL_IDLE_POLLS == 0, 0))
        mcl_idle_look(c, idle);
    return mcl_down(c);
}

/* How long to spin before a sleep: what the agent suggests, but not beyond the caller's timeout. */
/* Between two looks of a spinning wait, `waited` ticks after it began. What takes longer than a copy on
 * this host may need this very core to get on: then whoever wants it gets it. */
static inline void mcl_spin_pause(const struct mcshm *c, uint64_t waited)
{
    if (waited < c->spin_alone)
        mcs_pause();
    else
        sched_yield();
}

static inline uint64_t mcl_spin_ticks(const struct mcshm *c, int64_t timeout_us)
{
    double own = (double)timeout_us * 1e3 / c->tick_ns;

    return timeout_us >= 0 && own < (double)c->spin_ticks ? (uint64_t)own : c->spin_ticks;
}

int64_t mcl_now_ns(void);
/* Sleeps while the 32 bits at `word` are `value`, at most ns nanoseconds. */
void mcl_futex_wait(const void *word, uint32_t value, int64_t ns);

/* ---- view.c: needs the mutex, except the lookups --------------------------------- */

/* Makes room for one more element. 0, -ENOMEM. */
int mcl_grow(void *array, size_t count, size_t *room, size_t element);
/* Builds a view of the lists and puts it in force. When it returns, no thread copies by an
 * older one. -ENOMEM: the view in force is an empty one, which only refuses. */
int mcl_view_update(struct mcshm *c, struct mcl_private *dropped);
/* The same when things were only added. -ENOMEM: the view in force stays, it knows less. */
int mcl_view_extend(struct mcshm *c);
/* Frees retired views that no queue pins. */
void mcl_view_reclaim(struct mcshm *c);
void mcl_view_fini(struct mcshm *c);
/* Queue's thread: pins the view in force. */
void mcl_view_pin(struct mcshm_queue *q, struct mcl_view *view) MCL_COLD;
const struct mcl_range *mcl_view_range(const struct mcl_view *view, uintptr_t at);
const struct mcl_target *mcl_view_target(const struct mcl_view *view, uint32_t segment,
                                         uint64_t address);

/* Queue's thread: the range around `at` in the view in force, or NULL. */
static inline const struct mcl_range *mcl_queue_range(struct mcshm_queue *q, const void *at)
{
    /* V1: acquire, pairs with the release in replace(), view.c: the view is whole */
    struct mcl_view *view = mcs_load_acquire(&q->c->view);

    if (__builtin_expect(view != q->view, 0))
        mcl_view_pin(q, view);
    if (q->range != NULL && (uintptr_t)at - q->range->start < q->range->size)
        return q->range;
    return q->range = mcl_view_range(q->view, (uintptr_t)at);
}

/* ---- memory.c: need the mutex ---------------------------------------------------- */

struct mcl_extent *mcl_extent_by_handle(struct mcshm *c, uint32_t handle);
/* The extent around [at, at + size). *status: NOT_REGISTERED, BAD_RANGE, NOT_SUPPORTED. */
struct mcl_extent *mcl_extent_around(struct mcshm *c, const void *at, uint64_t size,
                                     mcshm_status *status);
/* Pool memory; maps its extent when that is new. The view is not updated. */
mcshm_status mcl_pool_alloc(struct mcshm *c, uint64_t size, uint64_t align, const char *location,
                            uint8_t **out);
/* Gives it back; the view is updated before the mapping goes. Not device memory. */
mcshm_status mcl_pool_free(struct mcshm *c, size_t index, struct mcl_private *dropped);
/* Index of the allocation that begins at `start`, or SIZE_MAX. */
size_t mcl_alloc_index(const struct mcshm *c, const void *start);
void mcl_alloc_insert(struct mcshm *c, const struct mcl_alloc *a);
/* Takes allocation or extent off its list. */
struct mcl_alloc mcl_alloc_remove(struct mcshm *c, size_t index);
struct mcl_extent mcl_extent_remove(struct mcshm *c, uint32_t handle);
/* FREE; an extent that is gone with it comes back, to be unmapped, else one whose base is NULL and fd -1. */
struct mcl_extent mcl_tell_free(struct mcshm *c, uint32_t extent, uint64_t offset);
/* What mcl_extent_remove() has given. Device memory: without the mutex. */
void mcl_extent_unmap(struct mcshm *c, const struct mcl_extent *e);
/* Undoes the registration of a memfd, or of another library's memory. */
mcshm_status mcl_extent_unregister(struct mcshm *c, struct mcl_extent *e);
/* Its mapping has whole pages. */
uint64_t mcl_whole_pages(uint64_t size, uint64_t page_size);
void mcl_memory_fini(struct mcshm *c);

/* ---- reconnect.c: needs the mutex, except start and stop -------------------------- */

/* Starts the thread that notices the agent's death and comes back to a later one. */
mcshm_status mcl_watch_start(struct mcshm *c, const char *socket_path);
void mcl_watch_stop(struct mcshm *c);
/* The agent's end is gone: for good, or a later one is looked for from now on (c->away). */
void mcl_lost(struct mcshm *c);
/* Any thread: wakes the watcher, when there is one. */
void mcl_stir(struct mcshm *c);
/* Comes back, by the deadline. AGENT_DOWN: not by then, or never. */
mcshm_status mcl_come_back(struct mcshm *c, int64_t deadline);
/* Away and about to close: a later agent learns that it need not wait for this session. */
void mcl_leave(struct mcshm *c);

/* ---- restore.c: needs the mutex --------------------------------------------------- */

/* Gives a later agent, which has answered RESTORE, all that the lists hold; then its queues run
 * again. 0; -EPIPE: it died, too; other errno: the two do not understand each other. */
int mcl_hand_back(struct mcshm *c);
/* Asks for the mappings of others' memory anew. The watcher's: no other call is under way. */
void mcl_regrant(struct mcshm *c);

/* ---- segment.c, grant.c: need the mutex ------------------------------------------ */

/* Forgets what is published in [start, start + size): revoked or freed. The view is not updated. */
void mcl_buffers_cut(struct mcshm *c, const uint8_t *start, uint64_t size);
struct mcl_segment *mcl_segment_by_handle(struct mcshm *c, uint32_t handle);
/* All buffers of an open segment, by rising address; *out is the caller's to free(). */
mcshm_status mcl_describe(struct mcshm *c, uint32_t segment, struct mcs_msg_buffer_info **out,
                          size_t *count);
/*
 * Maps what the segment grants, for copies in the caller's thread, and updates the view.
 * Only a shortcut: what fails is left to the agent.  When the agent has withdrawn a grant of
 * this session since the last time, asks anew for those of all open segments.
 */
void mcl_grants_take(struct mcshm *c, struct mcl_segment *s);
/* The same when a grant has been withdrawn, else nothing: after a call that may have done so. */
void mcl_grants_check(struct mcshm *c);
/* All of them anew, for an agent that knows none. */
void mcl_grants_renew(struct mcshm *c);
/* Maps another's extent, which children of fork() do not get. *size: in bytes, out whole pages. 0, -errno. */
int mcl_extent_map(int fd, bool writable, void *hint, uint64_t *size, void **out);
/* Asks for what mcshm_map() has mapped anew. */
void mcl_maps_renew(struct mcshm *c);
/* Gives the segment's grants back; updates the view. */
void mcl_grants_drop(struct mcshm *c, struct mcl_segment *s);
/* `mapped`: false in a forked child, which never had the mappings. */
void mcl_grants_fini(struct mcshm *c, bool mapped);

/* ---- queue.c, batch.c ------------------------------------------------------------ */

void mcl_queue_free(struct mcshm_queue *q, bool mapped);
/* Private tables for q->shm. 0, -ENOMEM. */
int mcl_queue_init(struct mcshm_queue *q, struct mcshm *c);

static inline struct mcl_batch *mcl_batch_get(struct mcshm_queue *q, mcshm_batch batch)
{
    uint32_t index = (uint32_t)batch;

    if (index >= q->shm.batches || q->batches[index].generation != batch >> 32 ||
        q->batches[index].capacity == 0)
        return NULL;
    return &q->batches[index];
}

/* restore.c: the word of a task that went down with an agent, else 0 */
uint64_t mcl_task_lost(const struct mcshm_queue *q, uint32_t slot) MCL_COLD;

/* The slot's word when the task in it has ended, else 0. */
static inline uint64_t mcl_task_end(const struct mcshm_queue *q, uint32_t slot)
{
    uint64_t word = mcs_slot_peek(&q->shm, slot);
    uint32_t state = word & 0xff & ~MCS_SLOT_REMOTE_QUIESCED;

    if (word >> 32 == q->tasks[slot].generation && state >= MCS_STATE_INVALID)
        return word;
    /* relaxed: partner resumed(), restore.c; mcl_task_lost() looks again */
    return __builtin_expect(mcs_load_relaxed(&q->c->restarts) != 0, 0) ? mcl_task_lost(q, slot) : 0;
}

/* submit.c: wakes the engine when it sleeps */
void mcl_doorbell(struct mcshm_queue *q);

/* ---- stage.c --------------------------------------------------------------------- */

/* Private memory around or overlapping [at, at + size), or NULL. */
struct mcl_private *mcl_private_overlap(struct mcshm *c, const void *at, uint64_t size);
mcshm_status mcl_private_unregister(struct mcshm *c, void *start);
void mcl_private_fini(struct mcshm *c);
/* Notes a task on private memory; BUSY, NO_MEMORY. */
mcshm_status mcl_stage_prepare(struct mcshm_queue *q, uint32_t slot, const struct mcs_desc *d,
                               struct mcl_private *memory, uint8_t *local);
/* Keeps the task's private memory from being unregistered. False: it is just going. */
bool mcl_stage_hold(struct mcshm_queue *q, uint32_t slot);
void mcl_stage_release(struct mcshm_queue *q, uint32_t slot);
/* Is a task under way that writes to this private memory? */
bool mcl_stage_reads_into(const struct mcshm_queue *q, const struct mcl_private *memory,
                          const uint8_t *local, uint64_t size);
/* Held, before the push: private memory -> shadow for a WRITE. */
void mcl_stage_begin(struct mcshm_queue *q, uint32_t slot);
/* After its end: shadow -> private memory for a completed READ. Once. */
void mcl_stage_finish(struct mcshm_queue *q, struct mcl_batch *b, uint32_t slot);

/* ---- object_stage.c: the same for requests about objects -------------------------- */

/* Notes piece `piece` of `length` bytes; BUSY, NO_MEMORY. */
mcshm_status mcl_object_stage(struct mcshm_queue *q, uint32_t slot, uint32_t piece,
                              struct mcl_private *memory, uint8_t *local, uint64_t length);
/* BUSY: a PUT of memory that an unfinished task reads into. */
mcshm_status mcl_object_stage_check(const struct mcshm_queue *q, uint32_t slot);
bool mcl_object_stage_hold(struct mcshm_queue *q, uint32_t slot);
void mcl_object_stage_release(struct mcshm_queue *q, uint32_t slot);
void mcl_object_stage_begin(struct mcshm_queue *q, uint32_t slot);
void mcl_object_stage_end(struct mcshm_queue *q, uint32_t slot);
bool mcl_object_reads_into(const struct mcshm_queue *q, uint32_t slot,
                           const struct mcl_private *memory, const uint8_t *local, uint64_t size);

/* ---- object_map.c ------------------------------------------------------------------ */

/* Queue's thread: the extent of the store's, mapped if it is not yet; NULL: *status says why. */
const struct mcl_object_map *mcl_object_map(struct mcshm_queue *q, uint32_t extent, bool writable,
                                            mcshm_status *status);
/* The store has given up extents that are mapped here: soon they are not. */
void mcl_object_maps_stale(struct mcshm *c, uint32_t gone) MCL_COLD;
/* With the mutex: unmaps what the store has given up, where nothing is held any more. */
void mcl_object_maps_sweep(struct mcshm *c);
/* With the mutex: tells a later agent what is mapped. */
void mcl_object_maps_renew(struct mcshm *c);
void mcl_object_maps_fini(struct mcshm *c, bool mapped);

/* query.c: a request whose answer is a text in a memfd. The text is the caller's to free(). */
mcshm_status mcl_ask(struct mcshm *c, uint16_t type, struct mcs_msg *m, char **json);

#endif

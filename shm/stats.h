/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The stats file: counters that can be read while the agent does not answer.  The agent makes
 * it anew at each start, next to its socket (SOCKET.stats), and maps it; its engines and its
 * control thread each write rows of their own.  Readers map it read-only: nothing that they do
 * reaches the agent.
 *
 *   0                +---------------------------------------+
 *                    | mcs_stats_header     (control thread) |
 *   engines_offset   +---------------------------------------+
 *                    | mcs_stats_engine  x engine_rows       |   each by its engine
 *   sessions_offset  +---------------------------------------+
 *                    | mcs_stats_session x session_rows      |   by the control thread
 *   queues_offset    +---------------------------------------+
 *                    | mcs_stats_queue   x queue_rows        |   identity by the control thread,
 *                    +---------------------------------------+   counts by the queue's engine
 *
 * Sizes and offsets are in the header, so a reader of this version also reads rows that a later
 * one has made longer.  Each word has one writer, which stores it relaxed; words of one row may be
 * a burst apart.  `generation` of a row is 0 while it is free, odd while it is being filled, and
 * another even number each time that it is given away: a reader that finds the same even number
 * before and after its copy has a row of one owner.
 */
#ifndef MCS_STATS_H
#define MCS_STATS_H

#include "abi.h"
#include "atomic.h"

#define MCS_STATS_MAGIC UINT64_C(0x5354415453434d01) /* "\1MCSTATS" */
#define MCS_STATS_VERSION 1u
#define MCS_STATS_SUFFIX ".stats"
#define MCS_STATS_SESSIONS_MAX 4096u /* rows; what goes beyond is counted in no row */
#define MCS_STATS_BUCKETS 32u

/* Flags of the header. */
#define MCS_STATS_COPIED 0x1u /* not on tmpfs: the control thread writes all of it, once a second */

struct mcs_stats_header {
    uint64_t magic;
    uint32_t version;
    uint32_t header_size;
    uint64_t agent_incarnation;
    uint32_t pid; /* as the agent knows itself */
    uint32_t flags;
    uint64_t started_ns; /* CLOCK_MONOTONIC */
    uint64_t started_s;  /* CLOCK_REALTIME */
    uint64_t tick_hz;    /* rate of mcs_ticks() */
    uint64_t beat_ns; /* CLOCK_MONOTONIC: the control thread's last round, at least one a second */
    uint64_t beats;
    uint64_t beat_ticks;                           /* the same moment as beat_ns */
    uint64_t pool_size, pool_used, pool_page_size; /* bytes */
    uint32_t extents, sessions;
    uint32_t sessions_left_out, queues_left_out; /* that have no row */
    uint32_t engine_rows, session_rows, queue_rows;
    uint32_t engine_size, session_size, queue_size; /* bytes of a row */
    uint64_t engines_offset, sessions_offset, queues_offset, total_size;
    char agent_version[32];
    uint8_t reserved[304];
};
static_assert(sizeof(struct mcs_stats_header) == 512, "mcs_stats_header layout");

struct mcs_stats_engine {
    uint32_t id;
    int32_t core;          /* -1 unknown */
    uint32_t asleep;       /* 1: it waits to be woken */
    uint32_t never_sleeps; /* idle = busy */
    uint64_t beat;         /* ticks: its last sign of life while awake */
    uint64_t asleep_since; /* ticks */
    uint64_t idle;         /* ticks without work, sleep that is over included */
    uint64_t turns, sleeps;
    uint64_t tasks, bytes, failed;
    uint32_t hot, cold; /* queues that are polled every turn, and now and then */
    uint8_t reserved[40];
};
static_assert(sizeof(struct mcs_stats_engine) == 128, "mcs_stats_engine layout");

/* Sums over tasks that have ended. */
struct mcs_stats_sums {
    uint64_t tasks;
    uint64_t failed;    /* of them, in another state than COMPLETED */
    uint64_t bytes;     /* moved */
    uint64_t queue_ns;  /* submission -> taken */
    uint64_t move_ns;   /* taken -> last byte */
    uint64_t notify_ns; /* last byte -> notification delivered */
    uint64_t notified;  /* tasks that notify_ns is the sum of */
    uint64_t traced;    /* tasks that were recorded for `mcshm trace` */
    /* tasks by the logarithm of the three stages' sum: bucket i from 2^i ns on, the last one all
     * beyond; the tasks of one burst are counted as one of them was */
    uint64_t latency[MCS_STATS_BUCKETS];
};
static_assert(sizeof(struct mcs_stats_sums) == 320, "mcs_stats_sums layout");

struct mcs_stats_session {
    uint32_t generation;
    uint32_t id;
    uint64_t incarnation;
    uint64_t tenant;
    uint32_t pid, uid;
    uint32_t queues, extents;
    uint64_t memory;                     /* bytes */
    uint64_t since_ns;                   /* CLOCK_MONOTONIC */
    uint64_t caller_tasks, caller_bytes; /* copies in the client's threads, as it says itself */
    char tenant_name[32];                /* of its rule; empty: the tenant is the uid */
    uint8_t reserved[24];
    char name[MCS_NAME_MAX];
    struct mcs_stats_sums closed; /* of queues that were closed */
    uint8_t pad[64];
};
static_assert(sizeof(struct mcs_stats_session) == 768, "mcs_stats_session layout");
static_assert(offsetof(struct mcs_stats_session, name) == 128, "mcs_stats_session layout");

struct mcs_stats_queue {
    uint32_t generation;
    uint32_t session; /* id */
    uint32_t queue;   /* id */
    uint32_t engine;
    uint64_t depth; /* tasks that have not ended, as of the engine's last turn for it */
    uint8_t reserved[40];
    struct mcs_stats_sums sums;
};
static_assert(sizeof(struct mcs_stats_queue) == 384, "mcs_stats_queue layout");
static_assert(offsetof(struct mcs_stats_queue, sums) == 64, "mcs_stats_queue layout");

static inline unsigned mcs_stats_bucket(uint64_t ns)
{
    unsigned i = 63 - (unsigned)__builtin_clzll(ns | 1);

    return i < MCS_STATS_BUCKETS ? i : MCS_STATS_BUCKETS - 1;
}

/* `n` tasks that took about as long as this; one writer. */
static inline void mcs_stats_latency(struct mcs_stats_sums *s, uint64_t ns, uint64_t n)
{
    mcs_count(&s->latency[mcs_stats_bucket(ns)], n);
}

/* The writer's side of `generation`; the row is filled between the two. `fresh`: even, not 0, and not
 * used for any row before. */
static inline void mcs_stats_fill_begin(uint32_t *generation)
{
    mcs_store_relaxed(generation, 1u);
    mcs_fence_release(); /* odd before any word changes; partner: mcs_stats_copy() */
}
static inline void mcs_stats_fill_end(uint32_t *generation, uint32_t fresh)
{
    mcs_store_release(generation, fresh); /* partner: mcs_stats_copy() */
}

/* The reader's side: copies `size` bytes of a row, a multiple of 8. False when it is free, or has
 * changed hands meanwhile. */
static inline bool mcs_stats_copy(void *to, const void *row, size_t size)
{
    const uint32_t *generation = row;
    const uint64_t *words = row;
    uint32_t g = mcs_load_acquire(generation); /* partner: mcs_stats_fill_end() */

    if (g == 0 || (g & 1) != 0)
        return false;
    for (size_t i = 0; i < size / sizeof(uint64_t); i++)
        ((uint64_t *)to)[i] = mcs_load_relaxed(&words[i]);
    mcs_fence_acquire(); /* the words before the second look; partner: mcs_stats_fill_begin() */
    return mcs_load_relaxed(generation) == g;
}

#endif

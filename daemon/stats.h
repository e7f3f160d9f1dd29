/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The agent's side of the stats file (shm/stats.h): counters that `mcshm top` reads while the agent
 * does not answer.  Control thread only; engines write to the rows that they were given.  Where no
 * file can be made the rows lie in private memory, and all else goes on.
 */
#ifndef MCD_STATS_H
#define MCD_STATS_H

#include "config.h"
#include "shm/stats.h"

struct mcd_agent;
struct mcd_queue;
struct mcd_session;

struct mcd_stats {
    struct mcs_stats_header *header; /* what is written to; NULL: not made */
    struct mcs_stats_engine *engines;
    struct mcs_stats_session *sessions;
    struct mcs_stats_queue *queues;
    uint64_t size;
    void *copy;  /* the file's mapping, where it is no tmpfs: written once a second */
    bool mapped; /* header is the file's mapping, not private memory */
    bool file;   /* there is one, to be removed at the end */
    int guard;
    uint32_t generation;               /* the last one given */
    uint32_t top_session, top_queue;   /* no row from here on was ever used */
    uint32_t free_session, free_queue; /* no row before these is free */
    char path[MCD_TEXT_MAX + 16];
};

/* Makes the file and shows the engines their rows: after the socket's lock is held, before they run. */
void mcd_stats_create(struct mcd_agent *a);
/* Removes the file. The rows stay until the process ends: engines may still write to them. */
void mcd_stats_remove(struct mcd_agent *a);

/* Each round of the control thread. */
void mcd_stats_beat(struct mcd_agent *a);
/* Once a second: what nobody tells. Gives rows to greeted sessions that have none. */
void mcd_stats_refresh(struct mcd_agent *a);

/* The session goes. */
void mcd_stats_forget(struct mcd_session *s);
/* A row for a queue, before its engine has it; it keeps its own when there is none. */
void mcd_stats_queue(struct mcd_session *s, struct mcd_queue *q);
/* The queue goes: its sums stay with the session. No engine has it any more. */
void mcd_stats_queue_gone(struct mcd_session *s, struct mcd_queue *q);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sessions of an earlier agent.  Its ledger says which there were; each whose process lives is a
 * session here from the start, in limbo: it has its name, its tenant and its memory's part of the
 * pool, but no socket, and the agent has none of its descriptors.  Limbo ends when the client
 * comes back and has handed over all that it will (RESTORE ... RESUME), or when its process dies,
 * or, of a process that this agent cannot see, after [agent] recovery_s.
 *
 * Queues are served again when everybody is back, or after [agent] barrier_ms: so tasks that name
 * a segment of another client meet its buffers and not a gap.
 */
#ifndef MCD_LIMBO_H
#define MCD_LIMBO_H

#include "keeper.h"
#include "ledger.h"
#include "watch.h"

struct mcd_agent;
struct mcd_session;

/* What a session in limbo still has out. */
struct mcd_limbo {
    struct mcd_ledger_extent **extents; /* not handed back; NULL where one was */
    struct mcd_ledger_queue **queues;
    uint32_t nextents, nqueues, nwritable;
    uint32_t ngpu;          /* of the extents, of GPU memory */
    uint64_t memory;        /* bytes of those extents, which their tenant counts */
    bool here;              /* it is handing them back */
    bool asked;             /* that was all: RESUME */
    struct mcd_alarm timer; /* of a process that cannot be seen */
} __attribute__((aligned(16)));

struct mcd_recovery {
    struct mcd_ledger *ledger; /* NULL: nobody would keep it */
    uint64_t before;           /* incarnation of the agent before; 0: there was none */
    uint64_t lives;            /* agents so far, this one included */
    uint64_t until;            /* ns: end of the barrier */
    uint32_t away;             /* sessions that have not come */
    uint32_t coming;           /* that have, and are not through */
    uint32_t total;            /* at the start */
    bool told;                 /* that all are back */
    bool given_up;             /* starts over what is kept have failed: this one does without */
    /* counters */
    uint64_t restored, lost, refused;
};

/* At the start, before anything is given to anybody: takes the ledger over, or makes one. Never
 * fails for what is in it: what cannot be read is as if it were not there. */
int mcd_recovery_open(struct mcd_agent *a, char *error, size_t error_size);
/* Makes the sessions. */
void mcd_recovery_begin(struct mcd_agent *a);
/* The barrier counts from now. */
void mcd_recovery_serve(struct mcd_agent *a);
/* The last step of a stop: for good (nobody is to come back), or until the next agent. */
void mcd_recovery_close(struct mcd_agent *a);

/* Is everybody back, or the time over? */
bool mcd_recovery_over(const struct mcd_agent *a);

/* The session in limbo that a client names and that has not come yet, or NULL. */
struct mcd_session *mcd_limbo_find(struct mcd_agent *a, uint64_t incarnation);
/* It has come. */
void mcd_limbo_arrive(struct mcd_session *s);
/* The extent of that record, which is one of those not handed back, is. */
void mcd_limbo_take(struct mcd_session *s, const struct mcd_ledger_extent *r);
/* It has handed back what it will: the rest goes. */
void mcd_limbo_leave(struct mcd_session *s);
/* The session ends: all of it goes. Also for sessions that are not in limbo. */
void mcd_limbo_free(struct mcd_session *s);

/* Is s in limbo with mappings of its tenant's memory that it may write to? Nobody can ask it to
 * keep still. */
bool mcd_limbo_may_write(const struct mcd_session *s, uint64_t tenant);

#endif

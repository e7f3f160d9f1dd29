/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shares: who is served next, where several want bytes of one thing (an engine's copies, a route).
 *
 *     tenants, by weight
 *       classes, strictly; a lower one that waits gets a part of STARVED
 *         sessions, equally
 *           leaves (queues, lanes), equally
 *
 * Each of them has a virtual time, the bytes it was given by its weight; of those that want something the
 * one that is furthest behind is next.  What it was given is charged when it is known, so every byte
 * counts exactly, and nobody is ever ahead of the others by more than a quantum.
 *
 * A leaf is *ready* in a class when something of it waits that could be done now, and *busy* when it is
 * ready or more is on its way (a ring that was full).  Who is only busy is waited for: nobody else gets
 * ahead of it in the meantime.  One thread.
 */
#ifndef MCD_SHARE_H
#define MCD_SHARE_H

#include <stdbool.h>
#include <stdint.h>

#include "shm/abi.h"

struct mcd_tenant;

/* One of several that share. */
struct mcd_share {
    uint64_t at[MCS_CLASS_COUNT];  /* virtual time; tenants have the first only */
    uint8_t busy, ready;           /* a bit a class */
    struct mcd_share *next, *prev; /* of those that are busy */
};

/* Those that share. */
struct mcd_share_group {
    struct mcd_share *busy;          /* list */
    uint32_t nbusy[MCS_CLASS_COUNT]; /* in this class */
    uint32_t nready[MCS_CLASS_COUNT];
    uint64_t floor[MCS_CLASS_COUNT];     /* virtual time of the one furthest behind */
    uint64_t looked_at[MCS_CLASS_COUNT]; /* the turn when it was looked for */
};

struct mcd_share_tenant {
    struct mcd_share share;
    struct mcd_share_group sessions;
    struct mcd_tenant *tenant;
    uint64_t passed[MCS_CLASS_COUNT]; /* bytes of higher classes since this one waits */
    uint64_t throttled_since;         /* ticks; 0: it is not */
    struct mcd_share_session *all;
    struct mcd_share_tenant *next;
};

struct mcd_share_session {
    struct mcd_share share;
    struct mcd_share_group leaves;
    struct mcd_share_tenant *tenant;
    const void *key;
    uint32_t members;
    struct mcd_share_session *next;
};

struct mcd_share_leaf {
    struct mcd_share share;
    struct mcd_share_session *session; /* NULL: has not joined */
};

struct mcd_shares {
    uint64_t quantum; /* bytes that are given at a time */
    bool by_turns;    /* between classes each time counts the same, whatever its bytes */
    uint64_t turn;    /* virtual times are looked at once a turn */
    uint64_t tick_hz;
    uint32_t nbusy, nready; /* leaves */
    struct mcd_share_group tenants;
    struct mcd_share_tenant *all;
};

void mcd_shares_init(struct mcd_shares *s, uint64_t quantum, uint64_t tick_hz);
/* All leaves have left. */
void mcd_shares_fini(struct mcd_shares *s);

/* A leaf of a session (any pointer that is its alone) of a tenant; NULL: one of weight 1 that all
 * without a tenant share. -ENOMEM. */
int mcd_share_join(struct mcd_shares *s, struct mcd_share_leaf *l, struct mcd_tenant *t,
                   const void *session);
void mcd_share_leave(struct mcd_shares *s, struct mcd_share_leaf *l);

/* What has changed for whom. */
void mcd_share_change(struct mcd_shares *s, struct mcd_share_leaf *l, uint8_t busy, uint8_t ready);
static inline void mcd_share_set(struct mcd_shares *s, struct mcd_share_leaf *l, uint8_t busy,
                                 uint8_t ready)
{
    if (l->share.busy != busy || l->share.ready != ready)
        mcd_share_change(s, l, busy, ready);
}

/* Who is next, in which class; NULL: nobody may go now. now: ticks. */
struct mcd_share_leaf *mcd_share_pick(struct mcd_shares *s, uint64_t now, unsigned *class);
/* It was given so many bytes. */
void mcd_share_charge(struct mcd_shares *s, struct mcd_share_leaf *l, unsigned class,
                      uint64_t bytes, uint64_t now);
/* The same of what costs time and is no byte of its tenant's rate. */
void mcd_share_count(struct mcd_shares *s, struct mcd_share_leaf *l, unsigned class,
                     uint64_t bytes);
/* May something small of it be done at once, before whoever waits? */
bool mcd_share_may_pass(struct mcd_shares *s, struct mcd_share_leaf *l, unsigned class,
                        uint64_t now);

#endif

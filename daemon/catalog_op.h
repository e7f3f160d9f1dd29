/* SPDX-License-Identifier: Apache-2.0 */
/* One ask in the catalog: what catalog_op.c (its steps and questions) and catalog_answer.c (what it is told) share. */
#ifndef MCD_CATALOG_OP_H
#define MCD_CATALOG_OP_H

#include "catalog_internal.h"

#define ANSWER_BYTES 48u /* of one key in an answer, about */
#define FLIGHT_MAX (3u << 20)
#define CALLS_MAX 4u            /* of one op at a time */
#define TRIES 3u                /* of a key whose holders say that they have it not, */
#define TRIES_AWAY 8u           /* or cannot be reached */
#define SOON_NS (5 * MCD_MS)    /* between looks for what is on its way to memory, or for room */
#define AGAIN_NS (20 * MCD_MS)  /* between questions to a master that cannot answer; and jitter */
#define LAST_NS (1000 * MCD_MS) /* so long before the deadline it is said that it could not */

enum mcd_op_step {
    STEP_MASTER,
    STEP_LEASE,
    STEP_ASKED,
    STEP_PULL,
    STEP_PULLING,
    STEP_TOLD,
    STEP_OVER
};

struct mcd_op_key {
    uint8_t step, tries;
    uint8_t nholders, at;
    uint8_t last; /* enum mcs_status: why it has no answer yet */
    bool waits;   /* is not asked for before the op's `wake` */
    bool silent;  /* one that may have it was not heard */
    struct mcd_holder *holders[MCD_OP_HOLDERS];
};

struct mcd_op {
    struct mcd_op *next;
    struct mcd_catalog *catalog;
    struct mcd_ask *ask; /* NULL: answered already; calls and pulls are under way still */
    void (*done)(struct mcd_catalog *c, struct mcd_ask *a);
    struct mcd_op_key *keys;
    uint32_t n, left; /* keys; without an answer */
    unsigned calls;   /* under way */
    unsigned pulls, recalls;
    uint64_t due;  /* ns: when it is looked at again, at the latest */
    uint64_t wake; /* ns: when keys that wait go on */
    uint32_t stir; /* the catalog's, when it was looked at last */
    uint64_t
        told; /* number of the event that the leader has to have heard of: what was pulled is known there */
    bool from;    /* the holder is given: the master is not asked */
    bool granted; /* START: some key may be written */
    bool hurried; /* it is answered without waiting for recalls */
    bool late;    /* END: of a put that may have begun under another leader than is to hear of it */
};

struct mcd_op_call {
    struct mcd_store_call sc;
    struct mcd_op *op;
    struct mcd_holder *holder; /* NULL: the master */
    uint64_t sent;             /* ns */
    uint64_t cost;             /* bytes that it has in `flight` */
    uint32_t n;
    uint32_t index[];
};

/* Key i has its answer. */
void mcd_op_over(struct mcd_op *op, uint32_t i, enum mcs_status status);
/* The key goes back to the master, a little later; or it is said now why it has no answer. */
void mcd_op_again(struct mcd_op *op, uint32_t i, enum mcs_status why);
/* This holder does not give it: the next one, or the master once more. */
void mcd_op_elsewhere(struct mcd_op *op, uint32_t i, enum mcs_status why);
/* This holder may have missed that the key's life is over: the next one, or the master once more, a little later. */
void mcd_op_stale(struct mcd_op *op, uint32_t i);
/* What waits is looked at then, at the latest. */
void mcd_op_later(struct mcd_op *op, uint64_t ns);
/* Key i is asked for then, or when something has changed that it may have waited for; not at once. */
void mcd_op_wait(struct mcd_op *op, uint32_t i, uint64_t ns);
/* Is this the holder whose bytes of key i were wrong? */
bool mcd_op_avoids(const struct mcd_op *op, uint32_t i, const struct mcd_holder *h);
/* A use of a reach that was taken for a key is given back. */
void mcd_op_let_go(struct mcd_ask_key *k);
/* Is the question one of existence alone? */
static inline bool mcd_op_asks_exist(const struct mcd_op *op)
{
    return op->ask->kind == MCD_ASK_EXIST && op->ask->lease_ms == 0;
}

/* catalog_answer.c: what a call was about has its answer from it. False: nonsense. */
bool mcd_op_take_answer(struct mcd_op *op, const struct mcd_op_call *oc, const uint8_t *p,
                        size_t size);

#endif

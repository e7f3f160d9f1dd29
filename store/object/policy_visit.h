/* SPDX-License-Identifier: Apache-2.0 */
/* Of the policy `chain` (policy_chain.c tells the idea): its records of visits, and where they are kept. */
#ifndef MCO_POLICY_VISIT_H
#define MCO_POLICY_VISIT_H

#include <assert.h>
#include <stddef.h>

#include "policy.h"
#include "policy_value.h"

#define MCO_WALKS 32u /* requests that go on at the same time */
#define MCO_GONE_SLOTS 16384u

/* Classes of visits; those of chains come first (policy_visit.c). */
enum { MCO_LOOSE = 39, MCO_LAST = 40, MCO_ORPHAN = 41 };
static_assert(MCO_ORPHAN == MCO_VALUE_CLASSES - 1, "classes");

/* A block's place in the tree of chains. Lives on while a block behind it, or a walk, needs it. */
struct mco_link {
    struct mco_link *before;        /* or the next free one */
    struct mco_policy_entry *entry; /* NULL: gone */
    uint32_t behind;                /* links of blocks that are there and follow it */
    uint32_t uses;
};

enum mco_where { MCO_FREE, MCO_OPEN, MCO_CELL, MCO_STUCK, MCO_GHOST };

struct mco_visit {
    struct mco_visit *prev, *next;         /* of where it is */
    struct mco_visit *age_prev, *age_next; /* of its age */
    struct mco_visit *gone_next;           /* of its slot */
    struct mco_policy_entry *first, *last; /* front to end; of a batch: newest to oldest */
    uint64_t born;                         /* touches */
    uint64_t gone;                         /* hash of its first block that was evicted, 0: none */
    uint32_t gone_position;
    uint32_t length; /* blocks of the request */
    uint32_t known;  /* of them, seen in an earlier turn or found */
    uint32_t turn;   /* how often it came back */
    uint32_t count;  /* entries */
    uint8_t where, class, age;
    bool classed, watched; /* watched: it has not come back yet */
    bool batch, walked;    /* walked: a walk is on it */
};

struct mco_visits {
    struct mco_visit *first, *last;
};

struct mco_cell {
    struct mco_visits visits;
    struct mco_cell *prev, *next; /* of its level */
    uint8_t level;
};

/* A request on its way through a chain, over its PREFIX, GET and PUT. */
struct mco_walk {
    struct mco_visit *visit; /* NULL: so far it only met what another walk touches */
    struct mco_link *link;   /* of the last block; NULL: not known */
    uint64_t last;           /* its hash */
    uint64_t expect;         /* hash that was not there: what is put next */
    uint64_t used;           /* 0: free */
    uint32_t position;       /* of the next one */
    uint32_t length;
};

struct mco_policy {
    uint64_t now; /* touches */
    uint64_t aged;
    struct mco_walk walks[MCO_WALKS];
    struct mco_visit *batches[3]; /* the newest of MCO_LOOSE, MCO_LAST, MCO_ORPHAN */
    struct mco_visit spare;       /* for when there is no memory: a batch of MCO_LOOSE */
    struct mco_visits open, stuck, ghosts;
    struct mco_visits ages[MCO_VALUE_AGES];
    struct mco_cell cells[MCO_VALUE_CLASSES][MCO_VALUE_AGES];
    struct mco_cell *levels[MCO_VALUE_LEVELS]; /* cells with visits */
    uint64_t full[MCO_VALUE_LEVELS / 64];      /* levels with cells */
    struct mco_visit *gone[MCO_GONE_SLOTS];
    struct mco_visit *free_visits;
    struct mco_link *free_links;
    void *slabs; /* first word: the next one */
    uint64_t nvisits, nghosts;
    bool rest; /* next() is beyond the ends of chains */
    struct mco_values values;
};

static inline struct mco_visit *mco_visit_of(const struct mco_policy_entry *e)
{
    return (struct mco_visit *)(uintptr_t)e->words[0]; // NOLINT(performance-no-int-to-ptr)
}

static inline struct mco_link *mco_link_of(const struct mco_policy_entry *e)
{
    return (struct mco_link *)(uintptr_t)e->words[1]; // NOLINT(performance-no-int-to-ptr)
}

/* NULL: no memory. Both belong to p, whose destruction frees them. */
struct mco_visit *mco_visit_take(struct mco_policy *p);
struct mco_link *mco_link_take(struct mco_policy *p);
/* One user of it less. NULL is nothing. */
void mco_link_put(struct mco_policy *p, struct mco_link *l);

void mco_visits_add(struct mco_visits *l, struct mco_visit *v);
/* Out of the list where it is; and into its cell, that of its class and age. */
void mco_visit_leave(struct mco_policy *p, struct mco_visit *v);
void mco_visit_enter_cell(struct mco_policy *p, struct mco_visit *v, bool as_oldest);
void mco_visit_age_add(struct mco_policy *p, struct mco_visit *v);
void mco_visits_grow_older(struct mco_policy *p);
/* Looks anew at what some class is worth. */
void mco_visits_refresh(struct mco_policy *p);

/* e, of v, is evicted. */
void mco_gone_remember(struct mco_policy *p, struct mco_visit *v, const struct mco_policy_entry *e);
/* The visit whose first evicted block has this hash, and which did not come back yet; NULL: none. */
struct mco_visit *mco_gone_find(struct mco_policy *p, uint64_t hash);

/* e leaves its visit, which may be freed with it; e becomes the last block of v; e joins the newest batch of a class. */
void mco_visit_lose(struct mco_policy *p, struct mco_policy_entry *e);
void mco_visit_gain(struct mco_visit *v, struct mco_policy_entry *e);
void mco_batch_gain(struct mco_policy *p, unsigned class, struct mco_policy_entry *e);
/* Nothing lies in it, and nobody adds to it any more. */
void mco_visit_empty(struct mco_policy *p, struct mco_visit *v);
/* It came back, and goes on as v. */
void mco_visit_came_back(struct mco_policy *p, struct mco_visit *old, struct mco_visit *v);
/* v, which is watched, came back before its blocks have been left by their walk: it goes on as itself. */
void mco_visit_renew(struct mco_policy *p, struct mco_visit *v);
/* Enough of the request was seen to tell what it is like; found: its first blocks that were there. */
void mco_visit_classify(struct mco_policy *p, struct mco_visit *v, uint32_t found);

#endif

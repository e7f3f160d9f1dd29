/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who is evicted next: one small interface, a policy a file.  A policy orders entries; whether one
 * may go at all (pins, leases, readers) is not its business: the store asks for the next candidate
 * until one may.  The store calls all of it under one lock.
 */
#ifndef MCO_POLICY_H
#define MCO_POLICY_H

#include <stdbool.h>
#include <stdint.h>

struct mco_policy;

/* A part of each object, the policy's own. Zeroed before insert(). */
struct mco_policy_entry {
    struct mco_policy_entry *prev, *next;
    uint64_t hash;     /* of its key, set by the store */
    uint64_t size;     /* bytes that it takes, set by the store */
    uint64_t words[4]; /* whatever the policy keeps */
};

#define MCO_POSITION_NONE UINT32_MAX

/* What is known of a request when it touches a key. */
struct mco_hint {
    uint64_t now_ns; /* CLOCK_MONOTONIC */
    uint64_t
        previous; /* hash of the key before it in its prefix chain; 0: first of it, or not known */
    uint32_t position; /* in the chain, from 0; MCO_POSITION_NONE: the request named none */
    uint32_t length; /* keys of the chain up to the last one that the request named; 0: not known */
    uint64_t group;  /* hash of the group's name, 0: none */
};

struct mco_policy_ops {
    const char *name; /* as [store] policy has it */
    /* capacity: bytes of the memory that it orders. 0 or -ENOMEM. */
    int (*create)(uint64_t capacity, struct mco_policy **out);
    void (*destroy)(struct mco_policy *p);
    /* A new object. hint as of its put. */
    void (*insert)(struct mco_policy *p, struct mco_policy_entry *e, const struct mco_hint *hint);
    /* It was found: by GET, HOLD or PREFIX. */
    void (*hit)(struct mco_policy *p, struct mco_policy_entry *e, const struct mco_hint *hint);
    /* A key that is not there was asked for. */
    void (*miss)(struct mco_policy *p, uint64_t hash, const struct mco_hint *hint);
    /* It goes: evicted (the policy may remember its hash), or for another reason. */
    void (*remove)(struct mco_policy *p, struct mco_policy_entry *e, bool evicted);
    /* The next to go after `after` (NULL: the very first); NULL: no more. */
    struct mco_policy_entry *(*next)(struct mco_policy *p, struct mco_policy_entry *after);
};

extern const struct mco_policy_ops mco_policy_chain, mco_policy_fifo, mco_policy_lru,
    mco_policy_s3fifo;
/* By name; NULL: there is none. All of them: mco_policies, ended by NULL. */
const struct mco_policy_ops *mco_policy_find(const char *name);
extern const struct mco_policy_ops *const mco_policies[];

#endif

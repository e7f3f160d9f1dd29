/* SPDX-License-Identifier: Apache-2.0 */
/* Names of objects, and of one life of a name. */
#ifndef MCO_KEY_H
#define MCO_KEY_H

#include <stdbool.h>
#include <stdint.h>

/* A key as it is asked for. Bytes of any kind, the caller's. */
struct mco_key {
    const void *bytes;
    uint32_t length; /* 1 .. MCS_KEY_MAX */
    uint64_t tenant;
    uint64_t
        hash; /* mco_key_hash(): XXH3 of the bytes, seeded with the tenant; equal on all hosts */
};

uint64_t mco_key_hash(uint64_t tenant, const void *bytes, uint32_t length);
static inline struct mco_key mco_key(uint64_t tenant, const void *bytes, uint32_t length)
{
    return (struct mco_key){bytes, length, tenant, mco_key_hash(tenant, bytes, length)};
}

/*
 * One life of a key. Later lives are greater, also over a change of the leader: tokens only grow. An agent without a
 * directory uses token 0 and a sequence that goes on over its restarts.
 */
struct mco_version {
    uint64_t token;    /* fencing token of the leader that gave it */
    uint64_t sequence; /* of that leader's, from 1; 0 with token 0: none */
};

static inline int mco_version_compare(const struct mco_version *a, const struct mco_version *b)
{
    if (a->token != b->token)
        return a->token < b->token ? -1 : 1;
    return a->sequence < b->sequence ? -1 : a->sequence > b->sequence;
}

/* One number that clients see. It grows from life to life of a key until a token, which with etcd is a revision, or the puts
 * of one leader reach 2^32. */
static inline uint64_t mco_version_number(const struct mco_version *v)
{
    return (v->token << 32) + v->sequence;
}

#endif

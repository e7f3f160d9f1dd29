/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Places of objects on other hosts, with their leases.  Sets of a few entries, each with a lock of its own that is held
 * for a look or a change: engines look places up by themselves, so that a repeated read asks nobody.
 */
#include <stdlib.h>
#include <string.h>

#include "catalog_internal.h"
#include "agent.h"
#include "remote.h"

static struct mcd_place_set *lock(struct mcd_catalog *c, uint64_t hash)
{
    struct mcd_place_set *s = &c->places[hash & (MCD_PLACE_SETS - 1)];

    while (mcs_exchange(&s->lock, 1u) != 0)
        mcs_pause();
    return s;
}

static void unlock(struct mcd_place_set *s)
{
    mcs_store_release(&s->lock, 0u); /* partner: the exchange in lock() */
}

static struct mcd_place *find(struct mcd_place_set *s, const struct mco_key *k)
{
    for (unsigned i = 0; i < MCD_PLACE_WAYS; i++) {
        struct mcd_place *p = &s->ways[i];

        if (p->key != NULL && p->hash == k->hash && p->tenant == k->tenant &&
            p->length == k->length && memcmp(p->key, k->bytes, k->length) == 0)
            return p;
    }
    return NULL;
}

static void clear(struct mcd_place *p)
{
    free(p->key);
    *p = (struct mcd_place){0};
}

/*
 * Where it is is not known any more; that lives before `least` are over is, for some time. It is what keeps a reader from going back in
 * time where two holders say different things: one of them has not heard yet what the other has.
 */
static void forget_place(const struct mcd_catalog *c, struct mcd_place *p, struct mco_version least)
{
    if (c->remember_ns == 0) {
        clear(p);
        return;
    }
    p->reach = NULL;
    p->until = 0;
    if (mco_version_compare(&p->version, &least) < 0)
        p->version = least;
    p->known = mcd_now_ns() + c->remember_ns;
}

/* Does the holder live as it did? */
static bool is_good(const struct mcd_place *p)
{
    /* partner: set_status() in describe.c */
    return p->reach != NULL && mcs_load_acquire(&p->reach->segment->remote->status) == MCS_OK;
}

bool mcd_place_find(struct mcd_catalog *c, struct mcd_ask_key *k, uint64_t now)
{
    struct mcd_place_set *s = lock(c, k->key.hash);
    struct mcd_place *p = find(s, &k->key);
    bool good = p != NULL && p->until >= now + p->lease / 2 && is_good(p);

    if (good) {
        k->size = p->size;
        k->version = p->version;
        k->crc = p->crc;
        k->summed = p->summed;
        k->address = p->address;
        k->until = p->until;
        k->segment = p->reach->segment;
        k->reach = p->reach;
        p->used = ++s->clock;
        /* relaxed: under the lock, which whoever takes the reach away has had since; partner: mcd_reaches_poll() */
        (void)mcs_fetch_add(&p->reach->users, 1u);
    }
    unlock(s);
    return good;
}

bool mcd_place_exists(struct mcd_catalog *c, const struct mco_key *k, uint64_t now)
{
    struct mcd_place_set *s = lock(c, k->hash);
    struct mcd_place *p = find(s, k);
    bool good = p != NULL && p->until > now && is_good(p);

    if (good)
        p->used = ++s->clock;
    unlock(s);
    return good;
}

struct mcd_reach *mcd_place_reach(struct mcd_catalog *c, const struct mco_key *k)
{
    struct mcd_place_set *s = lock(c, k->hash);
    struct mcd_place *p = find(s, k);
    struct mcd_reach *r = p != NULL && is_good(p) ? p->reach : NULL;

    unlock(s);
    return r;
}

/* The one of this key, a free one, or the one that was not looked up for the longest time. */
static struct mcd_place *room(struct mcd_place_set *s, const struct mco_key *k)
{
    struct mcd_place *p = find(s, k);

    for (unsigned i = 0; p == NULL && i < MCD_PLACE_WAYS; i++)
        if (s->ways[i].key == NULL)
            p = &s->ways[i];
    if (p != NULL)
        return p;
    p = &s->ways[0];
    for (unsigned i = 1; i < MCD_PLACE_WAYS; i++)
        if ((int32_t)(s->ways[i].used - p->used) < 0)
            p = &s->ways[i];
    clear(p);
    return p;
}

void mcd_place_put(struct mcd_catalog *c, const struct mcd_ask_key *k, uint64_t lease)
{
    void *copy = malloc(k->key.length);
    struct mcd_place_set *s;
    struct mcd_place *p;

    if (copy == NULL)
        return; /* it is asked for again */
    memcpy(copy, k->key.bytes, k->key.length);
    s = lock(c, k->key.hash);
    p = room(s, &k->key);
    free(p->key);
    *p = (struct mcd_place){.hash = k->key.hash,
                            .tenant = k->key.tenant,
                            .key = copy,
                            .length = k->key.length,
                            .crc = k->crc,
                            .version = k->version,
                            .size = k->size,
                            .address = k->address,
                            .until = k->until,
                            .known = mcd_now_ns() + c->remember_ns,
                            .lease = lease,
                            .reach = k->reach,
                            .used = ++s->clock,
                            .summed = k->summed};
    unlock(s);
}

bool mcd_place_is_over(struct mcd_catalog *c, const struct mco_key *k, const struct mco_version *v)
{
    struct mcd_place_set *s = lock(c, k->hash);
    struct mcd_place *p = find(s, k);
    bool over = p != NULL && mcd_now_ns() < p->known && mco_version_compare(v, &p->version) < 0;

    unlock(s);
    return over;
}

void mcd_place_forget(struct mcd_catalog *c, const struct mco_key *k,
                      const struct mco_version *upto)
{
    struct mcd_place_set *s = lock(c, k->hash);
    struct mcd_place *p = find(s, k);

    if (p != NULL && upto == NULL)
        forget_place(c, p, p->version);
    else if (p != NULL && mco_version_compare(&p->version, upto) <= 0)
        forget_place(c, p, (struct mco_version){upto->token, upto->sequence + 1});
    unlock(s);
}

void mcd_place_outdate(struct mcd_catalog *c, const struct mco_key *k, const struct mco_version *v)
{
    struct mcd_place_set *s = lock(c, k->hash);
    struct mcd_place *p = find(s, k);

    if (p != NULL && mco_version_compare(&p->version, v) < 0)
        forget_place(c, p, *v);
    unlock(s);
}

void mcd_places_drop(struct mcd_catalog *c, const struct mcd_reach *reach)
{
    for (uint64_t i = 0; i < MCD_PLACE_SETS; i++) {
        struct mcd_place_set *s = lock(c, i);

        for (unsigned w = 0; w < MCD_PLACE_WAYS; w++)
            if (s->ways[w].key != NULL && reach == NULL)
                clear(&s->ways[w]);
            else if (s->ways[w].key != NULL && s->ways[w].reach == reach)
                forget_place(c, &s->ways[w], s->ways[w].version);
        unlock(s);
    }
}

uint64_t mcd_places_count(struct mcd_catalog *c)
{
    uint64_t n = 0;

    for (uint64_t i = 0; i < MCD_PLACE_SETS; i++) {
        struct mcd_place_set *s = lock(c, i);

        for (unsigned w = 0; w < MCD_PLACE_WAYS; w++)
            n += s->ways[w].reach != NULL;
        unlock(s);
    }
    return n;
}

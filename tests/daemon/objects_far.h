/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Other hosts for an engine and its store: the catalog and the way there are played by the test (the Makefile has the linker
 * put the functions below in their place).
 */
#ifndef TESTS_OBJECTS_FAR_H
#define TESTS_OBJECTS_FAR_H

#include "daemon/catalog.h"
#include "daemon/leg.h"
#include "objects.h"

uint64_t mcd_now_ns(void);

#define ASKS 256u
#define THERE 64u

/* What the other host has. */
struct there {
    char key[16];
    uint8_t *data;
    uint64_t size;
    uint32_t crc;
    unsigned damaged; /* reads that bring wrong bytes */
    unsigned leased;  /* FINDs whose lease has run out at once */
    bool comes;       /* it is brought here when it is asked for, by somebody else */
};

static struct world {
    struct ob *o;
    bool later;       /* answers come in a later turn */
    bool hold;        /* and not before this is false again, */
    bool hold_ends;   /* those of END alone */
    const char *busy; /* a key that another host writes, for so many questions */
    unsigned busy_for;
    uint8_t start_status;    /* of all others; 0: as it is */
    unsigned ended_at[ASKS]; /* keys that had ended well when START was asked for this time */
    unsigned legs_max;
    struct mcd_ask *asks[ASKS];
    unsigned nasks;
    struct mcd_leg *legs[MCD_LEGS];
    unsigned nlegs;
    uint64_t sequence;
    const char *over; /* a key that has had a later life meanwhile */
    /* counts */
    unsigned asked[6], keys[6], doubted, ended_well, given_up, canceled, done_with, legs_begun;
    struct there there[THERE];
    unsigned nthere;
    enum mcs_status exist_status;
} w;

int __wrap_mcd_ask(struct mcd_engine *g, struct mcd_ask *a);
void __wrap_mcd_ask_cancel(struct mcd_engine *g, struct mcd_ask *a);
void __wrap_mcd_ask_done_with(struct mcd_engine *g, struct mcd_ask *a);
bool __wrap_mcd_ask_is_over(struct mcd_engine *g, const struct mco_key *k,
                            const struct mco_version *v);
bool __wrap_mcd_asks_turn(struct mcd_engine *g);
int __wrap_mcd_leg_begin(struct mcd_engine *g, struct mcd_queue *q, struct mcd_leg *l);
void __wrap_mcd_leg_cancel(struct mcd_engine *g, struct mcd_queue *q, struct mcd_leg *l);

static struct there *find(const struct mco_key *k)
{
    for (unsigned i = 0; i < w.nthere; i++)
        if (strlen(w.there[i].key) == k->length && memcmp(w.there[i].key, k->bytes, k->length) == 0)
            return &w.there[i];
    return NULL;
}

/* As a replica that was brought here. */
static enum mcs_status pull(const struct mcd_ask_key *k, const struct there *t)
{
    struct mco_put p = {.key = k->key, .size = t->size, .version = {5, ++w.sequence}};
    struct mco_view v;
    enum mcs_status res = mco_begin(w.o->st.objects, &p, &v);

    if (res != MCS_OK)
        return res == MCS_BUSY ? MCS_NO_SPACE : res;
    memcpy(v.data, t->data, t->size);
    return mco_seal(w.o->st.objects, v.object, t->crc, true, 2);
}

static void answer_key(const struct mcd_ask *a, struct mcd_ask_key *k)
{
    struct there *t = find(&k->key);

    switch (a->kind) {
    case MCD_ASK_START:
        k->version = (struct mco_version){5, ++w.sequence};
        k->status = t != NULL ? MCS_EXISTS : w.start_status;
        if (w.busy_for != 0 && strlen(w.busy) == k->key.length &&
            memcmp(w.busy, k->key.bytes, k->key.length) == 0) {
            k->status = MCS_IN_USE;
            w.busy_for--;
        }
        break;
    case MCD_ASK_END:
        cr_assert(k->status == MCS_OK || a->deadline > mcd_now_ns(), "the master is to hear of it");
        w.ended_well += k->status == MCS_OK;
        w.given_up += k->status != MCS_OK;
        k->copies = 2;
        k->status = MCS_OK;
        break;
    case MCD_ASK_EXIST:
        k->status = t != NULL ? MCS_OK : (uint8_t)w.exist_status;
        break;
    case MCD_ASK_PULL:
        k->status = t != NULL ? (uint8_t)pull(k, t) : MCS_NOT_FOUND;
        break;
    case MCD_ASK_FIND:
        k->status = t != NULL ? MCS_OK : MCS_NOT_FOUND;
        w.doubted += k->damaged;
        cr_assert(!k->damaged || k->avoid == w.o->f.segment);
        if (t == NULL)
            break;
        if (t->comes) {
            cr_assert_eq(pull(k, t), MCS_OK);
            k->status = MCS_EXISTS;
            break;
        }
        k->size = t->size;
        k->crc = t->crc;
        k->summed = true;
        k->version = (struct mco_version){5, 1000};
        k->segment = w.o->f.segment;
        k->address = (uintptr_t)t->data;
        k->until = t->leased != 0 ? 1 : UINT64_MAX;
        t->leased -= t->leased != 0;
        break;
    default:
        k->status = t != NULL ? MCS_OK : MCS_NOT_FOUND;
        break;
    }
}

static void answer(struct mcd_ask *a)
{
    for (uint32_t i = 0; i < a->n; i++)
        answer_key(a, &a->keys[i]);
}

int __wrap_mcd_ask(struct mcd_engine *g, struct mcd_ask *a)
{
    cr_assert_gt(a->n, 0u);
    cr_assert_eq(a->tenant, 7u);
    if (a->kind == MCD_ASK_START)
        w.ended_at[w.asked[a->kind] % ASKS] = w.ended_well;
    w.asked[a->kind]++;
    w.keys[a->kind] += a->n;
    if (!w.later) {
        answer(a);
        return 0;
    }
    cr_assert_lt(w.nasks, ASKS);
    w.asks[w.nasks++] = a;
    mcd_objects_wake(g);
    return -EINPROGRESS;
}

void __wrap_mcd_ask_cancel(struct mcd_engine *g, struct mcd_ask *a)
{
    (void)g;
    cr_assert_neq(a->kind, MCD_ASK_END);
    w.canceled++;
}

void __wrap_mcd_ask_done_with(struct mcd_engine *g, struct mcd_ask *a)
{
    (void)g;
    cr_assert_eq(a->kind, MCD_ASK_FIND);
    w.done_with++;
}

static void end_leg(struct mcd_engine *g, struct mcd_leg *l, enum mcs_state state)
{
    struct mcd_outcome out = {.state = (uint8_t)state,
                              .error = state == MCS_STATE_COMPLETED ? MCS_OK : MCS_CANCELED,
                              .path = MCS_PATH_TCP};

    for (uint32_t i = 0; i < l->npieces && state == MCS_STATE_COMPLETED; i++) {
        const struct mcd_leg_piece *p = &l->pieces[i];

        cr_assert_eq(l->extent, FIX_EXTENT);
        memcpy(w.o->f.local.map + p->local, (void *)(uintptr_t)p->remote, p->length);
        for (unsigned k = 0; k < w.nthere; k++) {
            struct there *t = &w.there[k];

            if (t->damaged != 0 && p->remote >= (uintptr_t)t->data &&
                p->remote < (uintptr_t)t->data + t->size) {
                t->damaged--;
                w.o->f.local.map[p->local] ^= 1;
            }
        }
        out.bytes += p->length;
    }
    l->done(g, l, &out);
}

bool __wrap_mcd_ask_is_over(struct mcd_engine *g, const struct mco_key *k,
                            const struct mco_version *v)
{
    (void)g;
    cr_assert_neq(v->sequence, 0u);
    return w.over != NULL && strlen(w.over) == k->length &&
           memcmp(w.over, k->bytes, k->length) == 0;
}

bool __wrap_mcd_asks_turn(struct mcd_engine *g)
{
    struct mcd_ask *asks[ASKS];
    struct mcd_leg *legs[MCD_LEGS];
    unsigned n = w.nasks, m = w.nlegs;

    if (w.hold)
        return false;
    memcpy(asks, w.asks, sizeof(asks));
    memcpy(legs, w.legs, sizeof(legs));
    w.nasks = w.nlegs = 0;
    for (unsigned i = 0; i < n; i++) {
        if (w.hold_ends && asks[i]->kind == MCD_ASK_END) {
            w.asks[w.nasks++] = asks[i];
            continue;
        }
        answer(asks[i]);
        asks[i]->done(g, asks[i]);
    }
    for (unsigned i = 0; i < m; i++)
        end_leg(g, legs[i], MCS_STATE_COMPLETED);
    return n + m != w.nasks;
}

int __wrap_mcd_leg_begin(struct mcd_engine *g, struct mcd_queue *q, struct mcd_leg *l)
{
    (void)g;
    cr_assert_eq(q, &w.o->f.queue);
    if (w.nlegs == w.legs_max)
        return -EAGAIN;
    w.legs_begun++;
    w.legs[w.nlegs++] = l;
    return 0;
}

/* The end comes later, as when slices are out. */
void __wrap_mcd_leg_cancel(struct mcd_engine *g, struct mcd_queue *q, struct mcd_leg *l)
{
    (void)g;
    (void)q;
    (void)l;
    w.canceled++;
}

/* ---- the world ---------------------------------------------------------------------------- */

static inline void far_init(struct ob *o, uint64_t slice)
{
    ob_init_sized(o, 8u << 20, 1u << 20, slice, 100);
    memset(&w, 0, sizeof(w));
    w.o = o;
    w.legs_max = MCD_LEGS;
    w.exist_status = MCS_NOT_FOUND;
    o->st.catalog = (struct mcd_catalog *)o; /* there is one; nobody looks into it */
}

static inline void far_fini(struct ob *o)
{
    w.hold = false;
    ob_turns(o, 4);
    ob_fini(o);
    for (unsigned i = 0; i < w.nthere; i++)
        free(w.there[i].data);
}

static inline struct there *have(const char *key, uint64_t size)
{
    struct there *t = &w.there[w.nthere++];

    cr_assert_leq(w.nthere, THERE);
    snprintf(t->key, sizeof(t->key), "%s", key);
    t->data = malloc(size);
    t->size = size;
    ob_paint(t->data, size, w.nthere * 31);
    t->crc = mct_crc32c(0, t->data, size);
    return t;
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests about objects of other hosts: the catalog and the way there are played by the test (the Makefile has the linker
 * put the functions below in their place).
 */
#include "daemon/catalog.h"
#include "daemon/leg.h"
#include "objects.h"

#define ASKS 64u
#define THERE 64u

/* What the other host has. */
struct there {
    char key[16];
    uint8_t *data;
    uint64_t size;
    uint32_t crc;
    unsigned damaged; /* reads that bring wrong bytes */
    unsigned leased;  /* FINDs whose lease has run out at once */
};

static struct world {
    struct ob *o;
    bool later; /* answers come in a later turn */
    bool hold;  /* and not before this is false again */
    unsigned legs_max;
    struct mcd_ask *asks[ASKS];
    unsigned nasks;
    struct mcd_leg *legs[MCD_LEGS];
    unsigned nlegs;
    uint64_t sequence;
    /* counts */
    unsigned asked[6], keys[6], doubted, ended_well, given_up, canceled, done_with, legs_begun;
    struct there there[THERE];
    unsigned nthere;
    enum mcs_status exist_status;
} w;

int __wrap_mcd_ask(struct mcd_engine *g, struct mcd_ask *a);
void __wrap_mcd_ask_cancel(struct mcd_engine *g, struct mcd_ask *a);
void __wrap_mcd_ask_done_with(struct mcd_engine *g, struct mcd_ask *a);
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
        k->status = t != NULL ? MCS_EXISTS : MCS_OK;
        break;
    case MCD_ASK_END:
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
        answer(asks[i]);
        asks[i]->done(g, asks[i]);
    }
    for (unsigned i = 0; i < m; i++)
        end_leg(g, legs[i], MCS_STATE_COMPLETED);
    return n + m != 0;
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

static void far_init(struct ob *o, uint64_t slice)
{
    ob_init_sized(o, 8u << 20, 1u << 20, slice, 100);
    memset(&w, 0, sizeof(w));
    w.o = o;
    w.legs_max = MCD_LEGS;
    w.exist_status = MCS_NOT_FOUND;
    o->st.catalog = (struct mcd_catalog *)o; /* there is one; nobody looks into it */
}

static void far_fini(struct ob *o)
{
    w.hold = false;
    ob_turns(o, 4);
    ob_fini(o);
    for (unsigned i = 0; i < w.nthere; i++)
        free(w.there[i].data);
}

static struct there *have(const char *key, uint64_t size)
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

/* ---- GET ------------------------------------------------------------------------------------ */

Test(object_far, small_ones_are_one_leg)
{
    static struct ob o;
    char key[16];

    for (unsigned later = 0; later < 2; later++) {
        far_init(&o, 64 << 10);
        w.later = later != 0;
        ob_paint(o.f.local.map + 900000, 100, 99);
        ob_put(&o, "here", 900000, 100, 0);
        ob_begin(&o, MCS_OP_GET, 0);
        for (unsigned i = 0; i < 20; i++) {
            snprintf(key, sizeof(key), "far-%u", i);
            if (i != 7)
                have(key, 1000);
            ob_name(&o, key);
            ob_piece(&o, i * 1000, 300);
            ob_piece(&o, 500000 + i * 1000, 900);
        }
        ob_name(&o, "here");
        ob_piece(&o, 600000, 100);
        cr_assert_eq(ob_ok(&o), 19u * 1000 + 100);
        for (unsigned i = 0; i < 20; i++) {
            struct mcs_object_result r = ob_result(&o, i);
            const struct there *t = &w.there[i - (i > 7)];

            if (i == 7) {
                cr_assert_eq(r.status, MCS_NOT_FOUND);
                continue;
            }
            cr_assert(r.status == MCS_OK && r.size == 1000 && r.tier == MCS_TIER_REMOTE &&
                      r.path == MCS_PATH_TCP && r.crc == t->crc);
            cr_assert_arr_eq(o.f.local.map + i * 1000, t->data, 300);
            cr_assert_arr_eq(o.f.local.map + 500000 + i * 1000, t->data + 300, 700);
        }
        cr_assert_eq(ob_result(&o, 20).tier, MCS_TIER_MEMORY);
        cr_assert_eq(w.legs_begun, 1u);
        cr_assert(w.asked[MCD_ASK_FIND] == 1 && w.keys[MCD_ASK_FIND] == 20 && w.done_with == 1);
        far_fini(&o);
    }
}

Test(object_far, few_legs_at_a_time)
{
    static struct ob o;
    char key[16];

    far_init(&o, 64 << 10);
    w.legs_max = 1;
    ob_begin(&o, MCS_OP_GET, 0);
    for (unsigned i = 0; i < 50; i++) {
        snprintf(key, sizeof(key), "far-%u", i);
        have(key, 10000);
        ob_name(&o, key);
        for (unsigned k = 0; k < 10; k++)
            ob_piece(&o, i * 10000 + k * 1000, 1000);
    }
    cr_assert_eq(ob_ok(&o), 500000u);
    for (unsigned i = 0; i < 50; i++)
        cr_assert_arr_eq(o.f.local.map + i * 10000, w.there[i].data, 10000, "key %u", i);
    cr_assert_eq(w.asked[MCD_ASK_FIND], 1u);
    far_fini(&o);
}

Test(object_far, ranges)
{
    static struct ob o;

    far_init(&o, 64 << 10);
    have("far", 5000);
    ob_begin(&o, MCS_OP_GET, MCS_OBJECT_RANGES);
    ob_name(&o, "far");
    ob_piece(&o, 0, 100)->offset = 4900;
    ob_piece(&o, 200, 50)->offset = 10;
    ob_name(&o, "far");
    ob_piece(&o, 300, 100)->offset = 4901;
    cr_assert_eq(ob_ok(&o), 150u);
    cr_assert_eq(ob_result(&o, 0).status, MCS_OK);
    cr_assert_eq(ob_result(&o, 1).status, MCS_BAD_RANGE);
    cr_assert_arr_eq(o.f.local.map, w.there[0].data + 4900, 100);
    cr_assert_arr_eq(o.f.local.map + 200, w.there[0].data + 10, 50);
    ob_begin(&o, MCS_OP_GET, 0);
    ob_name(&o, "far");
    ob_piece(&o, 0, 4999);
    cr_assert_eq(ob_ok(&o), 0u);
    cr_assert(ob_result(&o, 0).status == MCS_TOO_SMALL && ob_result(&o, 0).size == 5000);
    far_fini(&o);
}

Test(object_far, a_lease_that_ran_out)
{
    static struct ob o;
    struct mcs_object_result r;

    far_init(&o, 64 << 10);
    have("far", 5000)->leased = 2;
    cr_assert_eq(ob_get(&o, "far", 0, 5000, 0).status, MCS_OK, "its checksum tells");
    cr_assert_eq(o.f.engine->counters.objects.retries, 0u);
    o.st.verify = MCD_VERIFY_NEVER;
    w.there[0].leased = 1;
    w.legs_begun = w.asked[MCD_ASK_FIND] = 0;
    r = ob_get(&o, "far", 0, 5000, 0);
    cr_assert_eq(r.status, MCS_OK, "it is read once more");
    cr_assert(w.legs_begun == 2 && w.asked[MCD_ASK_FIND] == 2);
    cr_assert_eq(o.f.engine->counters.objects.retries, 1u);
    w.there[0].leased = 2;
    cr_assert_eq(ob_get(&o, "far", 0, 5000, 0).status, MCS_LEASE);
    far_fini(&o);
}

Test(object_far, damaged_on_its_way)
{
    static struct ob o;

    far_init(&o, 4096);
    have("far", 50000)->damaged = 1;
    cr_assert_eq(ob_get(&o, "far", 0, 50000, 0).status, MCS_OK);
    cr_assert_arr_eq(o.f.local.map, w.there[0].data, 50000);
    cr_assert_eq(o.f.engine->counters.objects.damaged, 1u);
    cr_assert_eq(w.doubted, 1u, "its holder hears of it, and others are asked first");
    w.there[0].damaged = 2;
    cr_assert_eq(ob_get(&o, "far", 0, 50000, 0).status, MCS_CHECKSUM);
    o.st.verify = MCD_VERIFY_NEVER;
    w.there[0].damaged = 1;
    cr_assert_eq(ob_get(&o, "far", 0, 50000, 0).status, MCS_OK, "nobody looks");
    far_fini(&o);
}

Test(object_far, canceled_only_when_quiet)
{
    static struct ob o;
    struct mcs_desc d, cancel = {.op = MCS_OP_CANCEL};

    far_init(&o, 64 << 10);
    have("far", 5000);
    ob_begin(&o, MCS_OP_GET, 0);
    ob_name(&o, "far");
    ob_piece(&o, 0, 5000);
    ob_write(&o);
    d = ob_desc(&o);
    w.hold = true;
    fix_push(&o.f, &d);
    while (w.nlegs == 0)
        ob_turns(&o, 1);
    cancel.slot = d.slot;
    cancel.generation = d.generation;
    fix_push(&o.f, &cancel);
    ob_turns(&o, 20);
    cr_assert_eq(w.canceled, 1u);
    cr_assert(!ob_ended(&o, &d), "something may still land in its memory");
    w.hold = false;
    cr_assert_eq(fix_state(ob_end(&o, &d)), MCS_STATE_CANCELED);
    cr_assert_eq(w.done_with, 1u);
    /* likewise while only a question is out: that needs not be awaited */
    w.later = w.hold = true;
    ob_write(&o);
    d = ob_desc(&o);
    fix_push(&o.f, &d);
    ob_turns(&o, 4);
    cancel.generation = d.generation;
    fix_push(&o.f, &cancel);
    cr_assert_eq(fix_state(ob_end(&o, &d)), MCS_STATE_CANCELED);
    cr_assert(w.canceled == 2 && w.nasks == 1);
    far_fini(&o);
    cr_assert_eq(w.done_with, 2u);
}

/* What is out of it outlives the queue as far as that may be. */
Test(object_far, the_queue_goes_in_the_middle)
{
    static struct ob o;
    static const uint8_t ops[] = {MCS_OP_GET, MCS_OP_GET, MCS_OP_EXIST, MCS_OP_PUT, MCS_OP_REMOVE};

    for (unsigned i = 0; i < sizeof(ops); i++) {
        struct mcd_command gone = {.kind = MCD_COMMAND_REMOVE, .queue = &o.f.queue};
        bool leg = i == 0;
        struct mcs_desc d;

        far_init(&o, 64 << 10);
        have("far", 5000);
        w.hold = true;
        w.later = !leg;
        ob_begin(&o, ops[i], 0);
        ob_name(&o, ops[i] == MCS_OP_PUT ? "new" : "far");
        if (ops[i] == MCS_OP_GET || ops[i] == MCS_OP_PUT)
            ob_piece(&o, 0, 5000);
        ob_write(&o);
        d = ob_desc(&o);
        fix_push(&o.f, &d);
        while (w.nlegs + w.nasks == 0)
            ob_turns(&o, 1);
        mcd_engine_command(o.f.engine, &gone);
        ob_turns(&o, 200);
        /* partner: finish_command() */
        cr_assert_eq(mcs_load_acquire(&gone.done), !leg, "op %u", ops[i]);
        w.hold = false;
        ob_turns(&o, 200);
        cr_assert_neq(mcs_load_acquire(&gone.done), 0u);
        cr_assert(w.nasks == 0 && w.nlegs == 0);
        cr_assert_eq(w.given_up, ops[i] == MCS_OP_PUT);
        cr_assert_eq(w.done_with, ops[i] == MCS_OP_GET);
        far_fini(&o);
    }
}

Test(object_far, held_once_it_was_brought)
{
    static struct ob o;
    struct mcs_object_result r;

    far_init(&o, 64 << 10);
    ob_put(&o, "here", 0, 100, 0); /* there is an extent */
    have("far", 5000);
    w.later = true;
    r = ob_hold(&o, "far");
    cr_assert(r.status == MCS_OK && r.hold != 0 && r.size == 5000);
    cr_assert_eq(r.tier, MCS_TIER_REMOTE);
    cr_assert_arr_eq(o.extents[0].map + r.offset, w.there[0].data, 5000);
    cr_assert_eq(ob_hold(&o, "nowhere").status, MCS_NOT_FOUND);
    cr_assert_eq(w.asked[MCD_ASK_PULL], 2u);
    far_fini(&o);
}

/* ---- EXIST, PREFIX, REMOVE -------------------------------------------------------------------- */

Test(object_far, exist_asks_once_for_what_is_not_here)
{
    static struct ob o;
    char key[16];

    for (unsigned later = 0; later < 2; later++) {
        far_init(&o, 64 << 10);
        ob_put(&o, "here", 0, 100, 0);
        w.later = later != 0;
        for (unsigned i = 0; i < 50; i++) {
            snprintf(key, sizeof(key), "far-%u", i);
            have(key, 10);
        }
        ob_begin(&o, MCS_OP_EXIST, 0);
        for (unsigned i = 0; i < 300; i++) {
            snprintf(key, sizeof(key), i % 3 == 0 ? "here" : "far-%u", i);
            ob_name(&o, key);
        }
        cr_assert_eq(ob_ok(&o), 100u + 33);
        for (unsigned i = 0; i < 300; i++)
            cr_assert_eq(ob_byte(&o, i), i % 3 == 0 || i < 50 ? MCS_OK : MCS_NOT_FOUND, "key %u",
                         i);
        cr_assert(w.asked[MCD_ASK_EXIST] == 1 && w.keys[MCD_ASK_EXIST] == 200);
        o.args.flags = MCS_OBJECT_LOCAL;
        cr_assert_eq(ob_ok(&o), 100u);
        cr_assert_eq(w.asked[MCD_ASK_EXIST], 1u);
        far_fini(&o);
    }
}

/* Their text is what a question has room for, not their number. */
Test(object_far, long_keys)
{
    static struct ob o;
    static char key[MCS_KEY_MAX];

    far_init(&o, 64 << 10);
    have("far", 10);
    for (unsigned n = 7; n <= 60; n += 53) {
        uint32_t length = 28000 / n;

        ob_begin(&o, MCS_OP_EXIST, 0);
        for (unsigned i = 0; i < n; i++) {
            memset(key, 'a' + (int)(i % 26), sizeof(key));
            key[0] = (char)i;
            if (i == n / 2)
                ob_name(&o, "far");
            else
                ob_key(&o, key, length);
        }
        cr_assert_eq(ob_ok(&o), 1u);
        for (unsigned i = 0; i < n; i++)
            cr_assert_eq(ob_byte(&o, i), i == n / 2 ? MCS_OK : MCS_NOT_FOUND);
    }
    cr_assert_eq(w.keys[MCD_ASK_EXIST], 67u);
    far_fini(&o);
}

Test(object_far, prefix_over_hosts)
{
    static struct ob o;
    char key[16];

    far_init(&o, 64 << 10);
    for (unsigned i = 0; i < 150; i++) {
        snprintf(key, sizeof(key), "block-%u", i);
        if (i % 3 == 0)
            ob_put(&o, key, 0, 100, 0);
        else if (i < 70)
            have(key, 10);
    }
    w.later = true;
    for (unsigned n = 60; n <= 150; n += 30) {
        unsigned asked = w.asked[MCD_ASK_EXIST];

        ob_begin(&o, MCS_OP_PREFIX, MCS_OBJECT_CHAIN);
        for (unsigned i = 0; i < n; i++) {
            snprintf(key, sizeof(key), "block-%u", i);
            ob_name(&o, key);
        }
        cr_assert_eq(ob_ok(&o), n < 70 ? n : 70);
        cr_assert_eq(w.asked[MCD_ASK_EXIST], asked + 1);
    }
    /* what is not known is no end of it */
    w.exist_status = MCS_REBUILDING;
    {
        struct mcs_slot s;

        s = ob_run(&o);
        cr_assert_eq(fix_state(s), MCS_STATE_FAILED);
        cr_assert_eq(fix_error(s), MCS_REBUILDING);
        cr_assert_eq(s.bytes, 70u);
    }
    far_fini(&o);
}

Test(object_far, removed_everywhere)
{
    static struct ob o;

    far_init(&o, 64 << 10);
    have("far", 10);
    w.later = true;
    cr_assert_eq(ob_remove(&o, "far", 0), MCS_OK);
    cr_assert_eq(ob_remove(&o, "nowhere", 0), MCS_NOT_FOUND);
    cr_assert_eq(w.asked[MCD_ASK_REMOVE], 2u);
    ob_put(&o, "held", 0, 10, 0);
    ob_hold(&o, "held");
    cr_assert_eq(ob_remove(&o, "held", 0), MCS_IN_USE);
    cr_assert_eq(w.asked[MCD_ASK_REMOVE], 2u, "nobody is asked for what is in use here");
    far_fini(&o);
}

/* ---- PUT ------------------------------------------------------------------------------------- */

Test(object_far, put_is_asked_for_and_told)
{
    static struct ob o;

    for (unsigned later = 0; later < 2; later++) {
        far_init(&o, 64 << 10);
        w.later = later != 0;
        have("there", 10);
        ob_begin(&o, MCS_OP_PUT, 0);
        ob_name(&o, "new");
        ob_piece(&o, 0, 100);
        ob_name(&o, "there");
        ob_piece(&o, 0, 100);
        ob_name(&o, "new");
        ob_piece(&o, 100, 100);
        ob_name(&o, "bad");
        ob_piece(&o, 0, 100)->extent = 1;
        cr_assert_eq(ob_ok(&o), 100u);
        cr_assert(ob_result(&o, 0).status == MCS_OK && ob_result(&o, 0).copies == 2);
        cr_assert_eq(ob_result(&o, 0).version, (UINT64_C(5) << 32) + 1);
        cr_assert_eq(ob_result(&o, 1).status, MCS_OK, "it is there already");
        cr_assert(ob_result(&o, 2).status == MCS_OK &&
                  ob_result(&o, 2).version == ob_result(&o, 0).version);
        cr_assert_eq(ob_result(&o, 3).status, MCS_INVALID_HANDLE);
        cr_assert(w.ended_well == 1 && w.given_up == 1);
        cr_assert_eq(w.keys[MCD_ASK_START], 3u);
        far_fini(&o);
    }
}

Test(object_far, what_was_begun_is_given_up)
{
    static struct ob o;
    struct mcs_desc d, cancel = {.op = MCS_OP_CANCEL};
    struct mcs_object_result c;

    far_init(&o, 4096);
    w.later = true;
    /* while the bytes are copied */
    ob_begin(&o, MCS_OP_PUT, 0);
    ob_name(&o, "k");
    ob_piece(&o, 0, FIX_EXTENT_SIZE / 2);
    ob_write(&o);
    d = ob_desc(&o);
    fix_push(&o.f, &d);
    while (ob_stats(&o).writing == 0)
        ob_turns(&o, 1);
    cancel.slot = d.slot;
    cancel.generation = d.generation;
    fix_push(&o.f, &cancel);
    cr_assert_eq(fix_state(ob_end(&o, &d)), MCS_STATE_CANCELED);
    ob_turns(&o, 4);
    cr_assert_eq(w.given_up, 1u);
    /* while it is asked for */
    w.hold = true;
    ob_write(&o);
    d = ob_desc(&o);
    fix_push(&o.f, &d);
    while (w.nasks == 0)
        ob_turns(&o, 1);
    cancel.generation = d.generation;
    fix_push(&o.f, &cancel);
    cr_assert_eq(fix_state(ob_end(&o, &d)), MCS_STATE_CANCELED);
    w.hold = false;
    ob_turns(&o, 4);
    cr_assert_eq(w.given_up, 2u);
    /* and a creation */
    c = ob_create(&o, "c", 100);
    cr_assert_eq(c.status, MCS_OK);
    ob_release(&o, &c.hold, 1);
    ob_turns(&o, 4);
    cr_assert_eq(w.given_up, 3u);
    c = ob_create(&o, "c", 100);
    cr_assert_eq(ob_seal(&o, c.hold).status, MCS_OK);
    cr_assert(w.given_up == 3 && w.ended_well == 1);
    cr_assert(ob_stats(&o).writing == 0 && ob_stats(&o).objects == 1);
    far_fini(&o);
}

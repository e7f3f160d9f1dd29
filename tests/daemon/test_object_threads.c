/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two engines in threads of their own, a client of each, one store: the same keys are put, replaced, read, held, created and removed
 * by both. Whoever reads sees one whole object or none.
 */
#include <pthread.h>
#include <sched.h>

#include "objects.h"

#ifdef __SANITIZE_THREAD__
#define ROUNDS 1500u
#else
#define ROUNDS 8000u
#endif
#define KEYS 12u
#define SIZE_MAX_PUT 60000u

static struct ob first, second; /* the store and its extents are the first one's */
static pthread_mutex_t owner = PTHREAD_MUTEX_INITIALIZER;

static void want(void *context, uint64_t tenant, bool open, uint64_t size)
{
    pthread_mutex_lock(&owner);
    ob_want(context, tenant, open, size);
    pthread_mutex_unlock(&owner);
}

static void ready(void *context)
{
    (void)context;
    if (second.f.engine == NULL)
        return;
    mcd_objects_ready(first.f.engine);
    mcd_objects_ready(second.f.engine);
}

static void *engine_thread(void *arg)
{
    mcd_engine_run(arg);
    return NULL;
}

/* The control thread's part: it is nobody's callback. */
static void serve(void)
{
    struct mco_extent x = {.page_size = 4096, .node = -1};
    struct mcd_extent *e;
    uint32_t id;

    pthread_mutex_lock(&owner);
    if (first.nwanted == 0) {
        pthread_mutex_unlock(&owner);
        return;
    }
    x.open = first.wanted[--first.nwanted].open;
    x.tenant = first.wanted[first.nwanted].tenant;
    pthread_mutex_unlock(&owner);
    cr_assert_lt(first.nextents, OB_EXTENTS);
    e = &first.extents[first.nextents];
    e->size = x.size = first.extent_size;
    x.map = e->map = aligned_alloc(4096, x.size);
    memset(e->map, 0, x.size);
    x.address = (uint64_t)(first.nextents + 1) << 40;
    x.ino = first.nextents + 1;
    x.owner = e;
    if (mco_extent_add(first.st.objects, &x, &id) != 0) {
        free(e->map);
        mco_extent_failed(first.st.objects, x.tenant, x.open);
        return;
    }
    pthread_mutex_lock(&owner);
    e->handle = id;
    first.nextents++;
    pthread_mutex_unlock(&owner);
}

static uint8_t *in_place(const struct mcs_object_result *r)
{
    uint8_t *at = NULL;

    pthread_mutex_lock(&owner);
    for (unsigned i = 0; i < first.nextents; i++)
        if (first.extents[i].handle == r->extent)
            at = first.extents[i].map + r->offset;
    pthread_mutex_unlock(&owner);
    cr_assert_not_null(at);
    return at;
}

/* An object tells its own seed in its first bytes. */
static void paint(uint8_t *at, uint64_t n, uint32_t seed)
{
    ob_paint(at, n, seed);
    memcpy(at, &seed, sizeof(seed));
}

static void whole(const uint8_t *at, uint64_t n, const char *what)
{
    uint32_t seed;

    memcpy(&seed, at, sizeof(seed));
    for (uint64_t i = sizeof(seed); i < n; i++)
        cr_assert_eq(at[i], (uint8_t)(seed + i * 7 + (i >> 8) * 13), "%s: byte %llu of %llu", what,
                     (unsigned long long)i, (unsigned long long)n);
}

struct client {
    struct ob *o;
    uint64_t state;
    uint32_t served[8];
};

static uint32_t roll(struct client *c, uint32_t below)
{
    c->state ^= c->state << 13;
    c->state ^= c->state >> 7;
    c->state ^= c->state << 17;
    return (uint32_t)(c->state >> 33) % below;
}

static void run(struct ob *o)
{
    struct mcs_desc d;
    uint64_t word;

    ob_write(o);
    d = ob_desc(o);
    cr_assert(mcs_ring_push(o->f.client.ring, &d, 1));
    if (mcs_queue_must_wake(&o->f.client))
        mcd_engine_wake(o->f.engine);
    while (!ob_ended(o, &d)) {
        if (o == &first)
            serve();
        sched_yield();
    }
    word = mcs_slot_peek(&o->f.client, 0);
    cr_assert_eq(word & 0x7f, MCS_STATE_COMPLETED, "op %u: state %u, error %u", o->op,
                 (unsigned)word & 0x7f, (unsigned)(word >> 16) & 0xffff);
}

static void release(struct ob *o, uint64_t hold)
{
    struct mcs_release r = {.op = MCS_OP_RELEASE, .holds = {hold}};
    struct mcs_desc d;

    memcpy(&d, &r, sizeof(d));
    while (!mcs_ring_push(o->f.client.ring, &d, 1))
        sched_yield();
    if (mcs_queue_must_wake(&o->f.client))
        mcd_engine_wake(o->f.engine);
}

static void create(struct client *c, uint32_t size, uint32_t seed)
{
    struct mcs_object_result r = ob_result(c->o, 0);

    if (r.status != MCS_OK)
        return;
    paint(in_place(&r), size, seed);
    ob_begin(c->o, MCS_OP_SEAL, 0);
    c->o->keys[c->o->args.count++] = (struct mcs_object_key){.size = r.hold};
    run(c->o);
    cr_assert_eq(ob_result(c->o, 0).status, MCS_OK);
}

static void step(struct client *c, uint32_t round)
{
    static const uint8_t ops[] = {MCS_OP_PUT,    MCS_OP_PUT,    MCS_OP_GET,  MCS_OP_GET,
                                  MCS_OP_REMOVE, MCS_OP_CREATE, MCS_OP_HOLD, MCS_OP_EXIST};
    struct ob *o = c->o;
    uint8_t op = ops[roll(c, 8)], *m = o->f.local.map;
    uint32_t size = 64 + roll(c, SIZE_MAX_PUT), seed = round * 2 + (o == &second);
    struct mcs_object_key *k;
    char key[16];

    ob_begin(o, op, op == MCS_OP_PUT && roll(c, 2) ? MCS_OBJECT_UPSERT : 0);
    if (op == MCS_OP_REMOVE && roll(c, 2))
        o->args.flags = MCS_OBJECT_FORCE;
    snprintf(key, sizeof(key), "key-%u", roll(c, KEYS));
    k = ob_name(o, key);
    k->size = op == MCS_OP_CREATE ? size : 0;
    if (op == MCS_OP_PUT) {
        paint(m, size, seed);
        ob_piece(o, 0, size);
    } else if (op == MCS_OP_GET) {
        ob_piece(o, 65536, 65536);
    }
    run(o);
    if (op == MCS_OP_EXIST)
        return;
    c->served[op - MCS_OP_PUT] += ob_result(o, 0).status == MCS_OK;
    if (op == MCS_OP_CREATE) {
        create(c, size, seed);
    } else if (op == MCS_OP_GET && ob_result(o, 0).status == MCS_OK) {
        whole(m + 65536, ob_result(o, 0).size, "read");
    } else if (op == MCS_OP_HOLD && ob_result(o, 0).status == MCS_OK) {
        struct mcs_object_result r = ob_result(o, 0);

        whole(in_place(&r), r.size, "held");
        sched_yield();
        whole(in_place(&r), r.size, "still held");
        release(o, r.hold);
    }
}

static void *client_thread(void *arg)
{
    struct client *c = arg;

    for (uint32_t i = 1; i <= ROUNDS; i++)
        step(c, i);
    return NULL;
}

Test(object_threads, whole_objects_or_none, .timeout = 240)
{
    struct mcd_engine_options e = {.store = &first.st};
    struct mco_options m = {.size = 4u << 20,
                            .extent_size = 256u << 10,
                            .objects = 1000,
                            .high = 95,
                            .low = 80,
                            .policy = "lru",
                            .lease_ns = 1000000,
                            .table_fd = -1,
                            .context = &first,
                            .want = want,
                            .idle = ob_idle,
                            .ready = ready,
                            .event = ob_event,
                            .log = ob_log};
    struct client clients[2] = {{.o = &first, .state = 1}, {.o = &second, .state = 2}};
    pthread_t engines[2], threads[1];
    char error[256];
    struct mco_stats s;

    first.extent_size = m.extent_size;
    cr_assert_eq(mco_create(&m, &first.st.objects, error, sizeof(error)), 0, "%s", error);
    mco_recover(first.st.objects, &(struct mco_recovered){0});
    first.st.checksum = true;
    first.st.verify = MCD_VERIFY_ALWAYS;
    for (unsigned i = 0; i < 2; i++) {
        struct fixture *f = &clients[i].o->f;

        fix_init_nets(f, MCS_ACCESS_READ, 16384, &e);
        f->session->tenant = 7;
        cr_assert_eq(mcd_holds_create(100, &f->session->holds), 0);
    }
    for (unsigned i = 0; i < 2; i++)
        cr_assert_eq(pthread_create(&engines[i], NULL, engine_thread, clients[i].o->f.engine), 0);
    cr_assert_eq(pthread_create(&threads[0], NULL, client_thread, &clients[1]), 0);
    client_thread(&clients[0]);
    while (pthread_tryjoin_np(threads[0], NULL) != 0) { /* the other one may want extents */
        serve();
        sched_yield();
    }
    for (unsigned i = 0; i < 2; i++) {
        mcd_engine_stop(clients[i].o->f.engine);
        pthread_join(engines[i], NULL);
        cr_assert(clients[i].served[0] > ROUNDS / 20 && clients[i].served[1] > ROUNDS / 50,
                  "%u put, %u read", clients[i].served[0], clients[i].served[1]);
    }
    for (unsigned i = 0; i < 2; i++) {
        struct mcd_holds *holds = clients[i].o->f.session->holds;

        fix_fini(&clients[i].o->f);
        mcd_holds_destroy(holds, first.st.objects);
    }
    second.f.engine = NULL;
    mco_get_stats(first.st.objects, &s);
    cr_assert(s.pinned == 0 && s.in_place == 0 && s.writing == 0 && s.damaged == 0);
    mco_destroy(first.st.objects);
    for (unsigned i = 0; i < first.nextents; i++)
        free(first.extents[i].map);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The agent dies at any instruction, or its table is damaged: what is found afterwards is right. */
#include <signal.h>
#include <sys/wait.h>

#include "shm/atomic.h"
#include "shm/failpoint.h"
#include "tests/store/objects.h"

#define OBJECTS_AT (UINT64_C(1) << 37)
#define CONTS_AT (UINT64_C(1) << 38)
#define KEYS 48u
#define CHILD_OPS 20000u

static struct world w;

static uint64_t random_state;

static uint32_t pick(uint32_t below)
{
    random_state = random_state * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return (uint32_t)((random_state >> 33) % below);
}

/* Extents before anything else, so that a child that dies has made none. */
static void give_extents(unsigned count, bool open)
{
    for (unsigned i = 0; i < count; i++) {
        w.wants[w.nwants].tenant = 1;
        w.wants[w.nwants].open = open;
        w.wants[w.nwants++].size = w.o.extent_size;
        world_serve(&w);
    }
}

static void name_of(unsigned key, char *name, size_t size)
{
    snprintf(name, size, "%0*u", (int)(key % 3 == 0 ? 200 : key % 3 == 1 ? 5 : 30), key);
}

/* ---- death ------------------------------------------------------------------------------------- */

/* What the child has been told, and what it was about to do; each word is written alone. */
struct noted {
    uint32_t size;               /* as acknowledged; 0: not there */
    uint32_t seed;               /* its bytes */
    uint32_t busy;               /* an operation is under way: */
    uint32_t new_size, new_seed; /* what may be there instead */
};

static uint32_t seed_of(const struct mco_view *v)
{
    uint32_t seed = 0;

    memcpy(&seed, v->data, v->size < 4 ? v->size : 4);
    return seed;
}

static void write_bytes(const struct mco_view *v, uint32_t seed)
{
    fill(v->data, v->size, seed);
    memcpy(v->data, &seed, v->size < 4 ? v->size : 4);
}

static void do_something(struct noted *all, uint32_t seed)
{
    unsigned k = pick(KEYS);
    struct mco_put p = {.flags = MCS_OBJECT_UPSERT, .size = 4 + pick(20000), .open = k % 4 == 0};
    struct noted *n = &all[k];
    enum mcs_status status;
    struct mco_view v;
    char name[256];

    name_of(k, name, sizeof(name));
    p.key = key_of(1, name);
    p.group = k % 5 == 0 ? k : 0;
    n->new_size = pick(4) == 0 ? 0 : (uint32_t)p.size;
    n->new_seed = seed;
    mcs_store_release(&n->busy, 1u); /* partner: the parent, after this process's death */
    if (n->new_size == 0) {
        status = mco_remove(w.s, &p.key, NULL, true, 1);
        cr_assert(status == MCS_OK || status == MCS_NOT_FOUND);
    } else {
        status = mco_begin(w.s, &p, &v);
        cr_assert(status == MCS_OK, "%d", status);
        if (p.open)
            mco_pin_in_place(w.s, v.object, true);
        write_bytes(&v, seed);
        if (p.open)
            mco_pin_in_place(w.s, v.object, false);
        if (pick(10) == 0) {
            mco_abort(w.s, v.object);
            mcs_store_release(&n->busy, 0u);
            return;
        }
        status = mco_seal(w.s, v.object, crc_of(v.data, v.size), true, 1);
        cr_assert(status == MCS_OK);
        /* acknowledged; in-flight and acknowledged say the same until busy is over */
    }
    mcs_store_release(&n->seed, n->new_seed);
    mcs_store_release(&n->size, n->new_size);
    mcs_store_release(&n->busy, 0u);
    if (n->new_size != 0 && pick(3) == 0) {
        cr_assert_eq(mco_pin(w.s, &p.key, NULL, 1, &v), MCS_OK);
        mco_pin_in_place(w.s, v.object, true);
        if (pick(20) != 0)
            mco_pin_in_place(w.s, v.object, false);
        mco_unpin(w.s, v.object);
    }
}

static bool is_there(const struct mco_view *v, bool found, uint32_t size, uint32_t seed)
{
    return size == 0 ? !found : found && v->size == size && seed_of(v) == seed;
}

static void check_all(struct noted *all, unsigned round)
{
    for (unsigned k = 0; k < KEYS; k++) {
        struct noted *n = &all[k];
        struct mco_view v;
        char name[256];
        struct mco_key key;
        bool found;

        name_of(k, name, sizeof(name));
        key = key_of(1, name);
        found = mco_pin(w.s, &key, NULL, 1, &v) == MCS_OK;
        cr_assert(is_there(&v, found, n->size, n->seed) ||
                      (n->busy && is_there(&v, found, n->new_size, n->new_seed)) ||
                      /* between the two words of what is acknowledged */
                      (n->busy && is_there(&v, found, n->new_size, n->seed)),
                  "round %u key %u: found %d size %llu, noted %u/%u busy %u new %u/%u", round, k,
                  found, (unsigned long long)v.size, n->size, n->seed, n->busy, n->new_size,
                  n->new_seed);
        if (found) {
            cr_assert_eq(v.crc, crc_of(v.data, v.size), "round %u key %u", round, k);
            n->size = (uint32_t)v.size;
            n->seed = seed_of(&v);
            mco_unpin(w.s, v.object);
        } else {
            n->size = 0;
        }
        n->busy = 0;
    }
}

static void live_and_die(unsigned round, struct noted *all, const char *failpoint)
{
    struct mco_recovered r;
    pid_t child = fork();
    int status = 0;

    cr_assert(child >= 0);
    if (child == 0) {
#ifdef MCS_FAILPOINTS
        if (failpoint != NULL)
            mcs_failpoint_set(failpoint);
#endif
        random_state = round * 977 + 1;
        for (uint32_t i = 1; i < CHILD_OPS; i++)
            do_something(all, round * CHILD_OPS + i);
        _exit(0);
    }
    if (failpoint == NULL) {
        /* nothing to wait for: it may be anywhere */
        usleep(200 + (round * 7919) % 5000);
        kill(child, SIGKILL);
    }
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert(WIFSIGNALED(status) ? WTERMSIG(status) == SIGKILL : WEXITSTATUS(status) == 0,
              "round %u: %x", round, status);
    r = world_die(&w, NULL);
    cr_assert_eq(r.torn, 0u, "round %u", round);
    check_all(all, round);
    if (round % 3 == 0)
        mco_unguard(w.s);
}

static struct noted *begin_lives(void)
{
    struct noted *all =
        mmap(NULL, KEYS * sizeof(*all), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    cr_assert_neq(all, MAP_FAILED);
    world_init(&w, 16 * MIB, MIB);
    give_extents(8, false);
    give_extents(8, true);
    w.o.event = NULL;
    return all;
}

Test(object_death, at_any_instruction, .timeout = 120)
{
    struct noted *all = begin_lives();

    for (unsigned round = 0; round < 150; round++)
        live_and_die(round, all, NULL);
    world_fini(&w);
}

Test(object_death, where_it_hurts_most, .timeout = 120)
{
#ifdef MCS_FAILPOINTS
    static const char *const points[] = {"object_filled", "object_valid",  "object_invalid",
                                         "object_seal",   "object_sealed", "object_left"};
    struct noted *all = begin_lives();
    char text[64];

    for (unsigned round = 0; round < 120; round++) {
        snprintf(text, sizeof(text), "%s=kill@%u", points[round % 6], 1 + round * round % 50);
        live_and_die(round, all, text);
    }
    world_fini(&w);
#endif
}

/* ---- damage --------------------------------------------------------------------------------------- */

struct range {
    const uint8_t *from;
    uint64_t size;
};

struct ranges {
    struct range r[4096];
    unsigned count;
};

static bool note_object(void *context, const struct mco_listed *o)
{
    struct ranges *all = context;
    struct mco_view v;

    if (o->leaving || o->writing)
        return true;
    cr_assert_eq(mco_pin(w.s, &o->key, NULL, 1, &v), MCS_OK);
    cr_assert_eq(v.crc, crc_of(v.data, v.size));
    if (v.size != 0) {
        const struct world_extent *x = v.owner;

        cr_assert(v.data >= (uint8_t *)x->map && v.size <= x->size && v.offset <= x->size - v.size);
        all->r[all->count++] = (struct range){v.data, v.size};
    }
    mco_unpin(w.s, v.object);
    return true;
}

static void check_ranges(void)
{
    static struct ranges all;
    uint64_t cursor = 0;

    all.count = 0;
    while (cursor != UINT64_MAX)
        mco_walk(w.s, UINT64_MAX, &cursor, note_object, &all);
    for (unsigned i = 0; i < all.count; i++)
        for (unsigned k = 0; k < i; k++)
            cr_assert(all.r[i].from + all.r[i].size <= all.r[k].from ||
                          all.r[k].from + all.r[k].size <= all.r[i].from,
                      "two objects on the same bytes");
}

static void *row(int fd, uint64_t at, size_t size)
{
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)at);

    cr_assert_neq(p, MAP_FAILED);
    return p;
}

/* Something is not as it was left. */
static void damage(int fd, unsigned round)
{
    static const struct {
        uint64_t at;
        uint32_t records;
    } rows[] = {{64 * KIB, 16}, {OBJECTS_AT, 200}, {CONTS_AT, 64}, {0, 1}};
    unsigned which = pick(20);
    uint64_t at = rows[which < 14 ? 1 : which < 17 ? 2 : which < 19 ? 0 : 3].at;
    uint32_t records = rows[which < 14 ? 1 : which < 17 ? 2 : which < 19 ? 0 : 3].records;
    uint8_t *p = row(fd, at, 64 * KIB), *r = p + 128 * pick(records);

    switch (round % 6) {
    case 0:
        r[pick(128)] ^= (uint8_t)(1u << pick(8));
        break;
    case 1:
        memset(r + pick(100), (int)pick(256), 1 + pick(28));
        break;
    case 2: /* a record again, elsewhere */
        memcpy(p + 128 * pick(records), r, 128);
        break;
    case 3:
        for (unsigned i = 0; i < 128; i++)
            r[i] = (uint8_t)pick(256);
        break;
    case 4: /* a part of one record in another */
        memcpy(p + 128 * pick(records) + 16, r + 16, 40);
        break;
    default:
        for (unsigned i = 0; i < 200; i++)
            p[pick(128 * records)] ^= (uint8_t)(1u << pick(8));
        break;
    }
    munmap(p, 64 * KIB);
}

static void put_many(unsigned from, unsigned count)
{
    char name[256];

    for (unsigned i = from; i < from + count; i++) {
        struct mco_put p = {.size = i % 40 == 0 ? 0 : pick(30000),
                            .flags = MCS_OBJECT_UPSERT,
                            .open = i % 7 == 0,
                            .group = i % 6 == 0 ? i % 18 : 0};
        struct mco_view v;

        name_of(i, name, sizeof(name));
        p.key = key_of(1, name);
        if (world_begin(&w, &p, &v) != MCS_OK)
            continue;
        if (v.size != 0)
            fill(v.data, v.size, i);
        if (i % 11 == 0) {
            mco_pin_in_place(w.s, v.object, true);
            if (i % 2 == 0)
                continue; /* never sealed */
        }
        cr_assert_eq(mco_seal(w.s, v.object, crc_of(v.data, v.size), true, 1), MCS_OK);
    }
}

Test(object_damage, of_the_table_costs_what_was_damaged, .timeout = 120)
{
    for (unsigned round = 0; round < 240; round++) {
        struct mco_recovered r;
        int fd;

        random_state = round + 1;
        world_init(&w, 8 * MIB, MIB);
        put_many(0, 120);
        fd = fcntl(mco_table_fd(w.s), F_DUPFD_CLOEXEC, 0);
        for (unsigned i = 0; i <= round % 4; i++)
            damage(fd, round);
        close(fd);
        r = world_die(&w, NULL);
        check_ranges();
        cr_assert(round % 4 != 0 || round % 6 != 0 || r.torn <= 3 || r.objects == 0,
                  "one bit costs one object, or an extent, or all");
        put_many(60, 120);
        check_ranges();
        mco_unguard(w.s);
        put_many(120, 120);
        check_ranges();
        (void)world_die(&w, NULL);
        check_ranges();
        world_fini(&w);
    }
}

static void check_refused(int fd)
{
    struct mco_recovered r;

    memset(&w, 0, sizeof(w));
    w.o = world_options(&w, 4 * MIB, MIB);
    w.o.table_fd = fd;
    world_open(&w);
    mco_recover(w.s, &r);
    cr_assert_eq(r.objects, 0u);
    w.o.table_fd = -1;
    cr_assert_eq(put(&w, 1, "k", 100, 0, 1), MCS_OK);
    world_fini(&w);
}

Test(object_damage, no_table_at_all)
{
    int pipes[2], fd;

    cr_assert_eq(pipe(pipes), 0);
    close(pipes[1]);
    check_refused(pipes[0]);
    fd = memfd_create("empty", MFD_ALLOW_SEALING);
    check_refused(fd);
    fd = memfd_create("zeroes", MFD_ALLOW_SEALING);
    cr_assert_eq(ftruncate(fd, 1 << 20), 0);
    check_refused(fd);
    fd = memfd_create("sealed", MFD_ALLOW_SEALING);
    cr_assert_eq(ftruncate(fd, 1 << 20), 0);
    cr_assert_eq(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
    check_refused(fd);
}

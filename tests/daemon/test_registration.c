/* SPDX-License-Identifier: Apache-2.0 */
/* long */
/* Memory of clients and the RDMA devices that it is registered with: when, how, and until when. */
#include <sys/resource.h>

#include "rdma_agent.h"
#include "tests/fake-verbs/fake.h" /* linked with it: Makefile */
#include "tests/fuzz/limbo.h"

#define CHUNK (UINT64_C(1) << 20)
#define SIZE (UINT64_C(4) << 20)
#define RW (MCS_ACCESS_READ | MCS_ACCESS_WRITE)

TestSuite(registration, .timeout = 60);

static struct mcd_session *only_session(const struct ra *g)
{
    cr_assert(g->agent->sessions != NULL && g->agent->sessions->next == NULL);
    return g->agent->sessions;
}

static const struct mcd_buffer *buffer_at(const struct ra *g, uint32_t i)
{
    const struct mcd_snapshot *s = only_session(g)->segment->snapshot;

    return i < s->count ? &s->buffers[i] : NULL;
}

/* ---- extents ------------------------------------------------------------------------ */

Test(registration, an_extent_is_registered_with_every_device_before_the_client_has_it)
{
    union mcs_msg_body b = sa_alloc_body(SIZE);
    struct sa_client c;
    struct fake_region r;
    struct mcd_extent *e;
    struct ra g;

    ra_init(&g, CHUNK, false);
    ra_arrive(&g, &c);
    fake_block(FAKE_REG_MR, g.devices[1]);
    sa_send(&c, MCS_MSG_ALLOC, &b, NULL, 0);
    ra_until(&g, g.agent->registry.pending == 1);
    cr_assert(fake_await_blocked(g.devices[1], 1));
    for (int i = 0; i < 20; i++) {
        ra_pump(&g, 1);
        cr_assert_not(sa_answered(&c), "before the second device has it");
    }
    fake_unblock(g.devices[1]);
    ra_until(&g, sa_answered(&c));
    cr_assert_eq(c.m.h.status, MCS_OK);
    e = mcd_session_extent(only_session(&g), c.m.b.extent_reply.extent);
    cr_assert(e != NULL && e->registration != NULL);
    for (unsigned d = 0; d < RA_DEVICES; d++) {
        cr_assert_eq(fake_count(FAKE_MR, g.devices[d]), SIZE / CHUNK);
        for (unsigned i = 0; i < SIZE / CHUNK; i++) {
            cr_assert(fake_region(g.devices[d], i, &r));
            cr_assert_eq(r.access, IBV_ACCESS_LOCAL_WRITE, "no peer may use it");
            cr_assert_eq(r.length, CHUNK);
        }
    }
    sa_leave(&c);
    ra_fini(&g);
}

Test(registration, where_the_second_device_has_no_room_the_first_one_has_nothing_either)
{
    union mcs_msg_body b = sa_alloc_body(SIZE);
    struct sa_client c;
    struct ra g;

    ra_init(&g, CHUNK, false);
    ra_arrive(&g, &c);
    fake_fail(FAKE_REG_MR, g.devices[1], 2, 1, ENOMEM);
    cr_assert_eq(ra_ask(&g, &c, MCS_MSG_ALLOC, &b), MCS_OK, "it goes over other transports");
    cr_assert_eq(fake_count(FAKE_MR, NULL), 0);
    cr_assert_eq(g.agent->registry.failed, 1);
    cr_assert_eq(g.agent->registry.unregistered_bytes, SIZE);
    cr_assert_null(mcd_session_extent(only_session(&g), c.m.b.extent_reply.extent)->registration);
    sa_leave(&c);
    ra_fini(&g);
}

Test(registration, memory_that_must_be_registered_and_cannot_is_refused_with_the_reason)
{
    union mcs_msg_body b = sa_alloc_body(SIZE);
    int fd = sa_memfd(SIZE);
    struct rlimit limit;
    struct sa_client c;
    struct ra g;

    ra_init(&g, CHUNK, true);
    ra_arrive(&g, &c);
    cr_assert_eq(getrlimit(RLIMIT_MEMLOCK, &limit), 0);
    limit.rlim_cur = 65536;
    cr_assert_eq(setrlimit(RLIMIT_MEMLOCK, &limit), 0);
    fake_memlock(SIZE + SIZE / 2); /* enough for one of two devices */
    cr_assert_eq(ra_ask(&g, &c, MCS_MSG_ALLOC, &b), MCS_NO_MEMORY);
    cr_assert_not_null(strstr(c.m.b.error.text, "4194304"), "%s", c.m.b.error.text);
    cr_assert_not_null(strstr(c.m.b.error.text, "fake"), "%s", c.m.b.error.text);
    cr_assert_not_null(strstr(c.m.b.error.text, "65536"), "%s", c.m.b.error.text);
    cr_assert_not_null(strstr(c.m.b.error.text, "give it CAP_IPC_LOCK"), "the remedy fits: %s",
                       c.m.b.error.text);
    ra_until(&g, g.agent->pool.used == 0);
    cr_assert_eq(fake_count(FAKE_MR, NULL), 0);
    cr_assert_eq(only_session(&g)->nextents, 0);
    cr_assert_eq(only_session(&g)->account->memory, 0);

    b.reg.size = SIZE;
    sa_send(&c, MCS_MSG_REGISTER, &b, &fd, 1);
    ra_until(&g, sa_answered(&c));
    cr_assert_eq(c.m.h.status, MCS_NO_MEMORY);
    ra_until(&g, g.agent->pool.used == 0);
    cr_assert_eq(only_session(&g)->account->memory, 0);

    fake_memlock(UINT64_MAX);
    sa_send(&c, MCS_MSG_REGISTER, &b, &fd, 1);
    ra_until(&g, sa_answered(&c));
    cr_assert_eq(c.m.h.status, MCS_OK, "%s", c.m.b.error.text);
    cr_assert_eq(fake_count(FAKE_MR, NULL), RA_DEVICES * SIZE / CHUNK);
    close(fd);
    sa_leave(&c);
    ra_fini(&g);
}

Test(registration, a_freed_or_unregistered_extent_is_deregistered_before_the_answer)
{
    union mcs_msg_body b;
    int fd = sa_memfd(SIZE);
    struct sa_client c;
    uint32_t e;
    struct ra g;

    ra_init(&g, CHUNK, false);
    ra_arrive(&g, &c);
    e = ra_alloc(&g, &c, SIZE);
    cr_assert_eq(ra_buffer(&g, &c, MCS_MSG_BUFFER_ADD, e, 0, SIZE, RW), MCS_OK);
    cr_assert_eq(fake_count(FAKE_MR, NULL), 2 * RA_DEVICES * SIZE / CHUNK);
    memset(&b, 0, sizeof(b));
    b.free.extent = e;
    cr_assert_eq(ra_ask(&g, &c, MCS_MSG_FREE, &b), MCS_OK);
    cr_assert_eq(fake_count(FAKE_MR, NULL), 0);
    cr_assert_eq(g.agent->pool.used, 0, "what was freed can be had again at once");

    memset(&b, 0, sizeof(b));
    b.reg.size = SIZE;
    sa_send(&c, MCS_MSG_REGISTER, &b, &fd, 1);
    ra_until(&g, sa_answered(&c));
    e = c.m.b.extent_reply.extent;
    cr_assert_eq(ra_buffer(&g, &c, MCS_MSG_BUFFER_ADD, e, 4096, 4096, RW), MCS_OK);
    memset(&b, 0, sizeof(b));
    b.unregister.extent = e;
    cr_assert_eq(ra_ask(&g, &c, MCS_MSG_UNREGISTER, &b), MCS_OK);
    cr_assert_eq(fake_count(FAKE_MR, NULL), 0);
    close(fd);
    sa_leave(&c);
    ra_fini(&g);
}

/* Buffers need not be allocations: what lies beside them goes with the extent. */
Test(registration, nothing_stays_published_of_an_extent_that_is_freed)
{
    union mcs_msg_body b;

    for (unsigned rdma = 0; rdma < 2; rdma++) {
        struct sa_client c;
        struct ra g;
        uint32_t e;

        ra_init(&g, CHUNK, false);
        ra_arrive(&g, &c);
        e = ra_alloc(&g, &c, 4096);
        if (rdma == 0)
            g.agent->registry.rdma = NULL; /* no registration keeps it */
        cr_assert_eq(ra_buffer(&g, &c, MCS_MSG_BUFFER_ADD, e, 0, 65536, RW), MCS_OK);
        cr_assert_eq(ra_buffer(&g, &c, MCS_MSG_BUFFER_ADD, e, 131072, 4096, RW), MCS_OK);
        g.agent->registry.rdma = g.agent->rdma;
        memset(&b, 0, sizeof(b));
        b.free.extent = e;
        cr_assert_eq(ra_ask(&g, &c, MCS_MSG_FREE, &b), MCS_OK);
        cr_assert_eq(only_session(&g)->segment->snapshot->count, 0);
        cr_assert_eq(fake_count(FAKE_MR, NULL), 0);
        cr_assert_eq(g.agent->pool.used, 0);
        sa_leave(&c);
        ra_fini(&g);
    }
}

/* ---- published buffers ------------------------------------------------------------------ */

Test(registration, a_buffer_is_reached_with_just_its_access_and_at_its_published_address)
{
    static const struct {
        uint32_t access;
        unsigned verbs; /* 0: none */
    } kinds[] = {
        {MCS_ACCESS_READ, IBV_ACCESS_REMOTE_READ},
        {MCS_ACCESS_WRITE, IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_LOCAL_WRITE},
        {RW, IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_LOCAL_WRITE},
        {MCS_ACCESS_READ | MCS_ACCESS_MAP_WRITE, IBV_ACCESS_REMOTE_READ},
        {MCS_ACCESS_MAP_READ, 0},
        {MCS_ACCESS_MAP_READ | MCS_ACCESS_MAP_WRITE, 0},
    };
    struct fake_region r;
    struct sa_client c;
    uint32_t e;
    struct ra g;

    ra_init(&g, CHUNK, false);
    ra_arrive(&g, &c);
    e = ra_alloc(&g, &c, SIZE);
    for (unsigned k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
        uint64_t at = k * UINT64_C(12288) + 100, length = 5000;

        cr_assert_eq(ra_buffer(&g, &c, MCS_MSG_BUFFER_ADD, e, at, length, kinds[k].access), MCS_OK);
        for (unsigned d = 0; d < RA_DEVICES; d++) {
            if (kinds[k].verbs == 0) {
                cr_assert_not(ra_remote_region(g.devices[d], 0, &r), "kind %u", k);
                continue;
            }
            cr_assert(ra_remote_region(g.devices[d], 0, &r));
            cr_assert_eq(r.access, kinds[k].verbs, "kind %u: %#x", k, r.access);
            cr_assert_eq(r.iova, c.m.b.buffer_reply.address);
            cr_assert_eq(r.length, length);
            cr_assert_not(ra_remote_region(g.devices[d], 1, &r));
        }
        cr_assert_eq(ra_buffer(&g, &c, MCS_MSG_BUFFER_REMOVE, e, at, length, 0), MCS_OK);
        cr_assert_not(ra_remote_region(g.devices[0], 0, &r), "removed is deregistered");
        cr_assert_not(ra_remote_region(g.devices[1], 0, &r));
    }
    sa_leave(&c);
    ra_fini(&g);
}

Test(registration, peers_hear_of_a_buffer_when_every_device_knows_it)
{
    union mcs_msg_body b;
    struct sa_client c;
    uint32_t e;
    struct ra g;

    ra_init(&g, CHUNK, false);
    ra_arrive(&g, &c);
    e = ra_alloc(&g, &c, SIZE);
    fake_block(FAKE_REG_MR, g.devices[1]);
    b = sa_buffer_body(e, 0, 4096, RW);
    sa_send(&c, MCS_MSG_BUFFER_ADD, &b, NULL, 0);
    ra_until(&g, g.agent->registry.pending == 1);
    for (int i = 0; i < 20; i++) {
        ra_pump(&g, 1);
        cr_assert_null(buffer_at(&g, 0));
        cr_assert_not(sa_answered(&c));
    }
    fake_unblock(g.devices[1]);
    ra_until(&g, buffer_at(&g, 0) != NULL);
    cr_assert_not_null(buffer_at(&g, 0)->registration);
    cr_assert_eq(buffer_at(&g, 0)->registration->state, MCD_REGISTRATION_MADE);
    ra_until(&g, sa_answered(&c));
    sa_leave(&c);
    ra_fini(&g);
}

Test(registration, the_same_range_twice_is_registered_once)
{
    struct sa_client c;
    uint32_t e;
    struct ra g;
    unsigned before;

    ra_init(&g, CHUNK, false);
    ra_arrive(&g, &c);
    e = ra_alloc(&g, &c, SIZE);
    before = fake_count(FAKE_MR, NULL);
    for (int i = 0; i < 3; i++)
        cr_assert_eq(ra_buffer(&g, &c, MCS_MSG_BUFFER_ADD, e, 0, 4096, RW), MCS_OK);
    cr_assert_eq(ra_buffer(&g, &c, MCS_MSG_BUFFER_ADD, e, 0, 8192, RW), MCS_OVERLAP);
    cr_assert_eq(ra_buffer(&g, &c, MCS_MSG_BUFFER_ADD, e, 0, 4096, MCS_ACCESS_READ), MCS_OVERLAP);
    cr_assert_eq(fake_count(FAKE_MR, NULL), before + RA_DEVICES);
    for (int i = 0; i < 2; i++)
        cr_assert_eq(ra_buffer(&g, &c, MCS_MSG_BUFFER_REMOVE, e, 0, 4096, 0), MCS_OK);
    cr_assert_eq(fake_count(FAKE_MR, NULL), before + RA_DEVICES, "it is published once more");
    cr_assert_eq(ra_buffer(&g, &c, MCS_MSG_BUFFER_REMOVE, e, 0, 4096, 0), MCS_OK);
    cr_assert_eq(fake_count(FAKE_MR, NULL), before);
    sa_leave(&c);
    ra_fini(&g);
}

Test(registration, a_buffer_that_cannot_be_registered_is_published_without_or_refused)
{
    struct sa_client c;
    uint32_t e;

    for (int require = 0; require < 2; require++) {
        struct ra g;

        ra_init(&g, CHUNK, require != 0);
        ra_arrive(&g, &c);
        e = ra_alloc(&g, &c, SIZE);
        fake_fail(FAKE_REG_MR, g.devices[1], 1, 1, ENOMEM);
        cr_assert_eq(ra_buffer(&g, &c, MCS_MSG_BUFFER_ADD, e, 0, 4096, RW),
                     require != 0 ? MCS_NO_MEMORY : MCS_OK);
        cr_assert_eq(buffer_at(&g, 0) == NULL, require != 0);
        ra_until(&g, fake_count(FAKE_MR, NULL) == RA_DEVICES * SIZE / CHUNK);
        cr_assert_eq(g.agent->registry.failed, 1);
        cr_assert_eq(g.agent->registry.unregistered_bytes, require != 0 ? 0 : 4096);
        cr_assert_eq(ra_buffer(&g, &c, MCS_MSG_REVOKE, e, 0, SIZE, 0), MCS_OK);
        cr_assert_eq(g.agent->registry.unregistered_bytes, 0);
        sa_leave(&c);
        ra_fini(&g);
    }
}

/* ---- taking away ---------------------------------------------------------------------- */

/* A buffer of 64 KiB, out of whose middle 8 KiB are revoked. */
static uint32_t publish_one(struct ra *g, struct sa_client *c)
{
    uint32_t e = ra_alloc(g, c, SIZE);

    cr_assert_eq(ra_buffer(g, c, MCS_MSG_BUFFER_ADD, e, 65536, 65536, RW), MCS_OK);
    return e;
}

Test(registration, what_is_left_of_a_cut_buffer_has_keys_of_its_own_before_the_cut)
{
    struct fake_region old, r;
    uint64_t published;
    union mcs_msg_body b;
    struct sa_client c;
    uint32_t e;
    struct ra g;

    ra_init(&g, CHUNK, false);
    ra_arrive(&g, &c);
    e = publish_one(&g, &c);
    published = c.m.b.buffer_reply.address;
    cr_assert(ra_remote_region(g.devices[0], 0, &old));
    fake_block(FAKE_REG_MR, g.devices[0]);
    b = sa_buffer_body(e, 98304, 8192, 0);
    sa_send(&c, MCS_MSG_REVOKE, &b, NULL, 0);
    ra_until(&g, g.agent->registry.pending == 2);
    for (int i = 0; i < 10; i++)
        ra_pump(&g, 1);
    cr_assert_eq(buffer_at(&g, 0)->length, 65536, "peers lose nothing that they may have");
    cr_assert_not(sa_answered(&c));
    fake_unblock(g.devices[0]);
    ra_until(&g, sa_answered(&c));
    cr_assert_eq(c.m.h.status, MCS_OK);
    cr_assert_eq(only_session(&g)->segment->snapshot->count, 2);
    for (unsigned d = 0; d < RA_DEVICES; d++) {
        cr_assert(ra_remote_region(g.devices[d], 0, &r));
        cr_assert_eq(r.iova, published);
        cr_assert_eq(r.length, 32768);
        cr_assert_neq(r.rkey, old.rkey);
        cr_assert(ra_remote_region(g.devices[d], 1, &r));
        cr_assert_eq(r.iova, published + 40960);
        cr_assert_eq(r.length, 65536 - 40960);
        cr_assert_not(ra_remote_region(g.devices[d], 2, &r), "the old key is gone");
    }
    for (uint32_t i = 0; i < 2; i++)
        cr_assert_eq(buffer_at(&g, i)->registration->state, MCD_REGISTRATION_MADE);
    sa_leave(&c);
    ra_fini(&g);
}

Test(registration, revoked_is_said_when_no_device_reaches_it_any_more)
{
    union mcs_msg_body b;
    struct sa_client c;
    uint32_t e;
    struct ra g;

    ra_init(&g, CHUNK, false);
    ra_arrive(&g, &c);
    e = publish_one(&g, &c);
    fake_block(FAKE_DEREG_MR, g.devices[1]);
    b = sa_buffer_body(e, 0, SIZE, 0);
    sa_send(&c, MCS_MSG_REVOKE, &b, NULL, 0);
    ra_until(&g, buffer_at(&g, 0) == NULL);
    ra_until(&g, g.agent->registry.pending == 1);
    cr_assert(fake_await_blocked(g.devices[1], 1));
    for (int i = 0; i < 20; i++) {
        ra_pump(&g, 1);
        cr_assert_not(sa_answered(&c), "the second device still has it");
    }
    fake_unblock(g.devices[1]);
    ra_until(&g, sa_answered(&c));
    cr_assert_eq(c.m.h.status, MCS_OK);
    cr_assert_eq(fake_count(FAKE_MR, NULL), RA_DEVICES * SIZE / CHUNK);
    sa_leave(&c);
    ra_fini(&g);
}

Test(registration, pieces_that_cannot_be_registered_stay_published_without_keys)
{
    struct sa_client c;
    uint32_t e;

    for (int require = 0; require < 2; require++) {
        struct ra g;

        ra_init(&g, CHUNK, require != 0);
        ra_arrive(&g, &c);
        e = publish_one(&g, &c);
        fake_fail(FAKE_REG_MR, g.devices[1], 1, 1, ENOMEM); /* one of the two pieces */
        cr_assert_eq(ra_buffer(&g, &c, MCS_MSG_REVOKE, e, 98304, 8192, 0), MCS_OK,
                     "revoking does not fail for what stays");
        cr_assert_eq(only_session(&g)->segment->snapshot->count, 2);
        cr_assert_eq((buffer_at(&g, 0)->registration->state == MCD_REGISTRATION_MADE) +
                         (buffer_at(&g, 1)->registration->state == MCD_REGISTRATION_MADE),
                     1);
        cr_assert_eq(fake_count(FAKE_MR, NULL), RA_DEVICES * (SIZE / CHUNK + 1));
        sa_leave(&c);
        ra_fini(&g);
    }
}

Test(registration, a_cut_over_many_buffers_leaves_a_head_and_a_tail)
{
    struct fake_region r;
    uint64_t base;
    struct sa_client c;
    uint32_t e;
    struct ra g;

    ra_init(&g, CHUNK, false);
    ra_arrive(&g, &c);
    e = ra_alloc(&g, &c, SIZE);
    for (uint64_t i = 0; i < 20; i++)
        cr_assert_eq(ra_buffer(&g, &c, MCS_MSG_BUFFER_ADD, e, i * 8192, 8192, RW), MCS_OK);
    base = buffer_at(&g, 0)->address;
    cr_assert_eq(ra_buffer(&g, &c, MCS_MSG_REVOKE, e, 4096, 18 * 8192, 0), MCS_OK);
    cr_assert_eq(only_session(&g)->segment->snapshot->count, 3);
    for (unsigned d = 0; d < RA_DEVICES; d++) {
        unsigned head = 0, tail = 0, whole = 0;

        for (unsigned i = 0; ra_remote_region(g.devices[d], i, &r); i++) {
            head += r.iova == base && r.length == 4096;
            tail += r.iova == base + 18 * 8192 + 4096 && r.length == 4096;
            whole += r.iova == base + 19 * 8192 && r.length == 8192;
        }
        cr_assert(head == 1 && tail == 1 && whole == 1);
        cr_assert_not(ra_remote_region(g.devices[d], 3, &r));
    }
    sa_leave(&c);
    ra_fini(&g);
}

Test(registration, withdrawing_deregisters_all_buffers)
{
    union mcs_msg_body b;
    struct sa_client c;
    uint32_t e;
    struct ra g;

    ra_init(&g, CHUNK, false);
    ra_arrive(&g, &c);
    e = ra_alloc(&g, &c, SIZE);
    memset(&b, 0, sizeof(b));
    snprintf(b.publish.name, sizeof(b.publish.name), "kv");
    cr_assert_eq(ra_ask(&g, &c, MCS_MSG_PUBLISH, &b), MCS_OK);
    for (uint64_t i = 0; i < 10; i++)
        cr_assert_eq(ra_buffer(&g, &c, MCS_MSG_BUFFER_ADD, e, i * 8192, 4096, RW), MCS_OK);
    cr_assert_eq(fake_count(FAKE_MR, NULL), RA_DEVICES * (SIZE / CHUNK + 10));
    cr_assert_eq(ra_ask(&g, &c, MCS_MSG_WITHDRAW, NULL), MCS_OK);
    cr_assert_eq(fake_count(FAKE_MR, NULL), RA_DEVICES * SIZE / CHUNK);
    sa_leave(&c);
    ra_fini(&g);
}

/* ---- a device that hangs ------------------------------------------------------------------ */

Test(registration, a_device_that_hangs_keeps_memory_and_nobody_else)
{
    struct sa_client c, other;
    struct ra g;

    ra_init(&g, CHUNK, false);
    ra_arrive(&g, &c);
    (void)publish_one(&g, &c);
    ra_arrive(&g, &other);
    fake_block(FAKE_DEREG_MR, g.devices[0]);
    sa_leave(&c);
    ra_until(&g, g.agent->nsessions == 1);
    for (int i = 0; i < 20; i++)
        ra_pump(&g, 1);
    cr_assert_eq(g.agent->pool.used, SIZE, "what a device may still reach is not unmapped");
    cr_assert_geq(fake_count(FAKE_MR, g.devices[0]), 1);
    (void)publish_one(&g, &other); /* on both devices */
    fake_unblock(g.devices[0]);
    ra_until(&g, g.agent->pool.used == SIZE && g.agent->registry.pending == 0);
    sa_leave(&other);
    ra_fini(&g);
}

/* Who publishes meanwhile waits for a while, and peers hear of the keys when there are some. */
Test(registration, a_device_that_hangs_keeps_memory_from_its_keys_alone)
{
    union mcs_msg_body b = sa_alloc_body(SIZE), name;
    struct sa_client c;
    uint64_t version;
    struct ra g;
    uint32_t e;

    memset(&name, 0, sizeof(name));
    snprintf(name.publish.name, sizeof(name.publish.name), "kv");
    for (unsigned require = 0; require < 2; require++) {
        uint32_t status = require != 0 ? MCS_TIMEOUT : MCS_OK;

        ra_init(&g, CHUNK, require != 0);
        ra_arrive(&g, &c);
        e = ra_alloc(&g, &c, SIZE);
        cr_assert_eq(ra_ask(&g, &c, MCS_MSG_PUBLISH, &name), MCS_OK);
        fake_block(FAKE_REG_MR, g.devices[0]);
        cr_assert_eq(ra_buffer(&g, &c, MCS_MSG_BUFFER_ADD, e, 0, 4096, RW), status);
        cr_assert_eq(ra_ask(&g, &c, MCS_MSG_ALLOC, &b), status);
        cr_assert_eq(g.agent->registry.pending, 2);
        version = only_session(&g)->segment->version;
        fake_unblock(g.devices[0]);
        ra_until(&g, g.agent->registry.pending == 0);
        if (require == 0) {
            cr_assert_eq(buffer_at(&g, 0)->registration->state, MCD_REGISTRATION_MADE);
            cr_assert_gt(only_session(&g)->segment->version, version, "peers describe it again");
            cr_assert_not_null(
                mcd_session_extent(only_session(&g), c.m.b.extent_reply.extent)->registration);
        } else {
            cr_assert_null(buffer_at(&g, 0));
            cr_assert_eq(g.agent->registry.count, 1, "what was refused is gone");
        }
        sa_leave(&c);
        ra_fini(&g);
    }
}

Test(registration, a_device_that_hangs_is_said_once)
{
    struct sa_client c;
    struct ra g;

    ra_init(&g, CHUNK, false);
    ra_arrive(&g, &c);
    (void)publish_one(&g, &c);
    mcd_registry_look(&g.agent->registry, mcd_now_ns() + UINT64_C(60000000000));
    cr_assert_not(g.agent->registry.told, "what is registered waits for nobody");
    fake_block(FAKE_DEREG_MR, g.devices[0]);
    sa_leave(&c);
    ra_until(&g, g.agent->sessions == NULL);
    mcd_registry_look(&g.agent->registry, mcd_now_ns());
    cr_assert_not(g.agent->registry.told, "it may still answer");
    mcd_registry_look(&g.agent->registry, mcd_now_ns() + UINT64_C(11000000000));
    cr_assert(g.agent->registry.told);
    fake_unblock(g.devices[0]);
    ra_until(&g, g.agent->registry.pending == 0);
    mcd_registry_look(&g.agent->registry, mcd_now_ns());
    cr_assert_not(g.agent->registry.told, "the next time is another one");
    ra_fini(&g);
}

Test(registration, clients_end_whatever_their_request_waits_for)
{
    static const enum fake_call calls[] = {FAKE_REG_MR, FAKE_DEREG_MR};

    for (unsigned how = 0; how < 6; how++) {
        union mcs_msg_body b = sa_alloc_body(SIZE);
        uint16_t type = MCS_MSG_ALLOC;
        struct sa_client c;
        struct ra g;
        uint32_t e;

        ra_init(&g, CHUNK, how % 2 != 0);
        ra_arrive(&g, &c);
        if (how != 0) {
            e = publish_one(&g, &c);
            b = how == 1 ? sa_buffer_body(e, 0, 4096, RW)
                         : sa_buffer_body(e, 98304, how < 4 ? 8192 : 65536, 0);
            type = how == 1 ? MCS_MSG_BUFFER_ADD : MCS_MSG_REVOKE;
        }
        if (how == 5) {
            memset(&b, 0, sizeof(b));
            b.free.extent = e;
            type = MCS_MSG_FREE;
        }
        fake_block(calls[how > 2], g.devices[0]);
        sa_send(&c, type, &b, NULL, 0);
        ra_until(&g, (how > 2 ? only_session(&g)->op.deregistering
                              : only_session(&g)->op.registering) != 0);
        cr_assert(fake_await_blocked(g.devices[0], 1));
        sa_leave(&c);
        ra_until(&g, g.agent->sessions == NULL);
        cr_assert_neq(g.agent->pool.used, 0, "%u: unmapped under a device", how);
        fake_unblock(g.devices[0]);
        ra_fini(&g);
    }
}

/* ---- after a restart ---------------------------------------------------------------------- */

/* Who comes back waits for no device, and neither do those who wait for him; the registrations follow. */
Test(registration, what_comes_back_after_a_restart_is_registered_meanwhile)
{
    static const uint8_t none[1];
    struct fz z = {.at = none, .end = none};
    union mcs_msg_body b;
    struct mcd_session *s;
    struct mcd_extent *e;
    struct sa_client c;
    uint64_t version;
    int pair[2];
    struct ra g;

    ra_init(&g, CHUNK, true);
    limbo_begin(g.agent, &z);
    fake_block(FAKE_REG_MR, g.devices[1]);
    memset(&c, 0, sizeof(c));
    c.answer_fd = -1;
    cr_assert_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair), 0);
    c.fd = pair[0];
    mcd_session_accept(g.agent, pair[1]);
    memset(&b, 0, sizeof(b));
    b.restore.abi_version = MCS_ABI_VERSION;
    b.restore.session_incarnation = LIMBO_SESSION(0);
    sa_send(&c, MCS_MSG_RESTORE, &b, &limbo_kept[0].region, 1);
    ra_until(&g, sa_answered(&c));
    cr_assert_eq(c.m.h.status, MCS_OK, "%s", c.m.b.error.text);
    memset(&b, 0, sizeof(b));
    b.extent_back.extent = LIMBO_HANDLE(0);
    b.extent_back.size = LIMBO_EXTENT_SIZE;
    sa_send(&c, MCS_MSG_EXTENT_BACK, &b, &limbo_kept[0].extents[0], 1);
    ra_until(&g, sa_answered(&c));
    cr_assert_eq(c.m.h.status, MCS_OK, "%s", c.m.b.error.text);
    cr_assert_eq(ra_buffer(&g, &c, MCS_MSG_BUFFER_ADD, LIMBO_HANDLE(0), 0, 4096, RW), MCS_OK);
    cr_assert_eq(ra_buffer(&g, &c, MCS_MSG_BUFFER_ADD, LIMBO_HANDLE(0), 8192, 4096, RW), MCS_OK);
    s = g.agent->sessions;
    while (s->incarnation != LIMBO_SESSION(0))
        s = s->next;
    e = mcd_session_extent(s, LIMBO_HANDLE(0));
    cr_assert_eq(s->segment->snapshot->count, 2);
    cr_assert_null(e->registration);
    cr_assert_eq(g.agent->registry.pending, 3);
    version = s->segment->version;

    fake_unblock(g.devices[1]);
    ra_until(&g, g.agent->registry.pending == 0);
    cr_assert_not_null(e->registration);
    for (uint32_t i = 0; i < 2; i++)
        cr_assert_eq(s->segment->snapshot->buffers[i].registration->state, MCD_REGISTRATION_MADE);
    cr_assert_gt(s->segment->version, version, "peers describe it again");
    cr_assert_eq(fake_count(FAKE_MR, NULL), 3 * RA_DEVICES);

    sa_leave(&c);
    for (s = g.agent->sessions; s != NULL; s = s->next)
        if (s->socket < 0) /* nobody comes back for it */
            mcd_session_end(s, NULL);
    ra_until(&g, g.agent->sessions == NULL && g.agent->registry.count == 0);
    limbo_end(g.agent);
    ra_fini(&g);
}

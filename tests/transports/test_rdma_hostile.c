/* SPDX-License-Identifier: Apache-2.0 */
/* Peers that send what no peer must send: their queue pair ends, and nothing else. */
#include "rdma_fixture.h"
#include "tests/fake-verbs/fake.h"

static struct mct_rdma_header header(const struct fix *f, enum mct_rdma_type type)
{
    return (struct mct_rdma_header){.magic = MCT_RDMA_MAGIC,
                                    .version = MCT_RDMA_VERSION,
                                    .type = (uint8_t)type,
                                    .conn = f->ids[0],
                                    .id = 1};
}

/* Sends it past the transport, from memory that is registered. Its completion belongs to nobody. */
static void inject(struct mct_rdma_pair *p, const void *bytes, uint32_t size)
{
    struct mct_rdma_poller *poller = p->port->engine;
    uint8_t *buffer = p->port->slab + (uint64_t)(2 * p->port->srq_depth - 1) * MCT_RDMA_MESSAGE;
    struct ibv_sge sge = {.addr = (uintptr_t)buffer, .length = size, .lkey = p->port->slab_key};
    struct ibv_send_wr wr = {.wr_id = UINT64_C(0x7fff) << 48,
                             .sg_list = &sge,
                             .num_sge = 1,
                             .opcode = IBV_WR_SEND,
                             .send_flags = IBV_SEND_SIGNALED},
                       *bad;

    cr_assert_neq(poller, NULL);
    cr_assert_leq(size, MCT_RDMA_MESSAGE);
    memcpy(buffer, bytes, size);
    cr_assert_eq(ibv_post_send(p->qp, &wr, &bad), 0);
}

/* One fresh connection beside one that must live; who receives it ends the first. */
static void hostile_to_target(const struct mct_rdma_header *change, uint32_t size, unsigned times)
{
    static uint8_t message[MCT_RDMA_MESSAGE];
    struct fix f;

    fix_init(&f, 1);
    for (unsigned i = 0; i < times; i++) {
        struct mct_rdma_header h = *change;

        if (h.conn == 0)
            h.conn = f.ids[0];
        if (times > 1)
            h.id = i + 1;
        memcpy(message, &h, sizeof(h));
        inject(f.pa[0], message, size);
    }
    fix_until(&f, f.b.left == 1);
    cr_assert_eq(f.b.left_error, -EPROTO);
    cr_assert_eq(fix_stats(&f.b)->protocol_errors, 1u);
    mct_rdma_ops.abort(f.link, -ECONNRESET);
    fix_until(&f, f.a.lost == 1);
    fix_join(&f, 0);
    fix_check_alive(&f);
    fix_fini(&f);
}

Test(rdma_hostile, requests)
{
    static const struct {
        struct mct_rdma_header h;
        uint32_t size;
    } cases[] = {
#define TO_TARGET(...)                                                                             \
    {.magic = MCT_RDMA_MAGIC, .version = MCT_RDMA_VERSION, .type = MCT_RDMA_NOTIFY, __VA_ARGS__}
        {{.magic = 1, .version = MCT_RDMA_VERSION, .type = MCT_RDMA_NOTIFY, .id = 1}, 64},
        {{.magic = MCT_RDMA_MAGIC, .version = 2, .type = MCT_RDMA_NOTIFY, .id = 1}, 64},
        {{.magic = MCT_RDMA_MAGIC, .version = MCT_RDMA_VERSION, .type = 1, .id = 1}, 64},
        {{.magic = MCT_RDMA_MAGIC, .version = MCT_RDMA_VERSION, .type = 0xff, .id = 1}, 64},
        {{.magic = MCT_RDMA_MAGIC, .version = MCT_RDMA_VERSION, .type = MCT_RDMA_DONE, .id = 1},
         64},
        {TO_TARGET(.id = 1, .status = 1), 64},
        {TO_TARGET(.id = 1, .name_length = 1), 64},
        {TO_TARGET(.id = 1, .name_length = 257, .length = 300), 364},
        {TO_TARGET(.id = 1, .name_length = 4, .length = 3), 67},
        {TO_TARGET(.id = 1, .length = 1), 64},
        {TO_TARGET(.id = 1, .length = UINT32_MAX), 64},
        {TO_TARGET(.id = 1, .length = 10), 75},
        {TO_TARGET(.id = 0), 64},
        {TO_TARGET(.id = 2), 64},
        {TO_TARGET(.id = UINT64_MAX), 64},
        {TO_TARGET(.id = 1, .conn = 0xdeadbeef), 64},
        {TO_TARGET(.id = 1), 63},
        {TO_TARGET(.id = 1), 1},
    };

    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        hostile_to_target(&cases[i].h, cases[i].size, 1);
}

/* More than may wait for their answer, while there is no room to answer. */
Test(rdma_hostile, too_many_notifications)
{
    struct mct_rdma_header h = TO_TARGET(.id = 1);

    hostile_to_target(&h, 64, MCT_RDMA_NOTICES + 1);
}

/* A peer that goes on asking and acknowledges no answer: it keeps few entries of the queues that others share, and no
 * buffer, and is found out. */
Test(rdma_hostile, answers_are_not_taken)
{
    struct mct_rdma_header h = TO_TARGET(.id = 1);
    struct fix f;
    struct fake_stats st;

    fix_init(&f, 2);
    fake_pace(f.b.devices[0], FAKE_HELD); /* what b sends is not acknowledged */
    h.conn = f.ids[0];
    for (unsigned i = 0; i < 3 * MCT_RDMA_NOTICES && f.b.left == 0; i++) {
        h.id = i + 1;
        inject(f.pa[0], &h, sizeof(h));
        for (unsigned k = 0; k < 10; k++)
            fix_turn(&f);
        fake_stats(f.b.devices[0], &st);
        cr_assert_leq(st.most_outstanding, MCT_RDMA_NOTICES);
        cr_assert_eq(f.pb[1]->port->srq_depth,
                     ((struct mct_rdma_poller *)f.pb[1]->port->engine)->nsends);
    }
    fix_until(&f, f.b.left == 1);
    cr_assert_eq(f.b.left_error, -EPROTO);
    fake_pace(f.b.devices[0], FAKE_AT_ONCE);
    mct_rdma_ops.abort(f.link, -ECONNRESET);
    fix_until(&f, f.a.lost == 2);
    fix_fini(&f);
}

/* Answers to nothing, twice, with a payload, of another connection. */
Test(rdma_hostile, answers)
{
    for (unsigned i = 0; i < 7; i++) {
        struct fix f;
        char text[] = "text";
        struct mct_slice s = fix_notice(text, 0, 4);
        uint8_t message[128] = {0};
        struct mct_rdma_header h;
        uint32_t size = sizeof(h);

        fix_init(&f, 2);
        h = header(&f, MCT_RDMA_DONE);
        switch (i) {
        case 0: /* nothing was asked */
            break;
        case 1:
            h.id = 0;
            break;
        case 2:
            h.length = 4;
            size += 4;
            break;
        case 3:
            h.name_length = 4;
            break;
        case 4:
            h.type = MCT_RDMA_NOTIFY;
            break;
        case 5:
            h.conn = f.ids[1]; /* lives, and is not this one */
            break;
        default: /* the second answer */
            do {
                s = fix_notice(text, 0, 4);
                fix_run(&f, &s);
                cr_assert_eq(s.status, MCS_OK);
            } while (s.conn != f.ids[0]);
            h.id = 1;
            break;
        }
        memcpy(message, &h, sizeof(h));
        inject(f.pb[0], message, size);
        fix_until(&f, f.a.lost == 1);
        cr_assert_eq(f.a.lost_error, -EPROTO);
        cr_assert_eq(f.a.lost_ids[0], f.ids[0]);
        cr_assert_eq(fix_stats(&f.a)->protocol_errors, 1u);
        fix_check_alive(&f);
        fix_fini(&f);
    }
}

/* Anything at all, to both ends: what is nonsense ends the one connection that it came on. */
Test(rdma_hostile, anything)
{
    enum { MESSAGES = 3000 };
    static uint8_t message[MCT_RDMA_MESSAGE];
    uint64_t random = 99;
    unsigned ended = 0;
    struct fix f;

    fix_init(&f, 1);
    for (unsigned i = 0; i < MESSAGES; i++) {
        unsigned n = (f.npairs - 1) % 64, lost = f.a.lost, left = f.b.left;
        const struct mct_rdma_conn *target = f.pb[n]->engine;
        bool answer;
        struct mct_rdma_header h;
        uint32_t size;

        fix_fill(message, sizeof(message), ++random);
        random = random * UINT64_C(6364136223846793005) + 1442695040888963407;
        answer = random >> 60 == 0;
        h = header(&f, answer ? MCT_RDMA_DONE : MCT_RDMA_NOTIFY);
        h.conn = f.ids[n];
        h.id = target->notice_id + 1;
        if (!answer) {
            h.length = (uint32_t)(random >> 20) % 600;
            h.name_length = (uint16_t)(h.length / 3);
        }
        size = (uint32_t)sizeof(h) + h.length;
        if ((random >> 40) % 4 == 0) /* some bits of the header are others */
            for (unsigned k = 0; k <= (random >> 44) % 3; k++)
                ((uint8_t *)&h)[(random >> (8 * k)) % sizeof(h)] ^=
                    (uint8_t)(1u << (random >> (50 + k)) % 8);
        if ((random >> 42) % 16 == 0)
            size = 1 + (uint32_t)(random >> 10) % MCT_RDMA_MESSAGE;
        memcpy(message, &h, sizeof(h));
        inject(answer ? f.pb[n] : f.pa[n], message, size);
        for (unsigned k = 0; k < 3; k++)
            fix_turn(&f);
        if (fix_stats(&f.a)->protocol_errors + fix_stats(&f.b)->protocol_errors == ended)
            continue;
        ended++;
        mct_rdma_ops.abort(f.link, -ECONNRESET);
        (void)mct_rdma_ops.dismiss(f.b.t, &f.visitor);
        fix_until(&f, f.a.lost == lost + 1 && f.b.left == left + 1);
        fix_join(&f, 0);
    }
    cr_assert(ended > 100 && f.b.notifications > 1000, "%u %u", ended, f.b.notifications);
    fix_check_alive(&f);
    fix_fini(&f);
}

/* A status that is none is an internal error, as over TCP. */
Test(rdma_hostile, unknown_status)
{
    struct fix f;
    char text[] = "text";
    struct mct_slice s = fix_notice(text, 0, 4);

    fix_init(&f, 1);
    f.b.notify_status = 999;
    fix_run(&f, &s);
    cr_assert_eq(s.status, MCS_INTERNAL);
    fix_fini(&f);
}

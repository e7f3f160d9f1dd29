/* SPDX-License-Identifier: Apache-2.0 */
/* Queue pairs, from the first state to the last, as the nics' threads move them. */
#include "tests/fake-verbs/fake.h"
#include "rdma_nics.h"

#include <sys/resource.h>

Test(rdma_pairs, an_end_that_cannot_be_is_refused_with_both)
{
    struct mct_rdma_end good, bad;
    struct mct_rdma_pair *p, *q;
    struct answer a;

    fake_reset();
    fake_add("fake0");
    fake_add("fake1");
    begin();
    p = new_pair(0);
    q = new_pair(1);
    good = *mct_rdma_pair_end(q);
    cr_assert_eq(good.nic, nic(1).id);
    cr_assert_eq(good.mtu, 1024);
#define REFUSED(field, value)                                                                      \
    do {                                                                                           \
        bad = good;                                                                                \
        bad.field = value;                                                                         \
        a = connect_to(p, &bad);                                                                   \
        cr_assert_eq(a.res, -EPROTO, #field);                                                      \
        cr_assert(strstr(a.text, "fake0/1") != NULL && strstr(a.text, "fake1/1") != NULL, "%s",    \
                  a.text);                                                                         \
    } while (0)
    REFUSED(mtu, 1500);
    REFUSED(mtu, 128);
    REFUSED(mtu, 8192);
    REFUSED(mtu, 0);
    REFUSED(nic, 0);
    REFUSED(qpn, 0x1000000);
    REFUSED(qpn, 0);
    REFUSED(psn, 0x1000000);
    REFUSED(reads, 0);
    REFUSED(infiniband, true);
#undef REFUSED
    bad = good;
    memset(bad.gid, 0, sizeof(bad.gid));
    cr_assert_eq(connect_to(p, &bad).res, -EPROTO);
    bad = good;
    memset(bad.name, '\n', sizeof(bad.name));
    bad.mtu = 1;
    a = connect_to(p, &bad);
    cr_assert_eq(a.res, -EPROTO);
    cr_assert(strchr(a.text, '\n') == NULL, "%s", a.text);
    /* none of it has moved the queue pair */
    connect_pairs(p, q);
    let_go(p);
    let_go(q);
    end();
}

Test(rdma_pairs, the_lower_mtu_and_the_fewer_reads_are_taken)
{
    struct fake_device *d, *e;
    struct mct_rdma_pair *p, *q;
    struct mct_rdma_options o = options();
    struct ibv_qp_attr attr;

    fake_reset();
    d = fake_add("fake0");
    e = fake_add("fake1");
    d->ports[0].attr.active_mtu = IBV_MTU_4096;
    e->ports[0].attr.active_mtu = IBV_MTU_2048;
    e->attr.max_qp_rd_atom = 4;
    d->max_inline = 60;
    o.traffic_class = 106;
    begin_with(&o);
    p = new_pair(0);
    q = new_pair(1);
    connect_pairs(p, q);
    cr_assert_eq(p->reads, 4);
    cr_assert_eq(p->max_inline, 55, "%u", p->max_inline);
    cr_assert_neq(fake_qp(d, 0, &attr), 0);
    cr_assert_eq(attr.path_mtu, IBV_MTU_2048);
    cr_assert_eq(attr.rq_psn, q->own.psn);
    cr_assert_eq(attr.sq_psn, p->own.psn);
    cr_assert_eq(attr.ah_attr.grh.traffic_class, 106);
    cr_assert_eq(attr.ah_attr.grh.hop_limit, 64);
    cr_assert_eq(attr.ah_attr.grh.sgid_index, 1);
    cr_assert_eq(attr.rnr_retry, 6);
    let_go(p);
    let_go(q);
    end();
}

Test(rdma_pairs, psns_are_fresh)
{
    struct mct_rdma_pair *p[8];
    unsigned same = 0;

    fake_reset();
    fake_add("fake0");
    begin();
    for (int i = 0; i < 8; i++) {
        p[i] = new_pair(0);
        cr_assert_leq(p[i]->own.psn, 0xffffff);
        same += i > 0 && p[i]->own.psn == p[i - 1]->own.psn;
    }
    cr_assert_leq(same, 1);
    for (int i = 0; i < 8; i++)
        let_go(p[i]);
    end();
}

Test(rdma_pairs, a_completion_queue_has_room_for_messages_beside_work_requests)
{
    struct fake_device *d;
    struct mct_rdma_options o = options();
    struct mct_rdma_pair *p;

    fake_reset();
    d = fake_add("fake0");
    d->attr.max_cqe = 100;
    o.cq_depth = 4096;
    begin_with(&o);
    p = new_pair(0);
    cr_assert_eq(p->port->srq_depth, 50);
    cr_assert_eq(p->port->cq_depth, 50);
    cr_assert_geq(p->port->cq->cqe, 100);
    let_go(p);
    end();
}

Test(rdma_pairs, the_devices_limit_of_queue_pairs_is_named)
{
    struct fake_device *d;
    struct mct_rdma_pair *p[2], *none;
    struct answer a = {0};

    fake_reset();
    d = fake_add("fake0");
    d->attr.max_qp = 2;
    begin();
    p[0] = new_pair(0);
    p[1] = new_pair(0);
    cr_assert_eq(mct_rdma_pair_create(rdma, 0, instance, 9, answered, &a, &none), 0);
    AWAIT(a.count == 1);
    cr_assert_lt(a.res, 0);
    cr_assert(strstr(a.text, "2 of at most 2") != NULL, "%s", a.text);
    mct_rdma_pair_destroy(none);
    cr_assert_eq(nic(0).pairs, 2);
    let_go(p[0]);
    let_go(p[1]);
    AWAIT(nic(0).pairs == 0);
    end();
}

/* An engine that asks for the next stage before the last one was handled, and frees at once. */
static void *hasty_engine(void *arg)
{
    struct mct_rdma_pair **p = arg;

    for (int i = 0; i < 16; i++) {
        mct_rdma_pair_ask(p[i], MCT_RDMA_STAGE_ERROR);
        mct_rdma_pair_ask(p[i], MCT_RDMA_STAGE_GONE);
    }
    for (int i = 0; i < 16; i++) {
        while (reached(p[i]) != MCT_RDMA_STAGE_GONE)
            sched_yield();
        mct_rdma_pair_free(p[i]);
    }
    return NULL;
}

Test(rdma_pairs, engines_ask_and_free_while_the_nic_works)
{
    struct mct_rdma_pair *p[2][16];
    pthread_t threads[2];
    struct fake_device *d;

    fake_reset();
    d = fake_add("fake0");
    begin();
    for (int round = 0; round < 10; round++) {
        for (int i = 0; i < 2; i++)
            for (int k = 0; k < 16; k++)
                p[i][k] = new_pair(0);
        for (int i = 0; i < 2; i++)
            cr_assert_eq(pthread_create(&threads[i], NULL, hasty_engine, p[i]), 0);
        for (int i = 0; i < 2; i++)
            pthread_join(threads[i], NULL);
        cr_assert_eq(fake_count(FAKE_QP, d), 0);
    }
    end();
}

Test(rdma_pairs, one_that_is_given_up_at_any_time_leaves_nothing)
{
    struct mct_rdma_pair *p, *q;
    struct answer a = {0};
    struct fake_device *d;

    fake_reset();
    d = fake_add("fake0");
    begin();
    q = new_pair(0);
    cr_assert_eq(mct_rdma_pair_create(rdma, 0, instance, 1, answered, &a, &p), 0);
    mct_rdma_pair_destroy(p);
    p = new_pair(0);
    mct_rdma_pair_connect(p, mct_rdma_pair_end(q), answered, &a);
    mct_rdma_pair_destroy(p);
    AWAIT(fake_count(FAKE_QP, d) == 1);
    p = new_pair(0);
    fake_fail(FAKE_MODIFY_QP, d, 1, 1, ETIMEDOUT);
    cr_assert_eq(connect_to(p, mct_rdma_pair_end(q)).res, -ETIMEDOUT);
    mct_rdma_pair_destroy(p);
    AWAIT(fake_count(FAKE_QP, d) == 1);
    cr_assert_eq(a.count, 0);
    mct_rdma_pair_destroy(q);
    end();
}

Test(rdma_pairs, a_peer_that_is_not_there_holds_up_no_other)
{
    struct mct_rdma_pair *p, *q, *stuck[2];
    struct answer a = {0}, b = {0};
    struct fake_device *d;

    fake_reset();
    d = fake_add("fake0");
    begin();
    p = new_pair(0);
    q = new_pair(0);
    connect_pairs(p, q);
    stuck[0] = new_pair(0);
    stuck[1] = new_pair(0);
    /* as where the kernel looks for the address of a host that is gone */
    fake_block(FAKE_MODIFY_QP, d);
    mct_rdma_pair_connect(stuck[0], mct_rdma_pair_end(q), answered, &a);
    mct_rdma_pair_connect(stuck[1], mct_rdma_pair_end(q), answered, &b);
    cr_assert(fake_await_blocked(d, 2));
    let_go(p);
    mct_rdma_pair_destroy(stuck[0]); /* not under the one who moves it */
    let_go(q);
    cr_assert_eq(fake_count(FAKE_QP, d), 2);
    cr_assert_eq(a.count + b.count, 0);
    fake_unblock(d);
    AWAIT(b.count == 1);
    AWAIT(fake_count(FAKE_QP, d) == 1);
    cr_assert_eq(a.count, 0);
    mct_rdma_pair_destroy(stuck[1]);
    end();
}

/* Those that are given up before a thread has begun with them go at once: others do not stand behind them. */
Test(rdma_pairs, what_is_given_up_waits_for_no_peer, .timeout = 60)
{
    struct mct_rdma_pair *p[12], *q;
    struct answer a = {0};
    struct fake_device *d;

    fake_reset();
    d = fake_add("fake0");
    begin();
    q = new_pair(0);
    for (int i = 0; i < 12; i++)
        p[i] = new_pair(0);
    fake_block(FAKE_MODIFY_QP, d);
    for (int i = 0; i < 12; i++)
        mct_rdma_pair_connect(p[i], mct_rdma_pair_end(q), answered, &a);
    cr_assert(fake_await_blocked(d, 4));
    for (int i = 4; i < 12; i++)
        mct_rdma_pair_destroy(p[i]);
    AWAIT(fake_count(FAKE_QP, d) == 5);
    fake_unblock(d);
    AWAIT(a.count == 4);
    for (int i = 0; i < 4; i++)
        mct_rdma_pair_destroy(p[i]);
    mct_rdma_pair_destroy(q);
    AWAIT(fake_count(FAKE_QP, d) == 0);
    end();
    cr_assert_eq(a.count, 4);
}

/* However often one is asked for while the device hangs, no more than so many wait. */
Test(rdma_pairs, a_device_that_hangs_gathers_no_end_of_requests, .timeout = 60)
{
    static struct mct_rdma_pair *p[MCT_RDMA_BACKLOG + 1];
    struct mct_rdma_pair *q;
    struct answer a = {0};
    struct fake_device *d;
    unsigned n = 0;

    fake_reset();
    d = fake_add("fake0");
    d->attr.max_qp = 16;
    begin();
    fake_block(FAKE_CREATE_QP, d);
    while (n <= MCT_RDMA_BACKLOG &&
           mct_rdma_pair_create(rdma, 0, instance, n + 1, answered, &a, &p[n]) == 0)
        n++;
    cr_assert_eq(n, MCT_RDMA_BACKLOG);
    for (unsigned i = 0; i < n; i++) /* they are taken in all the same */
        mct_rdma_pair_destroy(p[i]);
    cr_assert_eq(mct_rdma_pair_create(rdma, 0, instance, 1, answered, &a, &q), -EBUSY);
    cr_assert_null(q);
    fake_unblock(d);
    AWAIT(mct_rdma_pair_create(rdma, 0, instance, 1, answered, &a, &q) == 0);
    AWAIT(a.count == 1);
    cr_assert_eq(a.res, 0, "%s", a.text);
    mct_rdma_pair_destroy(q);
    AWAIT(fake_count(FAKE_QP, d) == 0);
    end();
}

Test(rdma_pairs, one_that_is_being_connected_when_its_device_is_lost_is_not_connected)
{
    struct mct_rdma_pair *p, *q;
    struct answer a = {0};
    struct fake_device *d;

    fake_reset();
    d = fake_add("fake0");
    fake_add("fake1");
    begin();
    p = new_pair(0);
    q = new_pair(1);
    fake_block(FAKE_MODIFY_QP, d);
    mct_rdma_pair_connect(p, mct_rdma_pair_end(q), answered, &a);
    cr_assert(fake_await_blocked(d, 1));
    fake_event(d, IBV_EVENT_DEVICE_FATAL, 0);
    AWAIT(nic(0).state == MCT_RDMA_CLOSED);
    fake_unblock(d);
    AWAIT(a.count == 1);
    cr_assert_eq(a.res, -ESTALE, "%s", a.text);
    mct_rdma_pair_destroy(p);
    let_go(q);
    AWAIT(nic(0).state == MCT_RDMA_UP);
    end();
}

Test(rdma_pairs, the_agent_may_end_while_one_is_connected, .timeout = 60)
{
    struct mct_rdma_pair *p[8], *q;
    struct answer a = {0};
    struct fake_device *d;

    fake_reset();
    d = fake_add("fake0");
    begin();
    q = new_pair(0);
    for (int i = 0; i < 8; i++)
        p[i] = new_pair(0);
    fake_block(FAKE_MODIFY_QP, d);
    for (int i = 0; i < 8; i++)
        mct_rdma_pair_connect(p[i], mct_rdma_pair_end(q), answered, &a);
    cr_assert(fake_await_blocked(d, 4));
    for (int i = 0; i < 8; i++)
        mct_rdma_pair_destroy(p[i]);
    mct_rdma_pair_destroy(q);
    fake_unblock(d);
    end();
    cr_assert_eq(a.count, 0);
}

Test(rdma_pairs, a_queue_pair_that_does_not_go_is_not_reported_gone_until_it_is)
{
    struct mct_rdma_pair *p;
    struct fake_device *d;

    fake_reset();
    d = fake_add("fake0");
    begin();
    p = new_pair(0);
    fake_fail(FAKE_DESTROY_QP, d, 1, 2, EBUSY);
    mct_rdma_pair_ask(p, MCT_RDMA_STAGE_GONE);
    AWAIT(reached(p) == MCT_RDMA_STAGE_GONE);
    cr_assert_eq(fake_count(FAKE_QP, d), 0);
    cr_assert(strstr(logged, "does not let go") != NULL, "%s", logged);
    mct_rdma_pair_free(p);
    end();
}

Test(rdma_pairs, none_is_made_on_a_nic_that_is_down)
{
    struct fake_device *d;
    struct mct_rdma_pair *p;
    struct answer a = {0};

    fake_reset();
    d = fake_add("fake0");
    fake_port_state(d, 1, IBV_PORT_DOWN, false);
    begin();
    cr_assert_eq(nic(0).state, MCT_RDMA_DOWN);
    cr_assert_eq(mct_rdma_pair_create(rdma, 0, instance, 1, answered, &a, &p), 0);
    AWAIT(a.count == 1);
    cr_assert_eq(a.res, -ENETDOWN);
    cr_assert(strstr(a.text, "port is down") != NULL, "%s", a.text);
    mct_rdma_pair_destroy(p);
    end();
}

Test(rdma_pairs, a_limit_of_locked_memory_is_named_with_the_remedy)
{
    struct rlimit before, limit;
    struct mct_rdma_pair *p;
    struct answer a = {0};

    fake_reset();
    fake_add("fake0");
    begin();
    cr_assert_eq(getrlimit(RLIMIT_MEMLOCK, &before), 0);
    limit = before;
    limit.rlim_cur = 65536;
    cr_assert_eq(setrlimit(RLIMIT_MEMLOCK, &limit), 0);
    fake_memlock(65536);
    cr_assert_eq(mct_rdma_pair_create(rdma, 0, instance, 1, answered, &a, &p), 0);
    AWAIT(a.count == 1);
    cr_assert_eq(a.res, -ENOMEM);
    cr_assert(strstr(a.text, "message buffers") != NULL, "%s", a.text);
    cr_assert(strstr(a.text, "65536") != NULL, "%s", a.text);
    cr_assert(strstr(a.text, "LimitMEMLOCK") != NULL, "%s", a.text);
    mct_rdma_pair_destroy(p);
    setrlimit(RLIMIT_MEMLOCK, &before);
    fake_memlock(UINT64_MAX);
    end();
}

/* A device may take long to come to it; the engine that it was for may have ended by then. */
Test(rdma_pairs, one_that_is_given_up_before_its_turn_is_not_made)
{
    struct mct_rdma_pair *first, *held, *behind, *last;
    struct answer a = {0};
    struct fake_device *d;
    struct fake_stats s;
    uint64_t one;

    fake_reset();
    d = fake_add("fake0");
    begin();
    first = new_pair(0);
    fake_stats(d, &s);
    one = s.calls[FAKE_CREATE_QP];
    fake_block(FAKE_CREATE_QP, d);
    cr_assert_eq(mct_rdma_pair_create(rdma, 0, instance, 1, answered, &a, &held), 0);
    cr_assert(fake_await_blocked(d, 1));
    cr_assert_eq(mct_rdma_pair_create(rdma, 0, instance, 2, answered, &a, &behind), 0);
    mct_rdma_pair_destroy(behind);
    mct_rdma_pair_destroy(held);
    fake_unblock(d);
    last = new_pair(0);
    fake_stats(d, &s);
    cr_assert_eq(s.calls[FAKE_CREATE_QP], 3 * one, "%llu",
                 (unsigned long long)s.calls[FAKE_CREATE_QP]);
    cr_assert_eq(a.count, 0);
    let_go(first);
    let_go(last);
    end();
}

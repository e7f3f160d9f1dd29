/* SPDX-License-Identifier: Apache-2.0 */
/* long */
/* Nics and their threads: lists, events, opening again, faults. */
#include "tests/fake-verbs/fake.h"
#include "rdma_nics.h"

/* ---- lists ------------------------------------------------------------------------------ */

Test(rdma_lists, malformed_ones_are_refused_with_the_entry)
{
    static const char *const bad[] = {"a/b", "mlx5_0/0", "mlx5_0/256", "a/1/2",
                                      "/1",  "mlx5_0/",  "mlx5_0/1x"};
    static const char *const good[] = {"",         "auto",      "mlx5_0",      "mlx5_0/1,mlx5_1/2",
                                       "mlx5_*/1", "mlx5_[01]", " a ,\tb\n,, "};
    struct mct_rdma_options o;
    struct mct_rdma_host h = {0};
    char error[400], longest[200];

    fake_reset();
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        error[0] = 0;
        cr_assert_eq(mct_rdma_select_check(bad[i], error, sizeof(error)), -EINVAL, "%s", bad[i]);
        cr_assert(strstr(error, bad[i]) != NULL, "%s", error);
        o = options();
        o.deny = bad[i];
        cr_assert_eq(mct_rdma_create(&o, &h, &rdma, error, sizeof(error)), -EINVAL);
        cr_assert(rdma == NULL);
    }
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++)
        cr_assert_eq(mct_rdma_select_check(good[i], error, sizeof(error)), 0, "%s", good[i]);
    memset(longest, 'a', sizeof(longest) - 1);
    longest[sizeof(longest) - 1] = 0;
    cr_assert_eq(mct_rdma_select_check(longest, error, sizeof(error)), -EINVAL);
}

Test(rdma_lists, deny_goes_before_devices)
{
    cr_assert(mct_rdma_select_allows("auto", "", "mlx5_0", 1));
    cr_assert(!mct_rdma_select_allows("", "", "mlx5_0", 1));
    cr_assert(!mct_rdma_select_allows("auto", "mlx5_0", "mlx5_0", 1));
    cr_assert(mct_rdma_select_allows("auto", "mlx5_0/2", "mlx5_0", 1));
    cr_assert(!mct_rdma_select_allows("mlx5_0/1", "mlx5_*/1", "mlx5_0", 1));
    cr_assert(mct_rdma_select_allows("mlx5_[0-3]/1 bond*", "mlx5_1", "mlx5_2", 1));
    cr_assert(!mct_rdma_select_allows("mlx5_[0-3]/1 bond*", "mlx5_1", "mlx5_2", 2));
    cr_assert(!mct_rdma_select_allows("mlx5_0", "", "mlx5_01", 1));
}

Test(rdma_lists, values_out_of_range_are_named)
{
    struct mct_rdma_options o;
    struct mct_rdma_host h = {0};
    char error[400];

    fake_reset();
#define REFUSED(field, value, word)                                                                \
    do {                                                                                           \
        o = options();                                                                             \
        o.field = value;                                                                           \
        cr_assert_eq(mct_rdma_create(&o, &h, &rdma, error, sizeof(error)), -EINVAL);               \
        cr_assert(strstr(error, word) != NULL, "%s", error);                                       \
    } while (0)
    REFUSED(mtu, 1500, "mtu: 1500");
    REFUSED(timeout, 32, "timeout: 32");
    REFUSED(timeout, 0, "timeout: 0");
    REFUSED(retries, 8, "retries: 8");
    REFUSED(chunk, MCT_RDMA_CHUNK_MIN + 4096, "chunk: 1052672");
    REFUSED(depth, 0, "depth: 0");
    REFUSED(service_level, 16, "service_level: 16");
#undef REFUSED
}

Test(rdma_lists, what_is_named_has_a_place_before_it_comes)
{
    struct mct_rdma_options o = options();

    fake_reset();
    fake_add("fake0");
    fake_add("fake1");
    o.devices = "fake1 late0 nothing*";
    begin_with(&o);
    cr_assert_eq(mct_rdma_nics(rdma), 2);
    cr_assert_str_eq(nic(0).name, "fake1/1");
    cr_assert_eq(nic(0).state, MCT_RDMA_UP);
    cr_assert_str_eq(nic(1).name, "late0/1");
    cr_assert_eq(nic(1).state, MCT_RDMA_CLOSED);
    cr_assert(strstr(nic(1).why, "late0") != NULL, "%s", nic(1).why);
    cr_assert(strstr(logged, "'nothing*'") != NULL, "%s", logged);
    cr_assert(strstr(logged, "'late0'") == NULL, "%s", logged);
    fake_add("late0");
    AWAIT(nic(1).state == MCT_RDMA_UP);
    cr_assert_geq(changes[1], 1);
    end();
}

/* ---- events ----------------------------------------------------------------------------- */

Test(rdma_events, a_burst_is_taken_whole_and_the_other_port_is_let_alone)
{
    struct fake_device *d;
    struct mct_rdma_nic n;
    struct mct_rdma_options o = options();

    fake_reset();
    d = fake_add("fake0");
    d->nports = 2;
    d->ports[1] = d->ports[0];
    d->attr.phys_port_cnt = 2;
    o.devices = "fake0/1 fake0/2"; /* here no sysfs tells how many ports there are */
    begin_with(&o);
    cr_assert_eq(mct_rdma_nics(rdma), 2);
    AWAIT(nic(0).state == MCT_RDMA_UP && nic(1).state == MCT_RDMA_UP);
    fake_port_state(d, 2, IBV_PORT_DOWN, false);
    for (int i = 0; i < 4; i++)
        fake_event(d, IBV_EVENT_SM_CHANGE, 2);
    fake_event(d, IBV_EVENT_PORT_ERR, 2);
    AWAIT(nic(0).events == 5 && nic(1).events == 5);
    AWAIT(nic(1).state == MCT_RDMA_DOWN);
    cr_assert(strstr(nic(1).why, "down") != NULL, "%s", nic(1).why);
    n = nic(0);
    cr_assert_eq(n.state, MCT_RDMA_UP, "%s", n.why);
    cr_assert_eq(changes[0], 0);
    end();
}

Test(rdma_events, a_port_goes_down_at_once_and_comes_back_without_an_event)
{
    struct fake_device *d;
    uint64_t id;

    fake_reset();
    d = fake_add("fake0");
    begin();
    id = nic(0).id;
    fake_port_state(d, 1, IBV_PORT_DOWN, true);
    AWAIT(nic(0).state == MCT_RDMA_DOWN);
    AWAIT(changes[0] == 1);
    fake_port_state(d, 1, IBV_PORT_ACTIVE, false);
    AWAIT(nic(0).state == MCT_RDMA_UP);
    cr_assert_eq(nic(0).id, id);
    end();
}

Test(rdma_events, the_gid_is_chosen_anew)
{
    struct fake_gid gid = {.type = IBV_GID_TYPE_ROCE_V2};
    struct fake_device *d;

    fake_reset();
    d = fake_add("fake0");
    begin();
    cr_assert_eq(nic(0).gid_index, 1);
    memcpy(gid.gid, d->ports[0].gids[1].gid, 16);
    gid.gid[15] = 77;
    fake_gid(d, 1, 1, &gid, true);
    AWAIT(nic(0).gid[15] == 77);
    AWAIT(changes[0] >= 1);
    cr_assert_eq(nic(0).state, MCT_RDMA_UP);
    fake_gid(d, 1, 0, NULL, false);
    fake_gid(d, 1, 1, NULL, true);
    AWAIT(nic(0).state == MCT_RDMA_DOWN);
    cr_assert_eq(nic(0).gid_index, -1);
    end();
}

Test(rdma_events, a_queue_pairs_event_reaches_its_own_engine_only)
{
    struct mct_rdma_pair *p, *q;
    struct pollfd fd;
    struct fake_device *d;
    uint64_t n;

    fake_reset();
    d = fake_add("fake0");
    begin();
    p = new_pair(0);
    q = new_pair(0);
    connect_pairs(p, q);
    fd = (struct pollfd){.fd = mct_rdma_wake_fd(instance), .events = POLLIN};
    while (read(fd.fd, &n, sizeof(n)) > 0)
        continue;
    cr_assert(fake_qp_event(d, IBV_EVENT_QP_FATAL, p->own.qpn));
    cr_assert_eq(poll(&fd, 1, (int)WAIT_MS), 1);
    AWAIT(reached(p) == MCT_RDMA_STAGE_ERROR);
    cr_assert_eq(reached(q), MCT_RDMA_STAGE_LIVES);
    cr_assert_eq(mcs_load_acquire(&p->port->failed), 0);
    let_go(p);
    let_go(q);
    end();
}

Test(rdma_events, a_completion_queues_error_ends_its_port_and_the_next_pair_has_a_new_one)
{
    struct mct_rdma_pair *p, *q;
    struct mct_rdma_port *port;
    struct fake_device *d;

    fake_reset();
    d = fake_add("fake0");
    begin();
    p = new_pair(0);
    port = p->port;
    port->engine = &port; /* an engine that polls it */
    fake_cq_error(d);
    AWAIT(mcs_load_acquire(&port->failed) == 1);
    AWAIT(reached(p) == MCT_RDMA_STAGE_ERROR);
    cr_assert_eq(nic(0).state, MCT_RDMA_UP);
    q = new_pair(0);
    cr_assert_neq(q->port, port);
    let_go(p);
    usleep(50000); /* enough to be wrong in: nothing may happen */
    cr_assert_eq(fake_count(FAKE_CQ, d), 2, "destroyed under an engine that polls it");
    mct_rdma_port_put(port);
    AWAIT(fake_count(FAKE_CQ, d) == 1);
    let_go(q);
    end();
}

/* ---- lives ------------------------------------------------------------------------------ */

static void lose_and_come_back(bool replace)
{
    struct fake_device *d, *e;
    struct mct_rdma_memory *local, *remote;
    struct mct_rdma_pair *p;
    struct mct_rdma_port *port;
    uint64_t id, other, left, again;
    uint32_t lkey;
    unsigned keys;

    fake_reset();
    d = fake_add("fake0");
    e = fake_add("fake1");
    begin();
    local = new_memory(0);
    remote = new_memory(MCT_RDMA_REMOTE_READ);
    p = new_pair(0);
    port = p->port;
    port->engine = &port; /* an engine that polls it */
    cr_assert(mct_rdma_memory_lkey(local, port, bytes + 100, &lkey, &left));
    cr_assert_eq(left, MCT_RDMA_CHUNK_MIN - 100);
    cr_assert(mct_rdma_memory_keys(remote, 0, &id) != NULL);
    cr_assert_eq(id, nic(0).id);
    cr_assert(mct_rdma_memory_keys(remote, 1, &other) != NULL);
    cr_assert_neq(id, other);
    cr_assert_eq(nic(0).memory_regions, 2 * BYTES / MCT_RDMA_CHUNK_MIN);
    cr_assert_eq(nic(0).memory_bytes, 2 * BYTES);
    keys = key_changes;

    if (replace)
        fake_remove(d);
    else
        fake_fatal(d, true);
    AWAIT(nic(0).state == MCT_RDMA_CLOSED);
    cr_assert_eq(nic(0).id, 0);
    AWAIT(mct_rdma_memory_keys(remote, 0, &again) == NULL);
    AWAIT(key_changes > keys);
    AWAIT(!mct_rdma_memory_lkey(local, port, bytes, &lkey, &left));
    AWAIT(reached(p) == MCT_RDMA_STAGE_ERROR);
    cr_assert_eq(mcs_load_acquire(&port->failed), 1);
    AWAIT(nic(0).memory_regions == 0);
    cr_assert(mct_rdma_memory_keys(remote, 1, &again) != NULL && again == other,
              "the other one keeps its keys");
    /* nothing is opened anew while the engine holds what it had */
    cr_assert_eq(fake_count(FAKE_QP, NULL), 1);
    keys = key_changes;
    if (replace)
        fake_add("fake0");
    else
        fake_mend();
    let_go(p);
    mct_rdma_port_put(port);
    if (!replace) { /* this device stays broken */
        AWAIT(fake_count(FAKE_CONTEXT, d) == 0);
        destroy_memory(local);
        destroy_memory(remote);
        end();
        return;
    }
    AWAIT(nic(0).state == MCT_RDMA_UP);
    cr_assert(mct_rdma_memory_keys(remote, 0, &again) != NULL, "registered before it is up");
    cr_assert_eq(again, nic(0).id);
    cr_assert_neq(again, id);
    AWAIT(key_changes > keys);
    p = new_pair(0);
    cr_assert(mct_rdma_memory_lkey(local, p->port, bytes, &lkey, &left));
    let_go(p);
    destroy_memory(local);
    destroy_memory(remote);
    cr_assert_eq(fake_count(FAKE_MR, e), 0);
    end();
}

Test(rdma_lives, a_device_that_is_replaced_has_a_new_id_and_all_memory_before_it_is_up)
{
    lose_and_come_back(true);
}

Test(rdma_lives, a_fatal_device_lets_go_of_everything)
{
    lose_and_come_back(false);
}

Test(rdma_lives, a_nic_that_hangs_holds_up_no_other)
{
    struct fake_device *d;
    struct mct_rdma_memory *m;
    struct mct_rdma_range r = {.length = BYTES, .dmabuf_fd = -1};
    struct answer a = {0}, b = {0};
    struct mct_rdma_pair *stuck, *p, *q;

    fake_reset();
    d = fake_add("fake0");
    fake_add("fake1");
    begin();
    p = new_pair(1);
    r.address = bytes =
        mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    fake_block(FAKE_ANY, d);
    cr_assert_eq(mct_rdma_memory_create(rdma, &r, answered, &a, &m), 0);
    cr_assert_eq(mct_rdma_pair_create(rdma, 0, instance, 8, answered, &b, &stuck), 0);
    cr_assert(fake_await_blocked(d, 2));
    q = new_pair(1);
    connect_pairs(p, q);
    let_go(p);
    let_go(q);
    AWAIT(nic(1).memory_regions == BYTES / MCT_RDMA_CHUNK_MIN);
    cr_assert_eq(nic(0).memory_regions, 0);
    cr_assert_eq(a.count, 0);
    cr_assert_eq(b.count, 0);
    mct_rdma_pair_destroy(stuck);
    fake_unblock(d);
    AWAIT(a.count == 1);
    cr_assert_eq(a.res, 0, "%s", a.text);
    cr_assert_eq(b.count, 0, "a pair that is given up tells nobody");
    destroy_memory(m);
    AWAIT(fake_count(FAKE_QP, NULL) == 0);
    end();
}

Test(rdma_lives, a_nic_that_hangs_while_it_opens_does_not_keep_the_agent_from_starting,
     .timeout = 60)
{
    struct fake_device *d;

    fake_reset();
    d = fake_add("fake0");
    fake_add("fake1");
    fake_block(FAKE_OPEN_DEVICE, d);
    begin();
    cr_assert_eq(nic(0).state, MCT_RDMA_CLOSED);
    cr_assert(strstr(nic(0).why, "being opened") != NULL, "%s", nic(0).why);
    cr_assert_eq(nic(1).state, MCT_RDMA_UP);
    cr_assert(strstr(logged, "did not open") != NULL, "%s", logged);
    fake_unblock(d);
    AWAIT(nic(0).state == MCT_RDMA_UP);
    AWAIT(changes[0] >= 1);
    end();
}

Test(rdma_lives, a_nic_that_hangs_at_the_end_is_left_to_its_thread, .timeout = 60)
{
    struct fake_device *d;
    uint64_t began;

    fake_reset();
    d = fake_add("fake0");
    fake_add("fake1");
    begin();
    mct_rdma_ops.fini(instance);
    fake_block(FAKE_ANY, d);
    cr_assert(fake_await_blocked(d, 1)); /* the look at its port */
    began = mct_ms();
    mct_rdma_destroy(rdma);
    cr_assert_lt(mct_ms() - began, 15000);
    cr_assert(strstr(logged, "did not answer") != NULL, "%s", logged);
    cr_assert_eq(fake_count(FAKE_CONTEXT, NULL), 1);
    fake_unblock(d);
    for (began = mct_ms(); fake_count(FAKE_CONTEXT, NULL) != 0; usleep(1000))
        cr_assert_lt(mct_ms() - began, WAIT_MS);
    cr_assert_eq(fake_leaks(), 0);
}

Test(rdma_lives, a_cancelled_tasks_pair_does_not_wait_for_a_registration)
{
    struct fake_device *d;
    struct mct_rdma_memory *m, *old;
    struct mct_rdma_range r = {.length = BYTES, .dmabuf_fd = -1};
    struct answer a = {0};
    struct mct_rdma_pair *p;

    fake_reset();
    d = fake_add("fake0");
    begin();
    old = new_memory(0);
    p = new_pair(0);
    r.address = bytes;
    fake_block(FAKE_REG_MR, d);
    cr_assert_eq(mct_rdma_memory_create(rdma, &r, answered, &a, &m), 0);
    cr_assert(fake_await_blocked(d, BYTES / MCT_RDMA_CHUNK_MIN)); /* chunks at a time */
    let_go(p);
    destroy_memory(old); /* revoking does not wait either */
    cr_assert_eq(a.count, 0);
    fake_unblock(d);
    AWAIT(a.count == 1);
    destroy_memory(m);
    end();
}

Test(rdma_lives, busy_memory_is_let_go_in_the_end)
{
    struct fake_device *d;
    struct mct_rdma_memory *m;

    fake_reset();
    d = fake_add("fake0");
    begin();
    m = new_memory(0);
    fake_fail(FAKE_DEREG_MR, d, 1, 7, EBUSY);
    destroy_memory(m);
    cr_assert_eq(fake_count(FAKE_MR, d), 0);
    end();
}

/* What looks like a lost device, and is none the next moment, is no memory without keys. */
Test(rdma_lives, memory_is_registered_after_all_when_the_device_was_not_lost, .timeout = 60)
{
    struct mct_rdma_range r = {.length = BYTES,
                               .access = MCT_RDMA_REMOTE_READ,
                               .published = 0x5000000000,
                               .dmabuf_fd = -1};
    struct mct_rdma_memory *m;
    struct fake_device *d;
    struct answer a = {.res = -1};
    uint64_t id, before;

    fake_reset();
    d = fake_add("fake0");
    begin();
    before = nic(0).id;
    destroy_memory(new_memory(0)); /* for `bytes` */
    r.address = bytes;
    /* the nic's own look may take the second failure: then it was this call alone, and is said */
    for (int i = 0; i < 100 && a.res != 0; i++) {
        a = (struct answer){0};
        fake_fail(FAKE_REG_MR, d, 3, 1, EIO);
        fake_fail(FAKE_QUERY_PORT, d, 1, 1, EIO);
        cr_assert_eq(mct_rdma_memory_create(rdma, &r, answered, &a, &m), 0);
        AWAIT(a.count == 1);
        if (a.res != 0)
            destroy_memory(m);
    }
    cr_assert_eq(a.res, 0, "%s", a.text);
    if (nic(0).id == before)
        cr_assert(mct_rdma_memory_keys(m, 0, &id) != NULL);
    AWAIT(mct_rdma_memory_keys(m, 0, &id) != NULL && id == nic(0).id);
    destroy_memory(m);
    end();
}

Test(rdma_lives, a_life_that_cannot_have_all_memory_goes_on_with_the_rest)
{
    struct fake_device *d;
    struct mct_rdma_memory *a, *b;
    uint64_t id;
    unsigned have;

    fake_reset();
    d = fake_add("fake0");
    begin();
    a = new_memory(MCT_RDMA_REMOTE_READ);
    b = new_memory(MCT_RDMA_REMOTE_WRITE);
    fake_remove(d);
    AWAIT(nic(0).state == MCT_RDMA_CLOSED);
    d = fake_add("fake0");
    fake_fail(FAKE_REG_MR, d, 2, 1, ENOMEM);
    AWAIT(nic(0).state == MCT_RDMA_UP);
    have = (mct_rdma_memory_keys(a, 0, &id) != NULL) + (mct_rdma_memory_keys(b, 0, &id) != NULL);
    cr_assert_eq(have, 1);
    cr_assert_eq(nic(0).registrations_failed, 1);
    cr_assert(strstr(logged, "fake0/1") != NULL, "%s", logged);
    destroy_memory(a);
    destroy_memory(b);
    end();
}

/* ---- faults ----------------------------------------------------------------------------- */

Test(rdma_faults, sixteen_in_a_row_put_a_nic_out_for_a_while, .timeout = 60)
{
    struct mct_rdma_pair *p;
    uint64_t began;

    fake_reset();
    fake_add("fake0");
    begin();
    p = new_pair(0);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 15; i++)
            mct_rdma_fault(p->port);
        mct_rdma_fine(p->port);
    }
    usleep(50000); /* enough to be wrong in: nothing may happen */
    turn();
    cr_assert_eq(nic(0).state, MCT_RDMA_UP);
    cr_assert_eq(nic(0).faults, 45);
    began = mct_ms();
    for (int i = 0; i < 16; i++)
        mct_rdma_fault(p->port);
    AWAIT(nic(0).state == MCT_RDMA_DOWN);
    cr_assert(strstr(nic(0).why, "16 faults") != NULL, "%s", nic(0).why);
    AWAIT(nic(0).state == MCT_RDMA_UP);
    cr_assert_geq(mct_ms() - began, 4900);
    /* once more, and it is out for twice as long; a success clears the count */
    mct_rdma_fault(p->port);
    AWAIT(nic(0).state == MCT_RDMA_DOWN);
    cr_assert(strstr(nic(0).why, "10 s") != NULL, "%s", nic(0).why);
    let_go(p);
    end();
}

static uint64_t cpu_ms(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
    return (uint64_t)ts.tv_sec * 1000u + (uint64_t)ts.tv_nsec / 1000000u;
}

Test(rdma_faults, one_that_is_unplugged_while_it_is_out_leaves_its_thread_asleep, .timeout = 60)
{
    struct fake_device *d;
    struct mct_rdma_pair *p;
    uint64_t began, used;

    fake_reset();
    d = fake_add("fake0");
    begin();
    p = new_pair(0);
    began = mct_ms();
    for (int i = 0; i < 16; i++)
        mct_rdma_fault(p->port);
    AWAIT(nic(0).state == MCT_RDMA_DOWN);
    let_go(p);
    fake_remove(d);
    AWAIT(nic(0).state == MCT_RDMA_CLOSED);
    AWAIT(fake_count(FAKE_CONTEXT, NULL) == 0);
    AWAIT(mct_ms() - began > 5500); /* it would have come back by now */
    used = cpu_ms();
    began = mct_ms();
    AWAIT(mct_ms() - began > 2000);
    cr_assert_lt(cpu_ms() - used, 500, "it waits for the device without working");
    end();
}

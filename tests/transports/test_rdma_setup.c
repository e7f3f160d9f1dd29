/* SPDX-License-Identifier: Apache-2.0 */
/* From nothing to a connection and back, with each call failing in turn, and with devices that come to nothing. */
#include "tests/transports/rdma_host.h"

#include <sys/mman.h>

#include "tests/fake-verbs/fake.h"

#define MIB (UINT64_C(1) << 20)
#define PUBLISHED UINT64_C(0x700000000000)
#define READ_WRITE (MCT_RDMA_REMOTE_READ | MCT_RDMA_REMOTE_WRITE)
#define ROUNDS_MAX 400u

static void add_devices(unsigned n, struct fake_device *out[])
{
    fake_reset();
    for (unsigned i = 0; i < n; i++) {
        char name[16];

        snprintf(name, sizeof(name), "fake%u", i);
        out[i] = fake_add(name);
        out[i]->attr.max_mr_size = 8 * MIB;
    }
}

/* ---- every call in turn ---------------------------------------------------------- */

struct setup {
    struct host h;
    struct mct_rdma_range range;
    struct mct_rdma_memory *m;     /* for peers */
    struct mct_rdma_memory *local; /* the same, for this host */
    struct mct_rdma_pair *ends[2];
};

/* What bytes are sent from: the same memory as this host names it. */
static struct mct_rdma_range local_of(const struct mct_rdma_range *range)
{
    return (struct mct_rdma_range){.address = range->address,
                                   .length = range->length,
                                   .published = (uintptr_t)range->address,
                                   .dmabuf_fd = -1};
}

/* Goes as far as it can, and says whether that is all the way. */
static bool set_up(struct setup *s)
{
    struct mct_rdma_options o = host_options();
    struct mct_rdma_range local = local_of(&s->range);
    struct host_answer a, b;

    o.chunk = MIB;
    s->m = s->local = NULL;
    s->ends[0] = s->ends[1] = NULL;
    if (host_init(&s->h, &o) != 0)
        return false;
    if (mct_rdma_nics(s->h.r) != 2)
        return false;
    a = host_memory(&s->h, &local, &s->local);
    if (a.res != 0)
        return false;
    a = host_memory(&s->h, &s->range, &s->m);
    b = host_pair(&s->h, 0, &s->ends[0]);
    if (a.res != 0 || b.res != 0)
        return false;
    a = host_pair(&s->h, 1, &s->ends[1]);
    if (a.res != 0)
        return false;
    a = host_connect(&s->h, s->ends[0], mct_rdma_pair_end(s->ends[1]));
    b = host_connect(&s->h, s->ends[1], mct_rdma_pair_end(s->ends[0]));
    return a.res == 0 && b.res == 0;
}

static void tear_down(struct setup *s)
{
    for (unsigned i = 0; i < 2; i++)
        if (s->ends[i] != NULL)
            mct_rdma_pair_destroy(s->ends[i]);
    if (s->m != NULL)
        host_forget(&s->h, s->m);
    if (s->local != NULL)
        host_forget(&s->h, s->local);
    if (s->h.r != NULL)
        host_fini(&s->h);
}

/* The connection carries bytes, in the right places. */
static void check_works(struct setup *s)
{
    struct host_keys keys;
    uint8_t *p = s->range.address;
    uint32_t lkey;
    uint64_t left, peer = mct_rdma_pair_end(s->ends[1])->nic;

    host_keys(&s->h, s->m, &s->range, &keys);
    memset(p, 0, s->range.length);
    memset(p, 7, 100);
    cr_assert(mct_rdma_memory_lkey(s->local, s->ends[0]->port, p, &lkey, &left));
    for (unsigned n = 0; n < keys.k.nnics; n++)
        if (keys.k.nics[n] == peer)
            cr_assert_eq(host_post(s->ends[0], IBV_WR_RDMA_WRITE, p, lkey, 100, PUBLISHED + 2 * MIB,
                                   keys.rkeys[n * keys.k.nchunks + 2]),
                         IBV_WC_SUCCESS);
    cr_assert_eq(p[2 * MIB], 7);
    cr_assert_eq(p[2 * MIB + 99], 7);
    cr_assert_eq(p[2 * MIB + 100], 0);
}

static void each_call_fails_with(int error)
{
    struct setup s = {
        .range = {
            .length = 3 * MIB, .published = PUBLISHED, .access = READ_WRITE, .dmabuf_fd = -1}};
    struct fake_device *devices[2];
    const char *failed;
    unsigned n, whole = 0;

    s.range.address =
        mmap(NULL, s.range.length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert_neq(s.range.address, MAP_FAILED);
    for (n = 1; n < ROUNDS_MAX; n++) {
        add_devices(2, devices);
        fake_fail_at(n, error);
        bool works = set_up(&s);

        if (works && fake_failed() != NULL) { /* it was tried again, or was not needed */
            check_works(&s);
            whole++;
        }
        tear_down(&s);
        failed = fake_failed();
        cr_assert_eq(fake_leaks(), 0, "after call %u, %s", n, failed != NULL ? failed : "none");
        if (failed == NULL) {
            cr_assert(works);
            break;
        }
        fake_mend();
        cr_assert(set_up(&s), "the second try, after call %u, %s", n, failed);
        check_works(&s);
        tear_down(&s);
        cr_assert_eq(fake_leaks(), 0);
    }
    cr_assert_gt(n, 30, "there are many calls that may fail");
    cr_assert_lt(n, ROUNDS_MAX);
    cr_assert_lt(whole, n / 2, "most failures are seen");
    munmap(s.range.address, s.range.length);
    fake_reset();
}

TestSuite(rdma_setup, .timeout = 240);

Test(rdma_setup, each_call_out_of_memory_leaves_nothing)
{
    each_call_fails_with(ENOMEM);
}

Test(rdma_setup, each_call_refused_leaves_nothing)
{
    each_call_fails_with(EINVAL);
}

Test(rdma_setup, each_call_of_a_dying_device_leaves_nothing)
{
    each_call_fails_with(EIO);
}

/* What ends badly is tried again, and nothing is given up. */
Test(rdma_setup, each_end_that_fails_is_tried_again)
{
    static const enum fake_call ends[] = {FAKE_DESTROY_QP, FAKE_DESTROY_SRQ, FAKE_DESTROY_CQ,
                                          FAKE_DESTROY_CHANNEL, FAKE_DEREG_MR};
    struct setup s = {
        .range = {
            .length = 3 * MIB, .published = PUBLISHED, .access = READ_WRITE, .dmabuf_fd = -1}};
    struct fake_device *devices[2];

    s.range.address =
        mmap(NULL, s.range.length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert_neq(s.range.address, MAP_FAILED);
    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++)
        for (unsigned nth = 1; nth <= 3; nth++) {
            add_devices(2, devices);
            cr_assert(set_up(&s));
            fake_fail(ends[i], NULL, nth, 2, EBUSY);
            tear_down(&s);
            cr_assert_eq(fake_leaks(), 0, "%s, number %u", fake_call_name(ends[i]), nth);
        }
    munmap(s.range.address, s.range.length);
    fake_reset();
}

/* ---- devices that come to nothing ------------------------------------------------ */

static bool has(const struct fake_device *d, uint32_t rkey, uint64_t iova)
{
    struct fake_region r;

    for (unsigned i = 0; fake_region(d, i, &r); i++)
        if (r.rkey == rkey && r.iova == iova)
            return true;
    return false;
}

/* Each nic that is up has the keys of its own device and no other's, in its own place. */
static void check_keys(struct host *h, const struct mct_rdma_memory *m,
                       struct fake_device *const *devices, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        struct mct_rdma_nic nic;
        const uint32_t *keys;
        char name[24];
        uint64_t id = 0;

        mct_rdma_nic(h->r, i, &nic);
        snprintf(name, sizeof(name), "fake%u/1", i);
        cr_assert_str_eq(nic.name, name, "its place in the table is its own for ever");
        keys = mct_rdma_memory_keys(m, i, &id);
        if (nic.state != MCT_RDMA_UP) {
            cr_assert_null(keys);
            cr_assert_neq(nic.why[0], 0);
            continue;
        }
        cr_assert_not_null(keys);
        cr_assert_eq(id, nic.id);
        for (uint64_t c = 0; c < 3; c++)
            cr_assert(has(devices[i], keys[c], PUBLISHED + c * MIB), "nic %u, chunk %lu", i,
                      (unsigned long)c);
    }
}

/* WRITEs between all pairs of nics that are up: only the right keys get through. */
static void check_moves(struct host *h, const struct mct_rdma_memory *m,
                        const struct mct_rdma_range *range, unsigned n)
{
    struct mct_rdma_range own = local_of(range);
    struct mct_rdma_memory *local;
    struct host_keys keys;
    uint8_t *p = range->address;

    cr_assert_eq(host_memory(h, &own, &local).res, 0);
    host_keys(h, m, range, &keys);
    for (unsigned from = 0; from < n; from++)
        for (unsigned to = 0; to < n; to++) {
            struct mct_rdma_pair *ends[2];
            uint8_t mark = (uint8_t)(16 * from + to + 1);

            if (from == to || host_state(h, from) != MCT_RDMA_UP ||
                host_state(h, to) != MCT_RDMA_UP)
                continue;
            host_join(h, from, to, ends);
            memset(p, mark, 4096);
            for (uint64_t c = 1; c < 3; c++) {
                cr_assert_eq(host_move(ends[0], IBV_WR_RDMA_WRITE, local, p, &keys.k,
                                       mct_rdma_pair_end(ends[1])->nic, c * MIB, 4096),
                             IBV_WC_SUCCESS);
                cr_assert_eq(p[c * MIB + 4095], mark);
            }
            mct_rdma_pair_destroy(ends[0]);
            mct_rdma_pair_destroy(ends[1]);
        }
    host_forget(h, local);
}

Test(rdma_setup, a_device_that_does_not_open_shifts_nobody)
{
    static const enum fake_call where[] = {FAKE_OPEN_DEVICE, FAKE_QUERY_DEVICE, FAKE_QUERY_PORT,
                                           FAKE_ALLOC_PD};
    struct mct_rdma_range range = {
        .length = 3 * MIB, .published = PUBLISHED, .access = READ_WRITE, .dmabuf_fd = -1};

    range.address =
        mmap(NULL, range.length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert_neq(range.address, MAP_FAILED);
    for (size_t w = 0; w < sizeof(where) / sizeof(where[0]); w++)
        for (unsigned k = 0; k < 3; k++) {
            struct mct_rdma_options o = host_options();
            struct fake_device *devices[3];
            struct mct_rdma_memory *m;
            struct mct_rdma_nic nic;
            struct host_answer a;
            struct host h;

            add_devices(3, devices);
            o.chunk = MIB;
            o.devices = "fake0/1, fake1/1, fake2/1";
            fake_fail(where[w], devices[k], 1, 1000,
                      where[w] == FAKE_OPEN_DEVICE ? EACCES : ENOMEM);
            cr_assert_eq(host_init(&h, &o), 0);
            cr_assert_eq(mct_rdma_nics(h.r), 3);
            mct_rdma_nic(h.r, k, &nic);
            cr_assert_eq(nic.state, MCT_RDMA_CLOSED);
            a = host_memory(&h, &range, &m);
            cr_assert_eq(a.res, 0, "%s", a.text);
            check_keys(&h, m, devices, 3);
            check_moves(&h, m, &range, 3);
            cr_assert_eq(fake_count(FAKE_CONTEXT, devices[k]), 0, "nothing of it is left open");
            if (k == w % 3) { /* it is tried again after a second: now it gets in */
                fake_mend();
                h.key_changes = 0;
                host_await(&h, host_state(&h, k) == MCT_RDMA_UP);
                cr_assert_gt(h.key_changes, 0, "peers have to be told");
                check_keys(&h, m, devices, 3);
                check_moves(&h, m, &range, 3);
            }
            host_forget(&h, m);
            host_fini(&h);
            cr_assert_eq(fake_leaks(), 0);
        }
    munmap(range.address, range.length);
    fake_reset();
}

Test(rdma_setup, a_device_that_is_lost_takes_its_keys_with_it)
{
    struct mct_rdma_range range = {
        .length = 3 * MIB, .published = PUBLISHED, .access = READ_WRITE, .dmabuf_fd = -1};

    range.address =
        mmap(NULL, range.length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert_neq(range.address, MAP_FAILED);
    for (unsigned k = 0; k < 3; k++) {
        struct mct_rdma_options o = host_options();
        struct fake_device *devices[3];
        struct mct_rdma_memory *m;
        struct mct_rdma_nic nic;
        struct host h;
        uint64_t id;
        char name[16];

        add_devices(3, devices);
        o.chunk = MIB;
        cr_assert_eq(host_init(&h, &o), 0);
        cr_assert_eq(host_memory(&h, &range, &m).res, 0);
        check_keys(&h, m, devices, 3);
        mct_rdma_nic(h.r, k, &nic);
        id = nic.id;
        h.key_changes = 0;
        fake_remove(devices[k]);
        host_await(&h,
                   host_state(&h, k) == MCT_RDMA_CLOSED && fake_count(FAKE_MR, devices[k]) == 0);
        cr_assert_gt(h.key_changes, 0, "peers have to be told");
        check_keys(&h, m, devices, 3);
        check_moves(&h, m, &range, 3);
        /* another one of its name is another device */
        snprintf(name, sizeof(name), "fake%u", k);
        devices[k] = fake_add(name);
        host_await(&h, host_state(&h, k) == MCT_RDMA_UP);
        mct_rdma_nic(h.r, k, &nic);
        cr_assert_neq(nic.id, id);
        check_keys(&h, m, devices, 3);
        check_moves(&h, m, &range, 3);
        host_forget(&h, m);
        host_fini(&h);
        cr_assert_eq(fake_leaks(), 0);
    }
    munmap(range.address, range.length);
    fake_reset();
}

Test(rdma_setup, the_lower_of_both_ends_limits_holds)
{
    struct mct_rdma_options o = host_options();
    struct fake_device *devices[2];
    struct mct_rdma_pair *ends[2];
    struct ibv_qp_attr attr[2];
    struct host h;

    add_devices(2, devices);
    devices[0]->ports[0].attr.active_mtu = IBV_MTU_4096;
    devices[1]->ports[0].attr.active_mtu = IBV_MTU_512;
    devices[0]->attr.max_qp_rd_atom = devices[0]->attr.max_qp_init_rd_atom = 2;
    devices[0]->max_inline = 30;
    devices[1]->max_inline = 0;
    cr_assert_eq(host_init(&h, &o), 0);
    host_join(&h, 0, 1, ends);
    for (unsigned i = 0; i < 2; i++) {
        cr_assert_neq(fake_qp(devices[i], 0, &attr[i]), 0);
        cr_assert_eq(attr[i].qp_state, IBV_QPS_RTS);
        cr_assert_eq(attr[i].path_mtu, IBV_MTU_512);
    }
    cr_assert_leq(attr[0].max_rd_atomic, attr[1].max_dest_rd_atomic);
    cr_assert_leq(attr[1].max_rd_atomic, attr[0].max_dest_rd_atomic);
    cr_assert_eq(ends[1]->reads, 2, "no more than the other one takes");
    cr_assert_eq(attr[0].sq_psn, attr[1].rq_psn);
    cr_assert_eq(attr[1].sq_psn, attr[0].rq_psn);
    cr_assert_leq(ends[0]->max_inline, 30);
    cr_assert_gt(ends[0]->max_inline, 0);
    cr_assert_eq(ends[1]->max_inline, 0);
    mct_rdma_pair_destroy(ends[0]);
    mct_rdma_pair_destroy(ends[1]);
    host_fini(&h);
    cr_assert_eq(fake_leaks(), 0);
}

Test(rdma_setup, a_device_that_hangs_holds_up_itself_alone)
{
    struct mct_rdma_options o = host_options();
    struct fake_device *devices[3];
    struct mct_rdma_pair *ends[2], *stuck;
    struct host_answer a = {0};
    struct host h;

    add_devices(3, devices);
    cr_assert_eq(host_init(&h, &o), 0);
    fake_block(FAKE_ANY, devices[0]);
    cr_assert_eq(mct_rdma_pair_create(h.r, 0, h.engine, 1, host_answered, &a, &stuck), 0);
    cr_assert(fake_await_blocked(devices[0], 1));
    host_join(&h, 1, 2, ends);
    cr_assert_eq(a.n, 0);
    mct_rdma_pair_destroy(ends[0]);
    mct_rdma_pair_destroy(ends[1]);
    host_await(&h, fake_count(FAKE_QP, NULL) == 0);
    fake_unblock(devices[0]);
    host_await(&h, a.n == 1);
    cr_assert_eq(a.res, 0, "%s", a.text);
    mct_rdma_pair_destroy(stuck);
    host_fini(&h);
    cr_assert_eq(fake_leaks(), 0);
}

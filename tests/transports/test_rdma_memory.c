/* SPDX-License-Identifier: Apache-2.0 */
/* Registering memory on all nics: chunks, rights, limits, failures, ends. */
#include "tests/transports/rdma_host.h"

#include <sys/mman.h>
#include <sys/resource.h>

#include "tests/fake-verbs/fake.h"

#define MIB (UINT64_C(1) << 20)
#define PUBLISHED UINT64_C(0x700000000000)
#define READ_WRITE (MCT_RDMA_REMOTE_READ | MCT_RDMA_REMOTE_WRITE)

static struct host h;
static struct fake_device *devices[3];

static void *map(uint64_t length)
{
    void *p = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    cr_assert_neq(p, MAP_FAILED);
    return p;
}

static void add_devices(unsigned n)
{
    fake_reset();
    for (unsigned i = 0; i < n; i++) {
        char name[16];

        snprintf(name, sizeof(name), "fake%u", i);
        devices[i] = fake_add(name);
    }
}

static void open_all(unsigned n)
{
    struct mct_rdma_options o = host_options();

    cr_assert_eq(host_init(&h, &o), 0);
    cr_assert_eq(mct_rdma_nics(h.r), n);
    for (unsigned i = 0; i < n; i++)
        host_await(&h, host_state(&h, i) == MCT_RDMA_UP);
}

static void close_all(void)
{
    host_fini(&h);
    cr_assert_eq(fake_leaks(), 0);
    fake_reset();
}

/* Some sums that no mix-up of bytes keeps. */
static void fill(uint8_t *p, uint64_t n, uint64_t seed)
{
    for (uint64_t i = 0; i < n; i++) {
        seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407;
        p[i] = (uint8_t)(seed >> 56);
    }
}

TestSuite(rdma_memory, .timeout = 120);

Test(rdma_memory, larger_than_a_region_may_be_is_cut_and_whole)
{
    static const struct {
        uint64_t at, length;
    } moves[] = {{0, 1},           {0, 5 * MIB},     {2 * MIB - 1, 2},       {3 * MIB, 4096},
                 {5 * MIB - 1, 1}, {2 * MIB, 1},     {2 * MIB - 1, MIB + 2}, {4 * MIB, MIB},
                 {MIB, 3 * MIB},   {4 * MIB - 1, 1}, {1, 4 * MIB + 5}};
    struct mct_rdma_range local = {.length = 5 * MIB, .dmabuf_fd = -1},
                          remote = {.length = 5 * MIB,
                                    .published = PUBLISHED + 4096,
                                    .access = READ_WRITE,
                                    .dmabuf_fd = -1};
    struct mct_rdma_memory *lm, *rm;
    struct mct_rdma_pair *ends[2];
    struct host_keys keys;
    struct fake_region region;
    uint8_t *l, *r;

    add_devices(2);
    devices[0]->attr.max_mr_size = 2 * MIB;
    devices[1]->attr.max_mr_size = 3 * MIB + 4096; /* the lesser one holds for all */
    open_all(2);
    l = local.address = map(local.length);
    local.published = (uintptr_t)l;
    r = remote.address = map(remote.length);
    cr_assert_eq(host_memory(&h, &local, &lm).res, 0);
    cr_assert_eq(host_memory(&h, &remote, &rm).res, 0);
    cr_assert_eq(mct_rdma_memory_chunk(rm), 2 * MIB);
    for (unsigned d = 0; d < 2; d++) {
        uint64_t bytes = 0;

        cr_assert_eq(fake_count(FAKE_MR, devices[d]), 6);
        for (unsigned i = 0; fake_region(devices[d], i, &region); i++) {
            cr_assert_leq(region.length, 2 * MIB);
            bytes += region.length;
        }
        cr_assert_eq(bytes, 10 * MIB);
    }
    host_keys(&h, rm, &remote, &keys);
    cr_assert_eq(keys.k.nchunks, 3);
    cr_assert_eq(keys.k.nnics, 2);
    host_join(&h, 0, 1, ends);
    for (size_t i = 0; i < sizeof(moves) / sizeof(moves[0]); i++) {
        uint64_t at = moves[i].at, n = moves[i].length, peer = mct_rdma_pair_end(ends[1])->nic;

        fill(l + at, n, i);
        memset(r, 0x55, remote.length);
        cr_assert_eq(host_move(ends[0], IBV_WR_RDMA_WRITE, lm, l + at, &keys.k, peer, at, n),
                     IBV_WC_SUCCESS);
        cr_assert_arr_eq(l + at, r + at, n);
        cr_assert(at == 0 || r[at - 1] == 0x55);
        cr_assert(at + n == remote.length || r[at + n] == 0x55);
        memset(l, 0, local.length);
        cr_assert_eq(host_move(ends[0], IBV_WR_RDMA_READ, lm, l + at, &keys.k, peer, at, n),
                     IBV_WC_SUCCESS);
        cr_assert_arr_eq(l + at, r + at, n);
    }
    mct_rdma_pair_destroy(ends[0]);
    mct_rdma_pair_destroy(ends[1]);
    host_forget(&h, lm);
    host_forget(&h, rm);
    munmap(l, local.length);
    munmap(r, remote.length);
    close_all();
}

Test(rdma_memory, chunks_are_whole_units_where_the_limit_allows_it)
{
    static const struct {
        uint64_t limit, chunk;
    } cases[] = {
        {0, 1024 * MIB},       {UINT64_MAX, 1024 * MIB}, {3 * MIB + 123, 3 * MIB}, {MIB, MIB},
        {MIB - 1, MIB - 4096}, {64 * 1024, 64 * 1024},   {1024 * MIB, 1024 * MIB}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct mct_rdma_range range = {.length = 4096, .dmabuf_fd = -1};
        struct mct_rdma_memory *m;
        struct host_answer a;

        add_devices(1);
        devices[0]->attr.max_mr_size = cases[i].limit;
        open_all(1);
        range.address = map(range.length);
        range.published = (uintptr_t)range.address;
        a = host_memory(&h, &range, &m);
        cr_assert_eq(a.res, 0, "%s", a.text);
        cr_assert_eq(mct_rdma_memory_chunk(m), cases[i].chunk);
        host_forget(&h, m);
        munmap(range.address, range.length);
        close_all();
    }
}

Test(rdma_memory, offsets_of_a_dmabuf_go_on_in_every_chunk)
{
    const uint64_t offset = MIB + 8192, length = 5 * MIB;
    struct mct_rdma_range local = {.length = length, .dmabuf_fd = -1},
                          remote = {.length = length,
                                    .published = PUBLISHED,
                                    .access = READ_WRITE,
                                    .dmabuf_offset = offset};
    struct mct_rdma_memory *lm, *rm;
    struct mct_rdma_pair *ends[2];
    struct host_keys keys;
    struct fake_region region;
    uint8_t *l, *whole;
    unsigned dmabufs = 0;

    add_devices(2);
    devices[0]->attr.max_mr_size = 2 * MIB;
    open_all(2);
    remote.dmabuf_fd = memfd_create("dmabuf", MFD_CLOEXEC);
    cr_assert_geq(remote.dmabuf_fd, 0);
    cr_assert_eq(ftruncate(remote.dmabuf_fd, (off_t)(8 * MIB)), 0);
    whole = mmap(NULL, 8 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED, remote.dmabuf_fd, 0);
    cr_assert_neq(whole, MAP_FAILED);
    l = local.address = map(length);
    local.published = (uintptr_t)l;
    cr_assert_eq(host_memory(&h, &local, &lm).res, 0);
    cr_assert_eq(host_memory(&h, &remote, &rm).res, 0);
    for (unsigned i = 0; fake_region(devices[1], i, &region); i++)
        if (region.fd >= 0) {
            cr_assert_eq(region.offset - offset, region.iova - PUBLISHED);
            dmabufs++;
        }
    cr_assert_eq(dmabufs, 3);
    host_keys(&h, rm, &remote, &keys);
    host_join(&h, 0, 1, ends);
    fill(l, length, 3);
    cr_assert_eq(host_move(ends[0], IBV_WR_RDMA_WRITE, lm, l, &keys.k,
                           mct_rdma_pair_end(ends[1])->nic, 0, length),
                 IBV_WC_SUCCESS);
    cr_assert_arr_eq(whole + offset, l, length);
    cr_assert_eq(whole[offset - 1], 0);
    cr_assert_eq(whole[offset + length], 0);
    mct_rdma_pair_destroy(ends[0]);
    mct_rdma_pair_destroy(ends[1]);
    host_forget(&h, lm);
    host_forget(&h, rm);
    close(remote.dmabuf_fd);
    munmap(whole, 8 * MIB);
    munmap(l, length);
    close_all();
}

Test(rdma_memory, a_chunk_that_fails_takes_all_of_them_back)
{
    struct mct_rdma_range range = {
        .length = 5 * MIB, .published = PUBLISHED, .access = READ_WRITE, .dmabuf_fd = -1};
    struct mct_rdma_memory *m;
    struct mct_rdma_nic nic;
    struct host_answer a;

    add_devices(2);
    devices[0]->attr.max_mr_size = devices[1]->attr.max_mr_size = 2 * MIB;
    open_all(2);
    range.address = map(range.length);
    for (unsigned d = 0; d < 2; d++)
        for (unsigned nth = 1; nth <= 3; nth++) {
            uint64_t id;

            fake_fail(FAKE_REG_MR, devices[d], nth, 1, EINVAL);
            a = host_memory(&h, &range, &m);
            cr_assert_eq(a.res, -EINVAL);
            cr_assert_not_null(strstr(a.text, "5242880"), "what was wanted: %s", a.text);
            cr_assert_not_null(strstr(a.text, "2097152"), "the limit: %s", a.text);
            cr_assert_not_null(strstr(a.text, devices[d]->name), "%s", a.text);
            cr_assert_eq(fake_count(FAKE_MR, NULL), 0, "%u of %u", nth, d);
            cr_assert_null(mct_rdma_memory_keys(m, 0, &id));
            cr_assert_null(mct_rdma_memory_keys(m, 1, &id));
            host_forget(&h, m);
            fake_mend();
        }
    mct_rdma_nic(h.r, 0, &nic);
    cr_assert_eq(nic.memory_regions, 0);
    cr_assert_eq(nic.memory_bytes, 0);
    cr_assert_eq(nic.registrations_failed, 3);
    cr_assert_eq(host_memory(&h, &range, &m).res, 0, "nothing is left that would be in the way");
    host_forget(&h, m);
    munmap(range.address, range.length);
    close_all();
}

Test(rdma_memory, too_little_memory_that_may_be_locked_is_told_with_its_remedy)
{
    struct rlimit limit, before;
    struct mct_rdma_range range = {
        .length = MIB, .published = PUBLISHED, .access = READ_WRITE, .dmabuf_fd = -1};
    struct mct_rdma_memory *m;
    struct host_answer a;

    add_devices(2);
    open_all(2);
    range.address = map(range.length);
    cr_assert_eq(getrlimit(RLIMIT_MEMLOCK, &before), 0);
    limit = before;
    limit.rlim_cur = 65536;
    cr_assert_eq(setrlimit(RLIMIT_MEMLOCK, &limit), 0);
    fake_memlock(MIB + MIB / 2); /* enough for one of them */
    a = host_memory(&h, &range, &m);
    cr_assert_eq(a.res, -ENOMEM);
    cr_assert_not_null(strstr(a.text, "1048576"), "%s", a.text);
    cr_assert_not_null(strstr(a.text, "65536"), "%s", a.text);
    cr_assert_not_null(strstr(a.text, "LimitMEMLOCK=infinity"), "%s", a.text);
    cr_assert_not_null(strstr(a.text, "fake"), "%s", a.text);
    cr_assert_eq(fake_count(FAKE_MR, NULL), 0, "the other device's is taken back");
    host_forget(&h, m);
    cr_assert_eq(setrlimit(RLIMIT_MEMLOCK, &before), 0);
    fake_memlock(2 * MIB);
    cr_assert_eq(host_memory(&h, &range, &m).res, 0);
    host_forget(&h, m);
    munmap(range.address, range.length);
    close_all();
}

Test(rdma_memory, a_device_without_a_free_region_says_how_many_it_has)
{
    struct mct_rdma_range range = {
        .length = 4096, .published = PUBLISHED, .access = READ_WRITE, .dmabuf_fd = -1};
    struct mct_rdma_memory *m[3];
    struct host_answer a;

    add_devices(1);
    devices[0]->attr.max_mr = 2;
    open_all(1);
    range.address = map(range.length);
    cr_assert_eq(host_memory(&h, &range, &m[0]).res, 0);
    cr_assert_eq(host_memory(&h, &range, &m[1]).res, 0);
    a = host_memory(&h, &range, &m[2]);
    cr_assert_eq(a.res, -ENOMEM);
    cr_assert_not_null(strstr(a.text, "fake0/1"), "%s", a.text);
    if (strstr(a.text, "RLIMIT_MEMLOCK") ==
        NULL) /* where that is limited it is the likelier reason */
        cr_assert_not_null(strstr(a.text, "limit is 2"), "%s", a.text);
    for (unsigned i = 0; i < 3; i++)
        host_forget(&h, m[i]);
    munmap(range.address, range.length);
    close_all();
}

Test(rdma_memory, peers_may_do_what_was_published_and_nothing_else)
{
    for (unsigned access = 0; access <= READ_WRITE; access++)
        for (unsigned op = 0; op < 2; op++) {
            bool reads = op == 0;
            bool may = (access & (reads ? MCT_RDMA_REMOTE_READ : MCT_RDMA_REMOTE_WRITE)) != 0;
            struct mct_rdma_range local = {.length = 4096, .dmabuf_fd = -1},
                                  remote = {.length = 8192, .access = access, .dmabuf_fd = -1};
            struct mct_rdma_memory *lm, *rm;
            struct mct_rdma_pair *ends[2];
            struct host_keys keys;
            enum ibv_wc_status status;
            uint8_t *l, *r;

            add_devices(2);
            open_all(2);
            l = local.address = map(local.length);
            local.published = (uintptr_t)l;
            r = remote.address = map(remote.length);
            remote.published = access == 0 ? (uintptr_t)r : PUBLISHED;
            cr_assert_eq(host_memory(&h, &local, &lm).res, 0);
            cr_assert_eq(host_memory(&h, &remote, &rm).res, 0);
            host_keys(&h, rm, &remote, &keys);
            host_join(&h, 0, 1, ends);
            memset(l, 1, local.length);
            memset(r, 2, remote.length);
            status = host_move(ends[0], reads ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE, lm, l,
                               &keys.k, mct_rdma_pair_end(ends[1])->nic, 0, 4096);
            cr_assert_eq(status, may ? IBV_WC_SUCCESS : IBV_WC_REM_ACCESS_ERR, "access %u, %s",
                         access, reads ? "READ" : "WRITE");
            cr_assert_eq(l[0], may && reads ? 2 : 1);
            cr_assert_eq(r[0], may && !reads ? 1 : 2);
            mct_rdma_pair_destroy(ends[0]);
            mct_rdma_pair_destroy(ends[1]);
            host_forget(&h, lm);
            host_forget(&h, rm);
            munmap(l, local.length);
            munmap(r, remote.length);
            close_all();
        }
}

/* The agent's own memory is written by READs that this host makes, whatever peers may do with it. */
Test(rdma_memory, local_memory_takes_what_is_read_into_it)
{
    struct mct_rdma_range range = {.length = 4096, .dmabuf_fd = -1};
    struct mct_rdma_memory *m;
    struct fake_region region;

    add_devices(1);
    open_all(1);
    range.address = map(range.length);
    range.published = (uintptr_t)range.address;
    cr_assert_eq(host_memory(&h, &range, &m).res, 0);
    cr_assert(fake_region(devices[0], 0, &region));
    cr_assert_eq(region.access, IBV_ACCESS_LOCAL_WRITE);
    cr_assert_eq(region.iova, (uintptr_t)range.address);
    host_forget(&h, m);
    munmap(range.address, range.length);
    close_all();
}

struct ending {
    unsigned n, regions; /* when it was told */
};

static void ended(void *context, int res, const char *text)
{
    struct ending *e = context;

    cr_assert_eq(res, 0, "%s", text);
    e->n++;
    e->regions = fake_count(FAKE_MR, NULL);
}

Test(rdma_memory, no_device_reaches_it_once_its_end_is_told)
{
    struct mct_rdma_range range = {
        .length = 3 * MIB, .published = PUBLISHED, .access = READ_WRITE, .dmabuf_fd = -1};
    struct mct_rdma_memory *m;
    struct ending e = {0};

    add_devices(3);
    devices[1]->attr.max_mr_size = MIB;
    open_all(3);
    range.address = map(range.length);
    cr_assert_eq(host_memory(&h, &range, &m).res, 0);
    cr_assert_eq(fake_count(FAKE_MR, NULL), 9);
    /* firmware that finds it busy, and says so several times */
    fake_fail(FAKE_DEREG_MR, devices[0], 2, 4, EBUSY);
    fake_fail(FAKE_DEREG_MR, devices[2], 1, 2, EAGAIN);
    mct_rdma_memory_destroy(h.r, m, ended, &e);
    host_await(&h, e.n == 1);
    cr_assert_eq(e.regions, 0);
    munmap(range.address, range.length);
    close_all();
}

Test(rdma_memory, a_device_that_hangs_keeps_its_own_alone)
{
    struct mct_rdma_range range = {
        .length = 2 * MIB, .published = PUBLISHED, .access = READ_WRITE, .dmabuf_fd = -1};
    struct mct_rdma_memory *m, *other;
    struct mct_rdma_pair *ends[2];
    struct host_answer a = {0}, b = {0};

    add_devices(2);
    open_all(2);
    range.address = map(range.length);
    cr_assert_eq(host_memory(&h, &range, &other).res, 0);
    fake_block(FAKE_REG_MR, devices[1]);
    cr_assert_eq(mct_rdma_memory_create(h.r, &range, host_answered, &a, &m), 0);
    cr_assert(fake_await_blocked(devices[1], 1));
    /* the other device registers, and both make queue pairs and let memory go */
    host_await(&h, fake_count(FAKE_MR, devices[0]) == 2);
    cr_assert_eq(a.n, 0, "not before all have it");
    fake_unblock(devices[1]);
    host_join(&h, 0, 1, ends); /* makes its message buffers, which are registered, too */
    host_await(&h, a.n == 1);
    cr_assert_eq(a.res, 0, "%s", a.text);
    fake_block(FAKE_REG_MR, devices[1]);
    mct_rdma_memory_destroy(h.r, other, host_answered, &b);
    host_await(&h, b.n == 1);
    fake_unblock(devices[1]);
    /* one that hangs in letting go keeps the memory, and the other one does not */
    fake_block(FAKE_DEREG_MR, devices[1]);
    b = (struct host_answer){0};
    mct_rdma_memory_destroy(h.r, m, host_answered, &b);
    cr_assert(fake_await_blocked(devices[1], 1));
    host_await(&h, fake_count(FAKE_MR, devices[0]) == 1); /* the message buffers */
    cr_assert_eq(b.n, 0);
    fake_unblock(devices[1]);
    host_await(&h, b.n == 1);
    mct_rdma_pair_destroy(ends[0]);
    mct_rdma_pair_destroy(ends[1]);
    munmap(range.address, range.length);
    close_all();
}

Test(rdma_memory, a_local_key_tells_how_far_it_reaches)
{
    struct mct_rdma_range range = {.length = 2 * MIB + 10, .dmabuf_fd = -1};
    struct mct_rdma_memory *m;
    struct mct_rdma_pair *ends[2];
    uint8_t *p;
    uint32_t first, key;
    uint64_t left;

    add_devices(2);
    devices[0]->attr.max_mr_size = MIB;
    open_all(2);
    p = range.address = map(range.length);
    range.published = (uintptr_t)p;
    cr_assert_eq(host_memory(&h, &range, &m).res, 0);
    host_join(&h, 0, 1, ends);
    cr_assert(mct_rdma_memory_lkey(m, ends[0]->port, p, &first, &left));
    cr_assert_eq(left, MIB);
    cr_assert(mct_rdma_memory_lkey(m, ends[0]->port, p + MIB - 1, &key, &left));
    cr_assert_eq(left, 1);
    cr_assert_eq(key, first);
    cr_assert(mct_rdma_memory_lkey(m, ends[0]->port, p + MIB, &key, &left));
    cr_assert_eq(left, MIB);
    cr_assert_neq(key, first);
    cr_assert(mct_rdma_memory_lkey(m, ends[0]->port, p + 2 * MIB + 9, &key, &left));
    cr_assert_eq(left, 1);
    cr_assert_not(mct_rdma_memory_lkey(m, ends[0]->port, p + 2 * MIB + 10, &key, &left));
    cr_assert_not(mct_rdma_memory_lkey(m, ends[0]->port, p - 1, &key, &left));
    cr_assert(mct_rdma_memory_lkey(m, ends[1]->port, p, &key, &left));
    cr_assert_neq(key, first, "each device has its own");
    mct_rdma_pair_destroy(ends[0]);
    mct_rdma_pair_destroy(ends[1]);
    host_forget(&h, m);
    munmap(p, range.length);
    close_all();
}

Test(rdma_memory, nonsense_is_no_range)
{
    uint8_t *p = map(4096);
    const struct mct_rdma_range bad[] = {
        {.address = p, .length = 0, .published = PUBLISHED, .dmabuf_fd = -1},
        {.address = NULL, .length = 4096, .published = PUBLISHED, .dmabuf_fd = -1},
        {.address = p, .length = 4096, .published = UINT64_MAX - 4094, .dmabuf_fd = -1},
        {.address = p, .length = 4096, .published = PUBLISHED, .access = 4, .dmabuf_fd = -1}};
    struct mct_rdma_memory *m;

    add_devices(1);
    open_all(1);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        cr_assert_eq(mct_rdma_memory_create(h.r, &bad[i], NULL, NULL, &m), -EINVAL, "%zu", i);
    munmap(p, 4096);
    close_all();
}

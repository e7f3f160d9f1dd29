/* SPDX-License-Identifier: Apache-2.0 */
/* RDMA keys in the descriptions of segments: what is written, what is read, and what is nonsense. */
#include <errno.h>

#include "daemon/keys.h"
#include "daemon/wire.h"
#include "rdma_agent.h"
#include "tests/fake-verbs/fake.h" /* linked with it: Makefile */

#define CHUNK (UINT64_C(1) << 20)
#define RW (MCS_ACCESS_READ | MCS_ACCESS_WRITE)

TestSuite(keys, .timeout = 60);

/* ---- read --------------------------------------------------------------------------- */

/* A page that is good: three buffers, of which the first has three chunks on two devices, the second one none, the third
 * one chunk on the second device. */
struct page {
    uint64_t address[3], length[3], nic[3], chunk[3];
    uint32_t access[3], nics[3], rkey[8];
    int32_t node[3];
    Mcd__Buffers m;
};

static void make_page(struct page *p)
{
    *p = (struct page){
        .address = {0x10000000, 0x20000000, 0x30000000},
        .length = {2500, 100, 1000},
        .nic = {7, 9},
        .chunk = {1000, 0, 1000},
        .access = {RW, RW, RW},
        .nics = {3, 0, 2},
        .rkey = {11, 12, 13, 21, 22, 23, 31},
    };
    mcd__buffers__init(&p->m);
    p->m.total = 3;
    p->m.n_address = p->m.n_length = p->m.n_access = p->m.n_node = 3;
    p->m.n_key_chunk = p->m.n_key_nics = 3;
    p->m.n_nic = 2;
    p->m.n_rkey = 7;
    p->m.address = p->address;
    p->m.length = p->length;
    p->m.access = p->access;
    p->m.node = p->node;
    p->m.nic = p->nic;
    p->m.key_chunk = p->chunk;
    p->m.key_nics = p->nics;
    p->m.rkey = p->rkey;
}

static struct mcd_snapshot *snapshot_of(const Mcd__Buffers *m)
{
    struct mcd_snapshot *s = calloc(1, sizeof(*s) + m->n_address * sizeof(s->buffers[0]));

    for (size_t i = 0; i < m->n_address; i++)
        s->buffers[s->count++] = (struct mcd_buffer){
            .address = m->address[i], .length = m->length[i], .access = m->access[i]};
    return s;
}

Test(keys, each_buffer_gets_its_own)
{
    uint64_t left = MCD_KEYS_MAX;
    const struct mct_rdma_keys *k;
    struct mcd_snapshot *s;
    struct page p;

    make_page(&p);
    cr_assert(mcd_keys_are_good(&p.m));
    s = snapshot_of(&p.m);
    cr_assert_eq(mcd_keys_take(s, &p.m, &left), 0);
    cr_assert_eq(left, MCD_KEYS_MAX - 7);
    memset(&p.nic, 0xee, sizeof(p.nic)); /* the message goes */
    memset(&p.rkey, 0xee, sizeof(p.rkey));
    k = mcd_snapshot_keys(s, NULL, 0x10000000 + 1500, 1000, MCS_ACCESS_WRITE);
    cr_assert_not_null(k);
    cr_assert(k->address == 0x10000000 && k->length == 2500 && k->chunk == 1000);
    cr_assert(k->nnics == 2 && k->nchunks == 3);
    cr_assert(k->nics[0] == 7 && k->nics[1] == 9);
    for (uint32_t i = 0; i < 6; i++)
        cr_assert_eq(k->rkeys[i], (i / 3 + 1) * 10 + i % 3 + 1);
    cr_assert_null(s->buffers[1].keys);
    k = s->buffers[2].keys;
    cr_assert(k->nnics == 1 && k->nchunks == 1 && k->nics[0] == 9 && k->rkeys[0] == 31);
    mcd_snapshot_free(s);
}

Test(keys, are_found_for_what_lies_in_one_buffer_and_may_be_used_so)
{
    uint64_t left = MCD_KEYS_MAX;
    struct mcd_snapshot *s;
    struct page p;

    make_page(&p);
    p.access[0] = MCS_ACCESS_READ;
    s = snapshot_of(&p.m);
    cr_assert_eq(mcd_keys_take(s, &p.m, &left), 0);
    for (unsigned i = 0; i < 3; i++) { /* whatever was found before */
        const struct mcd_buffer *likely = i == 0 ? NULL : &s->buffers[i];

        cr_assert_eq(mcd_snapshot_keys(s, likely, 0x10000000, 2500, MCS_ACCESS_READ),
                     s->buffers[0].keys);
        cr_assert_null(mcd_snapshot_keys(s, likely, 0x10000000, 2500, MCS_ACCESS_WRITE));
        cr_assert_null(mcd_snapshot_keys(s, likely, 0x10000000, 2501, MCS_ACCESS_READ));
        cr_assert_null(mcd_snapshot_keys(s, likely, 0x10000000 - 1, 1, MCS_ACCESS_READ));
        cr_assert_null(mcd_snapshot_keys(s, likely, 0x10000000, UINT64_MAX, MCS_ACCESS_READ));
        cr_assert_null(mcd_snapshot_keys(s, likely, UINT64_MAX, 1, MCS_ACCESS_READ));
        cr_assert_eq(mcd_snapshot_keys(s, likely, 0x30000000 + 999, 1, MCS_ACCESS_WRITE),
                     s->buffers[2].keys);
    }
    mcd_snapshot_free(s);
}

Test(keys, an_agent_without_rdma_says_nothing_of_them)
{
    uint64_t left = MCD_KEYS_MAX;
    struct mcd_snapshot *s;
    struct page p;

    make_page(&p);
    p.m.n_nic = p.m.n_key_chunk = p.m.n_key_nics = p.m.n_rkey = 0;
    cr_assert(mcd_keys_are_good(&p.m));
    s = snapshot_of(&p.m);
    cr_assert_eq(mcd_keys_take(s, &p.m, &left), 0);
    for (uint32_t i = 0; i < 3; i++)
        cr_assert_null(s->buffers[i].keys);
    mcd_snapshot_free(s);
}

Test(keys, vectors_that_contradict_each_other_are_nonsense)
{
    uint64_t many[MCD_PAGE_NICS + 1];
    struct page p;

#define BAD(change)                                                                                \
    do {                                                                                           \
        make_page(&p);                                                                             \
        change;                                                                                    \
        cr_assert_not(mcd_keys_are_good(&p.m), #change);                                           \
    } while (0)
    for (size_t n = 0; n < 8; n++) /* a peer that publishes fewer keys than it says, or more */
        if (n != 7)
            BAD(p.m.n_rkey = n);
    BAD(p.m.n_rkey = 8);
    BAD(p.m.n_nic = 1);
    BAD(p.m.n_nic = 0);
    BAD(p.nic[0] = 0);
    BAD(p.nic[1] = p.nic[0]);
    BAD(p.m.n_key_chunk = 2);
    BAD(p.m.n_key_nics = 2);
    BAD(p.m.n_key_nics = 4);
    BAD(p.m.n_key_chunk = 0); /* the others are there */
    BAD((p.m.n_key_chunk = p.m.n_key_nics = 0, p.m.n_rkey = 0));
    BAD((p.m.n_key_chunk = p.m.n_key_nics = 0, p.m.n_nic = 0));
    BAD(p.nics[0] = 4);
    BAD(p.nics[0] = UINT32_MAX);
    BAD(p.chunk[0] = 0);
    BAD(p.chunk[0] = 1);
    BAD(p.chunk[0] = 833); /* four of them */
    BAD(p.chunk[0] = UINT64_MAX);
    BAD((p.length[0] = UINT64_MAX, p.chunk[0] = 1));
    BAD((p.length[0] = p.length[2] = UINT64_MAX, p.chunk[0] = p.chunk[2] = 2));
    BAD((p.length[0] = UINT64_C(1) << 63, p.chunk[0] = 1)); /* on two devices: 2^64 keys */
    for (unsigned i = 0; i <= MCD_PAGE_NICS; i++)
        many[i] = i + 1;
    BAD((p.m.nic = many, p.m.n_nic = MCD_PAGE_NICS + 1));
#undef BAD
    make_page(&p);
    p.m.nic = many;
    p.m.n_nic = MCD_PAGE_NICS;
    cr_assert(mcd_keys_are_good(&p.m), "all places may be taken");
    make_page(&p);
    p.nics[1] = 0;
    p.chunk[1] = 77;
    cr_assert(mcd_keys_are_good(&p.m), "a chunk without keys says nothing");
}

Test(keys, a_segment_has_a_bounded_number_of_them)
{
    uint64_t left = 6;
    struct mcd_snapshot *s;
    struct page p;

    make_page(&p);
    s = snapshot_of(&p.m);
    cr_assert_eq(mcd_keys_take(s, &p.m, &left), -E2BIG);
    cr_assert_eq(left, 6);
    for (uint32_t i = 0; i < 3; i++)
        cr_assert_null(s->buffers[i].keys);
    left = 7;
    cr_assert_eq(mcd_keys_take(s, &p.m, &left), 0);
    cr_assert_eq(left, 0);
    mcd_snapshot_free(s);
}

static uint64_t state = 88172645463325252u;

static uint64_t roll(uint64_t below)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (state >> 11) % below;
}

/* A vector of its own, so that a sanitizer sees what is read beside it. */
static void *vector(size_t n, size_t size, const void *from, size_t has)
{
    uint8_t *v = malloc(n * size + 1);

    for (size_t i = 0; i < n; i++)
        memcpy(v + i * size, (const uint8_t *)from + i % has * size, size);
    return realloc(v, n * size == 0 ? 1 : n * size);
}

static uint64_t odd_number(void)
{
    static const uint64_t numbers[] = {0, 1, 2, 3, 1000, 2500, UINT32_MAX, UINT64_MAX};

    return roll(2) == 0 ? numbers[roll(8)] : roll(4000);
}

/* Whatever the vectors say: it is nonsense, or every buffer has all the keys that it says. */
Test(keys, any_vectors_are_nonsense_or_whole)
{
    unsigned good = 0, bad = 0;

    for (unsigned round = 0; round < 20000; round++) {
        uint64_t left = MCD_KEYS_MAX, sum = 0;
        struct mcd_snapshot *s;
        Mcd__Buffers m;
        struct page p;

        make_page(&p);
        for (unsigned changes = (unsigned)roll(4); changes > 0; changes--)
            switch (roll(8)) {
            case 0:
                p.length[roll(3)] = odd_number();
                break;
            case 1:
                p.chunk[roll(3)] = odd_number();
                break;
            case 2:
                p.nics[roll(3)] = (uint32_t)odd_number();
                break;
            case 3:
                p.nic[roll(3)] = odd_number();
                break;
            case 4:
                p.m.n_nic = roll(4);
                break;
            case 5:
                p.m.n_rkey = roll(20);
                break;
            case 6:
                p.m.n_key_nics = roll(5);
                break;
            default:
                p.m.n_key_chunk = roll(5);
                break;
            }
        for (unsigned i = 0; i < 3; i++)
            p.length[i] += p.length[i] == 0; /* the buffers themselves are good */
        m = p.m;
        m.nic = vector(m.n_nic, sizeof(uint64_t), p.nic, 3);
        m.key_chunk = vector(m.n_key_chunk, sizeof(uint64_t), p.chunk, 3);
        m.key_nics = vector(m.n_key_nics, sizeof(uint32_t), p.nics, 3);
        m.rkey = vector(m.n_rkey, sizeof(uint32_t), p.rkey, 8);
        if (mcd_keys_are_good(&m)) {
            s = snapshot_of(&m);
            cr_assert_eq(mcd_keys_take(s, &m, &left), 0);
            for (uint32_t i = 0; i < s->count; i++) {
                const struct mct_rdma_keys *k = s->buffers[i].keys;

                if (k == NULL)
                    continue;
                cr_assert(k->nnics != 0 && k->nchunks != 0);
                cr_assert_eq(k->nchunks, (k->length - 1) / k->chunk + 1);
                for (uint32_t n = 0; n < k->nnics * k->nchunks; n++)
                    sum += k->rkeys[n] != 0 || k->nics[n % k->nnics] != 0;
            }
            cr_assert_eq(sum, m.n_rkey, "round %u", round);
            mcd_snapshot_free(s);
            good++;
        } else {
            bad++;
        }
        free(m.nic);
        free(m.key_chunk);
        free(m.key_nics);
        free(m.rkey);
    }
    cr_assert(good > 1000 && bad > 1000, "%u good, %u bad", good, bad);
}

/* ---- written ------------------------------------------------------------------------- */

/* What a peer reads: over the wire, and in as many pages as that takes. */
static struct mcd_snapshot *describe(const struct ra *g, const struct mcd_snapshot *from,
                                     unsigned *pages)
{
    struct mcd_snapshot *to = calloc(1, sizeof(*to) + from->count * sizeof(to->buffers[0]));
    uint64_t left = MCD_KEYS_MAX;

    *pages = 0;
    while (to->count < from->count) {
        struct mcd_keys_page *p = calloc(1, sizeof(*p));
        uint64_t *address = calloc(MCD_PAGE_BUFFERS, sizeof(*address));
        uint64_t *length = calloc(MCD_PAGE_BUFFERS, sizeof(*length));
        uint32_t *access = calloc(MCD_PAGE_BUFFERS, sizeof(*access));
        int32_t *node = calloc(MCD_PAGE_BUFFERS, sizeof(*node));
        Mcd__Buffers m, *got;
        uint8_t *bytes;
        size_t size;
        uint32_t n = 0;

        mcd__buffers__init(&m);
        while (to->count + n < from->count &&
               mcd_keys_add(p, g->agent->rdma, &from->buffers[to->count + n])) {
            address[n] = from->buffers[to->count + n].address;
            length[n] = from->buffers[to->count + n].length;
            access[n] = from->buffers[to->count + n].access;
            node[n++] = -1;
        }
        cr_assert_neq(n, 0, "a page without a buffer");
        m.address = address;
        m.length = length;
        m.access = access;
        m.node = node;
        m.n_address = m.n_length = m.n_access = m.n_node = n;
        mcd_keys_fill(p, &m);
        size = mcd__buffers__get_packed_size(&m);
        cr_assert_leq(size, MCD_WIRE_FRAME_MAX);
        bytes = malloc(size);
        mcd__buffers__pack(&m, bytes);
        got = mcd__buffers__unpack(NULL, size, bytes);
        cr_assert(got != NULL && mcd_keys_are_good(got));
        for (uint32_t i = 0; i < n; i++)
            to->buffers[to->count++] = (struct mcd_buffer){
                .address = got->address[i], .length = got->length[i], .access = got->access[i]};
        cr_assert_eq(mcd_keys_take(to, got, &left), 0);
        mcd__buffers__free_unpacked(got, NULL);
        free(bytes);
        free(p);
        free(address);
        free(length);
        free(access);
        free(node);
        ++*pages;
    }
    return to;
}

static uint64_t nic_id(const struct ra *g, const char *name)
{
    struct mct_rdma_nic n;

    for (unsigned i = 0; i < mct_rdma_nics(g->agent->rdma); i++) {
        mct_rdma_nic(g->agent->rdma, i, &n);
        if (strncmp(n.name, name, strlen(name)) == 0)
            return n.id;
    }
    return 0;
}

/* Each key that the peer has is that of the region of this device at this address. */
static void check_keys(const struct ra *g, const struct mct_rdma_keys *k,
                       const struct fake_device *d)
{
    uint64_t id = nic_id(g, d->name);
    uint32_t n = 0;
    struct fake_region r;

    while (n < k->nnics && k->nics[n] != id)
        n++;
    cr_assert_lt(n, k->nnics, "%s has no key", d->name);
    for (uint32_t c = 0; c < k->nchunks; c++) {
        bool found = false;

        for (unsigned i = 0; ra_remote_region(d, i, &r); i++)
            found = found ||
                    (r.rkey == k->rkeys[n * k->nchunks + c] && r.iova == k->address + c * k->chunk);
        cr_assert(found, "%s, chunk %u", d->name, c);
    }
}

Test(keys, a_description_names_the_keys_of_every_device_and_chunk)
{
    struct mcd_snapshot *s;
    struct sa_client c;
    unsigned pages;
    uint32_t e;
    struct ra g;

    ra_init(&g, CHUNK, false);
    ra_arrive(&g, &c);
    e = ra_alloc(&g, &c, UINT64_C(8) << 20);
    cr_assert_eq(ra_buffer(&g, &c, MCS_MSG_BUFFER_ADD, e, 100, 3 * CHUNK + 1, RW), MCS_OK);
    cr_assert_eq(ra_buffer(&g, &c, MCS_MSG_BUFFER_ADD, e, 5 * CHUNK, 4096, MCS_ACCESS_MAP_READ),
                 MCS_OK);
    cr_assert_eq(ra_buffer(&g, &c, MCS_MSG_BUFFER_ADD, e, 6 * CHUNK, CHUNK, MCS_ACCESS_READ),
                 MCS_OK);
    s = describe(&g, g.agent->sessions->segment->snapshot, &pages);
    cr_assert_eq(pages, 1);
    cr_assert_eq(s->buffers[0].keys->nchunks, 4);
    cr_assert_null(s->buffers[1].keys);
    cr_assert_eq(s->buffers[2].keys->nchunks, 1);
    for (unsigned d = 0; d < RA_DEVICES; d++) {
        check_keys(&g, s->buffers[0].keys, g.devices[d]);
        check_keys(&g, s->buffers[2].keys, g.devices[d]);
    }
    mcd_snapshot_free(s);
    sa_leave(&c);
    ra_fini(&g);
}

/* On how many devices the first buffer of the only client has keys; 100 while one is on its way to be, or not to be, the
 * device that they are of. */
static unsigned devices_of(const struct ra *g)
{
    const struct mcd_registration *r =
        g->agent->sessions->segment->snapshot->buffers[0].registration;
    struct mct_rdma_nic nic;
    unsigned n = 0;
    uint64_t id;

    for (unsigned i = 0; i < mct_rdma_nics(g->agent->rdma); i++) {
        mct_rdma_nic(g->agent->rdma, i, &nic);
        if (mct_rdma_memory_keys(r->memory, i, &id) == NULL)
            continue;
        if (id != nic.id)
            return 100;
        n++;
    }
    return n;
}

/* Of three devices one cannot be opened, or registers nothing any more: the others' keys are their own. */
Test(keys, a_device_that_is_not_there_leaves_no_gap)
{
    for (unsigned dead = 0; dead < 3; dead++)
        for (int late = 0; late < 2; late++) {
            struct mcd_snapshot *s;
            struct sa_client c;
            unsigned pages;
            char name[16];
            uint32_t e;
            struct ra g;

            fake_reset();
            memset(&g, 0, sizeof(g));
            g.agent = sa_init();
            for (; g.ndevices < 3; g.ndevices++) {
                snprintf(name, sizeof(name), "fake%u", g.ndevices);
                g.devices[g.ndevices] = fake_add(name);
            }
            if (late == 0)
                fake_fail(FAKE_ALLOC_PD, g.devices[dead], 1, 1000, ENOMEM);
            ra_init_rdma(&g, CHUNK, false);
            ra_arrive(&g, &c);
            e = ra_alloc(&g, &c, UINT64_C(8) << 20);
            cr_assert_eq(ra_buffer(&g, &c, MCS_MSG_BUFFER_ADD, e, 0, 2 * CHUNK, RW), MCS_OK);
            if (late != 0) {
                fake_remove(g.devices[dead]);
                ra_until(&g, devices_of(&g) == 2);
            }
            s = describe(&g, g.agent->sessions->segment->snapshot, &pages);
            cr_assert_eq(s->buffers[0].keys->nnics, 2);
            for (unsigned d = 0; d < 3; d++)
                if (d != dead)
                    check_keys(&g, s->buffers[0].keys, g.devices[d]);
            mcd_snapshot_free(s);
            sa_leave(&c);
            ra_fini(&g);
        }
}

/* Peers describe a published segment again when the devices that it can be reached by are others. */
Test(keys, other_devices_are_another_version)
{
    struct mcd_segment *seg;
    struct mcd_snapshot *s;
    union mcs_msg_body b;
    struct fake_device *d;
    struct sa_client c;
    unsigned pages;
    uint64_t version;
    uint32_t e;
    struct ra g;

    ra_init(&g, CHUNK, false);
    ra_arrive(&g, &c);
    e = ra_alloc(&g, &c, UINT64_C(8) << 20);
    cr_assert_eq(ra_buffer(&g, &c, MCS_MSG_BUFFER_ADD, e, 0, 2 * CHUNK, RW), MCS_OK);
    memset(&b, 0, sizeof(b));
    snprintf(b.publish.name, sizeof(b.publish.name), "kv");
    cr_assert_eq(ra_ask(&g, &c, MCS_MSG_PUBLISH, &b), MCS_OK);
    seg = g.agent->sessions->segment;
    version = seg->version;
    fake_remove(g.devices[0]);
    ra_until(&g, devices_of(&g) == 1);
    ra_until(&g, seg->version != version);
    s = describe(&g, seg->snapshot, &pages);
    cr_assert_eq(s->buffers[0].keys->nnics, 1);
    check_keys(&g, s->buffers[0].keys, g.devices[1]);
    mcd_snapshot_free(s);
    version = seg->version;
    d = fake_add("fake0"); /* another one under its name */
    ra_until(&g, seg->version != version && devices_of(&g) == 2);
    s = describe(&g, seg->snapshot, &pages);
    cr_assert_eq(s->buffers[0].keys->nnics, 2);
    check_keys(&g, s->buffers[0].keys, d);
    mcd_snapshot_free(s);
    sa_leave(&c);
    ra_fini(&g);
}

/* Keys come in as many pages as they need, whatever the buffers. */
Test(keys, a_page_ends_where_a_frame_would)
{
    struct mcd_snapshot *from, *s;
    struct sa_client c;
    unsigned pages;
    uint32_t e;
    struct ra g;

    ra_init(&g, CHUNK, false);
    ra_arrive(&g, &c);
    e = ra_alloc(&g, &c, UINT64_C(48) << 20);
    cr_assert_eq(ra_buffer(&g, &c, MCS_MSG_BUFFER_ADD, e, 0, UINT64_C(48) << 20, RW), MCS_OK);
    /* the same keys over and over: 96 a buffer */
    from = calloc(1, sizeof(*from) + 20000 * sizeof(from->buffers[0]));
    while (from->count < 20000)
        from->buffers[from->count++] = g.agent->sessions->segment->snapshot->buffers[0];
    s = describe(&g, from, &pages);
    cr_assert_eq(pages, (20000 + MCD_PAGE_KEYS / 96 - 1) / (MCD_PAGE_KEYS / 96));
    for (uint32_t i = 0; i < s->count; i += 1000)
        cr_assert_eq(s->buffers[i].keys->nchunks, 48);
    mcd_snapshot_free(s);
    free(from);
    sa_leave(&c);
    ra_fini(&g);
}

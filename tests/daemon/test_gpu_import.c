/* SPDX-License-Identifier: Apache-2.0 */
/* GPU memory of other makers, of others' segments, and of an earlier agent; what the agent tells of GPUs. */
#include <cjson/cJSON.h>
#include <dirent.h>
#include <sys/resource.h>

#include "daemon/closer.h"
#include "daemon/gpu_internal.h"
#include "gpu_agent.h"
#include "tests/fuzz/limbo.h"

TestSuite(gpu_import, .timeout = 60);

/* But for the one that came with the client's last answer. */
static unsigned open_fds(const struct sa_client *c)
{
    DIR *d = opendir("/proc/self/fd");
    unsigned n = 0;

    cr_assert_not_null(d);
    while (readdir(d) != NULL)
        n++;
    closedir(d);
    return n - (c->answer_fd >= 0);
}

static union mcs_msg_body part(uint64_t total, uint64_t at, uint64_t size, bool ipc)
{
    const struct mcs_gpu_id id = pc_id(0);
    union mcs_msg_body b;

    memset(&b, 0, sizeof(b));
    memcpy(b.gpu_import.gpu, id.bytes, sizeof(id.bytes));
    b.gpu_import.total = total;
    b.gpu_import.at = at;
    b.gpu_import.size = size;
    b.gpu_import.whole = ipc ? 0 : size;
    b.gpu_import.ipc = ipc;
    b.gpu_import.last = at + size == total;
    return b;
}

/* Its status. */
static uint32_t bring(struct mcd_agent *a, struct sa_client *c, const union mcs_msg_body *b,
                      unsigned nfds)
{
    int fds[2] = {-1, -1};

    for (unsigned i = 0; i < nfds; i++)
        cr_assert((fds[i] = memfd_create("part", MFD_CLOEXEC)) >= 0);
    sa_send(c, MCS_MSG_GPU_IMPORT, b, fds, nfds);
    for (unsigned i = 0; i < nfds; i++)
        close(fds[i]);
    sa_until(a, sa_answered(c));
    return c->m.h.status;
}

/* ---- imports ------------------------------------------------------------------------------------- */

Test(gpu_import, parts_one_behind_the_other_become_one_extent)
{
    struct mcd_agent *a = begin();
    struct sa_client c;
    struct mcd_extent *e;
    union mcs_msg_body b;
    unsigned before;

    sa_arrive(a, &c);
    cr_assert_eq(alloc(a, &c, 0, SMALL), MCS_OK); /* whatever is opened once is open */
    before = open_fds(&c);
    for (unsigned i = 0; i < 3; i++) {
        b = part(3 * PC_GRANULARITY, i * PC_GRANULARITY, PC_GRANULARITY, false);
        cr_assert_eq(bring(a, &c, &b, 1), MCS_OK, "%s", c.m.b.error.text);
        cr_assert_eq(c.m.b.extent_reply.extent != 0, i == 2);
    }
    cr_assert_eq(pc.parts, 3);
    e = extent_of(a, c.m.b.extent_reply.extent);
    cr_assert(e->foreign && e->gpu != NULL && e->alloc == NULL && e->size == 3 * PC_GRANULARITY);
    cr_assert_eq(c.answer_fd, -1, "its owner has it mapped");
    cr_assert_eq(used(a, 0), EXTENT + e->size);
    sa_until(a, open_fds(&c) == before); /* the closer has done its part */
    cr_assert_eq(give(a, &c, e->handle, 0), MCS_INVALID_HANDLE, "it was not allocated");
    b.unregister.extent = e->handle;
    b.unregister.reserved = 0;
    cr_assert_eq(sa_ask(a, &c, MCS_MSG_UNREGISTER, &b), MCS_OK);
    cr_assert(used(a, 0) == EXTENT && pc.begun[MCT_CUDA_FREE] == 1);
    b = part(SMALL, 0, SMALL, true);
    cr_assert_eq(bring(a, &c, &b, 0), MCS_OK, "%s", c.m.b.error.text);
    sa_leave(&c);
    end(a);
}

Test(gpu_import, parts_that_do_not_fit_are_refused_and_take_what_came_with_them)
{
    struct mcd_agent *a = begin();
    union mcs_msg_body good = part(2 * MIB, 0, MIB, false), b;
    struct sa_client c;
    unsigned before;

    sa_arrive(a, &c);
    before = open_fds(&c);
    struct {
        bool after; /* a good first part */
        union mcs_msg_body b;
        unsigned nfds;
    } cases[] = {
        {false, part(2 * MIB, MIB, MIB, false), 1}, /* no first part */
        {false, part(0, 0, 0, false), 1},           /* empty */
        {false, part((UINT64_C(1) << 47) + 1, 0, MIB, false), 1},
        {false, part(UINT64_C(1) << 63, 0, UINT64_C(1) << 63, false), 1},
        {false, part(MIB, 0, 2 * MIB, false), 1}, /* more than all */
        {false, good, 0},                         /* no handle */
        {false, good, 2},
        {false, part(2 * MIB, 0, MIB, true), 0}, /* an IPC handle is the only part */
        {false, part(MIB, 0, MIB, true), 1},
        {true, good, 1},                               /* once more */
        {true, part(2 * MIB, MIB - 1, MIB, false), 1}, /* a hole, or an overlap */
        {true, part(2 * MIB, MIB + 1, MIB - 1, false), 1},
        {true, part(3 * MIB, MIB, MIB, false), 1}, /* another range */
        {true, part(2 * MIB, MIB, UINT64_MAX, false), 1},
        {true, part(2 * MIB, MIB, MIB, false), 1}, /* last, but does not say so: below */
        {true, part(2 * MIB, MIB, MIB, false), 1}, /* another device: below */
        {false, part(MIB, 0, MIB, false), 1},      /* beyond its allocation, four times: below */
        {false, part(MIB, 0, MIB, false), 1},
        {false, part(MIB, 0, MIB, false), 1},
        {false, part(MIB, 0, MIB, false), 1},
        {false, part(MIB, 0, MIB, false), 1}, /* ipc = 2: below */
    };
    const size_t n = sizeof(cases) / sizeof(cases[0]);

    cases[n - 7].b.gpu_import.last = 0;
    cases[n - 6].b.gpu_import.gpu[3]++;
    cases[n - 5].b.gpu_import.offset = 1;
    cases[n - 4].b.gpu_import.whole = MIB - 1;
    cases[n - 3].b.gpu_import.whole = UINT64_MAX;
    cases[n - 2].b.gpu_import.offset = UINT64_MAX;
    cases[n - 1].b.gpu_import.ipc = 2;
    for (size_t i = 0; i < n; i++) {
        if (cases[i].after)
            cr_assert_eq(bring(a, &c, &good, 1), MCS_OK);
        cr_assert_eq(bring(a, &c, &cases[i].b, cases[i].nfds), MCS_INVALID_ARGUMENT, "case %zu", i);
        cr_assert_null(a->sessions->import);
    }
    sa_until(a, open_fds(&c) == before);
    cr_assert_eq(pc.begun[MCT_CUDA_OPEN], 0, "the driver never heard of it");
    cr_assert(used(a, 0) == 0 && a->sessions->memory == 0);
    b = part(MIB, 0, MIB, false);
    cr_assert_eq(bring(a, &c, &b, 1), MCS_OK, "the session goes on");
    sa_leave(&c);
    end(a);
}

Test(gpu_import, a_socket_is_no_part_and_so_a_client_that_passes_its_own_is_seen_to_leave)
{
    struct mcd_agent *a = begin();
    union mcs_msg_body b = part(2 * MIB, 0, MIB, false);
    struct sa_client c;

    sa_arrive(a, &c);
    sa_send(&c, MCS_MSG_GPU_IMPORT, &b, &c.fd, 1);
    sa_until(a, sa_answered(&c));
    cr_assert_eq(c.m.h.status, MCS_BAD_SHM, "%s", c.m.b.error.text);
    sa_leave(&c);
    end(a);
}

Test(gpu_import, a_file_is_no_part)
{
    struct mcd_agent *a = begin();
    union mcs_msg_body b = part(2 * MIB, 0, MIB, false);
    int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    struct sa_client c;

    sa_arrive(a, &c);
    cr_assert(file >= 0);
    sa_send(&c, MCS_MSG_GPU_IMPORT, &b, &file, 1);
    close(file);
    sa_until(a, sa_answered(&c));
    cr_assert_eq(c.m.h.status, MCS_BAD_SHM, "%s", c.m.b.error.text);
    sa_leave(&c);
    end(a);
}

Test(gpu_import, parts_are_dropped_by_another_request_or_the_end_of_the_session)
{
    struct mcd_agent *a = begin();
    union mcs_msg_body first = part(2 * MIB, 0, MIB, false),
                       second = part(2 * MIB, MIB, MIB, false);
    struct sa_client c, d;
    unsigned before;

    sa_arrive(a, &c);
    before = open_fds(&c);
    cr_assert_eq(bring(a, &c, &first, 1), MCS_OK);
    cr_assert_eq(sa_alloc(a, &c, SMALL) != 0, 1);
    cr_assert_eq(bring(a, &c, &second, 1), MCS_INVALID_ARGUMENT,
                 "there is nothing before it any more");
    sa_arrive(a, &d);
    cr_assert_eq(bring(a, &d, &first, 1), MCS_OK);
    sa_leave(&d);
    sa_leave(&c);
    sa_until(a, a->sessions == NULL && open_fds(&c) < before);
    end(a);
}

Test(gpu_import, what_cannot_be_imported_leaves_nothing)
{
    struct mcd_agent *a = begin();
    union mcs_msg_body b = part(MIB, 0, MIB, false);
    struct sa_client c;
    unsigned before;

    sa_arrive(a, &c);
    cr_assert_eq(alloc(a, &c, 1, SMALL), MCS_OK);
    before = open_fds(&c);
    pc.refuses[MCT_CUDA_IMPORT] = MCS_BAD_SHM;
    cr_assert_eq(bring(a, &c, &b, 1), MCS_BAD_SHM);
    cr_assert_str_eq(c.m.b.error.text, "1048576 bytes of GPU memory: the played driver says no");
    cr_assert_eq(used(a, 0), 0);
    b.gpu_import.gpu[0] = 0x99;
    cr_assert_eq(bring(a, &c, &b, 1), MCS_NO_GPU);
    b = part(2 * PC_TOTAL, 0, 2 * PC_TOTAL, false);
    cr_assert_eq(bring(a, &c, &b, 1), MCS_NO_MEMORY);
    a->config.tenants[0].memory = EXTENT + MIB;
    mcd_tenants_adopt(&a->tenants, &a->config);
    b = part(MIB + 1, 0, MIB + 1, false);
    cr_assert_eq(bring(a, &c, &b, 1), MCS_LIMIT);
    sa_until(a, open_fds(&c) == before);
    cr_assert_eq(a->sessions->memory, EXTENT);
    sa_leave(&c);
    end(a);
}

/* The youngest session becomes that of another user. */
static void move_to_another_tenant(struct mcd_agent *a)
{
    struct mcd_session *s = a->sessions;

    s->account->sessions--;
    mcd_tenant_put(&a->tenants, s->account);
    cr_assert_eq(mcd_tenant_get(&a->tenants, &a->config, s->uid + 1, NULL, 0, &s->account), 0);
    s->account->sessions++;
    s->tenant = s->account->id;
}

Test(gpu_import, the_descriptors_of_parts_are_a_share_of_what_the_agent_may_have)
{
    struct rlimit old, few;
    struct mcd_agent *a = begin();
    struct sa_client c, more, d;
    union mcs_msg_body b;
    unsigned n = 0, others = 0, before;

    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &old), 0);
    sa_arrive(a, &c);
    sa_arrive(a, &more);
    sa_arrive(a, &d);
    move_to_another_tenant(a);
    before = open_fds(&c);
    few = old;
    few.rlim_cur = 512;
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &few), 0);
    do
        b = part(MIB, n, 1, false);
    while (bring(a, &c, &b, 1) == MCS_OK && ++n < 512);
    cr_assert_eq(c.m.h.status, MCS_LIMIT, "%s", c.m.b.error.text);
    cr_assert_eq(n, 512 / 4 / 2);
    cr_assert(mcd_closer_drain(20000)); /* or the user gets no more taken */
    for (n = 0; n < 512 / 4 / 2; n++) { /* the refusal has taken them */
        b = part(MIB, n, 1, false);
        cr_assert_eq(bring(a, &c, &b, 1), MCS_OK);
    }
    b = part(MIB, 0, 1, false);
    cr_assert_eq(bring(a, &more, &b, 1), MCS_LIMIT, "another session is no larger share");
    b = part(MIB, 1, 1, false);
    cr_assert_eq(bring(a, &c, &b, 1), MCS_INVALID_ARGUMENT);
    cr_assert(mcd_closer_drain(20000));
    for (n = 0; n < 60; n++) { /* again, so that less is left to others */
        b = part(MIB, n, 1, false);
        cr_assert_eq(bring(a, &c, &b, 1), MCS_OK);
    }
    do
        b = part(MIB, others, 1, false);
    while (bring(a, &d, &b, 1) == MCS_OK && ++others < 512);
    cr_assert_eq(others, (512 / 4 - 60) / 2, "but something");
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &old), 0);
    sa_leave(&c);
    sa_leave(&more);
    sa_leave(&d);
    sa_until(a, a->sessions == NULL && open_fds(&c) < before);
    end(a);
}

Test(gpu_import, who_leaves_while_memory_is_imported_is_gone)
{
    union mcs_msg_body b = part(MIB, 0, MIB, true);
    struct mcd_agent *a = begin();
    struct sa_client c;

    sa_arrive(a, &c);
    pc.holds[MCT_CUDA_IMPORT] = true;
    sa_send(&c, MCS_MSG_GPU_IMPORT, &b, NULL, 0);
    sa_until(a, pc.begun[MCT_CUDA_IMPORT] == 1);
    sa_leave(&c);
    sa_until(a, a->sessions == NULL);
    cr_assert_eq(used(a, 0), MIB);
    pc_end(MCT_CUDA_IMPORT);
    sa_until(a, used(a, 0) == 0);
    cr_assert_eq(pc.begun[MCT_CUDA_FREE], 1);
    end(a);
}

/* ---- buffers and grants ---------------------------------------------------------------------------- */

static void publish(struct mcd_agent *a, struct sa_client *c, const char *name)
{
    union mcs_msg_body b;

    memset(&b, 0, sizeof(b));
    snprintf(b.publish.name, sizeof(b.publish.name), "%s", name);
    cr_assert_eq(sa_ask(a, c, MCS_MSG_PUBLISH, &b), MCS_OK);
}

static uint32_t open_segment(struct mcd_agent *a, struct sa_client *c, const char *name)
{
    union mcs_msg_body b;

    memset(&b, 0, sizeof(b));
    snprintf(b.segment_open.name, sizeof(b.segment_open.name), "%s", name);
    cr_assert_eq(sa_ask(a, c, MCS_MSG_SEGMENT_OPEN, &b), MCS_OK);
    return c->m.b.segment_open_reply.segment;
}

static uint32_t map(struct mcd_agent *a, struct sa_client *c, uint32_t segment, uint64_t address,
                    bool writable)
{
    union mcs_msg_body b;

    memset(&b, 0, sizeof(b));
    b.map = (struct mcs_msg_map){
        .segment = segment, .writable = writable, .address = address, .length = SMALL};
    return sa_ask(a, c, MCS_MSG_MAP, &b);
}

Test(gpu_import, a_grant_is_writable_or_none)
{
    struct mcd_agent *a = begin();
    struct mcs_msg_describe_reply *r;
    struct mcs_msg_extent_reply e, foreign;
    union mcs_msg_body b;
    struct sa_client c, d;
    uint32_t segment, grant;
    uint64_t at;

    sa_arrive(a, &c);
    sa_arrive(a, &d);
    cr_assert_eq(alloc(a, &c, 0, 4 * SMALL), MCS_OK);
    e = c.m.b.extent_reply;
    b = part(MIB, 0, MIB, false);
    cr_assert_eq(bring(a, &c, &b, 1), MCS_OK);
    foreign = c.m.b.extent_reply;
    publish(a, &c, "owner");
    cr_assert_eq(sa_buffer(a, &c, MCS_MSG_BUFFER_ADD, e.extent, 0, SMALL,
                           MCS_ACCESS_MAP_READ | MCS_ACCESS_READ),
                 MCS_NOT_SUPPORTED);
    cr_assert_eq(sa_buffer(a, &c, MCS_MSG_BUFFER_ADD, e.extent, 0, SMALL, MCS_ACCESS_READ), MCS_OK);
    cr_assert_eq(sa_buffer(a, &c, MCS_MSG_BUFFER_ADD, e.extent, SMALL, SMALL, MCS_ACCESS_ALL),
                 MCS_OK);
    at = c.m.b.buffer_reply.address;
    cr_assert_eq(at, e.address + SMALL);
    cr_assert_eq(sa_buffer(a, &c, MCS_MSG_BUFFER_ADD, foreign.extent, 0, MIB, MCS_ACCESS_ALL),
                 MCS_OK);
    segment = open_segment(a, &d, "owner");
    memset(&b, 0, sizeof(b));
    b.describe.segment = segment;
    cr_assert_eq(sa_ask(a, &d, MCS_MSG_DESCRIBE, &b), MCS_OK);
    r = &d.m.b.describe_reply;
    cr_assert_eq(r->count, 3);
    for (unsigned i = 0; i < 3; i++) {
        cr_assert_eq(r->buffers[i].memory, MCS_MEMORY_GPU);
        cr_assert_str_eq(r->buffers[i].location, "cuda:10101010101010101010101010");
    }
    cr_assert_eq(map(a, &d, segment, e.address, true), MCS_ACCESS);
    cr_assert_eq(map(a, &d, segment, e.address, false), MCS_ACCESS,
                 "reading alone cannot be granted");
    cr_assert_eq(map(a, &d, segment, foreign.address, true), MCS_NOT_SUPPORTED);
    cr_assert_eq(map(a, &d, segment, at, false), MCS_OK);
    cr_assert_eq(d.m.b.map_reply.memory, MCS_MEMORY_GPU);
    cr_assert_eq(d.m.b.map_reply.extent_size, e.extent_size);
    cr_assert_eq(d.m.b.map_reply.offset, SMALL);
    cr_assert(d.answer_fd >= 0);
    grant = d.m.b.map_reply.grant;
    /* the owner goes; who has mapped it keeps it */
    sa_leave(&c);
    sa_until(a, a->nsessions == 1);
    sa_until(a, used(a, 0) == e.extent_size);
    cr_assert_eq(pc.begun[MCT_CUDA_FREE], 1, "what was imported");
    memset(&b, 0, sizeof(b));
    b.unmap.grant = grant;
    cr_assert_eq(sa_ask(a, &d, MCS_MSG_UNMAP, &b), MCS_OK);
    sa_until(a, used(a, 0) == 0);
    sa_leave(&d);
    end(a);
}

/* ---- a client that comes back --------------------------------------------------------------------------- */

#define BACK_ADDRESS(a) ((a)->config.address_base + (UINT64_C(1) << 40))
#define MADE_HANDLE 0x80001000u
#define FOREIGN_HANDLE 0x80001001u

/* An earlier agent has left the first session of limbo.h, which has two extents of GPU memory: one made, one imported. */
static void leave_behind(struct mcd_agent *a, unsigned device)
{
    const struct mcs_gpu_id id = pc_id(device);
    struct mcd_ledger_extent r = {
        .session = LIMBO_SESSION(0),
        .size = EXTENT,
        .page_size = PC_GRANULARITY,
        .address = BACK_ADDRESS(a),
        .handle = MADE_HANDLE,
        .id = 10,
        .node = -1,
        .flags = MCD_LEDGER_GPU,
    };
    struct fz z = {0};

    cr_assert_eq(mcd_ledger_create(&a->recovery.ledger), 0);
    limbo_session(a->recovery.ledger, &z, 0);
    memcpy(r.gpu, id.bytes, sizeof(r.gpu));
    cr_assert_not_null(mcd_ledger_add(a->recovery.ledger, MCD_LEDGER_EXTENT, &r));
    r.size = 3 * MIB;
    r.address += UINT64_C(1) << 30;
    r.handle = FOREIGN_HANDLE;
    r.id = 11;
    r.flags |= MCD_LEDGER_FOREIGN;
    cr_assert_not_null(mcd_ledger_add(a->recovery.ledger, MCD_LEDGER_EXTENT, &r));
    mcd_ledger_head(a->recovery.ledger)->incarnation = 1;
    a->pool.ledger = a->recovery.ledger;
    a->config.barrier_ms = 0;
    mcd_recovery_begin(a);
    mcd_recovery_serve(a);
}

static void end_recovered(struct mcd_agent *a)
{
    sa_until(a, a->sessions == NULL);
    cr_assert_null(mcd_ledger_next(a->recovery.ledger, MCD_LEDGER_EXTENT, NULL));
    mcd_ledger_destroy(a->recovery.ledger);
    a->recovery.ledger = a->pool.ledger = NULL;
    close(limbo_kept[0].region);
    end(a);
}

static void come_back(struct mcd_agent *a, struct sa_client *c)
{
    union mcs_msg_body b;
    int pair[2];

    memset(c, 0, sizeof(*c));
    c->answer_fd = -1;
    cr_assert_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair), 0);
    c->fd = pair[0];
    mcd_session_accept(a, pair[1]);
    memset(&b, 0, sizeof(b));
    b.restore = (struct mcs_msg_restore){.abi_version = MCS_ABI_VERSION,
                                         .agent_incarnation = 1,
                                         .session_incarnation = LIMBO_SESSION(0)};
    sa_send(c, MCS_MSG_RESTORE, &b, &limbo_kept[0].region, 1);
    sa_until(a, sa_answered(c));
    cr_assert_eq(c->m.h.status, MCS_OK, "%s", c->m.b.error.text);
}

static uint32_t hand_back(struct mcd_agent *a, struct sa_client *c, uint32_t extent,
                          uint32_t memory, uint64_t size, unsigned nfds)
{
    int fd = memfd_create("kept", MFD_CLOEXEC);
    union mcs_msg_body b;

    memset(&b, 0, sizeof(b));
    b.extent_back = (struct mcs_msg_extent_back){.extent = extent, .memory = memory, .size = size};
    sa_send(c, MCS_MSG_EXTENT_BACK, &b, &fd, nfds);
    close(fd);
    sa_until(a, sa_answered(c));
    return c->m.h.status;
}

static uint32_t resume(struct mcd_agent *a, struct sa_client *c)
{
    return sa_ask(a, c, MCS_MSG_RESUME, NULL);
}

Test(gpu_import, gpu_memory_comes_back_to_a_later_agent_where_it_was)
{
    struct mcd_agent *a = begin();
    union mcs_msg_body b;
    struct sa_client c;
    struct mcd_extent *e;

    leave_behind(a, 1);
    sa_until(a, mcd_gpu_state(a) == MCD_GPU_OPEN); /* it is needed, and takes its time */
    cr_assert_eq(used(a, 1), EXTENT + 3 * MIB, "what is to come back counts");
    cr_assert_eq(a->pool.used, 0);
    cr_assert_eq(a->sessions->account->memory, EXTENT + 3 * MIB);
    come_back(a, &c);
    cr_assert_eq(hand_back(a, &c, MADE_HANDLE, MCS_MEMORY_GPU, EXTENT, 1), MCS_OK, "%s",
                 c.m.b.error.text);
    cr_assert_eq(c.m.b.extent_back_reply.address, BACK_ADDRESS(a));
    cr_assert_eq(c.m.b.extent_back_reply.page_size, PC_GRANULARITY);
    e = extent_of(a, MADE_HANDLE);
    cr_assert(e->gpu != NULL && !e->foreign && e->alloc != NULL && e->id == 10 &&
              e->gpu_device == 1);
    memset(&b, 0, sizeof(b));
    b.allocs_back.extent = MADE_HANDLE;
    b.allocs_back.count = 1;
    b.allocs_back.allocs[0].offset = 4096;
    b.allocs_back.allocs[0].size = 100;
    cr_assert_eq(sa_ask(a, &c, MCS_MSG_ALLOCS_BACK, &b), MCS_OK);
    cr_assert_eq(hand_back(a, &c, FOREIGN_HANDLE, MCS_MEMORY_GPU, 3 * MIB, 0), MCS_OK, "%s",
                 c.m.b.error.text);
    for (unsigned i = 0; i < 3; i++) {
        b = part(3 * MIB, i * MIB, MIB, false);
        memset(b.gpu_import.gpu, 0x11, sizeof(b.gpu_import.gpu));
        cr_assert_eq(bring(a, &c, &b, 1), MCS_OK, "%s", c.m.b.error.text);
    }
    cr_assert_eq(c.m.b.extent_reply.extent, FOREIGN_HANDLE);
    cr_assert_eq(c.m.b.extent_reply.address, BACK_ADDRESS(a) + (UINT64_C(1) << 30));
    e = extent_of(a, FOREIGN_HANDLE);
    cr_assert(e->foreign && e->alloc == NULL && e->id == 11);
    cr_assert_eq(resume(a, &c), MCS_OK, "%s", c.m.b.error.text);
    cr_assert(used(a, 1) == EXTENT + 3 * MIB && a->sessions->memory == EXTENT + 3 * MIB);
    cr_assert_eq(a->sessions->account->memory, EXTENT + 3 * MIB);
    cr_assert_eq(alloc(a, &c, 1, SMALL), MCS_OK);
    cr_assert(c.m.b.extent_reply.extent == MADE_HANDLE && c.m.b.extent_reply.offset != 4096);
    cr_assert_eq(give(a, &c, MADE_HANDLE, 4096), MCS_OK);
    sa_leave(&c);
    sa_until(a, a->sessions == NULL && used(a, 1) == 0);
    end_recovered(a);
}

Test(gpu_import, what_came_back_can_be_mapped_by_others)
{
    struct mcd_agent *a = begin();
    struct sa_client c, d;
    uint32_t segment;
    int kept;

    leave_behind(a, 1);
    come_back(a, &c);
    sa_arrive(a, &d);
    cr_assert_eq(hand_back(a, &c, MADE_HANDLE, MCS_MEMORY_GPU, EXTENT, 1), MCS_OK, "%s",
                 c.m.b.error.text);
    cr_assert_eq(resume(a, &c), MCS_OK, "%s", c.m.b.error.text);
    cr_assert_eq(sa_buffer(a, &c, MCS_MSG_BUFFER_ADD, MADE_HANDLE, 0, SMALL, MCS_ACCESS_ALL),
                 MCS_OK, "%s", c.m.b.error.text);
    segment = open_segment(a, &d, "a");
    cr_assert_eq(map(a, &d, segment, BACK_ADDRESS(a), true), MCS_OK, "%s", d.m.b.error.text);
    cr_assert(d.answer_fd >= 0, "what it is imported by");
    kept = extent_of(a, MADE_HANDLE)->fd;
    cr_assert(fcntl(kept, F_GETFD) >= 0 && a->gpu->descriptors == 0);
    sa_leave(&c);
    sa_leave(&d);
    sa_until(a, a->sessions == NULL && used(a, 1) == 0);
    sa_until(a, fcntl(kept, F_GETFD) < 0); /* the closer has done its part */
    end_recovered(a);
}

Test(gpu_import, what_comes_back_must_be_what_the_ledger_says)
{
    struct mcd_agent *a = begin();
    union mcs_msg_body b;
    struct sa_client c;

    leave_behind(a, 0);
    come_back(a, &c);
    cr_assert_eq(hand_back(a, &c, MADE_HANDLE, MCS_MEMORY_HOST, EXTENT, 1), MCS_BAD_SHM);
    cr_assert_eq(hand_back(a, &c, MADE_HANDLE, MCS_MEMORY_GPU, EXTENT + 1, 1), MCS_BAD_SHM);
    cr_assert_eq(hand_back(a, &c, MADE_HANDLE, MCS_MEMORY_GPU, EXTENT, 0), MCS_BAD_SHM);
    cr_assert_eq(hand_back(a, &c, MADE_HANDLE, 2, EXTENT, 1), MCS_BAD_SHM);
    cr_assert_eq(hand_back(a, &c, FOREIGN_HANDLE, MCS_MEMORY_GPU, 3 * MIB, 1), MCS_BAD_SHM);
    cr_assert_eq(hand_back(a, &c, FOREIGN_HANDLE + 1, MCS_MEMORY_GPU, 3 * MIB, 1), MCS_NOT_FOUND);
    pc.refuses[MCT_CUDA_IMPORT] = MCS_BAD_SHM;
    cr_assert_eq(hand_back(a, &c, MADE_HANDLE, MCS_MEMORY_GPU, EXTENT, 1), MCS_BAD_SHM,
                 "the driver does not know it");
    pc.refuses[MCT_CUDA_IMPORT] = MCS_OK;
    b = part(3 * MIB, 0, 3 * MIB, true);
    cr_assert_eq(bring(a, &c, &b, 0), MCS_INVALID_ARGUMENT, "parts of nothing");
    cr_assert_eq(hand_back(a, &c, FOREIGN_HANDLE, MCS_MEMORY_GPU, 3 * MIB, 0), MCS_OK);
    b = part(4 * MIB, 0, 4 * MIB, true);
    cr_assert_eq(bring(a, &c, &b, 0), MCS_INVALID_ARGUMENT, "parts of something else");
    cr_assert_eq(hand_back(a, &c, FOREIGN_HANDLE, MCS_MEMORY_GPU, 3 * MIB, 0), MCS_OK,
                 "it may be tried again");
    cr_assert_eq(used(a, 0), EXTENT + 3 * MIB);
    cr_assert_eq(resume(a, &c), MCS_OK);
    cr_assert_eq(used(a, 0), 0, "what did not come back is given up");
    cr_assert(a->sessions->memory == 0 && a->sessions->account->memory == 0);
    cr_assert_eq(alloc(a, &c, 0, SMALL), MCS_OK);
    cr_assert_neq(c.m.b.extent_reply.address, BACK_ADDRESS(a), "its place is not given again");
    sa_leave(&c);
    end_recovered(a);
}

Test(gpu_import, others_wait_longer_for_who_waits_for_the_driver)
{
    struct mcd_agent *a = begin();
    struct sa_client c;
    union mcs_msg_body b;
    int fd = memfd_create("kept", MFD_CLOEXEC);

    pc.holds[MCT_CUDA_OPEN] = true;
    leave_behind(a, 0);
    cr_assert(mcd_recovery_over(a), "for who is not here nobody does");
    come_back(a, &c);
    memset(&b, 0, sizeof(b));
    b.extent_back = (struct mcs_msg_extent_back){
        .extent = MADE_HANDLE, .memory = MCS_MEMORY_GPU, .size = EXTENT};
    sa_send(&c, MCS_MSG_EXTENT_BACK, &b, &fd, 1);
    close(fd);
    turns(a, 10);
    cr_assert_not(mcd_recovery_over(a));
    sa_leave(&c);
    sa_until(a, mcd_recovery_over(a));
    sa_until(a, a->sessions == NULL);
    cr_assert_eq(used(a, 0), 0);
    pc_end(MCT_CUDA_OPEN);
    sa_until(a, mcd_gpu_state(a) == MCD_GPU_OPEN);
    end_recovered(a);
}

Test(gpu_import, who_has_gpu_memory_and_comes_back_to_an_agent_without_goes_on_with_the_rest)
{
    struct mcd_agent *a;
    struct sa_client c;
    char error[512] = "";

    memset(&pc, 0, sizeof(pc));
    a = sa_init();
    a->config.gpu_enable = MCD_GPU_OFF;
    cr_assert_eq(mcd_gpu_create(a, error, sizeof(error)), 0);
    leave_behind(a, 0);
    come_back(a, &c);
    cr_assert_eq(hand_back(a, &c, MADE_HANDLE, MCS_MEMORY_GPU, EXTENT, 1), MCS_NOT_FOUND);
    cr_assert_eq(resume(a, &c), MCS_OK);
    sa_alloc(a, &c, SMALL);
    sa_leave(&c);
    end_recovered(a);
}

/* ---- what it tells ------------------------------------------------------------------------------------ */

static cJSON *query(struct mcd_agent *a, struct sa_client *c, uint32_t what)
{
    union mcs_msg_body b;
    char *text;
    cJSON *root;

    memset(&b, 0, sizeof(b));
    b.query.what = what;
    cr_assert_eq(sa_ask(a, c, MCS_MSG_QUERY, &b), MCS_OK);
    text = calloc(1, c->m.b.query_reply.length + 1);
    cr_assert_not_null(text);
    cr_assert_eq(pread(c->answer_fd, text, c->m.b.query_reply.length, 0),
                 (ssize_t)c->m.b.query_reply.length);
    root = cJSON_Parse(text);
    cr_assert_not_null(root, "%s", text);
    free(text);
    return root;
}

static double number(const cJSON *o, const char *key)
{
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(o, key);

    cr_assert(cJSON_IsNumber(v), "%s", key);
    return v->valuedouble;
}

Test(gpu_import, gpus_are_told_of_once_the_driver_is_open)
{
    struct mcd_agent *a = begin();
    struct sa_client c;
    const cJSON *list, *o;
    cJSON *root;

    sa_arrive(a, &c);
    root = query(a, &c, MCS_QUERY_GPUS);
    cr_assert(cJSON_IsNull(cJSON_GetObjectItemCaseSensitive(root, "driver")));
    cr_assert_eq(cJSON_GetArraySize(cJSON_GetObjectItemCaseSensitive(root, "devices")), 0);
    cr_assert_eq(pc.begun[MCT_CUDA_OPEN], 0, "asking does not open it");
    cJSON_Delete(root);
    cr_assert_eq(alloc(a, &c, 1, SMALL), MCS_OK);
    pc.cuda->stats.copies = 42;
    pc.cuda->devices[1].lost = 1;
    root = query(a, &c, MCS_QUERY_GPUS);
    cr_assert_eq(number(root, "driver"), 13000);
    cr_assert_eq(number(root, "copies"), 42);
    list = cJSON_GetObjectItemCaseSensitive(root, "devices");
    cr_assert_eq(cJSON_GetArraySize(list), PC_DEVICES);
    o = cJSON_GetArrayItem(list, 1);
    cr_assert_str_eq(cJSON_GetObjectItemCaseSensitive(o, "uuid")->valuestring,
                     "GPU-11111111-1111-1111-1111-111111111111");
    cr_assert_str_eq(cJSON_GetObjectItemCaseSensitive(o, "name")->valuestring, "PLAYED GPU 1");
    cr_assert(cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(o, "lost")));
    cr_assert(number(o, "ours") == EXTENT && number(o, "extents") == 1 &&
              number(o, "imports") == 0);
    cr_assert_eq(number(o, "limit"), PC_TOTAL);
    cJSON_Delete(root);
    root = query(a, &c, MCS_QUERY_EXTENTS);
    o = cJSON_GetArrayItem(cJSON_GetObjectItemCaseSensitive(root, "extents"), 0);
    cr_assert_str_eq(cJSON_GetObjectItemCaseSensitive(o, "kind")->valuestring, "gpu");
    cr_assert_str_eq(cJSON_GetObjectItemCaseSensitive(o, "location")->valuestring,
                     "cuda:11111111111111111111111111");
    cJSON_Delete(root);
    sa_leave(&c);
    end(a);
}

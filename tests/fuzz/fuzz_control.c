/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hostile control messages: several clients of one agent send what the input says, good messages
 * and damaged ones, in any order, cut short or too long, with descriptors of the wrong kinds; they
 * do not read their replies, write into what they were given, hang up at any point. Between them
 * an honest client must be answered, and when all have gone nothing may be left of them: sessions,
 * extents, names, queues, memory of the pool, descriptors. Half of the inputs begin after the death of
 * an earlier agent: two of its sessions are in limbo, and clients hand back what they have kept, or what
 * they have not.
 *
 * The agent is all there but its sockets and its loop, which is played here step by step, its engine
 * too. Built for libFuzzer by tests/fuzz/run; tests/daemon/test_control_fuzz.c runs the same entry in
 * ordinary builds, and test_rdma_control_fuzz.c with RDMA devices: FUZZ_CONTROL_MADE is called when the agent
 * is there, FUZZ_CONTROL_BEGIN before an input, FUZZ_CONTROL_END when nothing should be left of it.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/agent.h"
#include "daemon/fault.h"
#include "daemon/gpu.h"
#include "daemon/log.h"
#include "descriptors.h"
#include "input.h"
#include "limbo.h"

#define CLIENTS 4u
#define KEPT 4u /* handles of a kind that a client remembers */
#define ACTS 200u
#define PART UINT64_C(65536) /* of GPU memory to import */
#define PARTS 3u
#define PATIENCE_NS UINT64_C(20000000000)

struct handle {
    uint32_t id;
    uint64_t at; /* offset, or address */
};

struct client {
    int fd; /* -1: hung up, or never there */
    uint32_t next;
    unsigned replies, part; /* part: of the next import */
    struct handle extents[KEPT], segments[KEPT], queues[KEPT], grants[KEPT];
    void *memory; /* what came last */
    size_t memory_size;
};

static struct mcd_agent *agent;
static struct client clients[CLIENTS + 1]; /* the last one is honest */
static uint64_t address;                   /* of the buffer that was published last */
#define HONEST (&clients[CLIENTS])

/* ---- a worker without a thread ------------------------------------------------------- */

/* In the place of daemon/worker.c: what takes long is done at once, so that an input does the same each
 * time; its end is told as late as ever. */
struct mcd_worker {
    struct mcd_job *done, **last;
    int notify_fd;
};

int mcd_worker_create(int notify_fd, struct mcd_worker **out)
{
    struct mcd_worker *w = calloc(1, sizeof(*w));

    fz_must(w != NULL, "no memory");
    w->last = &w->done;
    w->notify_fd = notify_fd;
    *out = w;
    return 0;
}

void mcd_worker_submit(struct mcd_worker *w, struct mcd_job *job)
{
    const uint64_t one = 1;

    job->run(job);
    job->next = NULL;
    *w->last = job;
    w->last = &job->next;
    fz_must(write(w->notify_fd, &one, sizeof(one)) == (ssize_t)sizeof(one), "eventfd");
}

void mcd_worker_reap(struct mcd_worker *w, void *context)
{
    while (w->done != NULL) {
        struct mcd_job *job = w->done;

        w->done = job->next;
        if (w->done == NULL)
            w->last = &w->done;
        job->done(job, context);
    }
}

void mcd_worker_destroy(struct mcd_worker *w, void *context)
{
    mcd_worker_reap(w, context);
    free(w);
}

/* ---- the agent --------------------------------------------------------------------- */

static void make_agent(void)
{
    struct mcd_engine_options o = {
        .tick_hz = 1000000000,
        .tick_shift = 3,
        .spin_us = 20,
        .slice = 1 << 16,
        .stream_min = 1 << 16,
        .deadline_us = 1000000,
    };

    agent = calloc(1, sizeof(*agent));
    fz_must(agent != NULL, "no memory");
    mcd_log_set_level(-1);
    mcd_config_init(&agent->config);
    agent->config.pool_size = UINT64_C(16) << 20;
    agent->config.extent_size = UINT64_C(2) << 20;
    agent->config.pages = MCD_PAGES_OFF;
    agent->config.sessions = CLIENTS;
    agent->config.inbox_size = MCS_INBOX_SIZE_MIN;
    agent->config.queue_slots = 64;
    agent->config.queue_depth = 16;
    agent->config.queue_batches = 16;
    agent->config.queue_args_size = 16384;
    agent->config.queues_per_session = 3;
    agent->config.recovery_s = 1;
    agent->incarnation = 4711;
    agent->tick_hz = o.tick_hz;
    agent->tick_shift = o.tick_shift;
    agent->listen_fd = agent->lock_fd = agent->signal_fd = -1;
    mcd_pool_init(&agent->pool, &agent->config);
    agent->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    agent->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    fz_must(agent->epoll_fd >= 0 && agent->event_fd >= 0, "descriptors");
    fz_must(mcd_control_watch(agent, agent->event_fd, MCD_SOURCE_EVENT, NULL) == 0, "watch");
    fz_must(mcd_fault_init(agent->event_fd) == 0, "fault");
    fz_must(mcd_worker_create(agent->event_fd, &agent->worker) == 0, "worker");
    fz_must(mcd_worker_create(agent->event_fd, &agent->quick) == 0, "worker");
    o.control_fd = agent->event_fd;
    fz_must(mcd_engine_create(&o, &agent->engines[0]) == 0, "engine");
    agent->nengines = 1;
#ifdef FUZZ_CONTROL_MADE
    FUZZ_CONTROL_MADE();
#endif
}

/* For programs that go on without it. */
void fuzz_control_fini(void);
void fuzz_control_fini(void)
{
    if (agent == NULL)
        return;
    mcd_worker_destroy(agent->worker, agent);
    mcd_worker_destroy(agent->quick, agent);
    mcd_engine_destroy(agent->engines[0]);
    close(agent->epoll_fd);
    close(agent->event_fd);
    free(agent);
    agent = NULL;
}

static void dispatch(const struct epoll_event *ev)
{
    struct mcd_session *s = (struct mcd_session *)(uintptr_t)(ev->data.u64 & ~UINT64_C(15));
    struct mcd_watch *w = (struct mcd_watch *)(uintptr_t)(ev->data.u64 & ~UINT64_C(15));
    uint64_t v;

    if ((ev->data.u64 & 15) == MCD_SOURCE_WATCH) {
        w->ready(w, ev->events);
        return;
    }
    if ((ev->data.u64 & 15) == MCD_SOURCE_EVENT) {
        if (read(agent->event_fd, &v, sizeof(v)) < 0)
            return;
        mcd_worker_reap(agent->worker, agent);
        mcd_worker_reap(agent->quick, agent);
        agent->look = true;
        return;
    }
    fz_must((ev->data.u64 & 15) == MCD_SOURCE_SESSION, "an event of nobody's");
    if (s->ending)
        return;
    if (!s->op.active)
        mcd_session_readable(s);
    if ((ev->events & (EPOLLHUP | EPOLLRDHUP | EPOLLERR)) != 0)
        mcd_session_end(s, NULL);
}

/* A round of the control thread's loop, and some turns of the engine: more than pass between two of
 * its looks at its commands. */
static void pump(int wait_ms)
{
    struct epoll_event events[16];

    agent->events = events;
    agent->nevents = epoll_wait(agent->epoll_fd, events, 16, wait_ms);
    for (int i = 0; i < agent->nevents; i++)
        dispatch(&events[i]);
    agent->nevents = 0;
    (void)mcd_gpu_poll(agent);
    (void)mcd_alarms_run(agent, mcd_now_ns());
    for (int i = 0; i < 70; i++)
        mcd_engine_turn(agent->engines[0]);
    (void)mcd_sessions_poll(agent);
}

static unsigned open_fds(void)
{
    DIR *d = opendir("/proc/self/fd");
    unsigned n = 0;

    fz_must(d != NULL, "no /proc");
    while (readdir(d) != NULL)
        n++;
    closedir(d);
    return n;
}

/* ---- clients ----------------------------------------------------------------------- */

static void arrive(struct client *c)
{
    int pair[2], small = 1;

    memset(c, 0, sizeof(*c));
    fz_must(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) == 0,
            "socketpair");
    /* who does not read its replies is found out soon */
    setsockopt(pair[1], SOL_SOCKET, SO_SNDBUF, &small, sizeof(small));
    c->fd = pair[0];
    mcd_session_accept(agent, pair[1]);
}

static void leave(struct client *c)
{
    if (c->fd >= 0)
        close(c->fd);
    c->fd = -1;
    if (c->memory != NULL)
        munmap(c->memory, c->memory_size);
    c->memory = NULL;
}

static void remember(struct handle *kept, uint32_t id, uint64_t at)
{
    memmove(kept + 1, kept, (KEPT - 1) * sizeof(*kept));
    kept[0] = (struct handle){.id = id, .at = at};
}

/* What the client got to map. */
static void take_memory(struct client *c, int fd)
{
    off_t size = lseek(fd, 0, SEEK_END);
    void *p = size <= 0 ? MAP_FAILED
                        : mmap(NULL, (size_t)size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    if (p == MAP_FAILED)
        return;
    if (c->memory != NULL)
        munmap(c->memory, c->memory_size);
    c->memory = p;
    c->memory_size = (size_t)size;
}

/* Takes one reply; its status, or -1 when there is none. */
static int take_reply(struct client *c)
{
    struct mcs_msg m;
    int fds[MCS_MSG_FDS_MAX];
    unsigned nfds = 0;

    memset(&m, 0, sizeof(m));
    if (mcs_msg_recv(c->fd, &m, fds, &nfds) != 0)
        return -1;
    c->replies++;
    fz_must(m.h.status < MCS_STATUS_COUNT, "status %u", m.h.status);
    if (m.h.status == MCS_OK) {
        fz_must(m.h.length - sizeof(m.h) >= mcs_msg_reply_size(m.h.type), "a short reply");
        switch (m.h.type) {
        case MCS_MSG_ALLOC:
        case MCS_MSG_REGISTER:
        case MCS_MSG_GPU_ALLOC:
        case MCS_MSG_GPU_IMPORT:
            remember(c->extents, m.b.extent_reply.extent, m.b.extent_reply.offset);
            break;
        case MCS_MSG_QUEUE_OPEN:
            remember(c->queues, m.b.queue_open_reply.queue_id, 0);
            break;
        case MCS_MSG_SEGMENT_OPEN:
        case MCS_MSG_OPEN_BACK:
            remember(c->segments, m.b.segment_open_reply.segment, address);
            break;
        case MCS_MSG_BUFFER_ADD:
            for (unsigned i = 0; i < CLIENTS; i++) /* addresses are no secret */
                for (unsigned k = 0; k < KEPT; k++)
                    clients[i].segments[k].at = m.b.buffer_reply.address;
            address = m.b.buffer_reply.address;
            break;
        case MCS_MSG_MAP:
            remember(c->grants, m.b.map_reply.grant, 0);
            break;
        default:
            break;
        }
    } else {
        fz_must(m.h.length == sizeof(m.h) + sizeof(m.b.error), "an error of another size");
        fz_must(memchr(m.b.error.text, '\0', sizeof(m.b.error.text)) != NULL, "no end of text");
        fz_must(m.b.error.text[0] != '\0', "an error without a sentence");
    }
    for (unsigned i = 0; i < nfds; i++) {
        take_memory(c, fds[i]);
        close(fds[i]);
    }
    return (int)m.h.status;
}

/* ---- descriptors of all kinds -------------------------------------------------------- */

/* Whose memory the client has kept, when there was an agent before. */
static unsigned kept_of(const struct client *c)
{
    return (unsigned)(c - clients) % LIMBO_SESSIONS;
}

/* What belongs to the message; -1: there is no such thing. */
static int right_fd(const struct client *c, const struct mcs_msg *m)
{
    const struct limbo_kept *k = &limbo_kept[kept_of(c)];

    if (agent->recovery.ledger == NULL)
        return -1;
    switch (m->h.type) {
    case MCS_MSG_RESTORE:
        return dup(k->region);
    case MCS_MSG_EXTENT_BACK:
        return dup(k->extents[m->b.extent_back.extent % LIMBO_EXTENTS]);
    case MCS_MSG_QUEUE_BACK:
        return dup(k->queue);
    default:
        return -1;
    }
}

/* Announced: what the message says of its size. */
static int some_fd(struct client *c, uint8_t how, uint64_t announced)
{
    unsigned size = announced < 65536 ? (unsigned)(announced + 4095) & ~4095u : 65536;

    switch (how % 12) {
    case 0:
    case 1:
        return sealed(size, F_SEAL_SHRINK);
    case 2:
        return sealed(size, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    case 3:
        return sealed(size, F_SEAL_SHRINK | F_SEAL_WRITE);
    case 4:
        return sealed(4096, 0);
    case 5:
        return sealed(size / 2, F_SEAL_SHRINK);
    case 6:
        return one_of_a_pair(false);
    case 7:
        return one_of_a_pair(true);
    case 8:
        return open("/dev/zero", O_RDWR | O_CLOEXEC);
    case 9:
        return open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    case 10:
        return (how & 0x10) != 0 ? open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC)
                                 : open("/", O_PATH | O_CLOEXEC);
    default:
        return (how & 0x10) != 0 ? dup(c->fd) : read_only(size);
    }
}

/* ---- messages ---------------------------------------------------------------------- */

static const struct handle *pick(const struct handle *kept, struct fz *z)
{
    return &kept[fz_u8(z) % KEPT];
}

/* A handle that was given, or a number. */
static uint32_t some_id(const struct handle *h, struct fz *z)
{
    uint8_t how = fz_u8(z);

    return how < 0xd0 ? h->id : how < 0xe0 ? h->id ^ 0x1000u : (uint32_t)fz_number(z);
}

static void some_name(char *to, size_t size, struct fz *z)
{
    static const char *const names[] = {"a", "b", "kv/0", "\xc3\xa4", "", "\n", "\xff", "host:1/x"};
    uint8_t how = fz_u8(z);

    if (how < 0xe0)
        snprintf(to, size, "%s", names[how % 8]);
    else
        fz_take(z, to, how < 0xf0 ? size : how % 16u);
}

/* One of those that the played driver has, or of none. */
static void some_gpu(uint8_t gpu[16], struct fz *z)
{
    memset(gpu, 0x10 + fz_u8(z) % 3, 16);
}

static void fill_body(struct client *c, struct mcs_msg *m, struct fz *z)
{
    const struct handle *h;

    switch (m->h.type) {
    case MCS_MSG_HELLO:
        m->b.hello.abi_version = fz_u8(z) < 0xf8 ? MCS_ABI_VERSION : fz_u8(z);
        some_name(m->b.hello.name, sizeof(m->b.hello.name), z);
        break;
    case MCS_MSG_QUEUE_OPEN:
        m->b.queue_open.depth = (uint32_t)fz_number(z);
        m->b.queue_open.slots = (uint32_t)fz_number(z);
        m->b.queue_open.batches = (uint32_t)fz_number(z);
        m->b.queue_open.args_size = fz_number(z);
        /* large ones are as good as impossible ones, but for the time that they take */
        if (m->b.queue_open.args_size < UINT64_C(1) << 31)
            m->b.queue_open.args_size %= 1 << 17;
        if (m->b.queue_open.slots <= MCS_QUEUE_SLOTS_MAX)
            m->b.queue_open.slots %= 4096;
        break;
    case MCS_MSG_QUEUE_CLOSE:
        m->b.queue_close.queue_id = some_id(pick(c->queues, z), z);
        break;
    case MCS_MSG_ALLOC:
        m->b.alloc.size = fz_number(z);
        m->b.alloc.align = fz_number(z);
        if (fz_u8(z) > 0xe0)
            fz_take(z, m->b.alloc.location, sizeof(m->b.alloc.location));
        break;
    case MCS_MSG_GPU_ALLOC:
        m->b.gpu_alloc.size = fz_number(z);
        m->b.gpu_alloc.align = fz_number(z);
        some_gpu(m->b.gpu_alloc.gpu, z);
        break;
    case MCS_MSG_GPU_IMPORT: /* most follow the one before */
        some_gpu(m->b.gpu_import.gpu, z);
        m->b.gpu_import.total = fz_u8(z) < 0xe0 ? PART * PARTS : fz_number(z);
        m->b.gpu_import.size = fz_u8(z) < 0xe0 ? PART : fz_number(z);
        m->b.gpu_import.at = fz_u8(z) < 0xe0 ? PART * c->part : fz_number(z);
        m->b.gpu_import.offset = fz_u8(z) < 0xe0 ? 0 : fz_number(z);
        m->b.gpu_import.ipc = fz_u8(z) < 0xe0 ? 0 : fz_u8(z) % 4u;
        m->b.gpu_import.whole = PART; /* damage makes others */
        m->b.gpu_import.last = fz_u8(z) < 0xf0 ? c->part + 1 == PARTS : fz_u8(z) % 3u;
        c->part = (c->part + 1) % PARTS;
        break;
    case MCS_MSG_FREE:
        h = pick(c->extents, z);
        m->b.free.extent = some_id(h, z);
        m->b.free.offset = h->at + (fz_u8(z) < 0xe0 ? 0 : fz_number(z));
        break;
    case MCS_MSG_REGISTER:
        m->b.reg.size = fz_number(z);
        break;
    case MCS_MSG_UNREGISTER:
        m->b.unregister.extent = some_id(pick(c->extents, z), z);
        break;
    case MCS_MSG_PUBLISH:
        m->b.publish.flags = fz_u8(z) < 0xf0 ? 0 : fz_u8(z);
        some_name(m->b.publish.name, sizeof(m->b.publish.name), z);
        break;
    case MCS_MSG_BUFFER_ADD:
    case MCS_MSG_BUFFER_REMOVE:
    case MCS_MSG_REVOKE:
        h = pick(c->extents, z);
        m->b.buffer.extent = some_id(h, z);
        m->b.buffer.access = fz_u8(z) % 32u;
        m->b.buffer.offset = h->at + (fz_u8(z) < 0xc0 ? 0 : fz_number(z));
        m->b.buffer.length = fz_number(z);
        break;
    case MCS_MSG_SEGMENT_OPEN:
        some_name(m->b.segment_open.name, sizeof(m->b.segment_open.name), z);
        break;
    case MCS_MSG_SEGMENT_CLOSE:
        m->b.segment_close.segment = some_id(pick(c->segments, z), z);
        break;
    case MCS_MSG_DESCRIBE:
        m->b.describe.segment = some_id(pick(c->segments, z), z);
        m->b.describe.first = (uint32_t)fz_number(z);
        break;
    case MCS_MSG_MAP:
        h = pick(c->segments, z);
        m->b.map.segment = some_id(h, z);
        m->b.map.writable = fz_u8(z) % 2;
        m->b.map.address = h->at + (fz_u8(z) < 0xc0 ? 0 : fz_number(z));
        m->b.map.length = fz_number(z);
        break;
    case MCS_MSG_UNMAP:
        m->b.unmap.grant = some_id(pick(c->grants, z), z);
        break;
    case MCS_MSG_QUERY:
        m->b.query.what = fz_u8(z) % (MCS_QUERY_COUNT + 1u);
        break;
    case MCS_MSG_RESTORE:
        m->b.restore.abi_version = fz_u8(z) < 0xf8 ? MCS_ABI_VERSION : fz_u8(z);
        m->b.restore.session_incarnation = LIMBO_SESSION(kept_of(c)) + (fz_u8(z) >= 0xf0);
        break;
    case MCS_MSG_EXTENT_BACK:
        m->b.extent_back.extent =
            some_id(&(struct handle){.id = LIMBO_HANDLE(fz_u8(z) % LIMBO_EXTENTS)}, z);
        m->b.extent_back.size = fz_u8(z) < 0xf0 ? LIMBO_EXTENT_SIZE : fz_number(z);
        m->b.extent_back.memory =
            (m->b.extent_back.extent & 2) != 0 ? MCS_MEMORY_GPU : MCS_MEMORY_HOST;
        if (m->b.extent_back.size == 0)
            m->b.extent_back.memory = fz_u8(z) % 3u;
        break;
    case MCS_MSG_ALLOCS_BACK:
        m->b.allocs_back.extent =
            some_id(&(struct handle){.id = LIMBO_HANDLE(fz_u8(z) % LIMBO_EXTENTS)}, z);
        m->b.allocs_back.count = (uint32_t)fz_number(z);
        for (unsigned i = 0, n = fz_u8(z) % 8u; i < n; i++) {
            m->b.allocs_back.allocs[i].offset = fz_number(z) * (i % 2 == 0 ? MCS_LINE : 1);
            m->b.allocs_back.allocs[i].size = fz_number(z);
        }
        break;
    case MCS_MSG_QUEUE_BACK:
        m->b.queue_back = (struct mcs_msg_queue_back){
            .queue_id = fz_u8(z) < 0xf0 ? LIMBO_QUEUE : fz_u8(z),
            .depth = fz_u8(z) < 0xf0 ? 16 : (uint32_t)fz_number(z),
            .slots = 32,
            .batches = 8,
            .args_size = 4096,
        };
        break;
    case MCS_MSG_OPEN_BACK:
        h = pick(c->segments, z);
        m->b.open_back.segment = fz_u8(z) < 0x80 ? LIMBO_HANDLE(5 + fz_u8(z) % 4u) : some_id(h, z);
        m->b.open_back.incarnation = LIMBO_SEGMENT(fz_u8(z) % 2u) + (fz_u8(z) >= 0xf0);
        some_name(m->b.open_back.name, sizeof(m->b.open_back.name), z);
        break;
    default:
        fz_take(z, &m->b, fz_u8(z));
        break;
    }
}

/* A packet of n bytes with descriptors, as it is: shm/message.c would not send it so. */
static void send_raw(struct client *c, const void *data, size_t n, const int *fds, unsigned nfds)
{
    struct iovec iov = {.iov_base = (void *)data, .iov_len = n};
    struct msghdr mh = {.msg_iov = &iov, .msg_iovlen = 1};
    union {
        char bytes[CMSG_SPACE(sizeof(int) * 8)];
        struct cmsghdr align;
    } space;

    if (nfds != 0) {
        struct cmsghdr *h;

        memset(&space, 0, sizeof(space));
        mh.msg_control = space.bytes;
        mh.msg_controllen = CMSG_SPACE(sizeof(int) * nfds);
        h = CMSG_FIRSTHDR(&mh);
        h->cmsg_level = SOL_SOCKET;
        h->cmsg_type = SCM_RIGHTS;
        h->cmsg_len = CMSG_LEN(sizeof(int) * nfds);
        memcpy(CMSG_DATA(h), fds, sizeof(int) * nfds);
    }
    if (sendmsg(c->fd, &mh, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
        /* the agent has hung up, or does not read: its business */
    }
}

/* What is imported comes back without one: its parts have theirs. */
static bool takes_fd(const struct mcs_msg *m)
{
    switch (m->h.type) {
    case MCS_MSG_EXTENT_BACK:
        return m->b.extent_back.extent != LIMBO_HANDLE(LIMBO_EXTENTS - 1);
    case MCS_MSG_GPU_IMPORT:
        return m->b.gpu_import.ipc != 1;
    default:
        return m->h.type == MCS_MSG_REGISTER || m->h.type == MCS_MSG_RESTORE ||
               m->h.type == MCS_MSG_QUEUE_BACK;
    }
}

static void send_message(struct client *c, uint16_t type, struct fz *z)
{
    union {
        struct mcs_msg m;
        uint8_t bytes[MCS_MSG_MAX + 512];
    } u;
    size_t n = mcs_msg_request_size(type);
    uint8_t damage = fz_u8(z), how = 0;
    unsigned nfds;
    int fds[5];

    memset(&u, 0, sizeof(u));
    n = sizeof(u.m.h) + (n > sizeof(u.m.b) ? 64 : n);
    u.m.h = (struct mcs_msg_header){
        .magic = MCS_MSG_MAGIC, .version = MCS_MSG_VERSION, .type = type, .id = ++c->next};
    fill_body(c, &u.m, z);
    nfds = takes_fd(&u.m);
    if (damage >= 0xe0) { /* of the message */
        switch (damage % 8) {
        case 0:
            n = fz_u16(z) % sizeof(u.bytes);
            break;
        case 1:
            n = fz_u8(z);
            break;
        case 2:
            fz_take(z, u.bytes + fz_u8(z) % 24u, 1);
            break;
        case 3:
            u.m.h.version = (uint16_t)fz_number(z);
            break;
        case 4:
            u.m.h.status = 1;
            break;
        case 5:
            n += fz_u8(z) % 64u;
            break;
        default:
            nfds = fz_u8(z) % 6u;
            break;
        }
    }
    u.m.h.length = damage == 0xff ? (uint32_t)fz_number(z) : (uint32_t)n;
    for (unsigned i = 0; i < nfds; i++) {
        how = fz_u8(z);
        fds[i] = how < 0xd0 ? right_fd(c, &u.m) : -1;
        if (fds[i] < 0)
            fds[i] = some_fd(c, how, type == MCS_MSG_REGISTER ? u.m.b.reg.size : 4096);
        fz_must(fds[i] >= 0, "a descriptor of kind %u: %s", how % 12u, strerror(errno));
    }
    send_raw(c, u.bytes, n, fds, nfds);
    for (unsigned i = 0; i < nfds; i++)
        close(fds[i]);
}

static void greet(struct client *c)
{
    static const uint8_t plain[] = {0, 0, 0};
    struct fz z = {.at = plain, .end = plain + sizeof(plain)};

    send_message(c, MCS_MSG_HELLO, &z);
}

/* Writes into what it has mapped: its queue, its inbox, its extent. Not into the words of copies in its
 * own thread: waiting for those takes two seconds. */
static void scribble(struct client *c, struct fz *z)
{
    size_t at = fz_u16(z), n = 1 + fz_u8(z) % 64u;

    if (c->memory == NULL)
        return;
    at %= c->memory_size;
    n = n < c->memory_size - at ? n : c->memory_size - at;
    if (at < 1024 && at + n > 512)
        return;
    fz_take(z, (uint8_t *)c->memory + at, n);
}

static void act(struct fz *z)
{
    uint8_t what = fz_u8(z);
    struct client *c = &clients[what % CLIENTS];

    if (c->fd < 0) {
        arrive(c);
        if ((what & 0x80) == 0)
            greet(c);
        return;
    }
    switch (what >> 2 & 15) {
    case 0:
        if ((what & 0xc0) == 0xc0)
            leave(c);
        else
            shutdown(c->fd, (what & 0x40) != 0 ? SHUT_WR : SHUT_RD);
        break;
    case 1:
        scribble(c, z);
        break;
    case 2: /* the words that count in a queue are at the front of its ring */
        if (c->memory != NULL && c->memory_size >= 2048) {
            uint32_t v = (uint32_t)fz_number(z);

            memcpy((uint8_t *)c->memory + 1024 + (fz_u8(z) & ~3u), &v, sizeof(v));
        }
        break;
    case 3:
        for (unsigned i = 0; i <= what >> 6; i++)
            pump(0);
        break;
    case 4:
        pump(0);
        while (take_reply(c) >= 0)
            continue;
        break;
    default:
        send_message(c, fz_u8(z) % (MCS_MSG_COUNT + 1), z);
        if ((what & 0x80) == 0)
            pump(0);
        if ((what & 0x40) == 0 && c->fd >= 0)
            while (take_reply(c) >= 0)
                continue;
        break;
    }
}

/* The honest client asks for something, and is told. */
static void ask(void)
{
    uint64_t end = mcd_now_ns() + PATIENCE_NS;
    struct mcs_msg m = {.h = {.type = MCS_MSG_SEGMENT_CLOSE, .id = 1}};
    int status;

    fz_must(mcs_msg_send(HONEST->fd, &m, sizeof(m.b.segment_close), NULL, 0) == 0,
            "the honest client lost its agent");
    while ((status = take_reply(HONEST)) < 0) {
        fz_must(mcd_now_ns() < end, "the honest client gets no answer");
        pump(0);
    }
    fz_must(status == MCS_INVALID_HANDLE, "the honest client was told %d", status);
}

static bool all_gone(unsigned fds)
{
    return agent->sessions == NULL && agent->pool.used == 0 && agent->registry.count == 0 &&
           !mcd_gpu_busy(agent) && open_fds() == fds;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fz z = {.at = data, .end = data + size};
    uint64_t end, next_address;
    unsigned fds;

    if (agent == NULL) {
        make_agent();
        pump(0);
    }
    fds = open_fds();
#ifdef FUZZ_CONTROL_BEGIN
    FUZZ_CONTROL_BEGIN(data, size);
#endif
    for (unsigned i = 0; i < CLIENTS; i++)
        clients[i].fd = -1;
    next_address = agent->pool.next_address;
    if ((fz_u8(&z) & 1) != 0)
        limbo_begin(agent, &z);
    arrive(HONEST);
    greet(HONEST);
    end = mcd_now_ns() + PATIENCE_NS;
    while (HONEST->replies == 0) {
        fz_must(mcd_now_ns() < end, "the honest client is not greeted");
        pump(0);
        (void)take_reply(HONEST);
    }
    for (unsigned acts = 0; !fz_empty(&z) && acts < ACTS; acts++)
        act(&z);
    ask();
    for (unsigned i = 0; i <= CLIENTS; i++)
        leave(&clients[i]);
    for (struct mcd_session *s = agent->sessions; s != NULL; s = s->next)
        if (s->socket < 0) /* nobody came for it, and its process would have to die */
            mcd_session_end(s, NULL);
    end = mcd_now_ns() + PATIENCE_NS;
    while (agent->sessions != NULL && mcd_now_ns() < end)
        pump(0);
    if (agent->recovery.ledger != NULL)
        limbo_end(agent);
    agent->pool.next_address = next_address;
    while (!all_gone(fds)) {
        fz_must(mcd_now_ns() < end, "left over: %u sessions, %llu bytes, %d descriptors",
                agent->nsessions, (unsigned long long)agent->pool.used, (int)(open_fds() - fds));
        pump(0);
    }
    fz_must(agent->nsessions == 0 && agent->segments == NULL, "names are left");
    fz_must(agent->pool.extents == NULL && agent->queue_memory == 0, "memory is left");
    fz_must(agent->engines[0]->nhot + agent->engines[0]->ncold == 0, "queues are left");
    fz_must(agent->engines[0]->wheel->set == 0, "timers are left");
#ifdef FUZZ_CONTROL_END
    FUZZ_CONTROL_END();
#endif
    return 0;
}

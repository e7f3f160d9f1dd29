/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu.h"
#include "shm/failpoint.h"

#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define SPIN_ALONE_NS 2000.0

#define GUARD_SIZE 4096u

void mcl_log(const struct mcshm *c, mcshm_log_level level, const char *format, ...)
{
    char text[512];
    va_list ap;

    if (c->log == NULL)
        return;
    va_start(ap, format);
    vsnprintf(text, sizeof(text), format, ap);
    va_end(ap);
    c->log(c->log_context, level, text);
}

MCSHM_API void mcshm_options_init(mcshm_options *o)
{
    if (o == NULL)
        return;
    *o = (mcshm_options){
        .size = sizeof(*o),
        .connect_timeout_ms = 5000,
        .control_timeout_ms = 30000,
        .caller_max = MCSHM_CALLER_DEFAULT,
        .reconnect_ms = 10000,
    };
}

/* Takes what an older or newer caller's struct has in common with ours. */
static mcshm_status take_options(const mcshm_options *o, mcshm_options *out)
{
    mcshm_options_init(out);
    if (o != NULL) {
        if (o->size < sizeof(o->size) || o->size > 4096)
            return mcl_fail(MCSHM_INVALID_ARGUMENT,
                            "options.size is %zu: call mcshm_options_init() first", o->size);
        memcpy(out, o, o->size < sizeof(*out) ? o->size : sizeof(*out));
    }
    if (out->socket_path == NULL)
        out->socket_path = MCSHM_DEFAULT_SOCKET;
    if (out->name != NULL && strnlen(out->name, MCS_NAME_MAX) >= MCS_NAME_MAX)
        return mcl_fail(MCSHM_INVALID_ARGUMENT, "options.name is longer than %u bytes",
                        MCS_NAME_MAX - 1);
    if (out->connect_timeout_ms == 0 || out->connect_timeout_ms > MCL_TIMEOUT_MS_MAX)
        return mcl_fail(MCSHM_INVALID_ARGUMENT, "options.connect_timeout_ms is %u, not 1 .. %u",
                        out->connect_timeout_ms, MCL_TIMEOUT_MS_MAX);
    if (out->control_timeout_ms == 0 || out->control_timeout_ms > MCL_TIMEOUT_MS_MAX)
        return mcl_fail(MCSHM_INVALID_ARGUMENT, "options.control_timeout_ms is %u, not 1 .. %u",
                        out->control_timeout_ms, MCL_TIMEOUT_MS_MAX);
    if (out->reconnect_ms > MCL_TIMEOUT_MS_MAX)
        return mcl_fail(MCSHM_INVALID_ARGUMENT, "options.reconnect_ms is %u, not 0 .. %u",
                        out->reconnect_ms, MCL_TIMEOUT_MS_MAX);
    return MCSHM_OK;
}

/* The page that tells a child of fork() from its parent. */
static int guard_create(uint32_t **out)
{
    void *page = mmap(NULL, GUARD_SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (page == MAP_FAILED)
        return -errno;
    if (madvise(page, GUARD_SIZE, MADV_WIPEONFORK) != 0) {
        int res = -errno;

        munmap(page, GUARD_SIZE);
        return res;
    }
    *out = page;
    **out = MCL_GUARD_MAGIC;
    return 0;
}

static mcshm_status connect_error(int error, const mcshm_options *o)
{
    struct stat st;

    switch (error) {
    case ENOENT:
    case ECONNREFUSED:
        return mcl_fail(MCSHM_AGENT_DOWN, "no agent listens on %s: start mcshmd or set socket_path",
                        o->socket_path);
    case EACCES:
    case EPERM:
        if (stat(o->socket_path, &st) == 0)
            return mcl_fail(MCSHM_PERMISSION,
                            "uid %u gid %u may not connect to %s (uid %u gid %u mode %04o): join "
                            "its group or change [agent] socket_mode",
                            geteuid(), getegid(), o->socket_path, st.st_uid, st.st_gid,
                            st.st_mode & 07777);
        return mcl_fail(MCSHM_PERMISSION,
                        "uid %u gid %u may not reach %s: a folder on the way does not let it pass",
                        geteuid(), getegid(), o->socket_path);
    case EAGAIN:
        return mcl_fail(MCSHM_TIMEOUT,
                        "the agent on %s accepted no connection within %u ms (connect_timeout_ms)",
                        o->socket_path, o->connect_timeout_ms);
    case EPROTOTYPE:
        return mcl_fail(MCSHM_PROTOCOL, "%s is not an agent's socket (SOCK_SEQPACKET)",
                        o->socket_path);
    default:
        return mcl_fail(MCSHM_INTERNAL, "connect to %s: %s", o->socket_path, strerror(error));
    }
}

static mcshm_status open_socket(const mcshm_options *o, int *out)
{
    /* for a Unix socket the send timeout bounds the wait for a place in the backlog */
    struct timeval limit = {.tv_sec = o->connect_timeout_ms / 1000,
                            .tv_usec = (suseconds_t)(o->connect_timeout_ms % 1000) * 1000};
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t length = strlen(o->socket_path);
    mcshm_status status;
    int fd, res;

    if (length == 0 || length >= sizeof(address.sun_path))
        return mcl_fail(MCSHM_INVALID_ARGUMENT,
                        "options.socket_path has %zu bytes; a Unix socket's path has 1 .. %zu",
                        length, sizeof(address.sun_path) - 1);
    memcpy(address.sun_path, o->socket_path, length + 1);
    fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return mcl_fail(MCSHM_NO_MEMORY, "socket: %s", strerror(errno));
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
    do
        res = connect(fd, (const struct sockaddr *)&address, sizeof(address));
    while (res != 0 && errno == EINTR);
    if (res != 0) {
        status = connect_error(errno, o);
        close(fd);
        return status;
    }
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    *out = fd;
    return MCSHM_OK;
}

/* Maps and checks the session region that came with the answer. */
static mcshm_status attach_region(struct mcshm *c, int fd, uint64_t size)
{
    int res = MCS_FAIL(session_mapped);

    if (res == 0)
        res = mcs_region_map(fd, size, true, NULL, &c->region_memory);
    if (res != 0) {
        c->region_memory = NULL;
        return mcl_fail(MCSHM_NO_MEMORY, "mapping the session region of %llu bytes: %s",
                        (unsigned long long)size, strerror(-res));
    }
    c->region_size = size;
    (void)madvise(c->region_memory, size, MADV_DONTFORK);
    res = mcs_session_region_attach(&c->region, c->region_memory, size);
    if (res == -EPROTONOSUPPORT)
        return mcl_fail(MCSHM_VERSION_MISMATCH,
                        "the agent has shared-memory ABI %u, this library %u: use the libmcshm "
                        "that came with the agent",
                        c->region.header != NULL ? c->region.header->abi_version : 0,
                        MCS_ABI_VERSION);
    if (res != 0 || c->region.header->tick_hz == 0 || c->region.header->tick_shift > 63)
        return mcl_fail(MCSHM_PROTOCOL, "the session region contradicts itself");
    return MCSHM_OK;
}

static mcshm_status hello(struct mcshm *c, const mcshm_options *o)
{
    struct mcs_msg m = {.b.hello.abi_version = MCS_ABI_VERSION};
    struct mcs_msg_hello_reply r;
    struct mcl_fds fds;
    mcshm_status status;

    if (o->reconnect_ms == 0)
        m.b.hello.features = MCS_FEATURE_LEAVES;
    if (o->name != NULL)
        memcpy(m.b.hello.name, o->name, strlen(o->name));
    status = mcl_call(c, MCS_MSG_HELLO, &m, -1, &fds);
    if (status != MCSHM_OK)
        return status;
    r = m.b.hello_reply;
    if (fds.n != 2) {
        mcl_close_fds(&fds);
        return mcl_fail(MCSHM_PROTOCOL, "the agent's HELLO came with %u descriptors, not 2", fds.n);
    }
    c->doorbell = fds.fd[1];
    c->region_fd = fds.fd[0];
    status = attach_region(c, fds.fd[0], r.region_size);
    if (status != MCSHM_OK)
        return status;

    c->info = (mcshm_info){
        .agent_incarnation = r.agent_incarnation,
        .session_incarnation = r.session_incarnation,
        .tenant = r.tenant,
        .page_size = r.page_size,
        .caller_max = o->caller_max == MCSHM_CALLER_DEFAULT ? r.caller_max : o->caller_max,
        .tick_hz = c->region.header->tick_hz,
        .deadline_us = r.deadline_us,
        .never_sleeps = (r.features & MCS_FEATURE_NEVER_SLEEPS) != 0,
    };
    memcpy(c->info.agent_version, r.agent_version, sizeof(c->info.agent_version) - 1);
    c->reconnect_ms = o->reconnect_ms;
    c->kept = o->reconnect_ms != 0 && (r.features & MCS_FEATURE_KEPT) != 0;
    c->objects = (r.features & MCS_FEATURE_OBJECTS) != 0;
    c->gpus = (r.features & MCS_FEATURE_GPU) != 0;
    c->grants_version = mcs_load_acquire(&c->region.words->grants_version);
    c->tick_shift = c->region.header->tick_shift;
    c->tick_ns = 1e9 / (double)c->info.tick_hz;
    c->spin_ticks = (uint64_t)((double)r.spin_us * 1e3 / c->tick_ns);
    c->spin_alone = (uint64_t)(SPIN_ALONE_NS / c->tick_ns);
    return MCSHM_OK;
}

/* Frees all memory of c; `mapped` is false in a forked child, which lacks the regions that
 * were marked MADV_DONTFORK: other things may lie at their addresses by now. */
static void destroy(struct mcshm *c, bool mapped)
{
    int fds[] = {c->doorbell, c->socket, c->half, c->region_fd, c->stir};

    while (c->queues != NULL) {
        struct mcshm_queue *q = c->queues;

        c->queues = q->next;
        mcl_queue_free(q, mapped);
    }
    mcl_view_fini(c);
    mcl_gpu_fini(c, mapped);
    mcl_grants_fini(c, mapped);
    mcl_private_fini(c);
    mcl_memory_fini(c);
    free(c->buffers);
    if (mapped && c->region_memory != NULL)
        munmap(c->region_memory, c->region_size);
    for (size_t i = 0; i < sizeof(fds) / sizeof(fds[0]); i++) {
        if (fds[i] >= 0)
            close(fds[i]);
    }
    free(c->socket_path);
    if (c->guard != NULL)
        munmap(c->guard, GUARD_SIZE);
    if (mapped) {
        pthread_mutex_destroy(&c->mutex);
        pthread_mutex_destroy(&c->info_mutex);
        pthread_mutex_destroy(&c->gpu_mutex);
    }
    free(c);
}

MCSHM_API mcshm_status mcshm_connect(const mcshm_options *options, mcshm **out)
{
    struct mcshm *c = NULL;
    mcshm_options o;
    mcshm_status status;
    int res;

    if (out == NULL)
        return mcl_fail(MCSHM_INVALID_ARGUMENT, "mcshm_connect: out is NULL");
    *out = NULL;
    status = take_options(options, &o);
    if (status != MCSHM_OK)
        return status;
    c = calloc(1, sizeof(*c));
    if (c == NULL)
        return mcl_fail(MCSHM_NO_MEMORY, "mcshm_connect: out of memory");
    c->socket = c->doorbell = c->half = c->region_fd = c->stir = -1;
    pthread_mutex_init(&c->mutex, NULL);
    pthread_mutex_init(&c->info_mutex, NULL);
    pthread_mutex_init(&c->gpu_mutex, NULL);
    c->view = &c->empty;
    c->strict = o.strict;
    c->log = o.log;
    c->log_context = o.log_context;
    res = guard_create(&c->guard);
    if (res != 0) {
        status = mcl_fail(res == -ENOMEM ? MCSHM_NO_MEMORY : MCSHM_NOT_SUPPORTED,
                          "a page with MADV_WIPEONFORK (Linux 4.14): %s", strerror(-res));
        goto error;
    }
    status = open_socket(&o, &c->socket);
    if (status != MCSHM_OK)
        goto error;
    if (MCS_FAIL(connect_socket) != 0) {
        status = mcl_fail(MCSHM_INTERNAL, "connect to %s: a test's failpoint", o.socket_path);
        goto error;
    }
    c->control_timeout_ms = o.connect_timeout_ms;
    status = hello(c, &o);
    if (status != MCSHM_OK)
        goto error;
    c->control_timeout_ms = o.control_timeout_ms;
    if (c->kept)
        status = mcl_watch_start(c, o.socket_path);
    if (status != MCSHM_OK)
        goto error;
    if (!c->watched) { /* nobody will want it back */
        close(c->region_fd);
        c->region_fd = -1;
    }
    *out = c;
    return MCSHM_OK;

error:
    destroy(c, true);
    return status;
}

/* Waits for the agent to have given all back: it then closes its end. */
static void end_and_wait(struct mcshm *c)
{
    int64_t deadline = mcl_now_ns() + (int64_t)c->control_timeout_ms * 1000000;
    struct pollfd p = {.fd = c->socket, .events = POLLRDHUP};
    int64_t left;

    shutdown(c->socket, SHUT_WR);
    while ((left = deadline - mcl_now_ns()) > 0) {
        int n = poll(&p, 1, (int)((left + 999999) / 1000000));

        if (n > 0 || (n < 0 && errno != EINTR))
            break;
    }
}

MCSHM_API void mcshm_close(mcshm *c)
{
    bool forked;

    if (c == NULL)
        return;
    forked = mcl_check(c) == MCSHM_FORKED;
    MCS_FAILPOINT(close_begin);
    if (!forked)
        mcl_watch_stop(c);
    if (!forked && !c->broken && !c->away && !mcl_down(c))
        end_and_wait(c);
    /* Did the agent die before it had ended the session? Then a later one waits for this process,
     * also when this library has given up. acquire: pairs with the agent's store */
    if (!forked && c->watched && mcs_load_acquire(&c->region.words->ended) == 0)
        mcl_leave(c);
    destroy(c, !forked);
}

MCSHM_API mcshm_status mcshm_get_info(mcshm *c, mcshm_info *out)
{
    mcshm_status status = mcl_check(c);

    if (status == MCSHM_OK && out == NULL)
        status = mcl_fail(MCSHM_INVALID_ARGUMENT, "mcshm_get_info: out is NULL");
    if (status == MCSHM_OK) {
        pthread_mutex_lock(&c->info_mutex);
        *out = (mcshm_info){
            .agent_incarnation = c->info.agent_incarnation,
            .session_incarnation = c->info.session_incarnation,
            .tenant = c->info.tenant,
            .page_size = mcs_load_relaxed(&c->info.page_size), /* partner: mcl_pool_alloc() */
            .caller_max = c->info.caller_max,
            .tick_hz = c->info.tick_hz,
            .deadline_us = c->info.deadline_us,
            .never_sleeps = c->info.never_sleeps,
            .restarts = mcs_load_relaxed(&c->restarts), /* partner: resumed(), restore.c */
        };
        memcpy(out->agent_version, c->info.agent_version, sizeof(out->agent_version));
        pthread_mutex_unlock(&c->info_mutex);
    }
    return status;
}

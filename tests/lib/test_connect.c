/* SPDX-License-Identifier: Apache-2.0 */
/* Connecting to agents that are missing, closed, silent, old or mad. */
#include <criterion/criterion.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "lib/internal.h"

TestSuite(connect, .timeout = 20);

/* An agent of one connection in a thread: answers each request by `answer`. */
struct agent {
    char folder[64], path[96];
    int listener, region_fd, doorbell;
    uint64_t region_size;
    void (*answer)(struct agent *a, int socket, struct mcs_msg *m);
    bool open; /* keep the connection after the answer */
    pthread_t thread;
};

static void good_hello(struct agent *a, int socket, struct mcs_msg *m)
{
    int fds[2] = {a->region_fd, a->doorbell};

    memset(&m->b, 0, sizeof(m->b));
    m->b.hello_reply.region_size = a->region_size;
    m->b.hello_reply.caller_max = 4096;
    memcpy(m->b.hello_reply.agent_version, "9.9.9", 6);
    cr_assert_eq(mcs_msg_send(socket, m, sizeof(m->b.hello_reply), fds, 2), 0);
}

static void refuse(int socket, struct mcs_msg *m, uint32_t status, const char *text)
{
    m->h.status = status;
    memset(&m->b.error, 0, sizeof(m->b.error));
    snprintf(m->b.error.text, sizeof(m->b.error.text), "%s", text);
    cr_assert_eq(mcs_msg_send(socket, m, sizeof(m->b.error), NULL, 0), 0);
}

static void *serve(void *arg)
{
    struct agent *a = arg;
    int socket = accept4(a->listener, NULL, NULL, SOCK_CLOEXEC);
    struct mcs_msg m;
    unsigned nfds;
    int fds[MCS_MSG_FDS_MAX];

    cr_assert_geq(socket, 0);
    while (mcs_msg_recv(socket, &m, fds, &nfds) == 0) {
        a->answer(a, socket, &m);
        if (!a->open)
            break;
    }
    close(socket);
    return NULL;
}

static void make_region(struct agent *a)
{
    struct mcs_session_header h = {.tick_hz = 1000000000, .session_incarnation = 3};
    struct mcs_session_region r;
    void *mem;

    a->region_size = mcs_session_region_size(MCS_INBOX_SIZE_MIN);
    cr_assert_eq(mcs_region_create("test", a->region_size, 0, -1, NULL, &a->region_fd, &mem), 0);
    mcs_session_region_create(&r, mem, MCS_INBOX_SIZE_MIN, &h);
    munmap(mem, a->region_size);
    a->doorbell = eventfd(0, EFD_CLOEXEC);
}

static mcshm_options start(struct agent *a, void (*answer)(struct agent *, int, struct mcs_msg *))
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    mcshm_options o;

    strcpy(a->folder, "/tmp/mcshm-test-XXXXXX");
    cr_assert_not_null(mkdtemp(a->folder));
    snprintf(a->path, sizeof(a->path), "%s/sock", a->folder);
    memcpy(address.sun_path, a->path, strlen(a->path) + 1);
    a->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    cr_assert_eq(bind(a->listener, (struct sockaddr *)&address, sizeof(address)), 0);
    cr_assert_eq(listen(a->listener, 1), 0);
    a->answer = answer;
    make_region(a);
    cr_assert_eq(pthread_create(&a->thread, NULL, serve, a), 0);
    mcshm_options_init(&o);
    o.socket_path = a->path;
    o.connect_timeout_ms = 2000;
    o.control_timeout_ms = 100;
    return o;
}

static void stop(struct agent *a)
{
    pthread_join(a->thread, NULL);
    close(a->listener);
    close(a->region_fd);
    close(a->doorbell);
    unlink(a->path);
    rmdir(a->folder);
}

static void expect(const mcshm_options *o, mcshm_status want, const char *text)
{
    mcshm *c = (mcshm *)o;

    cr_assert_eq(mcshm_connect(o, &c), want, "%s", mcshm_last_error(NULL));
    cr_assert_null(c);
    cr_assert_not_null(strstr(mcshm_last_error(NULL), text), "%s", mcshm_last_error(NULL));
}

Test(connect, options_name_value_and_limit)
{
    char name[MCS_NAME_MAX + 1] = {0}, path[200] = {0};
    mcshm_options o = {0};

    expect(&o, MCSHM_INVALID_ARGUMENT, "mcshm_options_init");
    mcshm_options_init(&o);
    o.connect_timeout_ms = 0;
    expect(&o, MCSHM_INVALID_ARGUMENT, "connect_timeout_ms is 0, not 1 .. 600000");
    mcshm_options_init(&o);
    o.control_timeout_ms = 600001;
    expect(&o, MCSHM_INVALID_ARGUMENT, "control_timeout_ms is 600001");
    mcshm_options_init(&o);
    o.name = memset(name, 'n', MCS_NAME_MAX);
    expect(&o, MCSHM_INVALID_ARGUMENT, "options.name");
    mcshm_options_init(&o);
    o.socket_path = memset(path, 'p', 108);
    expect(&o, MCSHM_INVALID_ARGUMENT, "108 bytes; a Unix socket's path has 1 .. 107");
    path[0] = '\0';
    expect(&o, MCSHM_INVALID_ARGUMENT, "0 bytes");
}

Test(connect, an_older_callers_shorter_options_are_taken)
{
    mcshm_options o;

    mcshm_options_init(&o);
    o.size = offsetof(mcshm_options, name);
    o.socket_path = "/nonexistent/mcshm";
    o.name = (const char *)1; /* beyond what that caller knew */
    expect(&o, MCSHM_AGENT_DOWN, "/nonexistent/mcshm");
}

Test(connect, missing_and_closed_sockets)
{
    struct agent a = {.open = true};
    mcshm_options o = start(&a, good_hello);
    mcshm *c;

    cr_assert_eq(mcshm_connect(&o, &c), MCSHM_OK);
    close(a.listener);
    a.listener = -1;
    expect(&o, MCSHM_AGENT_DOWN, "start mcshmd or set socket_path");
    mcshm_close(c);
    stop(&a);
    expect(&o, MCSHM_AGENT_DOWN, a.path);
}

Test(connect, forbidden_socket_names_path_and_remedy)
{
    struct agent a = {.open = true};
    mcshm_options o = start(&a, good_hello);
    mcshm *c;

    cr_assert_eq(mcshm_connect(&o, &c), MCSHM_OK);
    chmod(a.path, 0);
    if (geteuid() == 0) {
        chmod(a.folder, 0755);
        cr_assert_eq(seteuid(65534), 0);
    }
    expect(&o, MCSHM_PERMISSION, a.path);
    cr_assert_not_null(strstr(mcshm_last_error(NULL), "socket_mode"));
    if (getuid() == 0)
        cr_assert_eq(seteuid(0), 0);
    mcshm_close(c);
    stop(&a);
}

Test(connect, tells_what_the_agent_said)
{
    struct agent a = {.open = true};
    mcshm_options o = start(&a, good_hello);
    mcshm_info info;
    mcshm *c;

    o.caller_max = MCSHM_CALLER_DEFAULT;
    cr_assert_eq(mcshm_connect(&o, &c), MCSHM_OK, "%s", mcshm_last_error(NULL));
    cr_assert_eq(mcshm_get_info(c, &info), MCSHM_OK);
    cr_assert_eq(info.caller_max, 4096);
    cr_assert_str_eq(info.agent_version, "9.9.9");
    mcshm_close(c);
    stop(&a);
}

static void limit(struct agent *a, int socket, struct mcs_msg *m)
{
    (void)a;
    refuse(socket, m, MCS_LIMIT, "3 sessions are open, the limit is 3");
}

Test(connect, refusal_carries_the_agents_sentence)
{
    struct agent a = {0};
    mcshm_options o = start(&a, limit);

    expect(&o, MCSHM_LIMIT, "3 sessions are open, the limit is 3");
    stop(&a);
}

static void other_protocol(struct agent *a, int socket, struct mcs_msg *m)
{
    (void)a;
    m->h.version = MCS_MSG_VERSION + 1;
    m->h.length = sizeof(m->h);
    cr_assert_eq(send(socket, m, sizeof(m->h), MSG_NOSIGNAL), (ssize_t)sizeof(m->h));
}

Test(connect, other_protocol_version)
{
    struct agent a = {0};
    mcshm_options o = start(&a, other_protocol);

    expect(&o, MCSHM_VERSION_MISMATCH, "version");
    stop(&a);
}

static void other_abi(struct agent *a, int socket, struct mcs_msg *m)
{
    struct mcs_session_header *h =
        mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, a->region_fd, 0);

    h->abi_version++;
    munmap(h, 4096);
    good_hello(a, socket, m);
}

Test(connect, other_abi_version)
{
    struct agent a = {0};
    mcshm_options o = start(&a, other_abi);

    expect(&o, MCSHM_VERSION_MISMATCH, "ABI");
    stop(&a);
}

static void hang_up(struct agent *a, int socket, struct mcs_msg *m)
{
    (void)a, (void)m;
    shutdown(socket, SHUT_RDWR);
}

Test(connect, hang_up_in_the_middle)
{
    struct agent a = {0};
    mcshm_options o = start(&a, hang_up);

    expect(&o, MCSHM_AGENT_DOWN, "HELLO");
    stop(&a);
}

static void short_reply(struct agent *a, int socket, struct mcs_msg *m)
{
    (void)a;
    cr_assert_eq(mcs_msg_send(socket, m, 8, NULL, 0), 0);
}

static void no_descriptors(struct agent *a, int socket, struct mcs_msg *m)
{
    (void)a;
    memset(&m->b, 0, sizeof(m->b));
    cr_assert_eq(mcs_msg_send(socket, m, sizeof(m->b.hello_reply), NULL, 0), 0);
}

static void other_id(struct agent *a, int socket, struct mcs_msg *m)
{
    m->h.id += 7;
    good_hello(a, socket, m);
}

Test(connect, replies_that_make_no_sense)
{
    void (*const mad[])(struct agent *, int, struct mcs_msg *) = {short_reply, no_descriptors,
                                                                  other_id};

    for (size_t i = 0; i < sizeof(mad) / sizeof(mad[0]); i++) {
        struct agent a = {0};
        mcshm_options o = start(&a, mad[i]);

        expect(&o, MCSHM_PROTOCOL, "");
        stop(&a);
    }
}

static void hello_then_silence(struct agent *a, int socket, struct mcs_msg *m)
{
    if (m->h.type == MCS_MSG_HELLO)
        good_hello(a, socket, m);
}

Test(connect, silence_times_out_and_ends_the_connection)
{
    struct agent a = {.open = true};
    mcshm_options o = start(&a, hello_then_silence);
    int64_t begin;
    mcshm *c;
    void *p;

    cr_assert_eq(mcshm_connect(&o, &c), MCSHM_OK);
    begin = mcl_now_ns();
    cr_assert_eq(mcshm_alloc(c, 1, 0, NULL, &p), MCSHM_TIMEOUT);
    cr_assert_geq(mcl_now_ns() - begin, 100 * 1000000);
    cr_assert_not_null(strstr(mcshm_last_error(c), "control_timeout_ms"));
    cr_assert_eq(mcshm_alloc(c, 1, 0, NULL, &p), MCSHM_AGENT_DOWN);
    mcshm_close(c);
    stop(&a);
}

Test(connect, arguments_are_checked_before_the_agent_is_asked)
{
    struct agent a = {.open = true};
    mcshm_options o = start(&a, hello_then_silence);
    mcshm_queue_options qo = {.size = sizeof(qo)};
    char name[MCS_NAME_MAX + 1] = {0};
    mcshm_queue *q;
    mcshm_segment s;
    mcshm *c;
    void *p;

    cr_assert_eq(mcshm_connect(&o, &c), MCSHM_OK);
    cr_assert_eq(mcshm_alloc(c, 0, 0, NULL, &p), MCSHM_INVALID_ARGUMENT);
    cr_assert_eq(mcshm_alloc(c, 1, 3, NULL, &p), MCSHM_INVALID_ARGUMENT);
    cr_assert_eq(mcshm_alloc(c, 1, 1ul << 31, NULL, &p), MCSHM_INVALID_ARGUMENT);
    cr_assert_eq(mcshm_alloc(c, 1, 0, NULL, NULL), MCSHM_INVALID_ARGUMENT);
    cr_assert_eq(mcshm_free(c, &p), MCSHM_NOT_REGISTERED);
    cr_assert_eq(mcshm_unregister(c, &p), MCSHM_NOT_REGISTERED);
    cr_assert_eq(mcshm_register(c, (void *)UINTPTR_MAX, 2), MCSHM_INVALID_ARGUMENT);
    cr_assert_eq(mcshm_register_memfd(c, 0, 1, &p), MCSHM_BAD_SHM);
    cr_assert_eq(mcshm_register_memfd(c, -1, 1, &p), MCSHM_BAD_SHM);
    cr_assert_eq(mcshm_segment_publish(c, "", 0), MCSHM_INVALID_ARGUMENT);
    cr_assert_eq(mcshm_segment_publish(c, "a\nb", 0), MCSHM_INVALID_ARGUMENT);
    cr_assert_eq(mcshm_segment_publish(c, memset(name, 'x', MCS_NAME_MAX), 0),
                 MCSHM_INVALID_ARGUMENT);
    cr_assert_eq(mcshm_segment_publish(c, "x", 2), MCSHM_INVALID_ARGUMENT);
    cr_assert_eq(mcshm_segment_open(c, NULL, &s), MCSHM_INVALID_ARGUMENT);
    cr_assert_eq(mcshm_segment_close(c, 1), MCSHM_INVALID_HANDLE);
    cr_assert_eq(mcshm_buffer_publish(c, &p, 8, 1, NULL), MCSHM_NOT_REGISTERED);
    cr_assert_eq(mcshm_buffer_publish(c, &p, 8, 16, NULL), MCSHM_INVALID_ARGUMENT);
    cr_assert_eq(mcshm_unmap(c, &p), MCSHM_INVALID_HANDLE);
    qo.depth = 3;
    cr_assert_eq(mcshm_queue_open(c, &qo, &q), MCSHM_INVALID_ARGUMENT);
    cr_assert_not_null(strstr(mcshm_last_error(c), "depth 3"));
    qo.depth = 1 << 17;
    cr_assert_eq(mcshm_queue_open(c, &qo, &q), MCSHM_INVALID_ARGUMENT);
    qo = (mcshm_queue_options){.size = sizeof(qo), .args_size = UINT64_MAX};
    cr_assert_eq(mcshm_queue_open(c, &qo, &q), MCSHM_INVALID_ARGUMENT);
    mcshm_close(c);
    stop(&a);
}

Test(connect, strict_refuses_private_memory)
{
    struct agent a = {.open = true};
    mcshm_options o = start(&a, hello_then_silence);
    mcshm *c;

    o.strict = true;
    cr_assert_eq(mcshm_connect(&o, &c), MCSHM_OK);
    cr_assert_eq(mcshm_register(c, &a, sizeof(a)), MCSHM_STRICT);
    mcshm_close(c);
    stop(&a);
}

/* ---- notifications --------------------------------------------------------------- */

static void *put_later(void *arg)
{
    struct mcs_session_region r;
    uint64_t head = 0;
    struct agent *a = arg;
    void *mem;

    cr_assert_eq(mcs_region_map(a->region_fd, a->region_size, true, NULL, &mem), 0);
    cr_assert_eq(mcs_session_region_attach(&r, mem, a->region_size), 0);
    while (!mcs_inbox_reader_waits(&r))
        mcs_pause();
    cr_assert_eq(mcs_inbox_put(&r, &head, 8, 99, "name", 4, "message", 7), 0);
    munmap(mem, a->region_size);
    return NULL;
}

Test(connect, notifications_wake_a_sleeper_and_death_ends_the_wait)
{
    struct agent a = {.open = true};
    mcshm_options o = start(&a, hello_then_silence);
    mcshm_notification n;
    pthread_t thread;
    mcshm_stats s;
    mcshm *c;

    cr_assert_eq(mcshm_connect(&o, &c), MCSHM_OK);
    cr_assert_eq(mcshm_notify_recv(c, &n, 0), MCSHM_TIMEOUT);
    cr_assert_eq(mcshm_notify_recv(c, &n, 1000), MCSHM_TIMEOUT);
    cr_assert_eq(pthread_create(&thread, NULL, put_later, &a), 0);
    cr_assert_eq(mcshm_notify_recv(c, &n, -1), MCSHM_OK);
    pthread_join(thread, NULL);
    cr_assert(n.name_size == 4 && memcmp(n.name, "name", 4) == 0);
    cr_assert(n.message_size == 7 && memcmp(n.message, "message", 7) == 0);
    cr_assert_eq(mcshm_get_stats(c, &s), MCSHM_OK);
    cr_assert_eq(s.notifications, 1);
    shutdown(c->socket, SHUT_WR); /* the agent then closes its end */
    cr_assert_eq(mcshm_notify_recv(c, &n, -1), MCSHM_AGENT_DOWN);
    mcshm_close(c);
    stop(&a);
}

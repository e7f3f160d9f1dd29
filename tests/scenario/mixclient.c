/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Clients for scenarios with failpoints; small and quick to start, also under sanitizers.
 *
 *   mixclient SOCKET owner NAME           publishes a buffer amid guard bytes; "check" on stdin: are
 *                                         they whole?
 *   mixclient SOCKET beside NAME          writes to it and reads back all the time, compares; "rounds"
 *                                         on stdin: how often so far?
 *   mixclient SOCKET mix NAME [far][once][second] does everything once, and again what failed
 *   mixclient x points x                  lists the failpoints of agent and library
 *
 * owner and beside try again what a restart of the agent has cost, and end with 0 at "end" or the end of stdin. mix ends with 0 when all went well, with 3
 * when something was refused or failed with a cause, said so ("refused: ..."), and went well when it was
 * tried again (not with `once`), with 1 when a byte, a descriptor or a mapping was wrong or a call hung.
 *
 * The owner's buffer: mix works in LANE bytes (or in the second LANE), `beside` in BESIDE bytes, and around them
 * nobody may write. far: the owner is on another host.
 */
#include <dirent.h>
#include <fcntl.h>
#include <mcshm.h>
#include <poll.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "shm/failpoint.h"

#define GUARD (64u << 10)
#define LANE (2u << 20)
#define BESIDE (128u << 10)
#define SECOND_AT (LANE + GUARD)
#define BESIDE_AT (2 * SECOND_AT)
#define BUFFER (BESIDE_AT + BESIDE + GUARD) /* published */
#define GUARD_BYTE 0xa5
#define WAIT_US 30000000 /* whatever takes so long hangs */
#define TRIES 500u       /* of a task that an agent's restart has cost */
#define POLLS 20000u     /* in a row, then a wait */
#define SMALL 256u
#define MIDDLE (64u << 10)
#define PRIVATE (16u << 10)
#define FLOOD 8u /* notifications: more than the agent's [session] inbox_size = 16K holds */

static mcshm *c;
static mcshm_queue *q;
static bool far, once;
static uint64_t lane; /* where it works in the owner's buffer */

/* ---- verdicts -------------------------------------------------------------------- */

static void wrong(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

static void wrong(const char *format, ...)
{
    va_list ap;

    va_start(ap, format);
    printf("wrong: ");
    vprintf(format, ap);
    printf("\n");
    fflush(stdout);
    _exit(1);
}

static unsigned refusals;
static bool ended; /* the session is gone */

/* Notes a refusal; true when it is worth another try in this session. */
static bool refused(mcshm_status status, const char *call, const char *text)
{
    refusals++;
    printf("refused: %s: %s: %s\n", call, mcshm_strerror(status), text);
    fflush(stdout);
    if (status == MCSHM_OK || text[0] == '\0')
        wrong("%s failed without a cause", call);
    ended = status == MCSHM_AGENT_DOWN || status == MCSHM_PROTOCOL;
    return !once && !ended;
}

/* Calls; once more when it was refused. False: give up this round. */
#define TRY(call)                                                                                  \
    do {                                                                                           \
        mcshm_status status_ = (call);                                                             \
        if (status_ != MCSHM_OK) {                                                                 \
            char text_[512];                                                                       \
            snprintf(text_, sizeof(text_), "%s", mcshm_last_error(c));                             \
            if (text_[0] == '\0')                                                                  \
                snprintf(text_, sizeof(text_), "%s", mcshm_strerror(status_));                     \
            if (!refused(status_, #call, text_) || (call) != MCSHM_OK)                             \
                return false;                                                                      \
        }                                                                                          \
    } while (0)

static void fill(uint8_t *p, size_t size, uint32_t seed)
{
    for (size_t i = 0; i < size; i += 4, seed = seed * 1664525u + 1013904223u)
        memcpy(p + i, &seed, 4);
}

static void check_bytes(const uint8_t *p, size_t size, uint8_t byte, const char *what)
{
    for (size_t i = 0; i < size; i++)
        if (p[i] != byte)
            wrong("%s: byte %zu of %zu is 0x%02x", what, i, size, p[i]);
}

static void check_same(const void *a, const void *b, size_t size, const char *what)
{
    if (memcmp(a, b, size) != 0)
        wrong("%s: the bytes differ", what);
}

static unsigned descriptors(void)
{
    DIR *d = opendir("/proc/self/fd");
    unsigned n = 0;

    while (d != NULL && readdir(d) != NULL)
        n++;
    if (d != NULL)
        closedir(d);
    return n;
}

/* Mappings of shared memory. */
static unsigned mappings(void)
{
    FILE *f = fopen("/proc/self/maps", "re");
    char line[512];
    unsigned n = 0;

    while (f != NULL && fgets(line, sizeof(line), f) != NULL)
        n += strstr(line, "memfd:mcshm") != NULL;
    if (f != NULL)
        fclose(f);
    return n;
}

static bool open_session(const char *socket, const char *name)
{
    mcshm_options o;

    mcshm_options_init(&o);
    o.socket_path = socket;
    o.name = name;
    o.control_timeout_ms = WAIT_US / 1000;
    o.connect_timeout_ms = WAIT_US / 1000;
    o.caller_max = SMALL;
    TRY(mcshm_connect(&o, &c));
    TRY(mcshm_queue_open(c, NULL, &q));
    return true;
}

static void close_session(void)
{
    if (q != NULL)
        (void)mcshm_queue_close(q);
    mcshm_close(c);
    q = NULL;
    c = NULL;
}

/* ---- tasks ------------------------------------------------------------------------- */

enum how { PLAIN, LIST, STRIDE, NOTICE };

/* One task to its end. pieces of a LIST: four parts with gaps between them. */
static bool submit(mcshm_batch b, enum how how, const mcshm_request *r)
{
    uint64_t part = r->length / 8;
    mcshm_piece pieces[4];
    mcshm_stride stride = {
        .count = 4, .block = part, .local_stride = 2 * part, .remote_stride = 2 * part};

    for (unsigned i = 0; i < 4; i++)
        pieces[i] = (mcshm_piece){2 * i * part, 2 * i * part, part};
    switch (how) {
    case LIST:
        TRY(mcshm_submit_list(q, b, r, pieces, 4));
        break;
    case STRIDE:
        TRY(mcshm_submit_stride(q, b, r, &stride));
        break;
    case NOTICE:
        TRY(mcshm_submit_notify(q, b, r));
        break;
    default:
        TRY(mcshm_submit(q, b, r, 1));
        break;
    }
    return true;
}

static bool run_once(enum how how, const mcshm_request *r, bool poll_it, mcshm_task_status *t)
{
    mcshm_status status = MCSHM_BUSY;
    mcshm_batch b;

    TRY(mcshm_batch_alloc(q, 3, &b));
    if (!submit(b, how, r))
        return false;
    for (unsigned i = 0; poll_it && i < POLLS && status == MCSHM_BUSY; i++)
        status = mcshm_batch_poll(q, b, NULL);
    if (status == MCSHM_BUSY)
        status = mcshm_batch_wait(q, b, WAIT_US);
    if (status == MCSHM_TIMEOUT || status == MCSHM_BUSY)
        wrong("a task hangs");
    if (status != MCSHM_OK) {
        (void)refused(status, "wait", mcshm_strerror(status));
        return false;
    }
    TRY(mcshm_task_poll(q, b, 0, t));
    TRY(mcshm_batch_free(q, b));
    return true;
}

/* One task, once more when it failed; it must complete. */
static bool run(enum how how, const mcshm_request *r, bool poll_it)
{
    mcshm_task_status t;
    char text[64];

    for (unsigned tries = 0; tries < TRIES; tries++) {
        if (!run_once(how, r, poll_it, &t))
            return false;
        if (t.state == MCSHM_STATE_COMPLETED) {
            if (t.bytes != (how == LIST || how == STRIDE ? r->length / 2 : r->length))
                wrong("a task of %llu bytes moved %llu", (unsigned long long)r->length,
                      (unsigned long long)t.bytes);
            return true;
        }
        snprintf(text, sizeof(text), "task ended in state %d", (int)t.state);
        if (!refused(t.error, text, mcshm_strerror(t.error)) ||
            (tries > 2 && t.error != MCSHM_AGENT_RESTARTED))
            return false;
        usleep(20000); /* the owner may not be back yet */
    }
    return false;
}

/* Writes size bytes of `local` to `remote`, reads them back into `back`, compares. */
static bool there_and_back(mcshm_segment s, uint8_t *local, uint8_t *back, uint64_t remote,
                           uint64_t size, uint32_t seed, bool poll_it)
{
    mcshm_request r = {.opcode = MCSHM_WRITE,
                       .priority = MCSHM_CLASS_NORMAL,
                       .local = local,
                       .segment = s,
                       .remote_address = remote,
                       .length = size};

    fill(local, size, seed);
    memset(back, 0, size);
    if (!run(PLAIN, &r, poll_it))
        return false;
    r.opcode = MCSHM_READ;
    r.local = back;
    r.flags = MCSHM_FENCE;
    if (!run(PLAIN, &r, poll_it))
        return false;
    check_same(local, back, size, "what was written and read back");
    return true;
}

static bool in_pieces(mcshm_segment s, uint8_t *local, uint8_t *back, uint64_t remote)
{
    mcshm_request r = {.opcode = MCSHM_WRITE,
                       .priority = MCSHM_CLASS_HIGH,
                       .local = local,
                       .segment = s,
                       .remote_address = remote,
                       .length = MIDDLE};
    uint64_t part = MIDDLE / 8;

    fill(local, MIDDLE, 77);
    memset(back, GUARD_BYTE, MIDDLE);
    if (!run(LIST, &r, false))
        return false;
    r.opcode = MCSHM_READ;
    r.local = back;
    if (!run(STRIDE, &r, false))
        return false;
    for (unsigned i = 0; i < 8; i++)
        if (i % 2 == 0)
            check_same(local + i * part, back + i * part, part, "a piece");
        else
            check_bytes(back + i * part, part, GUARD_BYTE, "between pieces");
    return true;
}

/* A large task that is called back: COMPLETED or CANCELED, its memory is quiet either way. */
static bool called_back(mcshm_segment s, uint8_t *local, uint64_t remote)
{
    mcshm_request r = {.opcode = MCSHM_WRITE,
                       .priority = MCSHM_CLASS_BACKGROUND,
                       .local = local,
                       .segment = s,
                       .remote_address = remote,
                       .length = LANE};
    mcshm_task_status t;
    mcshm_batch b;

    TRY(mcshm_batch_alloc(q, 1, &b));
    TRY(mcshm_submit(q, b, &r, 1));
    TRY(mcshm_cancel(q, b, 0));
    TRY(mcshm_batch_wait(q, b, WAIT_US));
    TRY(mcshm_task_poll(q, b, 0, &t));
    if (t.state < MCSHM_STATE_INVALID)
        wrong("a batch is through, its task is in state %d", (int)t.state);
    TRY(mcshm_batch_free(q, b));
    return true;
}

/* Notifications to the other side, alone and with data, and one to itself that is received. */
static bool notices(mcshm_segment s, mcshm_segment own, uint8_t *local, uint64_t remote)
{
    mcshm_notification n = {
        .name = "mix", .name_size = 3, .message = "a message", .message_size = 9};
    mcshm_notification got;
    mcshm_request r = {.opcode = MCSHM_WRITE,
                       .priority = MCSHM_CLASS_NORMAL,
                       .flags = MCSHM_NOTIFY,
                       .local = local,
                       .segment = s,
                       .remote_address = remote,
                       .length = SMALL * 2,
                       .notify = &n};

    if (!run(PLAIN, &r, false))
        return false;
    r = (mcshm_request){.segment = own, .priority = MCSHM_CLASS_NORMAL, .notify = &n};
    if (!run(NOTICE, &r, false))
        return false;
    TRY(mcshm_notify_recv(c, &got, WAIT_US));
    if (got.message_size != 9 || memcmp(got.message, "a message", 9) != 0)
        wrong("a notification of %zu bytes", got.message_size);
    return true;
}

/* Tasks that have to wait, since the own inbox is full: a sleep until a deadline, and a cancellation. */
static bool held_up(mcshm_segment own)
{
    static const char message[4096];
    mcshm_notification n = {.message = message, .message_size = sizeof(message)};
    mcshm_request r = {
        .segment = own, .priority = MCSHM_CLASS_NORMAL, .notify = &n, .deadline_us = 30000};
    unsigned late = 0, taken = 0;
    mcshm_task_status t;
    mcshm_batch b;

    TRY(mcshm_batch_alloc(q, FLOOD, &b));
    for (unsigned i = 0; i < FLOOD; i++)
        TRY(mcshm_submit_notify(q, b, &r));
    TRY(mcshm_batch_wait(q, b, WAIT_US));
    for (unsigned i = 0; i < FLOOD; i++) {
        TRY(mcshm_task_poll(q, b, i, &t));
        late += t.state == MCSHM_STATE_TIMEOUT && t.error == MCSHM_INBOX_FULL;
        taken += t.state == MCSHM_STATE_COMPLETED;
    }
    if (late == 0 || late + taken != FLOOD)
        wrong("of %u notifications %u were too late, %u were taken", FLOOD, late, taken);
    TRY(mcshm_batch_free(q, b));
    TRY(mcshm_batch_alloc(q, 1, &b));
    r.deadline_us = WAIT_US;
    TRY(mcshm_submit_notify(q, b, &r));
    TRY(mcshm_cancel(q, b, 0));
    TRY(mcshm_batch_wait(q, b, WAIT_US));
    TRY(mcshm_task_poll(q, b, 0, &t));
    if (t.state != MCSHM_STATE_CANCELED)
        wrong("a canceled task ended in state %d", (int)t.state);
    TRY(mcshm_batch_free(q, b));
    for (; taken != 0; taken--)
        TRY(mcshm_notify_recv(c, &n, WAIT_US));
    return true;
}

/* ---- mix --------------------------------------------------------------------------- */

static int sealed_memfd(size_t size)
{
    /* again: a call may have been made to fail, and this is not what is tested */
    for (unsigned tries = 0; tries < 100; tries++) {
        int fd = memfd_create("mix", MFD_CLOEXEC | MFD_ALLOW_SEALING);

        if (fd >= 0 && ftruncate(fd, (off_t)size) == 0 &&
            fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0)
            return fd;
        if (fd >= 0)
            close(fd);
    }
    wrong("no memfd");
}

static bool in_place(mcshm_segment s, uint64_t address, const uint8_t *wanted)
{
    const void *mapped;

    TRY(mcshm_map(c, s, address, MIDDLE, &mapped));
    check_same(mapped, wanted, MIDDLE, "what is read in place");
    TRY(mcshm_unmap(c, mapped));
    return true;
}

static bool all_once(const char *name, uint8_t *private, int memfd)
{
    uint8_t *memory = NULL, *local, *back;
    void *p, *large, *registered;
    char own_name[64], *json;
    mcshm_segment s, own;
    mcshm_queue *second;
    mcshm_status status;
    mcshm_buffer buffer;
    uint64_t address;
    size_t n = 1;

    TRY(mcshm_queue_open(c, NULL, &second));
    status = mcshm_queue_close(second); /* gone in any case */
    if (status != MCSHM_OK && !refused(status, "mcshm_queue_close(second)", mcshm_last_error(c)))
        return false;
    TRY(mcshm_alloc(c, 3 * GUARD + 2 * LANE, 0, NULL, &p));
    memory = p;
    memset(memory, GUARD_BYTE, 3 * GUARD + 2 * LANE);
    local = memory + GUARD;
    back = local + LANE + GUARD;
    TRY(mcshm_alloc(c, 5u << 20, 0, NULL, &large));
    TRY(mcshm_free(c, large));
    TRY(mcshm_register_memfd(c, memfd, MIDDLE, &registered));
    TRY(mcshm_register(c, private, PRIVATE));
    snprintf(own_name, sizeof(own_name), "mix-%d", (int)getpid());
    TRY(mcshm_segment_publish(c, own_name, 0));
    TRY(mcshm_buffer_publish(c, back, LANE, MCSHM_ACCESS_READ | MCSHM_ACCESS_MAP_READ, &address));
    TRY(mcshm_segment_open(c, name, &s));
    TRY(mcshm_segment_open(c, own_name, &own));
    for (unsigned tries = 0; tries < TRIES; tries++) {
        n = 1;
        TRY(mcshm_segment_describe(c, s, &buffer, &n));
        if (n != 0)
            break;
        usleep(20000); /* its owner is on its way back to a later agent */
    }
    if (n == 0 || buffer.size != BUFFER)
        wrong("segment '%s' has %zu buffers, the first of %llu bytes", name, n,
              (unsigned long long)buffer.size);

    address = buffer.address + lane;
    if (!there_and_back(s, local, back, address, SMALL, 1, true) ||
        !there_and_back(s, local, back, address, MIDDLE, 2, true) ||
        !there_and_back(s, local, back, address, LANE, 3, false) ||
        !there_and_back(s, registered, back, address, MIDDLE, 4, false) ||
        !there_and_back(s, private, back, address, PRIVATE, 5, false) ||
        !called_back(s, local, address) || !in_pieces(s, local, back, address) ||
        !there_and_back(s, local, back, address, MIDDLE, 6, false) ||
        !notices(s, own, local, address + MIDDLE) || !held_up(own))
        return false;
    if (!far && !in_place(s, address, local))
        return false;
    TRY(mcshm_query(c, MCSHM_QUERY_STATUS, &json));
    free(json);

    TRY(mcshm_revoke(c, back + MIDDLE, MIDDLE));
    TRY(mcshm_segment_close(c, own));
    TRY(mcshm_segment_close(c, s));
    TRY(mcshm_segment_withdraw(c));
    TRY(mcshm_unregister(c, private));
    TRY(mcshm_unregister(c, registered));
    check_bytes(memory, GUARD, GUARD_BYTE, "before the source");
    check_bytes(local + LANE, GUARD, GUARD_BYTE, "between source and target");
    check_bytes(back + LANE, GUARD, GUARD_BYTE, "behind the target");
    TRY(mcshm_free(c, memory));
    return true;
}

static int mix(const char *socket, const char *name)
{
    uint8_t *private = aligned_alloc(4096, PRIVATE);
    int memfd = sealed_memfd(MIDDLE);
    unsigned fds = descriptors(), maps = mappings();
    bool good = false;

    for (unsigned tries = 0; !good && tries < (once ? 1 : 4); tries++) {
        ended = false;
        good = open_session(socket, "mix") && all_once(name, private, memfd);
        close_session();
    }
    if (descriptors() != fds)
        wrong("%u descriptors before, %u after", fds, descriptors());
    if (mappings() != maps)
        wrong("%u mappings of shared memory before, %u after", maps, mappings());
    close(memfd);
    free(private);
    if (!good && !once)
        wrong("it does not work afterwards");
    printf(good ? "done\n" : "ended\n");
    fflush(stdout);
    return good && refusals == 0 ? 0 : 3;
}

/* ---- owner, beside ----------------------------------------------------------------- */

/* A line from stdin within ms: 1; none: 0; the end: -1. */
static int command(char *line, size_t size, int ms)
{
    struct pollfd p = {.fd = STDIN_FILENO, .events = POLLIN};
    ssize_t n;

    if (poll(&p, 1, ms) != 1)
        return 0;
    n = read(STDIN_FILENO, line, size - 1);
    if (n <= 0)
        return -1;
    line[n] = '\0';
    return strncmp(line, "end", 3) == 0 ? -1 : 1;
}

static void check_guards(const uint8_t *memory)
{
    const uint8_t *b = memory + GUARD;

    check_bytes(memory, GUARD, GUARD_BYTE, "before the owner's buffer");
    check_bytes(b + LANE, GUARD, GUARD_BYTE, "behind the lane");
    check_bytes(b + SECOND_AT + LANE, GUARD, GUARD_BYTE, "behind the second lane");
    check_bytes(b + BESIDE_AT + BESIDE, GUARD, GUARD_BYTE, "behind all lanes");
    check_bytes(b + BUFFER, GUARD, GUARD_BYTE, "behind the owner's buffer");
}

static bool own(const char *socket, const char *name)
{
    char line[64];
    uint64_t address;
    void *memory, *more;
    int got;

    if (!open_session(socket, name))
        return false;
    TRY(mcshm_alloc(c, 2 * GUARD + BUFFER, 0, NULL, &memory));
    TRY(mcshm_alloc(c, MIDDLE, 0, NULL, &more));
    memset(memory, GUARD_BYTE, 2 * GUARD + BUFFER);
    TRY(mcshm_segment_publish(c, name, 0));
    TRY(mcshm_buffer_publish(c, (uint8_t *)memory + GUARD, BUFFER,
                             MCSHM_ACCESS_READ | MCSHM_ACCESS_WRITE | MCSHM_ACCESS_MAP_READ |
                                 MCSHM_ACCESS_MAP_WRITE,
                             &address));
    printf("ready 0x%llx\n", (unsigned long long)address);
    fflush(stdout);
    while ((got = command(line, sizeof(line), 5)) >= 0) {
        mcshm_notification n;

        while (mcshm_notify_recv(c, &n, 0) == MCSHM_OK) {
            /* whoever has opened the segment hears of these; the agent may have ended */
            if (mcshm_buffer_publish(c, more, MIDDLE, MCSHM_ACCESS_READ, &address) == MCSHM_OK)
                (void)mcshm_buffer_withdraw(c, more, MIDDLE);
        }
        if (got == 0)
            continue;
        check_guards(memory);
        printf("ok\n");
        fflush(stdout);
    }
    check_guards(memory);
    close_session();
    return true;
}

static bool go_beside(const char *socket, const char *name)
{
    unsigned long rounds = 0;
    mcshm_buffer buffer;
    mcshm_segment s;
    char line[64];
    void *memory;
    size_t n = 1;
    int got;

    if (!open_session(socket, "beside"))
        return false;
    TRY(mcshm_alloc(c, 2 * BESIDE, 0, NULL, &memory));
    TRY(mcshm_segment_open(c, name, &s));
    TRY(mcshm_segment_describe(c, s, &buffer, &n));
    printf("ready\n");
    fflush(stdout);
    while ((got = command(line, sizeof(line), 0)) >= 0) {
        if (got == 1) {
            printf("%lu\n", rounds);
            fflush(stdout);
        }
        if (!there_and_back(s, memory, (uint8_t *)memory + BESIDE, buffer.address + BESIDE_AT,
                            BESIDE, (uint32_t)rounds, true))
            return false;
        rounds++;
        usleep(1000); /* others need the core, too */
    }
    close_session();
    return true;
}

int main(int argc, char **argv)
{
    for (int i = 4; i < argc; i++) {
        far = far || strcmp(argv[i], "far") == 0;
        once = once || strcmp(argv[i], "once") == 0;
        if (strcmp(argv[i], "second") == 0)
            lane = SECOND_AT;
    }
    if (argc < 4)
        return 2;
    if (strcmp(argv[2], "points") == 0) { /* all that there are; their file is there from now on */
        mcs_failpoint_print(stdout);
        return 0;
    }
    if (strcmp(argv[2], "mix") == 0)
        return mix(argv[1], argv[3]);
    if (strcmp(argv[2], "owner") == 0 ? own(argv[1], argv[3]) : go_beside(argv[1], argv[3]))
        return 0;
    return 3;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For tests of nics and their threads on tests/fake-verbs: the test's thread is the control thread and the engine's
 * at once.
 */
#ifndef RDMA_NICS_H
#define RDMA_NICS_H

#include <criterion/criterion.h>

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/fake-verbs/fake.h"
#include "transports/rdma/devices.h"

#define WAIT_MS 20000u
#define BYTES (4u << 20)

static __attribute__((unused)) struct mct_rdma *rdma;
static __attribute__((unused)) struct mct *instance;
static __attribute__((unused)) unsigned changes[MCT_RDMA_NICS_MAX], key_changes;
static __attribute__((unused)) char logged[4096];
static __attribute__((unused)) uint8_t *bytes;

static inline void note_log(int level, const char *format, ...)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    size_t n;
    va_list ap;

    (void)level;
    pthread_mutex_lock(&lock);
    n = strlen(logged);
    va_start(ap, format);
    vsnprintf(logged + n, sizeof(logged) - n, format, ap);
    va_end(ap);
    pthread_mutex_unlock(&lock);
}

static inline void changed(void *context, unsigned nic)
{
    (void)context;
    changes[nic]++;
}

static inline void keys_changed(void *context)
{
    (void)context;
    key_changes++;
}

static inline struct mct_rdma_options options(void)
{
    return (struct mct_rdma_options){.devices = "auto",
                                     .deny = "",
                                     .gid_index = -1,
                                     .chunk = MCT_RDMA_CHUNK_MIN,
                                     .depth = 16,
                                     .cq_depth = 64,
                                     .max_inline = 220,
                                     .max_reads = 16,
                                     .timeout = 14,
                                     .retries = 7,
                                     .sysfs = "/nonexistent",
                                     .log = note_log};
}

static inline void begin_with(const struct mct_rdma_options *o)
{
    const struct mct_rdma_host h = {.changed = changed, .keys_changed = keys_changed};
    struct mct_env env = {.log = note_log, .epoll_fd = -1};
    char error[400] = "";

    memset(changes, 0, sizeof(changes));
    logged[0] = 0;
    bytes = NULL;
    cr_assert_eq(mct_rdma_create(o, &h, &rdma, error, sizeof(error)), 0, "%s", error);
    env.rdma = rdma;
    cr_assert_eq(mct_rdma_ops.init(&env, &instance), 0);
}

static inline void begin(void)
{
    const struct mct_rdma_options o = options();

    begin_with(&o);
}

static inline void end(void)
{
    mct_rdma_ops.fini(instance);
    mct_rdma_instance_gone(rdma, instance);
    mct_rdma_destroy(rdma);
    cr_assert_eq(fake_leaks(), 0);
    if (bytes != NULL)
        munmap(bytes, BYTES);
}

/* Runs until the condition holds. */
#define AWAIT(condition)                                                                           \
    do {                                                                                           \
        uint64_t until_ = mct_ms() + WAIT_MS;                                                      \
        while (!(condition)) {                                                                     \
            cr_assert_lt(mct_ms(), until_, "%s", #condition);                                      \
            turn();                                                                                \
        }                                                                                          \
    } while (0)

static inline void turn(void)
{
    struct pollfd fd = {.fd = mct_rdma_fd(rdma), .events = POLLIN};

    if (poll(&fd, 1, 2) > 0)
        mct_rdma_run(rdma);
}

static inline struct mct_rdma_nic nic(unsigned i)
{
    struct mct_rdma_nic n;

    mct_rdma_nic(rdma, i, &n);
    return n;
}

struct answer {
    unsigned count;
    int res;
    char text[MCT_RDMA_TEXT_MAX];
};

static inline void answered(void *context, int res, const char *text)
{
    struct answer *a = context;

    a->count++;
    a->res = res;
    snprintf(a->text, sizeof(a->text), "%s", text);
}

static inline struct mct_rdma_pair *new_pair(unsigned i)
{
    struct mct_rdma_pair *p;
    struct answer a = {0};

    cr_assert_eq(mct_rdma_pair_create(rdma, i, instance, 7, answered, &a, &p), 0);
    AWAIT(a.count == 1);
    cr_assert_eq(a.res, 0, "%s", a.text);
    return p;
}

static inline struct answer connect_to(struct mct_rdma_pair *p, const struct mct_rdma_end *peer)
{
    struct answer a = {0};

    mct_rdma_pair_connect(p, peer, answered, &a);
    AWAIT(a.count == 1);
    return a;
}

static inline void connect_pairs(struct mct_rdma_pair *a, struct mct_rdma_pair *b)
{
    struct answer x = connect_to(a, mct_rdma_pair_end(b)), y = connect_to(b, mct_rdma_pair_end(a));

    cr_assert_eq(x.res, 0, "%s", x.text);
    cr_assert_eq(y.res, 0, "%s", y.text);
}

static inline enum mct_rdma_stage reached(const struct mct_rdma_pair *p)
{
    return mcs_load_acquire(&p->reached);
}

/* As an engine lets it go. */
static inline void let_go(struct mct_rdma_pair *p)
{
    mct_rdma_pair_ask(p, MCT_RDMA_STAGE_GONE);
    AWAIT(reached(p) == MCT_RDMA_STAGE_GONE);
    mct_rdma_pair_free(p);
}

static inline struct mct_rdma_memory *new_memory(unsigned access)
{
    struct mct_rdma_range r = {.length = BYTES,
                               .access = access,
                               .published = access != 0 ? 0x5000000000 : 0,
                               .dmabuf_fd = -1};
    struct mct_rdma_memory *m;
    struct answer a = {0};

    if (bytes == NULL)
        bytes = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    r.address = bytes;
    cr_assert_eq(mct_rdma_memory_create(rdma, &r, answered, &a, &m), 0);
    AWAIT(a.count == 1);
    cr_assert_eq(a.res, 0, "%s", a.text);
    return m;
}

static inline void destroy_memory(struct mct_rdma_memory *m)
{
    struct answer a = {0};

    mct_rdma_memory_destroy(rdma, m, answered, &a);
    AWAIT(a.count == 1);
    cr_assert_eq(a.res, 0, "%s", a.text);
}

#endif

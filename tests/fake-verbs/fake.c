/* SPDX-License-Identifier: Apache-2.0 */
/* The lock, the objects that the code under test holds, and the calls that fail or block on demand. */
#include "inside.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(p, n) ((void)(p), (void)(n))
#define ASAN_UNPOISON_MEMORY_REGION(p, n) ((void)(p), (void)(n))
#endif

#define RULES 64
#define AWAIT_S 10

struct rule {
    enum fake_call call;
    const struct device *device;
    unsigned skip, times;
    int error;
};

pthread_mutex_t fake_lock = PTHREAD_MUTEX_INITIALIZER;
struct fake_object *fake_objects;
struct device *fake_devices;
static struct fake_object **objects_end = &fake_objects;

static pthread_cond_t changed = PTHREAD_COND_INITIALIZER; /* blocks, and who is in one */
static struct rule rules[RULES];
static unsigned nrules;
static unsigned fail_at; /* 0: none */
static int fail_at_error;
static const char *failed;
static __thread bool engine_thread;

static const char *const call_names[FAKE_CALLS] = {
    [FAKE_ANY] = "any call",
    [FAKE_GET_DEVICE_LIST] = "ibv_get_device_list",
    [FAKE_OPEN_DEVICE] = "ibv_open_device",
    [FAKE_QUERY_DEVICE] = "ibv_query_device",
    [FAKE_QUERY_PORT] = "ibv_query_port",
    [FAKE_QUERY_GID] = "ibv_query_gid",
    [FAKE_ALLOC_PD] = "ibv_alloc_pd",
    [FAKE_REG_MR] = "ibv_reg_mr",
    [FAKE_CREATE_CHANNEL] = "ibv_create_comp_channel",
    [FAKE_CREATE_CQ] = "ibv_create_cq",
    [FAKE_CREATE_SRQ] = "ibv_create_srq",
    [FAKE_CREATE_QP] = "ibv_create_qp",
    [FAKE_MODIFY_QP] = "ibv_modify_qp",
    [FAKE_QUERY_QP] = "ibv_query_qp",
    [FAKE_MODIFY_SRQ] = "ibv_modify_srq",
    [FAKE_DEREG_MR] = "ibv_dereg_mr",
    [FAKE_DEALLOC_PD] = "ibv_dealloc_pd",
    [FAKE_DESTROY_CQ] = "ibv_destroy_cq",
    [FAKE_DESTROY_SRQ] = "ibv_destroy_srq",
    [FAKE_DESTROY_QP] = "ibv_destroy_qp",
    [FAKE_DESTROY_CHANNEL] = "ibv_destroy_comp_channel",
    [FAKE_CLOSE_DEVICE] = "ibv_close_device",
    [FAKE_POST_SEND] = "ibv_post_send",
    [FAKE_POST_RECV] = "ibv_post_recv",
    [FAKE_NOTIFY] = "ibv_req_notify_cq",
    [FAKE_POLL] = "ibv_poll_cq",
};

const char *fake_call_name(enum fake_call call)
{
    return call_names[call];
}

void fake_abort(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    fputs("fake-verbs: ", stderr);
    vfprintf(stderr, format, args);
    fputs("\n", stderr);
    fflush(stderr);
    va_end(args);
    abort();
}

void *fake_alloc(size_t size)
{
    void *p = calloc(1, size);

    if (p == NULL)
        fake_abort("no memory");
    return p;
}

/* ---- calls ----------------------------------------------------------------------- */

static bool enters_kernel(enum fake_call call)
{
    return call < FAKE_POST_SEND;
}

/* What fake_fail_at() counts. */
static bool may_fail(enum fake_call call)
{
    return call != FAKE_ANY && call != FAKE_POLL &&
           !(call >= FAKE_DEREG_MR && call <= FAKE_CLOSE_DEVICE);
}

static bool blocks(const struct device *d, enum fake_call call)
{
    return d->blocks[call] || (enters_kernel(call) && d->blocks[FAKE_ANY]);
}

int fake_step(enum fake_call call, struct device *d)
{
    if (d != NULL) {
        d->stats.calls[call]++;
        if (enters_kernel(call))
            d->stats.calls[FAKE_ANY]++;
    }
    if (d != NULL && blocks(d, call)) {
        d->blocked++;
        pthread_cond_broadcast(&changed);
        while (blocks(d, call))
            pthread_cond_wait(&changed, &fake_lock);
        d->blocked--;
        pthread_cond_broadcast(&changed);
    }
    if (fail_at != 0 && may_fail(call) && --fail_at == 0) {
        failed = call_names[call];
        return fail_at_error;
    }
    for (unsigned i = 0; i < nrules; i++) {
        struct rule *r = &rules[i];

        if ((r->call == FAKE_ANY ? !may_fail(call) : r->call != call) ||
            (r->device != NULL && r->device != d) || r->times == 0)
            continue;
        if (r->skip > 0) {
            r->skip--;
            continue;
        }
        r->times--;
        failed = call_names[call];
        return r->error;
    }
    return 0;
}

int fake_enter(enum fake_call call, struct device *d)
{
    if (engine_thread && enters_kernel(call))
        fake_abort("%s on an engine's thread: it enters the kernel", call_names[call]);
    pthread_mutex_lock(&fake_lock);
    return fake_step(call, d);
}

void fake_need(const struct fake_object *o, const char *what)
{
    if (!o->alive)
        fake_abort("%s: the object was destroyed before", what);
}

int fake_enter_on(enum fake_call call, struct fake_object *o, const char *what)
{
    if (engine_thread && enters_kernel(call))
        fake_abort("%s on an engine's thread: it enters the kernel", what);
    pthread_mutex_lock(&fake_lock);
    fake_need(o, what);
    int error = fake_step(call, o->device);

    fake_need(o, what);
    return error;
}

void fake_leave(void)
{
    pthread_mutex_unlock(&fake_lock);
}

void fake_engine_thread(bool is)
{
    engine_thread = is;
}

/* ---- failures -------------------------------------------------------------------- */

struct device *fake_device_of(const struct fake_device *d)
{
    return FAKE_OF(device, v, d);
}

void fake_fail(enum fake_call call, const struct fake_device *d, unsigned nth, unsigned times,
               int error)
{
    unsigned i;

    pthread_mutex_lock(&fake_lock);
    for (i = 0; i < nrules && rules[i].times > 0; i++)
        ;
    if (i == RULES || nth == 0)
        fake_abort("fake_fail(): %s",
                   nth == 0 ? "calls count from 1" : "too many failures are asked for");
    if (i == nrules)
        nrules++;
    rules[i] = (struct rule){.call = call,
                             .device = d != NULL ? fake_device_of(d) : NULL,
                             .skip = nth - 1,
                             .times = times,
                             .error = error};
    failed = NULL;
    pthread_mutex_unlock(&fake_lock);
}

void fake_fail_at(unsigned nth, int error)
{
    pthread_mutex_lock(&fake_lock);
    fail_at = nth;
    fail_at_error = error;
    failed = NULL;
    pthread_mutex_unlock(&fake_lock);
}

const char *fake_failed(void)
{
    pthread_mutex_lock(&fake_lock);
    const char *name = failed;

    pthread_mutex_unlock(&fake_lock);
    return name;
}

static void mend(void)
{
    fake_truth();
    nrules = 0;
    fail_at = 0;
    failed = NULL;
    for (struct device *d = fake_devices; d != NULL; d = d->next)
        memset(d->blocks, 0, sizeof(d->blocks));
    pthread_cond_broadcast(&changed);
}

void fake_mend(void)
{
    pthread_mutex_lock(&fake_lock);
    mend();
    pthread_mutex_unlock(&fake_lock);
}

void fake_block(enum fake_call call, const struct fake_device *d)
{
    pthread_mutex_lock(&fake_lock);
    fake_device_of(d)->blocks[call] = true;
    pthread_mutex_unlock(&fake_lock);
}

void fake_unblock(const struct fake_device *d)
{
    pthread_mutex_lock(&fake_lock);
    memset(fake_device_of(d)->blocks, 0, sizeof(fake_device_of(d)->blocks));
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&fake_lock);
}

bool fake_await_blocked(const struct fake_device *d, unsigned threads)
{
    struct timespec until;
    bool there;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += AWAIT_S;
    pthread_mutex_lock(&fake_lock);
    while (fake_device_of(d)->blocked < threads &&
           pthread_cond_timedwait(&changed, &fake_lock, &until) == 0)
        ;
    there = fake_device_of(d)->blocked >= threads;
    pthread_mutex_unlock(&fake_lock);
    return there;
}

/* ---- objects --------------------------------------------------------------------- */

void fake_live(struct fake_object *o, enum fake_kind kind, struct device *d, void *shown,
               size_t size)
{
    o->kind = kind;
    o->alive = true;
    o->device = d;
    o->shown = shown;
    o->size = size;
    o->next = NULL;
    *objects_end = o;
    objects_end = &o->next;
}

void fake_die(struct fake_object *o)
{
    o->alive = false;
    ASAN_POISON_MEMORY_REGION(o->shown, o->size);
}

static const char *const kind_names[FAKE_KINDS] = {
    [FAKE_LIST] = "list of devices",     [FAKE_CONTEXT] = "context",
    [FAKE_PD] = "protection domain",     [FAKE_MR] = "memory region",
    [FAKE_CHANNEL] = "channel",          [FAKE_CQ] = "completion queue",
    [FAKE_SRQ] = "shared receive queue", [FAKE_QP] = "queue pair",
};

static unsigned count(enum fake_kind kind, const struct device *d, bool say)
{
    unsigned n = 0;

    for (const struct fake_object *o = fake_objects; o != NULL; o = o->next) {
        if (!o->alive || (kind != FAKE_KINDS && o->kind != kind) || (d != NULL && o->device != d))
            continue;
        n++;
        if (say)
            fprintf(stderr, "fake-verbs: left: %s of %s\n", kind_names[o->kind],
                    o->device != NULL ? o->device->v.name : "all devices");
    }
    return n;
}

unsigned fake_count(enum fake_kind kind, const struct fake_device *d)
{
    pthread_mutex_lock(&fake_lock);
    unsigned n = count(kind, d != NULL ? fake_device_of(d) : NULL, false);

    pthread_mutex_unlock(&fake_lock);
    return n;
}

unsigned fake_leaks(void)
{
    pthread_mutex_lock(&fake_lock);
    unsigned n = count(FAKE_KINDS, NULL, true);

    pthread_mutex_unlock(&fake_lock);
    return n;
}

bool fake_region(const struct fake_device *d, unsigned i, struct fake_region *out)
{
    bool found = false;

    pthread_mutex_lock(&fake_lock);
    for (struct fake_object *o = fake_objects; o != NULL && !found; o = o->next)
        if (o->alive && o->kind == FAKE_MR && o->device == fake_device_of(d) && i-- == 0) {
            *out = FAKE_OF(region, o, o)->r;
            found = true;
        }
    pthread_mutex_unlock(&fake_lock);
    return found;
}

uint32_t fake_qp(const struct fake_device *d, unsigned i, struct ibv_qp_attr *attr)
{
    uint32_t qpn = 0;

    pthread_mutex_lock(&fake_lock);
    for (struct fake_object *o = fake_objects; o != NULL && qpn == 0; o = o->next)
        if (o->alive && o->kind == FAKE_QP && o->device == fake_device_of(d) && i-- == 0) {
            qpn = FAKE_OF(qp, o, o)->v.qp_num;
            if (attr != NULL)
                *attr = FAKE_OF(qp, o, o)->a;
        }
    pthread_mutex_unlock(&fake_lock);
    return qpn;
}

void fake_stats(const struct fake_device *d, struct fake_stats *out)
{
    pthread_mutex_lock(&fake_lock);
    *out = fake_device_of(d)->stats;
    pthread_mutex_unlock(&fake_lock);
}

void fake_reset(void)
{
    struct fake_object *o, *next;
    struct device *d, *following;

    fake_move_reset();
    pthread_mutex_lock(&fake_lock);
    mend();
    if (count(FAKE_KINDS, NULL, true) != 0)
        fake_abort("fake_reset() while objects are open");
    for (o = fake_objects; o != NULL; o = next) {
        next = o->next;
        ASAN_UNPOISON_MEMORY_REGION(o->shown, o->size);
        if (o->kind == FAKE_CQ)
            free(FAKE_OF(cq, o, o)->ring);
        free(o); /* what holds it begins with it */
    }
    fake_objects = NULL;
    objects_end = &fake_objects;
    for (d = fake_devices; d != NULL; d = following) {
        following = d->next;
        free(d);
    }
    fake_devices = NULL;
    free(fake_sysfs_dir);
    fake_sysfs_dir = NULL;
    fake_lock_limit = UINT64_MAX;
    engine_thread = false;
    pthread_mutex_unlock(&fake_lock);
}

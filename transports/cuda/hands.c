/* SPDX-License-Identifier: Apache-2.0 */
/* Threads that carry calls to the driver out, so that nobody else waits for it. */
#include "internal.h"

#include <string.h>

static const char *name_of(enum mct_cuda_call_kind kind)
{
    static const char *const names[] = {
        [MCT_CUDA_OPEN] = "opening the driver",     [MCT_CUDA_MAKE] = "making memory",
        [MCT_CUDA_IMPORT] = "importing memory",     [MCT_CUDA_FREE] = "freeing memory",
        [MCT_CUDA_EXPORT] = "exporting memory",     [MCT_CUDA_DMABUF] = "exporting a dmabuf",
        [MCT_CUDA_PIN] = "registering host memory", [MCT_CUDA_UNPIN] = "letting go of host memory",
    };

    return (unsigned)kind < sizeof(names) / sizeof(names[0]) ? names[kind] : "closing the driver";
}

/* ---- carrying out ---------------------------------------------------------------------------------- */

static void carry_out(struct mct_cuda *c, struct mct_cuda_call *call)
{
    call->status = MCS_OK;
    call->text[0] = '\0';
    call->fd = -1;
    call->address = 0;
    switch (call->kind) {
    case MCT_CUDA_OPEN:
        mct_cuda_open(c, call);
        break;
    case MCT_CUDA_MAKE:
        mct_cuda_make(c, call);
        break;
    case MCT_CUDA_IMPORT:
        mct_cuda_import(c, call);
        break;
    case MCT_CUDA_FREE:
        mct_cuda_free(c, call);
        break;
    case MCT_CUDA_EXPORT:
        mct_cuda_export(c, call);
        break;
    case MCT_CUDA_DMABUF:
        mct_cuda_dmabuf(c, call);
        break;
    case MCT_CUDA_PIN:
        mct_cuda_pin(c, call);
        break;
    case MCT_CUDA_UNPIN:
        mct_cuda_unpin(c, call);
        break;
    default: /* CLOSE: `size` is when it is to be over */
        if (!mct_cuda_close(c, call->size))
            call->status = MCS_BUSY;
        break;
    }
    mcs_fetch_add(&c->stats.calls, 1u);
    if (call->status != MCS_OK)
        mcs_fetch_add(&c->stats.failed_calls, 1u);
}

/* With the lock: may a hand begin it? CLOSE, the last one, when nothing else is left. */
static bool may_begin(const struct mct_cuda *c, const struct mct_cuda_call *call)
{
    unsigned of_owner = 0;

    if (call->kind == MCT_CUDA_CLOSE)
        return c->at_work == 0 && c->first == call && c->last == call;
    if (call->owner == 0 || c->at_work < MCT_CUDA_SHARE)
        return true;
    for (unsigned i = 0; i < c->nhands; i++)
        of_owner += c->hands[i].call != NULL && c->hands[i].owner == call->owner;
    return of_owner < MCT_CUDA_SHARE;
}

/* With the lock: the first call that may begin, out of the list. */
static struct mct_cuda_call *take(struct mct_cuda *c)
{
    struct mct_cuda_call **at, *call, *before = NULL;

    for (at = &c->first; (call = *at) != NULL; before = call, at = &call->next) {
        if (!may_begin(c, call))
            continue;
        *at = call->next;
        if (c->last == call)
            c->last = before;
        call->next = NULL;
        return call;
    }
    return NULL;
}

static void put(struct mct_cuda_call **first, struct mct_cuda_call **last,
                struct mct_cuda_call *call)
{
    call->next = NULL;
    if (*last != NULL)
        (*last)->next = call;
    else
        *first = call;
    *last = call;
}

static struct mct_cuda_call **place_of(struct mct_cuda *c, uint64_t order)
{
    struct mct_cuda_call **at = &c->orders[order % MCT_CUDA_ORDERS];

    while (*at != NULL && (*at)->order != order)
        at = &(*at)->beside;
    return at;
}

/* With the lock: behind those of its order, or to those that may be taken. */
static void enter(struct mct_cuda *c, struct mct_cuda_call *call)
{
    struct mct_cuda_call **place = call->order != 0 ? place_of(c, call->order) : NULL;

    call->behind = call->behind_last = call->beside = NULL;
    if (place != NULL && *place != NULL) {
        put(&(*place)->behind, &(*place)->behind_last, call);
        return;
    }
    if (place != NULL)
        *place = call;
    put(&c->first, &c->last, call);
}

/* With the lock: it was carried out, and the next one of its order may be taken. */
static void leave(struct mct_cuda *c, struct mct_cuda_call *call)
{
    struct mct_cuda_call **place, *next = call->behind;

    if (call->order == 0)
        return;
    place = place_of(c, call->order);
    *place = call->beside;
    if (next == NULL)
        return;
    call->behind = next->next;
    next->behind = call->behind;
    next->behind_last = call->behind != NULL ? call->behind_last : NULL;
    next->beside = *place;
    *place = next;
    put(&c->first, &c->last, next);
}

/* With the lock. The call may be gone when the agent did not wait for it: it was carried out as a copy. */
static void bring(struct mct_cuda_hand *h, struct mct_cuda_call *call,
                  const struct mct_cuda_call *copy)
{
    struct mct_cuda *c = h->cuda;

    if (h->said) {
        mcs_fetch_add(&c->stats.stuck_now, (uint64_t)-1);
        MCT_CUDA_LOG(c, INFO, "the GPU driver has returned after all: %s took %llu ms",
                     name_of(copy->kind), (unsigned long long)(mct_ms() - h->since));
    }
    h->call = NULL;
    h->said = false;
    c->at_work--;
    if (c->stop)
        return;
    if (copy->kind == MCT_CUDA_CLOSE) {
        c->closed = true;
        c->hung = copy->status != MCS_OK;
        pthread_cond_broadcast(&c->over);
        return;
    }
    leave(c, call);
    call->status = copy->status;
    memcpy(call->text, copy->text, sizeof(call->text));
    call->address = copy->address;
    call->fd = copy->fd;
    call->memory = copy->memory;
    put(&c->done_first, &c->done_last, call);
    mct_kick(c->env.control_fd);
    if (c->first != NULL)
        pthread_cond_broadcast(&c->some); /* one that had to wait for this one, or its share */
}

static void *hand(void *arg)
{
    struct mct_cuda_hand *h = arg;
    struct mct_cuda *c = h->cuda;
    struct mct_cuda_call *call, copy;

    pthread_mutex_lock(&c->lock);
    while (!c->stop) {
        call = take(c);
        if (call == NULL) {
            c->idle++;
            pthread_cond_wait(&c->some, &c->lock);
            c->idle--;
            continue;
        }
        copy = *call;
        h->call = call;
        h->owner = call->owner;
        c->at_work++;
        h->since = mct_ms();
        pthread_mutex_unlock(&c->lock);
        carry_out(c, &copy);
        pthread_mutex_lock(&c->lock);
        bring(h, call, &copy);
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

/* ---- control thread -------------------------------------------------------------------------------- */

/* With the lock: another hand, when those that have nothing are too few for what may begin. */
static void more_hands(struct mct_cuda *c)
{
    struct mct_cuda_hand *h = &c->hands[c->nhands];
    unsigned waiting = 0;
    char name[16] = "gpu-hand";

    if (c->nhands == MCT_CUDA_HANDS)
        return;
    for (const struct mct_cuda_call *k = c->first; k != NULL && waiting <= c->idle; k = k->next)
        waiting += k->kind == MCT_CUDA_CLOSE || may_begin(c, k);
    if (waiting <= c->idle)
        return;
    h->cuda = c;
    if (mct_thread_start(&h->thread, hand, h, name) == 0)
        c->nhands++;
}

static void hand_over(struct mct_cuda *c, struct mct_cuda_call *call)
{
    pthread_mutex_lock(&c->lock);
    enter(c, call);
    more_hands(c);
    if (c->nhands == 0) {
        /* no thread, so nobody else has seen the list */
        c->first = c->last = NULL;
        memset(c->orders, 0, sizeof(c->orders));
        mct_cuda_say(
            call, MCS_LOCAL_RESOURCE,
            "no thread for the GPU driver: raise the limit of threads (ulimit -u, TasksMax)");
        call->fd = -1;
        call->address = 0;
        put(&c->done_first, &c->done_last, call);
        mct_kick(c->env.control_fd);
    }
    pthread_cond_signal(&c->some);
    pthread_mutex_unlock(&c->lock);
}

void mct_cuda_begin(struct mct_cuda *c, struct mct_cuda_call *call)
{
    hand_over(c, call);
}

void mct_cuda_hands_look(struct mct_cuda *c, uint64_t now)
{
    pthread_mutex_lock(&c->lock);
    for (unsigned i = 0; i < c->nhands; i++) {
        struct mct_cuda_hand *h = &c->hands[i];

        if (h->call == NULL || h->said || now - h->since < c->env.stuck_ms)
            continue;
        h->said = true;
        mcs_fetch_add(&c->stats.stuck, 1u);
        mcs_fetch_add(&c->stats.stuck_now, 1u);
        MCT_CUDA_LOG(c, WARNING,
                     "the GPU driver has not returned for %llu ms: %s hangs, and with it what this "
                     "client asks for next about GPUs; others go on (see the kernel's log)",
                     (unsigned long long)(now - h->since), name_of(h->call->kind));
    }
    more_hands(c); /* if a thread could not be had when it was wanted */
    pthread_mutex_unlock(&c->lock);
}

bool mct_cuda_poll(struct mct_cuda *c)
{
    uint64_t now = mct_ms();
    struct mct_cuda_call *call, *next;

    pthread_mutex_lock(&c->lock);
    call = c->done_first;
    c->done_first = c->done_last = NULL;
    pthread_mutex_unlock(&c->lock);
    mct_cuda_hands_look(c, now);
    for (unsigned i = 0; mct_cuda_device_get(c, i) != NULL; i++) {
        struct mct_cuda_copier *p = mcs_load_acquire(&c->gpus[i].copier); /* partner: use() */

        if (p != NULL)
            mct_cuda_copier_look(p, now);
    }
    if (call == NULL)
        return false;
    for (; call != NULL; call = next) {
        next = call->next; /* done() may hand it over again */
        call->done(call);
    }
    return true;
}

bool mct_cuda_hands_end(struct mct_cuda *c, uint64_t end)
{
    struct mct_cuda_call last = {.kind = MCT_CUDA_CLOSE, .size = end};
    const struct timespec ts = mct_until(end);
    unsigned n = c->nhands;
    bool all;

    if (n == 0)
        return true;
    hand_over(c, &last);
    pthread_mutex_lock(&c->lock);
    while (!c->closed && pthread_cond_timedwait(&c->over, &c->lock, &ts) == 0)
        continue;
    all = c->closed && !c->hung;
    c->stop = true;
    c->first = c->last = NULL; /* `last` may be among them */
    n = c->nhands;
    pthread_cond_broadcast(&c->some);
    pthread_mutex_unlock(&c->lock);
    for (unsigned i = 0; i < n; i++)
        all = mct_thread_join(c->hands[i].thread, end) && all;
    return all;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Memory for the engines' stages. Control thread only. */
#include "stage.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "agent.h"
#include "log.h"

#define END_MS 5000u /* the driver may take to let go of it */

enum state {
    NONE,
    PINNING,
    GIVEN, /* or on its way to the engine */
    FAILED, /* it could not be made: those who wait for it end by their deadlines, and it is tried again */
    LEAVING /* the driver is asked to let go of it */
};

struct mcd_staging {
    struct mcd_agent *agent;
    struct mcd_engine *engine;
    enum state state;
    void *memory;
    uint64_t size, failed_at;
    bool pinned;
    struct mct_cuda_call call;
    struct mcd_command give;
};

#define RETRY_NS UINT64_C(1000000000)

static bool take(struct mcd_engine *g, struct mcd_command *c)
{
    const struct mcd_staging *m = c->context;
    struct mcd_stages *all = g->stages;

    all->memory = m->memory;
    all->pinned = m->pinned;
    mcd_stages_feed(g);
    return true;
}

static void give(struct mcd_staging *m)
{
    m->state = GIVEN;
    mcd_engine_call(m->engine, &m->give, take, m);
}

static void pinned(struct mct_cuda_call *call)
{
    struct mcd_staging *m = call->context;

    m->pinned = call->status == MCS_OK;
    if (!m->pinned)
        mcd_warning("engine %u: its %llu bytes of staging are not pinned with the GPU driver, "
                    "copies through them are "
                    "slower: %s",
                    m->engine->o.id, (unsigned long long)m->size, call->text);
    if (m->state == PINNING)
        give(m);
}

static void make(struct mcd_staging *m, uint64_t now)
{
    m->memory = mmap(NULL, m->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (m->memory == MAP_FAILED) {
        int error = errno;

        m->memory = NULL;
        m->state = FAILED;
        m->failed_at = now;
        mcd_log_limited(MCD_LOG_WARNING,
                        "engine %u: %llu bytes of host memory for the staging of GPU memory ([gpu] "
                        "staging) cannot be had: "
                        "%s",
                        m->engine->o.id, (unsigned long long)m->size, strerror(error));
        return;
    }
    (void)madvise(m->memory, m->size, MADV_HUGEPAGE);
    m->state = PINNING;
    m->call = (struct mct_cuda_call){
        .kind = MCT_CUDA_PIN, .host = m->memory, .size = m->size, .done = pinned, .context = m};
    mct_cuda_begin(m->agent->cuda, &m->call);
}

void mcd_staging_look(struct mcd_agent *a)
{
    uint64_t now = mcd_now_ns();

    if (a->cuda == NULL)
        return;
    for (unsigned i = 0; i < a->nengines; i++) {
        struct mcd_stages *all = a->engines[i]->stages;
        struct mcd_staging *m = a->staging[i];

        if (all == NULL || mcs_load_relaxed(&all->wanted) == 0) /* partner: mcd_stage_get() */
            continue;
        if (m == NULL) {
            m = a->staging[i] = calloc(1, sizeof(*m));
            if (m == NULL)
                continue; /* in a later round */
            m->agent = a;
            m->engine = a->engines[i];
            m->size = all->size;
        }
        if (m->state == NONE || (m->state == FAILED && now - m->failed_at >= RETRY_NS))
            make(m, now);
    }
}

static void unpinned(struct mct_cuda_call *call)
{
    struct mcd_staging *m = call->context;

    munmap(m->memory, m->size);
    m->memory = NULL;
    m->state = NONE;
}

static bool any_left(const struct mcd_agent *a)
{
    for (unsigned i = 0; i < a->nengines; i++)
        if (a->staging[i] != NULL &&
            (a->staging[i]->state == LEAVING || a->staging[i]->state == PINNING))
            return true;
    return false;
}

void mcd_staging_end(struct mcd_agent *a)
{
    struct pollfd p = {.fd = a->event_fd, .events = POLLIN};
    uint64_t end = mcd_now_ns() + END_MS * UINT64_C(1000000), v;

    for (unsigned i = 0; i < a->nengines; i++) {
        struct mcd_staging *m = a->staging[i];

        if (m == NULL || m->state != GIVEN)
            continue;
        m->state = LEAVING;
        if (m->engine->gpu_jobs != NULL && m->engine->gpu_jobs->stranded)
            continue;
        if (!m->pinned) {
            munmap(m->memory, m->size);
            m->state = NONE;
            continue;
        }
        m->call.kind = MCT_CUDA_UNPIN;
        m->call.done = unpinned;
        mct_cuda_begin(a->cuda, &m->call);
    }
    while (any_left(a) && mcd_now_ns() < end) {
        if (poll(&p, 1, 100) == 1 && read(a->event_fd, &v, sizeof(v)) < 0) {
            /* somebody else's wake-up was read together with this one */
        }
        mct_cuda_poll(a->cuda);
    }
    for (unsigned i = 0; i < a->nengines; i++) {
        if (a->staging[i] == NULL || a->staging[i]->state == LEAVING ||
            a->staging[i]->state == PINNING)
            continue; /* the driver hangs: what it has of it goes with the process */
        free(a->staging[i]);
        a->staging[i] = NULL;
    }
}

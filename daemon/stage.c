/* SPDX-License-Identifier: Apache-2.0 */
#include "stage.h"

#include <errno.h>
#include <stdlib.h>

#include "net.h"

int mcd_stages_create(uint64_t size, struct mcd_stages **out)
{
    struct mcd_stages *all = calloc(1, sizeof(*all));

    if (all == NULL)
        return -ENOMEM;
    all->units = (uint32_t)(size / MCD_STAGE_HALVES / MCD_STAGE_UNIT);
    all->size = all->units * MCD_STAGE_UNIT * MCD_STAGE_HALVES;
    for (unsigned i = 0; i < MCD_STAGE_HALVES; i++) {
        all->half[i].stages = calloc(all->units, sizeof(struct mcd_stage));
        if (all->half[i].stages == NULL) {
            mcd_stages_destroy(all);
            return -ENOMEM;
        }
    }
    *out = all;
    return 0;
}

void mcd_stages_destroy(struct mcd_stages *all)
{
    if (all == NULL)
        return;
    for (unsigned i = 0; i < MCD_STAGE_HALVES; i++)
        free(all->half[i].stages);
    free(all);
}

/* The first of n free units in a row; `units` of the half: there are none. */
static uint32_t find(const struct mcd_stages *all, enum mcd_stage_half half, uint32_t n)
{
    const struct mcd_stage *stages = all->half[half].stages;
    uint32_t at = 0, free_units = 0;

    if (all->units - all->half[half].used < n)
        return all->units;
    while (at < all->units) {
        if (stages[at].units != 0) {
            at += stages[at].units;
            free_units = 0;
            continue;
        }
        at++;
        if (++free_units == n)
            return at - n;
    }
    return all->units;
}

struct mcd_stage *mcd_stage_get(struct mcd_engine *g, enum mcd_stage_half half, uint64_t length)
{
    struct mcd_stages *all = g->stages;
    uint32_t n = (uint32_t)((length + MCD_STAGE_UNIT - 1) / MCD_STAGE_UNIT), at = all->units;
    struct mcd_stage *s;

    if (all->memory != NULL) {
        at = find(all, half, n);
    } else if (mcs_load_relaxed(&all->wanted) == 0) {
        mcs_store_relaxed(&all->wanted, 1u); /* partner: mcd_staging_look(), which is rung */
        mcd_engine_tell_control(g);
    }
    if (at == all->units) {
        all->half[half].starved = true;
        return NULL;
    }
    s = &all->half[half].stages[at];
    *s = (struct mcd_stage){
        .s = {.memory = all->memory + (half * all->units + at) * MCD_STAGE_UNIT, .length = length},
        .half = half,
        .units = n,
    };
    all->half[half].used += n;
    return s;
}

/* Somebody may find room now. */
static void feed(struct mcd_engine *g, enum mcd_stage_half half)
{
    struct mcd_net *n = g->net;

    if (!g->stages->half[half].starved)
        return;
    g->stages->half[half].starved = false;
    n->quiet = 0; /* transports look in their turn */
    if (half == MCD_STAGE_OUT)
        for (struct mcd_route *r = n->active; r != NULL; r = r->active_next)
            mcd_route_dirty(n, r);
}

void mcd_stages_feed(struct mcd_engine *g)
{
    feed(g, MCD_STAGE_OUT);
    feed(g, MCD_STAGE_IN);
}

void mcd_stage_put(struct mcd_engine *g, struct mcd_stage *s)
{
    g->stages->half[s->half].used -= s->units;
    s->units = 0;
    s->slice = NULL;
    feed(g, s->half);
}

void mcd_stage_move(struct mcd_engine *g, struct mcd_stage *s, bool to_gpu, int device,
                    const void *address, uint64_t length,
                    void (*back)(struct mcd_engine *g, struct mcd_gpu_job *j))
{
    uint64_t there = (uintptr_t)address, here = (uintptr_t)s->s.memory;

    s->moving = true;
    s->piece = (struct mct_cuda_piece){
        .to = to_gpu ? there : here, .from = to_gpu ? here : there, .length = length};
    s->job = (struct mcd_gpu_job){
        .job = {.to_device = to_gpu ? device : MCT_CUDA_HOST,
                .from_device = to_gpu ? MCT_CUDA_HOST : device,
                .pinned = g->stages->pinned,
                .n = 1,
                .pieces = &s->piece,
                .bytes = length},
        .back = back,
        .context = s,
    };
    mcd_gpu_job_post(g, &s->job);
}

void mcd_stages_cancel(struct mcd_engine *g)
{
    struct mcd_stages *all = g->stages;
    struct mcd_stage *s;

    if (all == NULL)
        return;
    for (uint32_t at = 0; at < all->units; at += s->units != 0 ? s->units : 1) {
        s = &all->half[MCD_STAGE_IN].stages[at];
        if (s->units == 0 || !s->moving)
            continue;
        s->moving = false;
        s->s.done(&s->s, MCS_AGENT_DOWN);
        at = 0; /* what has ended may have given others back */
    }
}

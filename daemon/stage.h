/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stages: host memory of an engine, through which bytes go between a GPU's memory and another host where no network card
 * reaches the GPU.  It has two halves, one for what this host asks of others and one for what others ask of it: what waits
 * for room in one of them waits only for who has it and a copier, never for the other host's wait for room, and so
 * two hosts never wait for each other.
 *
 *   control thread   makes the memory of an engine when that asks for it first, has it pinned with the GPU driver, hands it
 *                    over; frees it after the engine's end
 *   engine           everything else: remote_stage.c (initiator), serve_stage.c (target)
 */
#ifndef MCD_STAGE_H
#define MCD_STAGE_H

#include "gpu_job.h"
#include "transports/transport.h"

#define MCD_STAGE_UNIT (UINT64_C(64) << 10)
#define MCD_STAGES_MIN (2 * MCT_STAGE_MAX) /* bytes of an engine: a request of any size has room */

struct mcd_agent;
struct mcd_slice;

enum mcd_stage_half { MCD_STAGE_OUT, MCD_STAGE_IN, MCD_STAGE_HALVES };

struct mcd_stage {
    struct mct_stage s; /* first: what transports get */
    struct mcd_gpu_job job;
    struct mct_cuda_piece piece;
    struct mcd_slice *slice; /* OUT: whose it is */
    enum mcd_stage_half half;
    uint32_t units; /* 0: not in use */
    bool moving;    /* its job is out */
};

/* An engine's. */
struct mcd_stages {
    /* control: relaxed; the engine has asked for memory */
    uint32_t wanted;
    /* engine */
    uint8_t *memory; /* NULL: none yet */
    uint64_t size;   /* bytes, of both halves */
    bool pinned;
    uint32_t units; /* of a half */
    struct {
        struct mcd_stage *stages; /* by first unit */
        uint32_t used;            /* units */
        bool starved;             /* somebody found no room since some was given back */
    } half[MCD_STAGE_HALVES];
    bool told_out, told_in; /* the log has been */
};

/* Without memory. size: bytes, MCD_STAGES_MIN or more where peers are served. */
int mcd_stages_create(uint64_t size, struct mcd_stages **out);
/* After the engine's end. */
void mcd_stages_destroy(struct mcd_stages *all);

/* ---- engine ------------------------------------------------------------------------- */

/* NULL: no room now; when there is some, routes are run and transports have their turn. length: 1 .. half of all. */
struct mcd_stage *mcd_stage_get(struct mcd_engine *g, enum mcd_stage_half half, uint64_t length);
/* It is not being moved. */
void mcd_stage_put(struct mcd_engine *g, struct mcd_stage *s);
/* Was there room when it was looked for last, or has some come since? */
static inline bool mcd_stage_may_get(const struct mcd_engine *g, enum mcd_stage_half half)
{
    return g->stages != NULL && !g->stages->half[half].starved;
}
/* Do peers wait for bytes that go through stages? */
static inline bool mcd_stages_serve(const struct mcd_engine *g)
{
    return g->stages != NULL &&
           (g->stages->half[MCD_STAGE_IN].used != 0 || g->stages->half[MCD_STAGE_IN].starved);
}
/* Moves its first `length` bytes to or from a GPU's memory; back() follows. */
void mcd_stage_move(struct mcd_engine *g, struct mcd_stage *s, bool to_gpu, int device,
                    const void *address, uint64_t length,
                    void (*back)(struct mcd_engine *g, struct mcd_gpu_job *j));
/* It has memory. */
void mcd_stages_feed(struct mcd_engine *g);
/* The engine ends, its copies are back or given up: transports are told so. */
void mcd_stages_cancel(struct mcd_engine *g);

/* serve_stage.c: of struct mct_host. */
struct mct_stage *mcd_serve_stage(void *context, uint64_t length);
void mcd_serve_unstage(void *context, struct mct_stage *s);
uint16_t mcd_serve_move(void *context, void *visitor, const struct mct_request *r,
                        struct mct_stage *s);

/* ---- control thread ----------------------------------------------------------------- */

/* Memory for engines that have asked. In each round of the loop. */
void mcd_staging_look(struct mcd_agent *a);
/* After the engines, before the driver goes: gives all of it back; waits for the driver for a bounded time. */
void mcd_staging_end(struct mcd_agent *a);

#endif

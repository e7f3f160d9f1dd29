/* SPDX-License-Identifier: Apache-2.0 */
#include "pool_place.h"

#include <stdlib.h>

/* What is known of a step: when it was last left, 0: nobody has named it yet; and whether it is taken. */
#define TAKEN (UINT64_C(1) << 63)
#define SPENT (UINT64_C(1) << 62) /* later than anybody comes */

struct mcd_pool_places {
    uint64_t base;
    uint64_t n;    /* steps */
    uint64_t now;  /* counts what was left */
    uint64_t next; /* where the search goes on, so that what was left last comes last */
    uint64_t steps[];
};

struct mcd_pool_places *mcd_pool_places_create(uint64_t base)
{
    uint64_t n = base < MCD_POOL_PLACE_END ? (MCD_POOL_PLACE_END - base) / MCD_POOL_PLACE_STEP : 0;
    /* zeros that nobody touches cost nothing */
    struct mcd_pool_places *p = calloc(1, sizeof(*p) + n * sizeof(p->steps[0]));

    if (p != NULL) {
        p->base = base;
        p->n = n;
        p->now = 1;
    }
    return p;
}

void mcd_pool_places_destroy(struct mcd_pool_places *p)
{
    free(p);
}

static uint64_t steps_of(uint64_t size)
{
    return size / MCD_POOL_PLACE_STEP + (size % MCD_POOL_PLACE_STEP != 0);
}

/* The steps of a range, as far as there are such. */
static void cut(const struct mcd_pool_places *p, uint64_t at, uint64_t size, uint64_t *first,
                uint64_t *end)
{
    *first = at < p->base ? p->n : (at - p->base) / MCD_POOL_PLACE_STEP;
    *end = *first < p->n ? *first + steps_of(size) : *first;
    if (*end > p->n)
        *end = p->n;
}

uint64_t mcd_pool_places_now(const struct mcd_pool_places *p)
{
    return p != NULL ? p->now : 1;
}

void mcd_pool_places_take(struct mcd_pool_places *p, uint64_t at, uint64_t size)
{
    uint64_t i, end;

    if (p == NULL)
        return;
    for (cut(p, at, size, &i, &end); i < end; i++)
        p->steps[i] |= TAKEN;
}

void mcd_pool_places_leave(struct mcd_pool_places *p, uint64_t at, uint64_t size,
                           enum mcd_pool_place_left how)
{
    uint64_t i, end;

    if (p == NULL)
        return;
    p->now++;
    for (cut(p, at, size, &i, &end); i < end; i++)
        p->steps[i] = how == MCD_POOL_PLACE_NAMED   ? p->now
                      : how == MCD_POOL_PLACE_SPENT ? SPENT
                                                    : p->steps[i] & ~TAKEN;
}

static bool is_free(const struct mcd_pool_places *p, uint64_t i, uint64_t came, uint64_t earlier)
{
    if (p->steps[i] == 0)
        return came != 0 || p->base + i * MCD_POOL_PLACE_STEP >= earlier;
    return p->steps[i] <= came;
}

uint64_t mcd_pool_places_again(struct mcd_pool_places *p, uint64_t size, uint64_t came,
                               uint64_t earlier)
{
    const uint64_t want = steps_of(size);
    uint64_t run = 0, i, k;

    if (p == NULL || want == 0 || want > p->n)
        return 0;
    /* once around, and on to where a run that begins before the start of the search may end */
    for (k = 0, i = p->next; k < p->n + want; k++, i++) {
        if (i == p->n)
            i = run = 0; /* none goes over the end */
        run = is_free(p, i, came, earlier) ? run + 1 : 0;
        if (run < want)
            continue;
        p->next = i + 1;
        i -= want - 1;
        mcd_pool_places_take(p, p->base + i * MCD_POOL_PLACE_STEP, size);
        return p->base + i * MCD_POOL_PLACE_STEP;
    }
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "args.h"

#include <errno.h>
#include <stdlib.h>

int mcl_args_init(struct mcl_args *a, uint32_t units)
{
    *a = (struct mcl_args){.units = units};
    if (units == 0)
        return 0;
    a->table = calloc(units, sizeof(*a->table));
    return a->table == NULL ? -ENOMEM : 0;
}

void mcl_args_fini(struct mcl_args *a)
{
    free(a->table);
    *a = (struct mcl_args){0};
}

static void put(struct mcl_args *a, uint32_t units, uint32_t owner)
{
    a->table[a->head] = (struct mcl_args_unit){.units = units, .owner = owner};
    a->head += units;
    a->used += units;
    if (a->head == a->units)
        a->head = 0;
}

bool mcl_args_take(struct mcl_args *a, uint32_t units, uint32_t owner, uint32_t *at)
{
    uint32_t to_end = a->units - a->head;
    uint32_t room = a->units - a->used;

    if (units == 0 || units > room)
        return false;
    /* the free part is in one piece unless it reaches around the end */
    if (units > to_end) {
        if (units > room - to_end)
            return false;
        put(a, to_end, MCL_ARGS_NO_OWNER);
    }
    *at = a->head;
    put(a, units, owner);
    return true;
}

void mcl_args_free(struct mcl_args *a, uint32_t at)
{
    struct mcl_args_unit *chunk = &a->table[at];

    chunk->owner = MCL_ARGS_NO_OWNER;
    if ((at + chunk->units) % a->units == a->head) { /* the newest: as if never taken */
        a->head = at;
        a->used -= chunk->units;
    }
    while (a->used != 0 && a->table[a->tail].owner == MCL_ARGS_NO_OWNER) {
        uint32_t units = a->table[a->tail].units;

        a->used -= units;
        a->tail = (a->tail + units) % a->units;
    }
    if (a->used == 0) /* begin anew where the cache is warm */
        a->head = a->tail = 0;
}

uint32_t mcl_args_oldest(const struct mcl_args *a, uint32_t *at)
{
    if (a->used == 0)
        return MCL_ARGS_NO_OWNER;
    *at = a->tail;
    return a->table[a->tail].owner;
}

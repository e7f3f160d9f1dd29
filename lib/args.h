/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Allocator of a queue's argument area: a ring of 64-byte units.  Chunks are taken at the
 * head and never wrap; they are freed in any order and reclaimed in the order they were
 * taken, at the tail.
 *
 *   0            tail                          head                 units
 *   +------------+---------+--------+---------+--------------------+
 *   |   free     | chunk   | freed  | chunk   |       free         |
 *   +------------+---------+--------+---------+--------------------+
 */
#ifndef MCL_ARGS_H
#define MCL_ARGS_H

#include <stdbool.h>
#include <stdint.h>

#define MCL_ARGS_NO_OWNER UINT32_MAX

struct mcl_args_unit { /* of a chunk's first unit */
    uint32_t units;    /* its length */
    uint32_t owner;    /* slot of its task, MCL_ARGS_NO_OWNER when it is freed */
};

struct mcl_args {
    uint32_t units;
    uint32_t head, tail;
    uint32_t used; /* between tail and head, freed ones too */
    struct mcl_args_unit *table;
};

/* 0, -ENOMEM. */
int mcl_args_init(struct mcl_args *a, uint32_t units);
void mcl_args_fini(struct mcl_args *a);

/* Takes `units` in one piece for the task in slot `owner`; false: no room now. */
bool mcl_args_take(struct mcl_args *a, uint32_t units, uint32_t owner, uint32_t *at);
void mcl_args_free(struct mcl_args *a, uint32_t at);

/* The slot that holds the oldest chunk, MCL_ARGS_NO_OWNER when the area is empty; *at: the chunk. */
uint32_t mcl_args_oldest(const struct mcl_args *a, uint32_t *at);

#endif

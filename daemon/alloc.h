/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An allocator of offsets.  All of its metadata lies in the agent's private memory: it
 * hands out ranges of an extent without ever touching the extent.
 *
 * Free ranges hang in bins by size (eight bins an octave, so a good fit wastes at most an
 * eighth of a bin search); neighbours merge at once.  O(1) but for the node table's growth.
 * Control thread only.
 */
#ifndef MCD_ALLOC_H
#define MCD_ALLOC_H

#include <stdint.h>

struct mcd_alloc;

#define MCD_ALLOC_UNIT 64u /* bytes: every allocation begins at a multiple and has such a size */

/* size: bytes to hand out, a multiple of MCD_ALLOC_UNIT. NULL when memory is out. */
struct mcd_alloc *mcd_alloc_create(uint64_t size);
void mcd_alloc_destroy(struct mcd_alloc *a);

/* size > 0; align a power of two >= MCD_ALLOC_UNIT. 0, -ENOSPC, -ENOMEM. */
int mcd_alloc_take(struct mcd_alloc *a, uint64_t size, uint64_t align, uint64_t *offset);

/*
 * For an allocator made anew of what is known to be taken: takes this very range. In rising order
 * of offsets, so that there is nothing to search for: the range must lie behind all that is taken.
 * 0; -ENOSPC: it does not, or is not one that mcd_alloc_take() could have given; -ENOMEM.
 */
int mcd_alloc_take_at(struct mcd_alloc *a, uint64_t offset, uint64_t size);

/* -ENOENT when no allocation begins at offset. */
int mcd_alloc_give(struct mcd_alloc *a, uint64_t offset);

/* Bytes of the allocation that begins at offset, 0 when there is none. */
uint64_t mcd_alloc_size_at(const struct mcd_alloc *a, uint64_t offset);

uint64_t mcd_alloc_used(const struct mcd_alloc *a);  /* bytes */
uint64_t mcd_alloc_count(const struct mcd_alloc *a); /* live allocations */

#endif

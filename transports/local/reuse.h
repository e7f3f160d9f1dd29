/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Is a target likely to be in the cache?  Remembers, by regions of 64 KiB, how many bytes an
 * engine had copied when it last wrote there.  If less than half of the last-level cache
 * has gone through since, the region is warm and a copy through the cache is the faster one;
 * else streaming past it is.  All writes of one pass (one task) into a region are answered
 * alike.  A guess that costs one cache line a slice; a
 * collision in the table only makes it a worse guess.
 */
#ifndef MCT_REUSE_H
#define MCT_REUSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MCT_REUSE_SHIFT 16
#define MCT_REUSE_BITS 14u /* entries: covers 1 GiB of targets */

struct mct_reuse {
    uint64_t clock;  /* bytes copied */
    uint64_t window; /* bytes after which a region is cold */
    struct {
        uint64_t region;
        uint64_t at; /* clock at the last write */
        uint64_t pass;
        bool cold;
    } entries[1u << MCT_REUSE_BITS];
};

/* The last-level cache of the first core as sysfs tells, bytes; 16 MiB where it does not. */
uint64_t mct_cache_size(void);

void mct_reuse_init(struct mct_reuse *r, uint64_t cache_size);

/* Notes a copy of n bytes to dst; true when the target was cold before this pass. */
static inline bool mct_reuse_note(struct mct_reuse *r, uint64_t pass, const void *dst, size_t n)
{
    uint64_t region = (uintptr_t)dst >> MCT_REUSE_SHIFT;
    uint64_t i = (region * UINT64_C(0x9e3779b97f4a7c15)) >> (64 - MCT_REUSE_BITS);

    if (r->entries[i].region != region)
        r->entries[i].cold = true;
    else if (r->entries[i].pass != pass)
        r->entries[i].cold = r->clock - r->entries[i].at > r->window;
    r->clock += n;
    r->entries[i].region = region;
    r->entries[i].at = r->clock;
    r->entries[i].pass = pass;
    return r->entries[i].cold;
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A region: one memfd, created, populated and sealed by the agent, mapped by both
 * sides.  No name in any file system; the kernel frees it when the last holder dies.
 */
#ifndef MCS_REGION_H
#define MCS_REGION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Creates a memfd of `size` bytes (a multiple of page_size), maps it, binds it to
 * NUMA node `node` (-1: any), populates every page, seals GROW, SHRINK and SEAL.
 * page_size 0 or 4096: ordinary pages; otherwise a hugepage size in bytes.
 * `name` shows in /proc/PID/fd.  `hint`: where to map it if that is free, or NULL.
 * On success *fd and *mem belong to the caller.  -ENOMEM: too few pages; other
 * negative errno as the kernel gave it.
 */
int mcs_region_create(const char *name, uint64_t size, uint64_t page_size, int node, void *hint,
                      int *fd, void **mem);

/* Maps `size` bytes of fd; at `hint` when that is not NULL and free, else anywhere. */
int mcs_region_map(int fd, uint64_t size, bool writable, void *hint, void **mem);

/*
 * Unmaps in chunks with a yield between them, so that tearing down a large pool
 * never keeps a core away from others for long.
 */
void mcs_region_unmap(void *mem, uint64_t size);

/*
 * Checks a memfd that somebody else made: a memfd, at least `size` bytes, sealed
 * against shrinking, opened for reading and writing.  0; -EBADF: no memfd or wrong
 * mode; -EPERM: not sealed; -ERANGE: smaller than announced.  *page_size is set.
 */
int mcs_region_check(int fd, uint64_t size, uint64_t *page_size);

#endif

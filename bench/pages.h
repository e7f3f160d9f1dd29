/* SPDX-License-Identifier: Apache-2.0 */
/* Hugepages for the private agent's pool, reserved for the time of the run where allowed. */
#ifndef BENCH_PAGES_H
#define BENCH_PAGES_H

#include <stdint.h>

/*
 * Sees to it that `bytes` of 2 MiB hugepages are free; what it adds to the reservation is
 * taken off again at the end (cleanup.h). note says what was done, or why not; with too few
 * the agent takes ordinary pages.
 */
void pages_prepare(uint64_t bytes, char *note, unsigned note_size);

/* "4 KiB", "2 MiB hugepages", ... */
void pages_name(uint64_t page_size, char *out, unsigned size);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Quieting: every engine ends the network I/O and the copies of GPU memory that it has under way into and out of some memory.
 * For what was made unfindable before, and a grace period ago: nothing new begins.  Control thread
 * only.
 */
#ifndef MCD_QUIET_H
#define MCD_QUIET_H

#include <stdbool.h>
#include <stdint.h>

struct mcd_agent;
struct mcd_quieting;
struct mcd_session;
struct mcd_extent;

/*
 * Drives it on: begins it when *q is NULL, and frees it when it is over. e: the range
 * [offset, offset + length) of an extent; NULL: all extents of s. True: quiet.
 */
bool mcd_quiet(struct mcd_agent *a, struct mcd_quieting **q, const struct mcd_session *s,
               const struct mcd_extent *e, uint64_t offset, uint64_t length);

#endif

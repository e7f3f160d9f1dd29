/* SPDX-License-Identifier: Apache-2.0 */
/* Freeing what engines may still look at: after a grace period. Control thread only. */
#ifndef MCD_LATER_H
#define MCD_LATER_H

struct mcd_agent;

/* Calls fn(context) once every engine has begun another turn. Without memory it is never called: what was to be
 * freed stays, which is harmless. */
void mcd_after_grace(struct mcd_agent *a, void (*fn)(void *context), void *context);

#endif

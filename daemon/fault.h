/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Guarded memory.  A client may punch holes into a memfd that it shares with the agent;
 * where the kernel then has no page to give, the agent's next access is a SIGBUS.  The
 * handler puts zero pages there, marks the region, and the agent goes on; the control
 * thread ends the session whose region it was.
 */
#ifndef MCD_FAULT_H
#define MCD_FAULT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Installs the handler. wake_fd: an eventfd that it writes to after a fault; -1: none. */
int mcd_fault_init(int wake_fd);

/* Control thread: guards a mapping. Returns its entry, or -ENOSPC. */
int mcd_fault_add(void *mem, uint64_t size);
void mcd_fault_remove(int entry);

/* Control thread: has this region faulted? */
bool mcd_fault_happened(int entry);

/* Faults of all regions so far: nothing new, nothing to look for. */
uint32_t mcd_fault_total(void);

/* Faults of the calling thread so far: an engine compares before and after a copy. */
unsigned long mcd_fault_count(void);

#endif

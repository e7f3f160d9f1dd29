/* SPDX-License-Identifier: Apache-2.0 */
/* DPDK's environment: it gives the agent its lcores, one for the control thread and one an
 * engine. */
#ifndef MCD_EAL_H
#define MCD_EAL_H

#include "agent.h"

/* The cores of [engine] cores, checked against those the process may run on. */
int mcd_cores_parse(const char *text, int *cores, unsigned *n, char *error, size_t error_size);

/* Starts the EAL for these engine cores. tick_hz: of the processor's clock, as measured by an earlier
 * agent; 0: not known. */
int mcd_eal_init(const int *cores, unsigned n, uint64_t tick_hz, char *error, size_t error_size);
/* The start is over: whoever aborts from now on leaves a core file. */
void mcd_eal_started(void);
/* Launches an engine on its lcore. */
int mcd_eal_launch(struct mcd_engine *g, unsigned index);
/* Waits for all engines to return. */
void mcd_eal_fini(void);

#endif

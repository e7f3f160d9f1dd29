/* SPDX-License-Identifier: Apache-2.0 */
/* Gates: words in pool memory that streams and the agent take turns at. */
#ifndef MCL_GATE_H
#define MCL_GATE_H

#include "gpu.h"

/* Frees the tables of all gates; `driver`: lets the driver forget their pages. Returns how many times that failed. */
unsigned mcl_gates_fini(struct mcl_gpu *g, bool driver);

#endif

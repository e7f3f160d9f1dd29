/* SPDX-License-Identifier: Apache-2.0 */
/* The time of the fuzzers' builds; see mcs_ticks(). */
#include <stdint.h>

extern uint64_t mcs_simulated_ticks;
uint64_t mcs_simulated_ticks = UINT64_C(1) << 32;

/* SPDX-License-Identifier: Apache-2.0 */
/* A bar on stderr, when that is a terminal; otherwise nothing. */
#ifndef BENCH_PROGRESS_H
#define BENCH_PROGRESS_H

#include <stdint.h>

void progress_show(uint64_t done, uint64_t total, const char *unit);
void progress_end(void); /* takes the bar away */

#endif

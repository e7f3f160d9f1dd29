/* SPDX-License-Identifier: Apache-2.0 */
/* Medians and percentiles. They sort their input. NAN when there is nothing. */
#ifndef BENCH_STATS_H
#define BENCH_STATS_H

#include <stddef.h>
#include <stdint.h>

#define STATS_ROUNDS_MAX 64u

/* One figure of each alternating round. */
struct stats_rounds {
    double value[STATS_ROUNDS_MAX];
    size_t count;
};

void stats_add(struct stats_rounds *r, double value); /* beyond the room: ignored */
double stats_median(struct stats_rounds *r);

/* The smallest value with at least percent/100 of all values at or below it. */
double stats_percentile(double *values, size_t count, double percent);
double stats_percentile_u32(uint32_t *values, size_t count, double percent);

#endif

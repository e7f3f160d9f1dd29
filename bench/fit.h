/* SPDX-License-Identifier: Apache-2.0 */
/* Two things read out of many points: what a request costs before its first byte, and how long
 * the bytes stood still. */
#ifndef BENCH_FIT_H
#define BENCH_FIT_H

#include <stddef.h>
#include <stdint.h>

struct fit_point {
    double size;    /* bytes */
    double time_us; /* of one request */
};

struct fit_line {
    double fixed_us;    /* at size 0; NAN when there is no line */
    double bytes_per_s; /* of what comes on top */
};

/*
 * T = fixed + size / rate by least squares of the relative error: sizes span four decades, and
 * else only the largest would count. Two different sizes at least.
 */
struct fit_line fit_line(const struct fit_point *points, size_t count);

/*
 * From bytes completed in each millisecond: how many milliseconds after `cut` it takes until there
 * is full flow for good: from then on, however far one looks (from `window` milliseconds to the
 * last bin), the mean is at least `share` of `rate`, which is bytes a millisecond. 0: at once. NAN:
 * never.
 */
double fit_gap(const uint64_t *bins, size_t count, size_t cut, size_t window, double rate,
               double share);

/* The longest run of milliseconds without any byte in [from, to). */
size_t fit_still(const uint64_t *bins, size_t from, size_t to);

/* Bytes a millisecond from bin `from` up to, not including, bin `to`; NAN when there is none. */
double fit_rate(const uint64_t *bins, size_t from, size_t to);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#include "stats.h"

#include <math.h>
#include <stdlib.h>

static int compare_double(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static int compare_u32(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

    return (x > y) - (x < y);
}

void stats_add(struct stats_rounds *r, double value)
{
    if (r->count < STATS_ROUNDS_MAX)
        r->value[r->count++] = value;
}

double stats_median(struct stats_rounds *r)
{
    size_t n = r->count;

    if (n == 0)
        return NAN;
    qsort(r->value, n, sizeof(r->value[0]), compare_double);
    return n % 2 != 0 ? r->value[n / 2] : (r->value[n / 2 - 1] + r->value[n / 2]) / 2;
}

/* Nearest rank. */
static size_t rank_of(size_t count, double percent)
{
    double exact = percent / 100 * (double)count;
    size_t rank = (size_t)exact;

    if ((double)rank < exact)
        rank++;
    if (rank == 0)
        rank = 1;
    return rank > count ? count - 1 : rank - 1;
}

double stats_percentile(double *values, size_t count, double percent)
{
    if (count == 0)
        return NAN;
    qsort(values, count, sizeof(values[0]), compare_double);
    return values[rank_of(count, percent)];
}

double stats_percentile_u32(uint32_t *values, size_t count, double percent)
{
    if (count == 0)
        return NAN;
    qsort(values, count, sizeof(values[0]), compare_u32);
    return values[rank_of(count, percent)];
}

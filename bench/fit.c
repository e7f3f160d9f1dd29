/* SPDX-License-Identifier: Apache-2.0 */
#include "fit.h"

#include <math.h>
#include <stdbool.h>

struct fit_line fit_line(const struct fit_point *points, size_t count)
{
    struct fit_line line = {.fixed_us = NAN, .bytes_per_s = NAN};
    double w = 0, ws = 0, wt = 0, wss = 0, wst = 0, below, slope;

    for (size_t i = 0; i < count; i++) {
        double t = points[i].time_us, s = points[i].size, weight = 1 / (t * t);

        w += weight;
        ws += weight * s;
        wt += weight * t;
        wss += weight * s * s;
        wst += weight * s * t;
    }
    below = w * wss - ws * ws;
    if (count < 2 || !(below > 1e-12 * w * wss))
        return line;
    slope = (w * wst - ws * wt) / below;
    line.fixed_us = (wt - slope * ws) / w;
    line.bytes_per_s = 1e6 / slope;
    return line;
}

double fit_gap(const uint64_t *bins, size_t count, size_t cut, size_t window, double rate,
               double share)
{
    for (size_t from = cut; from + window <= count; from++) {
        bool full = true;
        uint64_t sum = 0;

        for (size_t i = from; full && i < count; i++) {
            sum += bins[i];
            full = i + 1 - from < window || (double)sum >= share * rate * (double)(i + 1 - from);
        }
        if (full)
            return (double)(from - cut);
    }
    return NAN;
}

double fit_rate(const uint64_t *bins, size_t from, size_t to)
{
    uint64_t sum = 0;

    for (size_t i = from; i < to; i++)
        sum += bins[i];
    return to > from ? (double)sum / (double)(to - from) : NAN;
}

size_t fit_still(const uint64_t *bins, size_t from, size_t to)
{
    size_t longest = 0, run = 0;

    for (size_t i = from; i < to; i++) {
        run = bins[i] == 0 ? run + 1 : 0;
        if (run > longest)
            longest = run;
    }
    return longest;
}

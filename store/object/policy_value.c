/* SPDX-License-Identifier: Apache-2.0 */
#include "policy_value.h"

#include <math.h>
#include <string.h>

/* Rounds over the classes after which what was seen counts half. */
#define ROUNDS_HALF 72.0
/* Returns that a class is thought to have had before, as often as all others; and of those each of its ages. */
#define CLASS_PRIOR 2.0
#define AGE_PRIOR 10.0
/* Chance of a return within an age, while nothing is known. */
#define FIRST_CHANCE 0.2

static double width(unsigned age)
{
    return (double)(mco_values_begin(age + 1) - mco_values_begin(age));
}

void mco_values_init(struct mco_values *v)
{
    memset(v, 0, sizeof(*v));
    for (unsigned a = 0; a < MCO_VALUE_AGES; a++)
        v->pooled[a] = FIRST_CHANCE / width(a);
    for (unsigned c = 0; c < MCO_VALUE_CLASSES; c++)
        for (unsigned a = 0; a < MCO_VALUE_AGES; a++)
            v->level[c][a] = (uint8_t)(MCO_VALUE_LEVELS / 2 - a); /* the younger the better */
}

static void count_time(struct mco_values *v, unsigned class, unsigned age, uint64_t now)
{
    v->time[class][age] += v->watched[class][age] * (double)(now - v->since[class][age]);
    v->since[class][age] = now;
}

void mco_values_watch(struct mco_values *v, unsigned class, unsigned age, int change, uint64_t now)
{
    count_time(v, class, age, now);
    v->watched[class][age] += change;
}

void mco_values_returned(struct mco_values *v, unsigned class, unsigned age)
{
    v->returns[class][age] += 1;
}

/* Rates of all together. Where little was seen they follow the rule that the rate falls as the age grows. */
static void pool_all(struct mco_values *v, bool (*pool)(unsigned class))
{
    double returns[MCO_VALUE_AGES] = {0}, time[MCO_VALUE_AGES] = {0}, sum = 1, expected = 0;

    for (unsigned c = 0; c < MCO_VALUE_CLASSES; c++) {
        if (!pool(c))
            continue;
        for (unsigned a = 0; a < MCO_VALUE_AGES; a++) {
            returns[a] += v->returns[c][a];
            time[a] += v->time[c][a];
        }
    }
    for (unsigned a = 0; a < MCO_VALUE_AGES; a++) {
        sum += returns[a];
        expected += time[a] / width(a);
    }
    sum /= expected + 1 / FIRST_CHANCE;
    for (unsigned a = 0; a < MCO_VALUE_AGES; a++)
        v->pooled[a] = (returns[a] + 1) / (time[a] + width(a) / sum);
}

static void set_levels(struct mco_values *v, unsigned class, const double *chance)
{
    for (unsigned a = 0; a < MCO_VALUE_AGES; a++) {
        double left = 1, won = 0, spent = 0, best_won = 0, best_spent = 1, level;

        for (unsigned b = a; b < MCO_VALUE_AGES && left > 1e-6; b++) {
            double p = left * chance[b];

            won += p;
            spent += (left - p / 2) * width(b);
            left -= p;
            if (won * best_spent > best_won * spent) {
                best_won = won;
                best_spent = spent;
            }
        }
        level = 4 * log2(best_won / best_spent) + 170;
        v->level[class][a] = (uint8_t)(level < 1                        ? 1
                                       : level > MCO_VALUE_LEVELS - 1.0 ? MCO_VALUE_LEVELS - 1
                                                                        : level);
    }
}

unsigned mco_values_refresh(struct mco_values *v, uint64_t now, bool (*pool)(unsigned class))
{
    const double fade = exp2(-1 / ROUNDS_HALF);
    unsigned class = v->turn;
    double chance[MCO_VALUE_AGES], returns = 0, expected = 0, scale;

    v->turn = (v->turn + 1) % MCO_VALUE_CLASSES;
    if (class == 0)
        pool_all(v, pool);
    for (unsigned a = 0; a < MCO_VALUE_AGES; a++) {
        count_time(v, class, a, now);
        returns += v->returns[class][a];
        expected += v->time[class][a] * v->pooled[a];
    }
    scale = (returns + CLASS_PRIOR) / (expected + CLASS_PRIOR);
    for (unsigned a = 0; a < MCO_VALUE_AGES; a++) {
        double prior = v->pooled[a] * scale;
        double rate = (v->returns[class][a] + AGE_PRIOR) / (v->time[class][a] + AGE_PRIOR / prior);

        chance[a] = -expm1(-rate * width(a));
        v->returns[class][a] *= fade;
        v->time[class][a] *= fade;
    }
    set_levels(v, class, chance);
    return class;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What it is worth to keep something, learned from how things of its class came back before.  For each class and
 * age it counts how long things were watched and how often they came back meanwhile; from that follows a rate, and
 * from the rates the worth: the best ratio of chance of return to time kept that any further stay has (Gittins' index).
 * Ages and times are in touches of the policy, not in seconds: a store that is replayed faster learns the same.
 * What is long ago counts less and less.
 */
#ifndef MCO_POLICY_VALUE_H
#define MCO_POLICY_VALUE_H

#include <stdbool.h>
#include <stdint.h>

#define MCO_VALUE_CLASSES 42u
#define MCO_VALUE_AGES                                                                             \
    28u /* the first is up to 2^5, each further one twice as long as all before */
#define MCO_VALUE_LEVELS                                                                           \
    192u /* of worth, a fourth of an octave each; 0 is the least, given to nothing here */

struct mco_values {
    double returns[MCO_VALUE_CLASSES][MCO_VALUE_AGES];
    double time[MCO_VALUE_CLASSES][MCO_VALUE_AGES]; /* touches, of all that were watched */
    double watched[MCO_VALUE_CLASSES][MCO_VALUE_AGES];
    uint64_t since[MCO_VALUE_CLASSES][MCO_VALUE_AGES]; /* time is counted up to here */
    double pooled[MCO_VALUE_AGES];                     /* rate of return of all classes together */
    uint8_t level[MCO_VALUE_CLASSES][MCO_VALUE_AGES];
    unsigned turn; /* class that is looked at next */
};

void mco_values_init(struct mco_values *v);
/* The first touch of an age. */
static inline uint64_t mco_values_begin(unsigned age)
{
    return age == 0 ? 0 : UINT64_C(16) << age;
}
/* `change` things more (or less) of a class are watched at an age. */
void mco_values_watch(struct mco_values *v, unsigned class, unsigned age, int change, uint64_t now);
void mco_values_returned(struct mco_values *v, unsigned class, unsigned age);
/* Looks at the next class again: its levels may change. Returns the class. pool: it belongs to those that tell of
 * classes of which little is known. Some microseconds. */
unsigned mco_values_refresh(struct mco_values *v, uint64_t now, bool (*pool)(unsigned class));

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#include "pattern.h"

#define STEP UINT64_C(0x9e3779b97f4a7c15)
#define LINE_WORDS 8u

static uint64_t mix(uint64_t x)
{
    x ^= x >> 31;
    x *= UINT64_C(0x7fb5d329728ea185);
    x ^= x >> 27;
    x *= UINT64_C(0x81dadef4bc2dd44d);
    return x ^ x >> 33;
}

uint64_t pattern_seed(uint64_t hash_id, uint32_t layer)
{
    return mix(mix(hash_id + 1) + layer);
}

/* A sum for each word, folded once: additions and shifts that vector units do side by side. */
static inline uint64_t word(uint64_t sum)
{
    return sum ^ sum >> 29;
}

void pattern_fill(void *memory, size_t size, uint64_t seed)
{
    uint64_t *words = memory;

    for (size_t i = 0; i < size / 8; i += LINE_WORDS, seed += LINE_WORDS * STEP)
        for (unsigned k = 0; k < LINE_WORDS; k++)
            words[i + k] = word(seed + k * STEP);
}

uint64_t pattern_check(const void *memory, size_t size, uint64_t seed)
{
    const uint64_t *words = memory;
    uint64_t wrong = 0;

    for (size_t i = 0; i < size / 8; i += LINE_WORDS, seed += LINE_WORDS * STEP) {
        uint64_t differs = 0;

        for (unsigned k = 0; k < LINE_WORDS; k++)
            differs |= words[i + k] ^ word(seed + k * STEP);
        if (differs == 0)
            continue;
        for (unsigned k = 0; k < LINE_WORDS; k++)
            wrong += words[i + k] != word(seed + k * STEP);
    }
    return wrong;
}

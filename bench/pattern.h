/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The content of KV blocks: every 8-byte word follows from the block's hash id, the layer
 * and the word's offset, and is cheap enough to be made and checked at memory speed.
 */
#ifndef BENCH_PATTERN_H
#define BENCH_PATTERN_H

#include <stddef.h>
#include <stdint.h>

uint64_t pattern_seed(uint64_t hash_id, uint32_t layer);

/* size: a multiple of 64. */
void pattern_fill(void *memory, size_t size, uint64_t seed);
/* How many words are not what pattern_fill() would have put there. */
uint64_t pattern_check(const void *memory, size_t size, uint64_t seed);

#endif

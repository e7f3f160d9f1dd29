/* SPDX-License-Identifier: Apache-2.0 */
/* What a fuzzer, the stand-alone program and the unit test call. */
#ifndef FUZZ_TCP_H
#define FUZZ_TCP_H

#include <stddef.h>
#include <stdint.h>

/* One connection gets these bytes: the first byte says in which role and how they are cut. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
/* Rounds of sound conversations with random damage; the same seed gives the same ones. Returns how
 * many of them were noticed as nonsense. */
unsigned fuzz_tcp_rounds(uint64_t seed, unsigned rounds);

#endif

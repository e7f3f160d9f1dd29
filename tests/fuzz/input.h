/* SPDX-License-Identifier: Apache-2.0 */
/* An input of a fuzzer, taken apart byte by byte; when it is used up there are zeros. */
#ifndef FUZZ_INPUT_H
#define FUZZ_INPUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The entry that libFuzzer calls; each target has one. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct fz {
    const uint8_t *at, *end;
};

/* What must hold whatever the input is. */
#define fz_must(condition, ...)                                                                    \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: must hold: %s: ", __FILE__, __LINE__, #condition);             \
            fprintf(stderr, __VA_ARGS__);                                                          \
            fputc('\n', stderr);                                                                   \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

static inline bool fz_empty(const struct fz *z)
{
    return z->at == z->end;
}

static inline void fz_take(struct fz *z, void *to, size_t n)
{
    size_t have = (size_t)(z->end - z->at) < n ? (size_t)(z->end - z->at) : n;

    memset(to, 0, n);
    memcpy(to, z->at, have);
    z->at += have;
}

static inline uint8_t fz_u8(struct fz *z)
{
    return z->at < z->end ? *z->at++ : 0;
}

static inline uint16_t fz_u16(struct fz *z)
{
    uint16_t v = fz_u8(z);

    return (uint16_t)(v | fz_u8(z) << 8);
}

/* A number of any size, small ones and those at the borders of types more often. */
static inline uint64_t fz_number(struct fz *z)
{
    uint8_t how = fz_u8(z);
    uint64_t v = 0;

    if (how < 0x80)
        return how;
    if (how < 0xa0)
        return fz_u16(z);
    if (how < 0xe0) /* a power of two and what is beside it */
        return (UINT64_C(1) << (how & 63)) + (uint64_t)(int64_t)(int8_t)fz_u8(z);
    if (how < 0xf0)
        return (uint64_t)(int64_t)(int8_t)fz_u8(z);
    fz_take(z, &v, sizeof(v));
    return v;
}

#endif

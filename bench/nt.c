/* SPDX-License-Identifier: Apache-2.0 */
#include "nt.h"

#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)

#include <immintrin.h>

#define LINE 64u
#define AHEAD 512u /* bytes that the loads are announced before */

/* Copies what lies before the first whole line of the destination; returns its size. */
static size_t copy_head(uint8_t *to, const uint8_t *from, size_t size)
{
    size_t head = -(uintptr_t)to & (LINE - 1);

    if (head > size)
        head = size;
    memcpy(to, from, head);
    return head;
}

__attribute__((target("avx512f"))) static void copy_avx512(void *to_, const void *from_,
                                                           size_t size)
{
    uint8_t *to = to_;
    const uint8_t *from = from_;
    size_t done = copy_head(to, from, size);

    for (; done + 4 * LINE <= size; done += 4 * LINE) {
        __m512i a = _mm512_loadu_si512(from + done);
        __m512i b = _mm512_loadu_si512(from + done + LINE);
        __m512i c = _mm512_loadu_si512(from + done + 2 * LINE);
        __m512i d = _mm512_loadu_si512(from + done + 3 * LINE);

        _mm_prefetch((const char *)from + done + AHEAD, _MM_HINT_T0);
        _mm_prefetch((const char *)from + done + AHEAD + 2 * LINE, _MM_HINT_T0);
        _mm512_stream_si512((__m512i *)(to + done), a);
        _mm512_stream_si512((__m512i *)(to + done + LINE), b);
        _mm512_stream_si512((__m512i *)(to + done + 2 * LINE), c);
        _mm512_stream_si512((__m512i *)(to + done + 3 * LINE), d);
    }
    _mm_sfence();
    memcpy(to + done, from + done, size - done);
}

__attribute__((target("avx2"))) static void copy_avx2(void *to_, const void *from_, size_t size)
{
    uint8_t *to = to_;
    const uint8_t *from = from_;
    size_t done = copy_head(to, from, size);

    for (; done + 2 * LINE <= size; done += 2 * LINE) {
        __m256i a = _mm256_loadu_si256((const __m256i *)(from + done));
        __m256i b = _mm256_loadu_si256((const __m256i *)(from + done + 32));
        __m256i c = _mm256_loadu_si256((const __m256i *)(from + done + 64));
        __m256i d = _mm256_loadu_si256((const __m256i *)(from + done + 96));

        _mm_prefetch((const char *)from + done + AHEAD, _MM_HINT_T0);
        _mm256_stream_si256((__m256i *)(to + done), a);
        _mm256_stream_si256((__m256i *)(to + done + 32), b);
        _mm256_stream_si256((__m256i *)(to + done + 64), c);
        _mm256_stream_si256((__m256i *)(to + done + 96), d);
    }
    _mm_sfence();
    memcpy(to + done, from + done, size - done);
}

static void copy_sse2(void *to_, const void *from_, size_t size)
{
    uint8_t *to = to_;
    const uint8_t *from = from_;
    size_t done = copy_head(to, from, size);

    for (; done + LINE <= size; done += LINE) {
        __m128i a = _mm_loadu_si128((const __m128i *)(from + done));
        __m128i b = _mm_loadu_si128((const __m128i *)(from + done + 16));
        __m128i c = _mm_loadu_si128((const __m128i *)(from + done + 32));
        __m128i d = _mm_loadu_si128((const __m128i *)(from + done + 48));

        _mm_prefetch((const char *)from + done + AHEAD, _MM_HINT_T0);
        _mm_stream_si128((__m128i *)(to + done), a);
        _mm_stream_si128((__m128i *)(to + done + 16), b);
        _mm_stream_si128((__m128i *)(to + done + 32), c);
        _mm_stream_si128((__m128i *)(to + done + 48), d);
    }
    _mm_sfence();
    memcpy(to + done, from + done, size - done);
}

nt_copy *nt_choose(const char **name)
{
    if (__builtin_cpu_supports("avx512f")) {
        *name = "avx512";
        return copy_avx512;
    }
    if (__builtin_cpu_supports("avx2")) {
        *name = "avx2";
        return copy_avx2;
    }
    *name = "sse2";
    return copy_sse2;
}

#else

static void copy_plain(void *to, const void *from, size_t size)
{
    memcpy(to, from, size);
}

nt_copy *nt_choose(const char **name)
{
    *name = "memcpy";
    return copy_plain;
}

#endif

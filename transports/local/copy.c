/* SPDX-License-Identifier: Apache-2.0 */
#include "copy.h"

#if defined(__x86_64__)
#include <immintrin.h>

/* Two lines a turn, announced eight lines ahead: the fastest of a sweep over 1 to 16 lines and 0
 * to 4 KiB on a Zen 5 (docs/performance.md); others differ by a few per cent. */
#define STEP 128u
#define AHEAD 512u

static void stream_sse2(uint8_t *d, const uint8_t *s, size_t n)
{
    for (; n != 0; n -= STEP, d += STEP, s += STEP) {
        __m128i v[STEP / 16];

        _mm_prefetch((const char *)s + AHEAD, _MM_HINT_T0);
        _mm_prefetch((const char *)s + AHEAD + 64, _MM_HINT_T0);
        for (size_t i = 0; i < STEP / 16; i++)
            v[i] = _mm_loadu_si128((const __m128i *)s + i);
        for (size_t i = 0; i < STEP / 16; i++)
            _mm_stream_si128((__m128i *)d + i, v[i]);
    }
}

__attribute__((target("avx2"))) static void stream_avx2(uint8_t *d, const uint8_t *s, size_t n)
{
    for (; n != 0; n -= STEP, d += STEP, s += STEP) {
        __m256i v[STEP / 32];

        _mm_prefetch((const char *)s + AHEAD, _MM_HINT_T0);
        _mm_prefetch((const char *)s + AHEAD + 64, _MM_HINT_T0);
        for (size_t i = 0; i < STEP / 32; i++)
            v[i] = _mm256_loadu_si256((const __m256i *)s + i);
        for (size_t i = 0; i < STEP / 32; i++)
            _mm256_stream_si256((__m256i *)d + i, v[i]);
    }
}

__attribute__((target("avx512f"))) static void stream_avx512(uint8_t *d, const uint8_t *s, size_t n)
{
    for (; n != 0; n -= STEP, d += STEP, s += STEP) {
        __m512i a = _mm512_loadu_si512(s);
        __m512i b = _mm512_loadu_si512(s + 64);

        _mm_prefetch((const char *)s + AHEAD, _MM_HINT_T0);
        _mm_prefetch((const char *)s + AHEAD + 64, _MM_HINT_T0);
        _mm512_stream_si512((__m512i *)d, a);
        _mm512_stream_si512((__m512i *)d + 1, b);
    }
}

static void (*kernel)(uint8_t *d, const uint8_t *s, size_t n) = stream_sse2;
static const char *kernel_name = "sse2";

void mct_copy_init(void)
{
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f")) {
        kernel = stream_avx512;
        kernel_name = "avx512";
    } else if (__builtin_cpu_supports("avx2")) {
        kernel = stream_avx2;
        kernel_name = "avx2";
    }
}

void mct_stream(void *dst, const void *src, size_t n)
{
    uint8_t *d = dst;
    const uint8_t *s = src;
    size_t head = -(uintptr_t)d & 63u;
    size_t body;

    if (n < head + STEP) {
        memcpy(d, s, n);
        return;
    }
    memcpy(d, s, head);
    d += head;
    s += head;
    n -= head;
    body = n & ~(size_t)(STEP - 1);
    kernel(d, s, body);
    memcpy(d + body, s + body, n - body);
}

void mct_stream_fence(void)
{
    _mm_sfence();
}

#else

static const char *kernel_name = "memcpy";

void mct_copy_init(void)
{
}

void mct_stream(void *dst, const void *src, size_t n)
{
    memcpy(dst, src, n);
}

void mct_stream_fence(void)
{
}

#endif

const char *mct_copy_kernel(void)
{
    return kernel_name;
}

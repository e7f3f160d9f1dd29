/* SPDX-License-Identifier: Apache-2.0 */
#include "copy.h"

#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>

#define STEP 256u      /* bytes a turn of a kernel's loop */
#define PREFETCH 1024u /* how far ahead of the loads */

static void stream_sse2(uint8_t *d, const uint8_t *s, size_t n)
{
    for (; n != 0; n -= STEP, d += STEP, s += STEP) {
        for (size_t i = 0; i < STEP; i += 64) {
            __m128i a = _mm_loadu_si128((const __m128i *)(s + i));
            __m128i b = _mm_loadu_si128((const __m128i *)(s + i + 16));
            __m128i c = _mm_loadu_si128((const __m128i *)(s + i + 32));
            __m128i e = _mm_loadu_si128((const __m128i *)(s + i + 48));

            _mm_prefetch((const char *)s + i + PREFETCH, _MM_HINT_T0);
            _mm_stream_si128((__m128i *)(d + i), a);
            _mm_stream_si128((__m128i *)(d + i + 16), b);
            _mm_stream_si128((__m128i *)(d + i + 32), c);
            _mm_stream_si128((__m128i *)(d + i + 48), e);
        }
    }
}

__attribute__((target("avx2"))) static void stream_avx2(uint8_t *d, const uint8_t *s, size_t n)
{
    for (; n != 0; n -= STEP, d += STEP, s += STEP) {
        for (size_t i = 0; i < STEP; i += 64) {
            __m256i a = _mm256_loadu_si256((const __m256i *)(s + i));
            __m256i b = _mm256_loadu_si256((const __m256i *)(s + i + 32));

            _mm_prefetch((const char *)s + i + PREFETCH, _MM_HINT_T0);
            _mm256_stream_si256((__m256i *)(d + i), a);
            _mm256_stream_si256((__m256i *)(d + i + 32), b);
        }
    }
}

__attribute__((target("avx512f"))) static void stream_avx512(uint8_t *d, const uint8_t *s, size_t n)
{
    for (; n != 0; n -= STEP, d += STEP, s += STEP) {
        for (size_t i = 0; i < STEP; i += 64) {
            __m512i a = _mm512_loadu_si512(s + i);

            _mm_prefetch((const char *)s + i + PREFETCH, _MM_HINT_T0);
            _mm512_stream_si512((__m512i *)(d + i), a);
        }
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
    _mm_sfence(); /* non-temporal stores are weakly ordered; the slot's store comes after them */
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

#endif

void mct_copy(void *dst, const void *src, size_t n)
{
    /* constant sizes compile to a few moves */
    if (n == 64)
        memcpy(dst, src, 64);
    else
        memcpy(dst, src, n);
}

const char *mct_copy_kernel(void)
{
    return kernel_name;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The only atomics of mcshm.  Words shared between processes are touched by
 * the functions of shm/ alone; the threads of the agent use the same wrappers
 * for the words they share among themselves.  Each use names its partner.
 */
#ifndef MCS_ATOMIC_H
#define MCS_ATOMIC_H

#include <stdbool.h>
#include <stdint.h>

#define mcs_load_relaxed(p) __atomic_load_n((p), __ATOMIC_RELAXED)
#define mcs_load_acquire(p) __atomic_load_n((p), __ATOMIC_ACQUIRE)
#define mcs_store_relaxed(p, v) __atomic_store_n((p), (v), __ATOMIC_RELAXED)
#define mcs_store_release(p, v) __atomic_store_n((p), (v), __ATOMIC_RELEASE)
#define mcs_fetch_add(p, v) __atomic_fetch_add((p), (v), __ATOMIC_RELAXED)
#define mcs_exchange(p, v) __atomic_exchange_n((p), (v), __ATOMIC_ACQ_REL)
#define mcs_compare_exchange(p, expected, v)                                                       \
    __atomic_compare_exchange_n((p), (expected), (v), false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)
/* Both sides of a store-then-load handshake (Dekker) stand on this. */
#define mcs_fence_full() __atomic_thread_fence(__ATOMIC_SEQ_CST)
/* Orders stores of one thread in its own program order, which is all that a reader needs who
 * looks after that thread's death: a processor drops no store of an instruction that is done. */
#define mcs_fence_compiler() __atomic_signal_fence(__ATOMIC_SEQ_CST)
/* The two sides of a sequence lock. */
#define mcs_fence_release() __atomic_thread_fence(__ATOMIC_RELEASE)
#define mcs_fence_acquire() __atomic_thread_fence(__ATOMIC_ACQUIRE)
/* A plain counter with one writer: a relaxed load and store, no locked bus cycle. */
#define mcs_count(p, v) mcs_store_relaxed((p), mcs_load_relaxed(p) + (v))

static inline void mcs_pause(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

/* Asks for a line to be written soon. The instruction is there on every AMD64 processor (it does
 * nothing on the oldest ones), but compilers give it for newer targets only. */
static inline void mcs_prefetch_write(const void *p)
{
#if defined(__x86_64__)
    __asm__ __volatile__("prefetchw %0" : : "m"(*(const char *)p));
#else
    __builtin_prefetch(p, 1);
#endif
}

#ifdef MCS_TICKS_SIMULATED
/* Builds of the fuzzers: time is what the input says, and a little more at each look. */
extern uint64_t mcs_simulated_ticks;
#endif

/* The processor's constant-rate counter; its rate is in the session header. */
static inline uint64_t mcs_ticks(void)
{
#if defined(MCS_TICKS_SIMULATED)
    return __atomic_add_fetch(&mcs_simulated_ticks, 8, __ATOMIC_RELAXED); /* by any thread */
#elif defined(__x86_64__)
    return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
    uint64_t v;
    __asm__ __volatile__("mrs %0, cntvct_el0" : "=r"(v));
    return v;
#else
#error "mcs_ticks: no counter for this architecture"
#endif
}

#endif

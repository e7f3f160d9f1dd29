/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory as processors show it to each other. Each processor has a store buffer: a store waits in
 * it, the processor itself sees it at once, the others when it gets out.
 *
 *   tso  (x86)       stores get out in their order; a load may overtake a store
 *   pso  (pso = 1)   stores to different words get out in any order, a releasing one after all
 *                    that its processor stored before: what arm64 does with stores. Loads stay in
 *                    order, so that a missing acquire does not show here.
 *
 * How the C of shm/atomic.h maps:
 *   mcs_store_relaxed      STORE        mov | str
 *   mcs_store_release      RELEASE      mov | stlr
 *   mcs_load_*             READ         mov | ldr, ldar
 *   mcs_fence_full         FENCE        mfence, lock ... | dmb ish: until the buffer is empty
 *   mcs_compare_exchange   FENCE and one step on mem[]
 *   membarrier(2)          FENCE of another processor
 *   death of a process     it stops; what is in its buffer gets out all the same
 *
 * A model defines CPUS (processors with a buffer), CELLS (words) before it includes this file.
 * `mutant` 0 is the protocol as it is; others are made by leaving something out, and must fail.
 */
#define SB 4 /* stores that a buffer holds: more than any two of our fences have between them */

typedef store {
    byte at;
    byte val;
    bit rel
};

byte mem[CELLS];
store sb[CPUS * SB];
byte held[CPUS];
byte mutant;
bit pso;

#define IS(m) (mutant == (m))

#define HAS_(p, i, a) (held[p] > (i) && sb[(p) * SB + (i)].at == (a))
#define VAL_(p, i) sb[(p) * SB + (i)].val
/* What processor p reads from word a: its own newest store, or memory. */
#define READ(p, a)                                                                                 \
    (HAS_(p, 3, a) -> VAL_(p, 3) : (HAS_(p, 2, a) -> VAL_(p, 2) : (HAS_(p, 1, a) -> VAL_(p, 1) : ( \
                                        HAS_(p, 0, a) -> VAL_(p, 0) : mem[a]))))

#define PUT_(p, a, v, r)                                                                           \
    d_step {                                                                                       \
        held[p] < SB;                                                                              \
        sb[(p) * SB + held[p]].at = a;                                                             \
        sb[(p) * SB + held[p]].val = v;                                                            \
        sb[(p) * SB + held[p]].rel = r;                                                            \
        held[p]++                                                                                  \
    }
#define STORE(p, a, v) PUT_(p, a, v, 0)
#define RELEASE(p, a, v) PUT_(p, a, v, 1)
#define DRAINED(p) (held[p] == 0)
/* A fence that mutant m lacks. */
#define FENCE(p, m) (IS(m) || DRAINED(p))

/* Entry i of the buffer gets out. */
#define OUT_(p, i)                                                                                 \
    mem[sb[(p) * SB + (i)].at] = sb[(p) * SB + (i)].val;                                           \
    k_ = i;                                                                                        \
    do                                                                                             \
    :: k_ + 1 < held[p] ->                                                                         \
        sb[(p) * SB + k_].at = sb[(p) * SB + k_ + 1].at;                                           \
        sb[(p) * SB + k_].val = sb[(p) * SB + k_ + 1].val;                                         \
        sb[(p) * SB + k_].rel = sb[(p) * SB + k_ + 1].rel;                                         \
        k_++                                                                                       \
    :: else -> break                                                                               \
    od;                                                                                            \
    sb[(p) * SB + k_].at = 0;                                                                      \
    sb[(p) * SB + k_].val = 0;                                                                     \
    sb[(p) * SB + k_].rel = 0;                                                                     \
    held[p]--;                                                                                     \
    k_ = 0

#define FREE_(p, i, j) (sb[(p) * SB + (i)].at != sb[(p) * SB + (j)].at)
#define MAY_(p, i) (pso && held[p] > (i) && !sb[(p) * SB + (i)].rel)

/* The way out of processor p's buffer; waiting with nothing in it is a good end. */
proctype buffer(byte p)
{
    byte k_ = 0;

end_buffer:
    do
    :: d_step { held[p] > 0 -> OUT_(p, 0) }
    :: d_step { MAY_(p, 1) && FREE_(p, 1, 0) -> OUT_(p, 1) }
    :: d_step { MAY_(p, 2) && FREE_(p, 2, 0) && FREE_(p, 2, 1) -> OUT_(p, 2) }
    :: d_step { MAY_(p, 3) && FREE_(p, 3, 0) && FREE_(p, 3, 1) && FREE_(p, 3, 2) -> OUT_(p, 3) }
    od
}

/* The first step of each model: which mutant, which memory. */
inline begin()
{
    c_code {
        now.mutant = (uchar)(getenv("MUTANT") != NULL ? atoi(getenv("MUTANT")) : 0);
        now.pso = getenv("PSO") != NULL;
    }
}

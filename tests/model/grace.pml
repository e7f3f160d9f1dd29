/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Grace periods: the control thread swaps what engines look up, calls mcd_grace_begin(), and frees
 * the old one once mcd_grace_over(); the engine counts turns (mcd_engine_turn()) and sleeps
 * (sleep_until_rung()) between any of them. Nothing that was freed is looked at, and no store that
 * the engine made into it comes later, also where turns bring no fence and membarrier(2) stands in.
 *
 * fences = 0: membarrier; 1: no membarrier, the engine fences in each turn (fence_turns).
 * The fence after asleep = 0 is not needed for this (the one of the turn, or the membarrier, covers
 * it) and has no mutant.
 *
 *   mutant 1       neither membarrier nor fences of the engine
 *   mutant 2       the control thread does not fence after the swap (fence_turns)
 *   mutant 3       the engine looks things up before it counts the turn
 *   mutant 4       the engine counts as asleep before its turn is over
 *   mutant 5       the engine gets up without asleep = 0
 *   mutant 6       the epoch is read before the swap
 *   mutant 7 pso   asleep = 1 is stored relaxed: what the turn stored may come after it
 *   mutant 8 pso   the turn is counted relaxed
 */
#define CPUS 2
#define ENGINE 0
#define CONTROL 1
#define TURNS 3
#define EPOCH 0
#define ASLEEP 1
#define POINTER 2
#define OLD 3 /* the memory that POINTER = 0 means */
#define NEW 4
#define CELLS 5
#define NEXT 9 /* what the old memory's next owner writes */

#include "memory.pml"

bit fences;
bit freed;
bit off; /* the engine has stopped, and sleeps for good */

inline look_up()
{
    p = READ(ENGINE, POINTER);
    assert(!freed || p == 1);
    STORE(ENGINE, OLD + p, turn);
    assert(!freed || p == 1)
}

proctype engine()
{
    byte turn = 0;
    bit p = 0;

    do
    :: turn == TURNS -> break
    :: else ->
        turn++;
        if
        :: IS(3) ->
            p = READ(ENGINE, POINTER);
            RELEASE(ENGINE, EPOCH, turn);
            DRAINED(ENGINE);
            assert(!freed || p == 1);
            STORE(ENGINE, OLD + p, turn)
        :: IS(8) -> STORE(ENGINE, EPOCH, turn)
        :: else -> RELEASE(ENGINE, EPOCH, turn)
        fi;
        if
        :: fences && !IS(1) -> DRAINED(ENGINE)
        :: else
        fi;
        if
        :: !IS(3) && !IS(4) -> look_up()
        :: else
        fi;
        if
        :: true ->
            if
            :: IS(7) -> STORE(ENGINE, ASLEEP, 1)
            :: else -> RELEASE(ENGINE, ASLEEP, 1)
            fi;
            if
            :: IS(4) -> look_up()
            :: else
            fi;
            DRAINED(ENGINE);
            if
            :: turn < TURNS && !IS(5) ->
                STORE(ENGINE, ASLEEP, 0);
                DRAINED(ENGINE)
            :: else
            fi
        :: turn < TURNS && !IS(4) /* no sleep after this turn */
        fi
    od;
    off = 1
}

proctype control()
{
    byte epoch;

    if
    :: IS(6) -> epoch = READ(CONTROL, EPOCH)
    :: else
    fi;
    RELEASE(CONTROL, POINTER, 1);
    FENCE(CONTROL, 2);
    if
    :: !fences && !IS(1) -> DRAINED(ENGINE) && DRAINED(CONTROL) /* membarrier(2) */
    :: else
    fi;
    if
    :: !IS(6) -> epoch = READ(CONTROL, EPOCH)
    :: else
    fi;
    READ(CONTROL, EPOCH) != epoch || READ(CONTROL, ASLEEP) == 1; /* mcd_grace_over() */
    freed = 1;
    STORE(CONTROL, OLD, NEXT);
    DRAINED(CONTROL);
    do
    :: assert(mem[OLD] == NEXT);
        if
        :: off && DRAINED(ENGINE) -> break
        :: else
        fi
    od
}

init
{
    atomic {
        begin();
        if
        :: fences = 1
        :: true
        fi;
        run buffer(ENGINE);
        run buffer(CONTROL);
        run engine();
        run control()
    }
}

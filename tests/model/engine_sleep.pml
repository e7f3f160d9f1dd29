/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine's sleep: mcs_queue_must_wake() of two clients against sleep_until_rung() in
 * daemon/engine.c (set_asleep(), fence, anything_pending(), epoll_wait() on edge-triggered event
 * descriptors that nobody reads). What was pushed is taken: an engine that sleeps for good beside
 * a ring with something in it is a state without a way on.
 *
 * The first client may die at any step; its session's end is a command, and commands ring the
 * engine's own event descriptor.
 *
 *   mutant 1   the client does not fence between its push and its look at need_wakeup
 *   mutant 2   the engine does not fence between need_wakeup and its look at the rings
 *   mutant 3   the engine does not look at the rings again
 *   mutant 4   it looks at them before it sets need_wakeup
 *   mutant 5   the client looks at need_wakeup before it pushes
 */
#define CPUS 3
#define ENGINE 2
#define PUSHES 2
#define TAIL(c) (c)
#define NEED(c) (2 + (c))
#define CELLS 4

#include "memory.pml"

bit rung;     /* an edge that epoll_wait() has not reported yet */
bit mortal;   /* the first client may be killed */
bit gone;     /* and was: the engine has its queue no more */
byte over;    /* clients that are through */
byte taken[2];

#define OR_DIES                                                                                    \
    if                                                                                             \
    :: mortal && c == 0 -> goto dead                                                               \
    :: true                                                                                        \
    fi

proctype client(byte c)
{
    byte sent = 0;
    bit wake;

    do
    :: sent == PUSHES -> break
    :: else ->
        if
        :: IS(5) -> wake = READ(c, NEED(c))
        :: else
        fi;
        OR_DIES;
        RELEASE(c, TAIL(c), sent + 1);
        sent++;
        OR_DIES;
        FENCE(c, 1);
        if
        :: !IS(5) -> wake = READ(c, NEED(c))
        :: else
        fi;
        OR_DIES;
        if
        :: wake -> rung = 1 /* write(doorbell) */
        :: else
        fi;
        wake = 0
    od;
    over++;
    goto quit;
dead:
    DRAINED(c); /* its stores get out, whoever it was */
    atomic {
        gone = 1;
        rung = 1; /* mcd_engine_command(REMOVE) */
        over++
    }
quit:
    skip
}

#define PENDING(c) (!((c) == 0 && gone) && READ(ENGINE, TAIL(c)) != taken[c])
#define ALL_OVER (over == 2 && !PENDING(0) && !PENDING(1) && DRAINED(0) && DRAINED(1))

inline turn()
{
    taken[0] = READ(ENGINE, TAIL(0));
    taken[1] = READ(ENGINE, TAIL(1))
}

inline need_wakeup(v)
{
    STORE(ENGINE, NEED(0), v);
    STORE(ENGINE, NEED(1), v)
}

proctype engine()
{
    bit pending;

    do
    :: ALL_OVER -> break
    :: else ->
        turn();
        if
        :: IS(4) -> pending = (PENDING(0) || PENDING(1))
        :: else
        fi;
        need_wakeup(1);
        FENCE(ENGINE, 2);
        if
        :: !IS(4) -> pending = ((PENDING(0) || PENDING(1)) && !IS(3))
        :: else
        fi;
        if
        :: !pending && !ALL_OVER ->
            if
            :: atomic { rung -> rung = 0 }
            :: ALL_OVER
            fi
        :: else
        fi;
        pending = 0;
        turn(); /* serve first, tidy up after */
        need_wakeup(0)
    od
}

init
{
    atomic {
        begin();
        if
        :: mortal = 1
        :: true
        fi;
        run buffer(0);
        run buffer(1);
        run buffer(ENGINE);
        run client(0);
        run client(1);
        run engine()
    }
}

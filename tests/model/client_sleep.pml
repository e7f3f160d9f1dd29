/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The client's sleep: sleep_once() of lib/batch.c (mcs_batch_renew(), mcs_queue_wait_begin(), a
 * look, futex) against mcs_batch_publish() and mcd_queue_wake() of the agent, over several lives of
 * one batch. A wait that nothing ends is a state without a way on: in the library it would be
 * 100 ms of silence, until the next look at the connection.
 *
 * A batch has TASKS tasks, each in a turn of its own or two in one. It may be freed when its line
 * says so, or when its slots do, which the agent fills before: then the line of the former life is
 * still on its way while the next one begins (complete_by_slots()).
 *
 * FUTEX_WAIT compares the word once more, behind a full barrier, which would make up for the fence and
 * the order of the client's looks. The contract does not ask for a futex: a client may sleep on whatever
 * bell it likes (bare), as tests/shm/test_queue_threads.c does.
 *
 *   mutant 1   the client does not fence between waiters and its look at the line
 *   mutant 2   the agent does not fence between the line and its look at waiters
 *   mutant 3   the client looks at the line before it sets waiters
 *   mutant 4   the agent looks at waiters before it publishes
 *   mutant 5   no mcs_batch_renew()
 *   mutant 6   the client also sleeps on a line that shows a former life of the batch
 *   mutant 7   mcs_batch_renew() is a store, not a compare-and-swap
 */
#define CPUS 2
#define CLIENT 0
#define AGENT 1
#define LIVES 3
#define TASKS 2
#define LINE 0
#define WAITERS 1
#define SLOT(t) (2 + (t))
#define CELLS (2 + TASKS)

#include "memory.pml"

/* A batch line's word: generation << 32 | ended. */
#define WORD(generation, ended) ((generation) * 4 + (ended))
#define GENERATION(w) ((w) / 4)
#define ENDED(w) ((w) % 4)

byte submitted; /* tasks, by the ring, which ring.pml is about */
bit asleep;     /* on the futex */
bit bare, bell; /* sleeps on a bell, which rings once */
bit over;

/* FUTEX_WAIT looks at the word and goes to bed in one step; the call itself is a full barrier. */
inline sleep(value)
{
    if
    :: bare -> atomic { bell -> bell = 0 }
    :: else ->
        DRAINED(CLIENT);
        atomic {
            if
            :: ENDED(mem[LINE]) == value -> asleep = 1
            :: else
            fi
        }
        asleep == 0
    fi
}

inline renew()
{
    word = READ(CLIENT, LINE);
    if
    :: GENERATION(word) != generation && IS(7) -> STORE(CLIENT, LINE, WORD(generation, 0))
    :: GENERATION(word) != generation && !IS(7) ->
        atomic {
            DRAINED(CLIENT);
            if
            :: mem[LINE] == word -> mem[LINE] = WORD(generation, 0)
            :: else
            fi
        }
    :: else
    fi
}

inline wait()
{
    do
    :: READ(CLIENT, LINE) == WORD(generation, TASKS) -> break
    :: READ(CLIENT, LINE) != WORD(generation, TASKS) ->
        if
        :: !IS(5) -> renew()
        :: else
        fi;
        if
        :: IS(3) -> word = READ(CLIENT, LINE)
        :: else
        fi;
        STORE(CLIENT, WAITERS, 1);
        FENCE(CLIENT, 1);
        if
        :: !IS(3) -> word = READ(CLIENT, LINE)
        :: else
        fi;
        if
        :: word != WORD(generation, TASKS) &&
           (GENERATION(word) == generation || IS(5) || IS(6)) ->
            sleep(ENDED(word))
        :: else
        fi;
        word = 0;
        STORE(CLIENT, WAITERS, 0)
    od
}

proctype client()
{
    byte generation = 1, word, i;

    do
    :: generation > LIVES -> break
    :: else ->
        do
        :: i < TASKS ->
            submitted++;
            i++
        :: else -> break
        od;
        i = 0;
        if
        :: wait()
        :: READ(CLIENT, SLOT(0)) == generation && READ(CLIENT, SLOT(1)) == generation
        fi;
        generation++
    od;
    over = 1
}

inline wake()
{
    FENCE(AGENT, 2);
    if
    :: !IS(4) -> waiter = READ(AGENT, WAITERS)
    :: else
    fi;
    if
    :: waiter ->
        atomic {
            asleep = 0; /* FUTEX_WAKE */
            bell = bare
        }
    :: else
    fi;
    waiter = 0;
    wake_due = 0
}

proctype agent()
{
    byte seen, generation = 1, ended;
    bit wake_due, waiter;

    do
    :: seen < submitted ->
        /* a turn: the slots of a task or two, then the line; more turns may pass before the wake */
        do
        :: seen < submitted ->
            if
            :: ended == TASKS ->
                generation++;
                ended = 0
            :: else
            fi;
            RELEASE(AGENT, SLOT(ended), generation);
            ended++;
            seen++;
            if
            :: ended == TASKS -> break
            :: true -> break
            :: true
            fi
        :: else -> break
        od;
        if
        :: IS(4) && !wake_due -> waiter = READ(AGENT, WAITERS)
        :: else
        fi;
        RELEASE(AGENT, LINE, WORD(generation, ended));
        wake_due = 1
    :: wake_due -> wake()
    :: over && seen == submitted && !wake_due -> break
    od
}

init
{
    atomic {
        begin();
        if
        :: bare = 1
        :: true
        fi;
        run buffer(CLIENT);
        run buffer(AGENT);
        run client();
        run agent()
    }
}

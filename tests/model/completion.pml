/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Completion: mcs_slot_complete() and mcs_batch_publish() against mcs_slot_peek(), read_slot() and
 * line_ended() of the library. COMPLETED means that the bytes are at the destination; all that slot
 * and line say beside their word is of the same task; nothing is seen twice or before it ends,
 * although slot and batch are used again with the next generation as soon as either has said so.
 *
 *   mutant 1       the slot's word is stored before its other fields
 *   mutant 2       the batch line's word is stored before its other fields
 *   mutant 3       the line is published before the slots that it counts
 *   mutant 4       the client does not compare generations
 *   mutant 5       a client that frees by the slot submits again with the same generation
 *   mutant 6 pso   the slot's word is stored relaxed
 *   mutant 7 pso   the line's word is stored relaxed
 */
#define CPUS 2
#define CLIENT 0
#define AGENT 1
#define TASKS 4
#define DATA 0
#define BYTES 1
#define SLOT 2
#define LINE_BYTES 3
#define LINE 4
#define CELLS 5

#include "memory.pml"

byte submitted, generation_of[TASKS + 1];

inline fill_slot()
{
    if
    :: IS(1) -> RELEASE(AGENT, SLOT, generation_of[task])
    :: else
    fi;
    STORE(AGENT, BYTES, task);
    if
    :: IS(1)
    :: IS(6) -> STORE(AGENT, SLOT, generation_of[task])
    :: else -> RELEASE(AGENT, SLOT, generation_of[task])
    fi
}

inline publish_line()
{
    if
    :: IS(2) -> RELEASE(AGENT, LINE, generation_of[task])
    :: else
    fi;
    STORE(AGENT, LINE_BYTES, task);
    if
    :: IS(2)
    :: IS(7) -> STORE(AGENT, LINE, generation_of[task])
    :: else -> RELEASE(AGENT, LINE, generation_of[task])
    fi
}

proctype agent()
{
    byte task = 0;

    do
    :: task == TASKS -> break
    :: task < submitted ->
        task++;
        STORE(AGENT, DATA, task);
        if
        :: IS(3) ->
            publish_line();
            fill_slot()
        :: else ->
            fill_slot();
            publish_line()
        fi
    od
}

#define SAYS(a) (IS(4) -> READ(CLIENT, a) > 0 : READ(CLIENT, a) == generation)

proctype client()
{
    byte task = 0, generation = 0;

    do
    :: task == TASKS -> break
    :: else ->
        task++;
        generation = (IS(5) && task > 1 -> generation : generation + 1);
        generation_of[task] = generation;
        submitted = task;
        if
        :: SAYS(SLOT)
        :: SAYS(LINE) ->
            assert(READ(CLIENT, LINE_BYTES) == task);
            assert(READ(CLIENT, SLOT) == generation) /* what the line counts has ended */
        fi;
        assert(READ(CLIENT, BYTES) == task);
        assert(READ(CLIENT, DATA) == task)
    od
}

init
{
    atomic {
        begin();
        run buffer(CLIENT);
        run buffer(AGENT);
        run client();
        run agent()
    }
}

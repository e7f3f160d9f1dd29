/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The submission ring: mcs_ring_push() (DPDK's single-producer enqueue) against mcs_ring_take(),
 * mcs_ring_publish() and mcs_ring_settle() of shm/ring.h. Elements arrive whole, once and in order,
 * across the wrap of the free-running indices, although cons.tail is published late; and the
 * producer gets all of its room in the end, also while it stands at a full ring. An element is two words, so that a torn one shows.
 *
 * The client may die at any step: what it had published arrives, nothing else.
 *
 *   mutant 1          prod.tail is stored before the element
 *   mutant 2          cons.tail is published before the elements are copied
 *   mutant 3          an idle consumer does not publish
 *   mutant 4          the producer's room is counted one too large
 *   mutant 5 pso      prod.tail is stored relaxed
 */
#define CPUS 2
#define CLIENT 0
#define AGENT 1
#define SIZE 4  /* elements; one stays free, as in rte_ring without RING_F_EXACT_SZ */
#define WRAP 8  /* where indices wrap: 2^32 */
#define FIRST 6 /* the first index, so that they do */
#define TASKS 6
#define BURST 3
#define PROD_TAIL 0
#define CONS_TAIL 1
#define ELEMENT(i) (2 + 2 * ((i) % SIZE))
#define CELLS (2 + 2 * SIZE)

#include "memory.pml"

byte pushed; /* elements whose prod.tail was stored */
bit mortal, died;

#define ROOM(t) (SIZE - 1 + IS(4) - ((WRAP + (t) - READ(CLIENT, CONS_TAIL)) % WRAP))

/* Killed here, perhaps. */
#define OR_DIES                                                                                    \
    if                                                                                             \
    :: mortal -> goto dead                                                                         \
    :: true                                                                                        \
    fi

proctype client()
{
    byte tail = FIRST, sent = 0;

    do
    :: sent == TASKS -> break
    :: sent < TASKS && ROOM(tail) > 0 ->
        if
        :: IS(1) -> RELEASE(CLIENT, PROD_TAIL, (tail + 1) % WRAP)
        :: else
        fi;
        STORE(CLIENT, ELEMENT(tail), sent + 1);
        OR_DIES;
        STORE(CLIENT, ELEMENT(tail) + 1, sent + 1);
        OR_DIES;
        if
        :: IS(1)
        :: IS(5) -> STORE(CLIENT, PROD_TAIL, (tail + 1) % WRAP)
        :: else -> RELEASE(CLIENT, PROD_TAIL, (tail + 1) % WRAP)
        fi;
        tail = (tail + 1) % WRAP;
        sent++;
        pushed = sent;
        OR_DIES
    od;
dead:
    died = 1
}

proctype agent()
{
    byte head = FIRST, published = FIRST, seen = 0, i = 0, n, a, b;

    do
    :: n = (WRAP + READ(AGENT, PROD_TAIL) - head) % WRAP;
        if
        :: n == 0 ->
            /* quiet: settle, then look until there is something or nobody is left */
            if
            :: published != head && !IS(3) ->
                RELEASE(AGENT, CONS_TAIL, head);
                published = head
            :: else
            fi;
            if
            :: READ(AGENT, PROD_TAIL) != head
            :: died && DRAINED(CLIENT) && READ(AGENT, PROD_TAIL) == head -> break
            fi
        :: else ->
            assert(n <= SIZE - 1); /* an honest client's ring */
            n = (n > BURST -> BURST : n);
            if
            :: IS(2) -> RELEASE(AGENT, CONS_TAIL, (head + n) % WRAP)
            :: else
            fi;
            do
            :: i < n ->
                a = READ(AGENT, ELEMENT(head + i));
                b = READ(AGENT, ELEMENT(head + i) + 1);
                assert(a == b && a == seen + 1);
                a = 0;
                b = 0;
                seen++;
                i++
            :: else -> break
            od;
            i = 0;
            head = (head + n) % WRAP;
            if
            :: RELEASE(AGENT, CONS_TAIL, head);
                published = head
            :: true /* late: an eighth of a large ring is not used up yet */
            fi
        fi;
        n = 0
    od;
    assert(seen == pushed)
}

init
{
    atomic {
        begin();
        mem[PROD_TAIL] = FIRST;
        mem[CONS_TAIL] = FIRST;
        if
        :: mortal = 1
        :: true
        fi;
        run buffer(CLIENT);
        run buffer(AGENT);
        run client();
        run agent()
    }
}

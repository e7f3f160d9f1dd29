/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A queue over the death of its agent: what one agent has taken from the ring is counted in
 * mcs_doorbell.taken, after it was copied, before cons.tail lets the client reuse the elements and
 * before any of it is executed; the next agent goes on there, says so in `resumed` and `resumed_by`,
 * and the client counts as lost what was pushed before `resumed` and is not terminal.
 *
 * Agents die at any step, DEATHS times; the client may, too. Each task is executed once at most, ends
 * exactly once, and one that was told lost is never executed or completed afterwards. What a dead
 * process had in its store buffer gets out: death is no loss of power.
 *
 *   mutant 1       taken is stored after the execution
 *   mutant 2       cons.tail is published before taken is stored
 *   mutant 3       the next agent goes on at cons.tail
 *   mutant 4       resumed_by is stored before resumed
 *   mutant 5       the client counts the task at `resumed` as lost, too
 *   mutant 6       the client does not look at the slots of those before `resumed`
 *   mutant 7       it looks at them before it looks at resumed_by
 *   mutant 8       the next agent leaves cons.tail as it is
 *   mutant 9       taken is stored after the first task of a burst
 *   mutant 10 pso  resumed_by is stored relaxed
 */
#define DEATHS 2
#define CPUS (2 + DEATHS)
#define CLIENT 0
#define SIZE 2
#define BURST 2
#define ROOM_MAX 2 /* RING_F_EXACT_SZ or not does not matter here: a full ring of both elements */
#define WRAP 16
#define FIRST 14
#define TASKS 3
#define PROD_TAIL 0
#define CONS_TAIL 1
#define TAKEN 2
#define RESUMED 3
#define RESUMED_BY 4
#define ELEMENT(i) (5 + (i) % SIZE)
#define SLOT(t) (5 + SIZE + (t))
#define CELLS (5 + SIZE + TASKS)

#include "memory.pml"

byte begun[TASKS];
bit lost[TASKS], ended[TASKS];
bit mortal, over;

#define BEFORE(a, b) ((WRAP + (a) - (b)) % WRAP >= WRAP / 2)

/* ---- the client -------------------------------------------------------------------- */

#define DIES                                                                                       \
    if                                                                                             \
    :: mortal -> goto dead                                                                         \
    :: true                                                                                        \
    fi

#define WAS_TAKEN(i) (life != seen && BEFORE((FIRST + i) % WRAP, from))

/* Slot of task i, for mutant 7 as it was before. Each step looks at one shared word. */
inline judge()
{
    atomic {
        if
        :: !IS(7) -> terminal = READ(CLIENT, SLOT(i))
        :: else -> terminal = before[i]
        fi;
        if
        :: !ended[i] && terminal && !(IS(6) && WAS_TAKEN(i)) -> ended[i] = 1
        :: !ended[i] && !(terminal && !IS(6)) &&
           (WAS_TAKEN(i) || (IS(5) && life != seen && (FIRST + i) % WRAP == from)) ->
            ended[i] = 1;
            lost[i] = 1
        :: else
        fi;
        terminal = 0;
        i++
    }
}

inline look()
{
    if
    :: IS(7) ->
        before[0] = READ(CLIENT, SLOT(0));
        before[1] = READ(CLIENT, SLOT(1));
        before[2] = READ(CLIENT, SLOT(2))
    :: else
    fi;
    life = READ(CLIENT, RESUMED_BY);
    from = (life != seen -> READ(CLIENT, RESUMED) : 0);
    do
    :: i < sent -> judge()
    :: else -> break
    od;
    atomic {
        seen = life;
        life = 0;
        i = 0;
        from = 0;
        before[0] = 0;
        before[1] = 0;
        before[2] = 0
    }
}

#define NEWS(t) (READ(CLIENT, SLOT(t)) && !ended[t])
#define CHANGED (READ(CLIENT, RESUMED_BY) != seen || NEWS(0) || NEWS(1) || NEWS(2))
#define ALL_ENDED (ended[0] && ended[1] && ended[2])

proctype client()
{
    byte tail = FIRST, sent = 0, i, life, seen = 0, from;
    bit terminal, before[TASKS];

    do
    :: sent < TASKS && (WRAP + tail - READ(CLIENT, CONS_TAIL)) % WRAP < ROOM_MAX ->
        STORE(CLIENT, ELEMENT(tail), sent);
        tail = (tail + 1) % WRAP;
        sent++;
        RELEASE(CLIENT, PROD_TAIL, tail);
        DIES
    :: CHANGED -> /* looks in vain are left out */
        look()
    :: sent == TASKS && ALL_ENDED -> break
    od;
dead:
    over = 1
}

/* ---- agents ------------------------------------------------------------------------ */

#define ME (1 + lives)
#define DIE_HERE                                                                                   \
    if                                                                                             \
    :: lives < DEATHS -> goto killed                                                               \
    :: true                                                                                        \
    fi

inline execute(t)
{
    atomic {
        begun[t]++;
        assert(begun[t] == 1 && !lost[t])
    }
    DIE_HERE;
    RELEASE(ME, SLOT(t), 1);
    DIE_HERE
}

proctype agent()
{
    byte lives = 0, head = FIRST, published = FIRST, n, d[BURST];

again:
    do
    :: n = (WRAP + READ(ME, PROD_TAIL) - head) % WRAP;
        if
        :: n == 0 ->
            if
            :: published != head ->
                RELEASE(ME, CONS_TAIL, head);
                published = head
            :: READ(ME, PROD_TAIL) != head
            :: over && DRAINED(CLIENT) && READ(ME, PROD_TAIL) == head -> goto done
            :: lives < DEATHS -> goto killed
            fi
        :: else ->
            assert(n <= ROOM_MAX); /* or the session would be ended */
            d[0] = READ(ME, ELEMENT(head));
            d[1] = (n > 1 -> READ(ME, ELEMENT(head + 1)) : 0);
            head = (head + n) % WRAP;
            DIE_HERE;
            if
            :: IS(2) ->
                RELEASE(ME, CONS_TAIL, head);
                published = head;
                DIE_HERE
            :: else
            fi;
            if
            :: !IS(1) && !IS(9) ->
                STORE(ME, TAKEN, head);
                DIE_HERE
            :: else
            fi;
            if
            :: !IS(1) && !IS(2) ->
                RELEASE(ME, CONS_TAIL, head);
                published = head;
                DIE_HERE
            :: true /* late */
            fi;
            execute(d[0]);
            if
            :: IS(9) -> STORE(ME, TAKEN, head)
            :: else
            fi;
            if
            :: n > 1 -> execute(d[1])
            :: else
            fi;
            if
            :: IS(1) ->
                STORE(ME, TAKEN, head);
                RELEASE(ME, CONS_TAIL, head);
                published = head
            :: else
            fi
        fi;
        n = 0;
        d[0] = 0;
        d[1] = 0
    od;
killed:
    n = 0;
    d[0] = 0;
    d[1] = 0;
    DRAINED(ME);
    lives++;
    head = (IS(3) -> READ(ME, CONS_TAIL) : READ(ME, TAKEN));
    if
    :: !IS(8) -> RELEASE(ME, CONS_TAIL, head)
    :: else
    fi;
    published = head;
    DIE_HERE;
    if
    :: IS(4) ->
        RELEASE(ME, RESUMED_BY, lives);
        RELEASE(ME, RESUMED, head)
    :: IS(10) ->
        STORE(ME, RESUMED, head);
        STORE(ME, RESUMED_BY, lives)
    :: else ->
        STORE(ME, RESUMED, head);
        DIE_HERE;
        RELEASE(ME, RESUMED_BY, lives)
    fi;
    DIE_HERE;
    goto again;
done:
    skip
}

init
{
    atomic {
        begin();
        mem[PROD_TAIL] = FIRST;
        mem[CONS_TAIL] = FIRST;
        mem[TAKEN] = FIRST;
        if
        :: mortal = 1
        :: true
        fi;
        run buffer(0);
        run buffer(1);
        run buffer(2);
        run buffer(3);
        run client();
        run agent()
    };
    /* when all is over: what was told lost did not complete */
    _nr_pr == 5 && DRAINED(0) && DRAINED(1) && DRAINED(2) && DRAINED(3);
    assert(!(lost[0] && mem[SLOT(0)]) && !(lost[1] && mem[SLOT(1)]) &&
           !(lost[2] && mem[SLOT(2)]))
}

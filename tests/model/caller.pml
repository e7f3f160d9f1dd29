/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies in the caller's thread against the withdrawal of a grant: mcs_caller_begin(), the copy,
 * mcs_caller_end() against outdate_grants(), the fence of mcd_grace_begin() and was_quiet() of
 * daemon/handlers.c. Once the withdrawal has been answered the owner uses its memory again: no byte
 * of a copy lands there afterwards. The settling of a view within one process (lib/view.c, V3) is
 * the same handshake, with c->view for grants_version.
 *
 * The client may die at any step, in mid-copy too; its session is then ended, and the withdrawal
 * answered as late, which promises nothing.
 *
 *   mutant 1       the client does not fence between caller_active and its look at the version
 *   mutant 2       the agent does not fence between the version and its look at caller_active
 *   mutant 3       the client looks at the version before it sets caller_active
 *   mutant 4       the agent looks at caller_active before it stores the version
 *   mutant 5       the client does not look at the version
 *   mutant 6 pso   caller_active goes down relaxed
 */
#define CPUS 2
#define CLIENT 0
#define AGENT 1
#define COPIES 3
#define ACTIVE 0
#define VERSION 1
#define TARGET 2
#define CELLS 3
#define OWNERS 9 /* what the owner writes once the answer is there */

#include "memory.pml"

bit mortal, dead, answered;

#define OR_DIES                                                                                    \
    if                                                                                             \
    :: mortal -> goto killed                                                                       \
    :: true                                                                                        \
    fi

proctype client()
{
    byte copies = 0;
    bit stale = 0;

    do
    :: copies == COPIES || stale -> break
    :: else ->
        copies++;
        if
        :: IS(3) -> stale = READ(CLIENT, VERSION)
        :: else
        fi;
        STORE(CLIENT, ACTIVE, 1);
        OR_DIES;
        FENCE(CLIENT, 1);
        if
        :: !IS(3) && !IS(5) -> stale = READ(CLIENT, VERSION)
        :: else
        fi;
        OR_DIES;
        if
        :: !stale ->
            STORE(CLIENT, TARGET, copies);
            OR_DIES
        :: else
        fi;
        if
        :: IS(6) -> STORE(CLIENT, ACTIVE, 0)
        :: else -> RELEASE(CLIENT, ACTIVE, 0)
        fi
    od;
    goto quit;
killed:
    dead = 1;
quit:
    skip
}

proctype agent()
{
    bit quiet = 0;

    if
    :: IS(4) -> quiet = !READ(AGENT, ACTIVE)
    :: else
    fi;
    RELEASE(AGENT, VERSION, 1);
    FENCE(AGENT, 2);
    if
    :: quiet
    :: READ(AGENT, ACTIVE) == 0 -> quiet = 1
    :: dead /* and stays active: the deadline passes */
    fi;
    if
    :: quiet ->
        STORE(AGENT, TARGET, OWNERS);
        DRAINED(AGENT);
        answered = 1
    :: else
    fi
}

init
{
    atomic {
        begin();
        if
        :: mortal = 1
        :: true
        fi;
        run buffer(CLIENT);
        run buffer(AGENT);
        run client();
        run agent()
    }
    /* wherever everybody is: */
    do
    :: assert(!answered || mem[TARGET] == OWNERS);
        if
        :: _nr_pr == 3 && DRAINED(CLIENT) && DRAINED(AGENT) -> break
        :: else
        fi
    od
}

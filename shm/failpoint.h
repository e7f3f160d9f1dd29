/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Failpoints: named places where a test makes agent or library die, stop, wait or fail.  They are
 * compiled in with -DMCS_FAILPOINTS only (make FAIL=1, and the sanitizers' builds); elsewhere
 * nothing of them is left, neither code nor names.  tests/README.md tells how to use them.
 *
 *   MCS_FAILPOINT(submit_pushed);          passes the point
 *   res = MCS_FAIL(queue_made);            passes it: 0, or the negative errno that a test wants
 *
 * What a point does is told by the environment variable MCSHM_FAILPOINTS when the process passes its
 * first point, such as "submit_pushed=kill@3;queue_made=fail:ENOMEM@1x2", or at any time through
 * the page that lies in the file named by MCSHM_FAILPOINTS_FILE: the process maps it shared, so a
 * test changes points while it runs and reads how often they were passed, also after its death.
 */
#ifndef MCS_FAILPOINT_H
#define MCS_FAILPOINT_H

#ifndef MCS_FAILPOINTS

#define MCS_FAILPOINT(name) ((void)0)
#define MCS_FAIL(name) 0

#else

#include <stdint.h>
#include <stdio.h>

#include "failpoint_list.h"

enum mcs_failpoint {
#define MCS_FAILPOINT_ENUM(name, side, reach, fails, what) MCS_FAILPOINT_##name,
    MCS_FAILPOINT_LIST(MCS_FAILPOINT_ENUM)
#undef MCS_FAILPOINT_ENUM
        MCS_FAILPOINT_COUNT
};

enum mcs_failpoint_action {
    MCS_FAILPOINT_OFF = 0,
    MCS_FAILPOINT_KILL = 1,  /* SIGKILL to the own process */
    MCS_FAILPOINT_STOP = 2,  /* SIGSTOP to the own process */
    MCS_FAILPOINT_DELAY = 3, /* arg: milliseconds */
    MCS_FAILPOINT_FAIL = 4,  /* arg: errno */
};

#define MCS_FAILPOINT_MAGIC UINT64_C(0x544e494f504c4901)

/* One point in the shared page, 128 bytes. A test writes the fields, `action` last. */
struct mcs_failpoint_entry {
    char name[40];
    char side[8];    /* "agent", "library" */
    char reach[8];   /* which workload passes it, see failpoint_list.h */
    uint32_t fails;  /* MCS_FAIL(): the call site can fail */
    uint32_t action; /* enum mcs_failpoint_action */
    uint32_t arg;
    uint32_t first;  /* acts at this pass, counted from the arming; 1: the next one */
    uint32_t times;  /* and so many times; 0: always */
    uint32_t armed;  /* passes since the arming */
    uint64_t passes; /* ever */
    uint64_t acted;  /* how often it has acted */
    uint64_t reserved[4];
};

_Static_assert(sizeof(struct mcs_failpoint_entry) == 128, "tests read it by its offsets");

struct mcs_failpoint_page {
    uint64_t magic;
    uint32_t count, entry_size;
    uint64_t reserved[6];
    struct mcs_failpoint_entry entries[MCS_FAILPOINT_COUNT];
};

/* Any thread; async-signal-safe once the first point was passed. 0, or a negative errno. */
int mcs_failpoint_pass(enum mcs_failpoint point);
/* All points, one a line: name, side, reach, "fails" or "-", what. */
void mcs_failpoint_print(FILE *out);
/* Sets points as MCSHM_FAILPOINTS does. 0; -EINVAL: malformed, or no such point. */
int mcs_failpoint_set(const char *text);

#define MCS_FAILPOINT(name) ((void)mcs_failpoint_pass(MCS_FAILPOINT_##name))
#define MCS_FAIL(name) mcs_failpoint_pass(MCS_FAILPOINT_##name)

#endif
#endif

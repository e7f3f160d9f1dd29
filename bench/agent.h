/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The agent that is measured: a private one, with its configuration and socket in a
 * folder of its own and gone at the end of the run, or one that runs already.
 */
#ifndef BENCH_AGENT_H
#define BENCH_AGENT_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct agent_options {
    const char *socket;   /* of a running agent; NULL: start one */
    const char *program;  /* mcshmd; NULL: beside this program, else in PATH */
    int core;             /* for its engine */
    bool busy;            /* idle = busy, else sleep */
    bool supervise;       /* under a supervisor, which agent.pid then is */
    uint64_t pool_size;   /* bytes */
    bool small;           /* just that, in ordinary pages; else hugepages and room to round up */
    int netns;            /* descriptor of the network namespace it lives in; 0: ours */
    bool open;            /* users other than this one may enter its folder */
    bool warns;           /* its warnings are shown, else its errors alone */
    const char *settings; /* more of its ini file; NULL: nothing */
};

struct agent {
    char socket[108];
    pid_t pid; /* of a running agent too; 0: not known */
    bool own;
    bool busy;
    unsigned mark; /* cleanup entries from here on are this agent's */
    char pages_note[128];
};

/* Before several agents are started: hugepages for all of them. note: what came of it. */
void agent_reserve(const struct agent_options *o, unsigned agents, char *note, unsigned note_size);

/* 0, or a negative errno after saying what is wrong. */
int agent_start(const struct agent_options *o, struct agent *out);
void agent_stop(struct agent *a);

/* Takes our own agent off its core for a baseline, and puts it back. */
int agent_pause(struct agent *a);
void agent_resume(struct agent *a);

#endif

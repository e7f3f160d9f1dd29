/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `mcshmd --supervise`: a small process that starts the agent, keeps the ledger and the listening
 * socket for it, and starts it anew when it dies.  It has no threads, no DPDK, and reads no
 * configuration.  What systemd does for a unit with a file descriptor store, for where there is no
 * systemd; towards the agent it is the same (keeper.h).
 */
#ifndef MCD_SUPERVISE_H
#define MCD_SUPERVISE_H

#include <stdbool.h>
#include <stdint.h>

/* argv: the agent's, NULL at its end. ready_fd: gets one byte and is closed at the agent's first
 * READY; -1: none. Returns the exit status. */
int mcd_supervise(const char *path, char *const *argv, int ready_fd);

/* How one life of the agent was. */
struct mcd_life {
    bool first;    /* no life before it was ever ready */
    bool ready;    /* it was */
    bool kept;     /* it said that what is kept is for the next */
    bool asked;    /* the supervisor had been asked to restart it */
    bool stopping; /* the supervisor had been asked to stop */
    int status;    /* as waitpid() gives it */
    uint64_t lived_ns;
};

struct mcd_verdict {
    bool again;        /* start it anew, after */
    uint64_t delay_ns; /* this long */
    int exit;          /* else exit with this */
};

/* What follows the end of a life. delay_ns: of the verdict before; 0: none. */
struct mcd_verdict mcd_supervise_judge(const struct mcd_life *life, uint64_t delay_ns);

#endif

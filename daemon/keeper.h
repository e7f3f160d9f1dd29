/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The agent's side of who keeps things for it from one life to the next: systemd, or
 * `mcshmd --supervise`, which speak one protocol (sd_notify(3), sd_listen_fds(3), the file
 * descriptor store).  Kept are the ledger and the listening socket.  Control thread only.
 */
#ifndef MCD_KEEPER_H
#define MCD_KEEPER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define MCD_KEEPER_LEDGER "mcshm-ledger"
#define MCD_KEEPER_SOCKET "mcshm-socket"
/* Beside STOPPING=1: this life ends, and what is kept is for the next one. systemd ignores it. */
#define MCD_KEEPER_BEAT "WATCHDOG=1"
#define MCD_KEEPER_KEPT "MCSHM_KEPT=1"
/* Where the supervisor says its pid, so that an agent whose supervisor has died knows. */
#define MCD_KEEPER_SUPERVISOR "MCSHM_SUPERVISOR"

struct mcd_keeper {
    bool tells;       /* somebody listens to notifications */
    bool keeps;       /* and keeps descriptors */
    pid_t supervisor; /* 0: systemd */
    int ledger_fd,
        socket_fd; /* what the life before has left; -1: nothing. To be taken by setting -1 */
    uint64_t watchdog_ns; /* be heard of at least so often; 0: nobody waits */
};

/* Reads the environment and takes what was passed. Once, before there are threads. */
void mcd_keeper_open(struct mcd_keeper *k);
/* Closes what nobody took. */
void mcd_keeper_close(struct mcd_keeper *k);

/* Lines of NAME=VALUE. */
void mcd_keeper_tell(const struct mcd_keeper *k, const char *state);
/* This agent is alive. Waits for nobody: who is told may himself be stopped. */
void mcd_keeper_beat(const struct mcd_keeper *k);
/* Gives a descriptor into keeping, in the place of what had that name. It stays the caller's, too. */
void mcd_keeper_store(const struct mcd_keeper *k, const char *name, int fd);
/* Is there somebody who keeps, still? */
bool mcd_keeper_keeps(const struct mcd_keeper *k);

#endif

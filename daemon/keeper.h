/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The agent's side of who keeps things for it from one life to the next: systemd, or
 * `mcshmd --supervise`, which speak one protocol (sd_notify(3), sd_listen_fds(3), the file
 * descriptor store).  Kept are the ledger, the listening socket, and the object store's table and
 * extents.  Control thread only.
 */
#ifndef MCD_KEEPER_H
#define MCD_KEEPER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define MCD_KEEPER_LEDGER "mcshm-ledger"
#define MCD_KEEPER_SOCKET "mcshm-socket"
#define MCD_KEEPER_TABLE "mcshm-objects"
#define MCD_KEEPER_EXTENT "mcshm-object-" /* and the agent's number of it */
#define MCD_KEEPER_FDS_MAX 1024u          /* as the unit's FileDescriptorStoreMax */
#define MCD_KEEPER_NAME_MAX 64u           /* with its NUL */
/* Beside STOPPING=1: this life ends, and what is kept is for the next one. systemd ignores it. */
#define MCD_KEEPER_BEAT "WATCHDOG=1"
#define MCD_KEEPER_KEPT "MCSHM_KEPT=1"
/* Where the supervisor says its pid, so that an agent whose supervisor has died knows. */
#define MCD_KEEPER_SUPERVISOR "MCSHM_SUPERVISOR"

/* An extent of the object store that the life before has left. */
struct mcd_kept {
    char name[MCD_KEEPER_NAME_MAX];
    int fd; /* to be taken by setting -1 */
};

struct mcd_keeper {
    bool tells;       /* somebody listens to notifications */
    bool keeps;       /* and keeps descriptors */
    pid_t supervisor; /* 0: systemd */
    int ledger_fd,
        socket_fd; /* what the life before has left; -1: nothing. To be taken by setting -1 */
    int table_fd;  /* of the object store, */
    struct mcd_kept *extents; /* and its extents */
    unsigned nextents;
    uint64_t watchdog_ns; /* be heard of at least so often; 0: nobody waits */
};

/* Reads the environment and takes what was passed. Once, before there are threads. */
void mcd_keeper_open(struct mcd_keeper *k);
/* Closes what nobody took. */
void mcd_keeper_close(struct mcd_keeper *k);

/* A descriptor that is told when all is ready, as a command line names it: open, and none of the three that are
 * everybody's, because it is closed afterwards and its number given to others. -1: it is none. */
int mcd_ready_fd(const char *text);

/* Lines of NAME=VALUE. */
void mcd_keeper_tell(const struct mcd_keeper *k, const char *state);
/* This agent is alive. Waits for nobody: who is told may himself be stopped. */
void mcd_keeper_beat(const struct mcd_keeper *k);
/* Gives a descriptor into keeping, in the place of what had that name. It stays the caller's, too. */
void mcd_keeper_store(const struct mcd_keeper *k, const char *name, int fd);
/* The same under a name that nothing has yet, without waiting: 0; -EAGAIN: again later; another negative errno. Also 0 where nobody
 * keeps. */
int mcd_keeper_add(const struct mcd_keeper *k, const char *name, int fd);
/* What has that name is not kept any more. */
void mcd_keeper_remove(const struct mcd_keeper *k, const char *name);
/* Is there somebody who keeps, still? */
bool mcd_keeper_keeps(const struct mcd_keeper *k);

#endif

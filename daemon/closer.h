/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Closes what clients have passed.  How long that takes is up to whoever serves the file: a FUSE
 * server is asked at each close, a lingering socket waits for its peer.  So it is done by threads
 * that nobody waits for, as many as hang; how many of them one user may keep, and what he may have
 * pending, is bounded.
 */
#ifndef MCD_CLOSER_H
#define MCD_CLOSER_H

#include <stdbool.h>
#include <sys/types.h>

/* Takes the descriptors over. Any thread; never waits. */
void mcd_closer_put(uid_t uid, const int *fds, unsigned n);

/* The same for descriptors of one request that came over many messages, as many as somebody else has bounded. They count for
 * half of what a user may have pending at most: who passes thousands is not taken for one who passes what hangs. */
void mcd_closer_put_many(uid_t uid, const int *fds, unsigned n);

/* The same for what does not hang, since its kind is known: it counts for nothing. */
void mcd_closer_put_known(uid_t uid, const int *fds, unsigned n);

/* The same for a connection of this user, and what it still holds unread. */
void mcd_closer_hang_up(uid_t uid, int socket);

/* Do so many of this user's descriptors wait to be closed that no more should be taken? */
bool mcd_closer_choked(uid_t uid);

/* Interrupts what has not closed for after_ms: sockets linger no longer then, and are closed. Once a
 * second or so; the process handles SIGURG from the first time on. */
void mcd_closer_nudge(unsigned after_ms);

/* At the end of the process: gives what is pending up to limit_ms. True when all is closed. */
bool mcd_closer_drain(unsigned limit_ms);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening a TCP connection without waiting: the name is resolved by a thread of its own, each of
 * its addresses is tried in turn.  Control thread only.
 */
#ifndef MCD_DIAL_H
#define MCD_DIAL_H

#include <stdint.h>

struct mcd_agent;
struct mcd_dial;
struct mcd_job;

/* fd: connected, non-blocking, close-on-exec, TCP_NODELAY, the callee's; or -1 and a negative errno with one
 * sentence. Called once, never from inside mcd_dial(). */
typedef void (*mcd_dialed)(void *context, int fd, int error, const char *text);

/*
 * target: "host:port". local: NULL, an address or an interface that the connection is bound to. limit_ms: of all
 * of it. *out may be given up with mcd_dial_cancel() until `done` was called. -EINVAL: bad target or local.
 */
int mcd_dial(struct mcd_agent *a, const char *target, const char *local, uint64_t limit_ms,
             mcd_dialed done, void *context, struct mcd_dial **out);
/* A job for one of the threads that ask name servers; they are made when first needed. */
int mcd_resolver_submit(struct mcd_agent *a, struct mcd_job *job);
/* The loop's: calls `done` of the finished jobs; and the end. */
void mcd_resolvers_reap(struct mcd_agent *a);
void mcd_resolvers_destroy(struct mcd_agent *a);
/* done() is not called any more. */
void mcd_dial_cancel(struct mcd_dial *d);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The processes of a measurement.  Each is forked before anything of libmcshm is used,
 * talks to its parent over a socket pair that keeps message borders, ends when the
 * parent closes its side, and is killed when the parent dies.
 */
#ifndef BENCH_PROC_H
#define BENCH_PROC_H

#include <stddef.h>
#include <sys/types.h>

struct proc {
    pid_t pid; /* 0: not running */
    int fd;
    const char *name; /* for messages */
};

/* Runs in the child; its result (0 or a negative errno, said already) becomes the exit status. */
typedef int (*proc_main)(int fd, void *context);

int proc_start(struct proc *p, const char *name, proc_main run, void *context);
/* Closes the parent's side and waits for the child's end. 0; -EIO: it failed or was killed. */
int proc_stop(struct proc *p);
void proc_kill(struct proc *p);

/* One message. proc_recv: 0; -EPIPE: the other side is gone; -ETIMEDOUT; -EPROTO: another
 * size. timeout_ms < 0: for ever. */
int proc_send(int fd, const void *message, size_t size);
int proc_recv(int fd, void *message, size_t size, int timeout_ms);

/* Parent: sends a request and waits for the answer; says so when the child fails. */
int proc_ask(struct proc *p, const void *request, size_t request_size, void *answer,
             size_t answer_size, int timeout_ms);

#endif

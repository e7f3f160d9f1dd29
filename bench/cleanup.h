/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What must be undone however the program ends: the private agent, its folder, the
 * hugepages reserved for it.  Entries are undone last first.
 *
 * SIGINT, SIGTERM and SIGHUP undo everything and end the program, so undoing uses
 * only what a signal handler may use.
 */
#ifndef BENCH_CLEANUP_H
#define BENCH_CLEANUP_H

#include <sys/types.h>

/* Installs the handlers and the hook at exit(). */
void cleanup_install(void);
/* In a forked child: nothing here is the child's to undo; default signals again. */
void cleanup_forget(void);

/* 0, or -ENOSPC when the table or the room for a path is too small. */
int cleanup_add_process(pid_t pid);                        /* SIGTERM, then SIGKILL */
int cleanup_add_file(const char *path);                    /* unlink */
int cleanup_add_folder(const char *path);                  /* rmdir */
int cleanup_add_count(const char *path, unsigned long by); /* lower a number in a file */

/* Processes of a measurement: killed first when the program is told to end, so that they do
 * not complain about what goes away under them. Beyond the room they die with their parent. */
void cleanup_watch(pid_t pid);
void cleanup_unwatch(pid_t pid);

/* Undoes everything added since mark was taken. */
unsigned cleanup_mark(void);
void cleanup_undo(unsigned mark);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#include "cleanup.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CLEANUP_MAX 512u /* an agent takes six of them */
#define CLEANUP_PATH 256u
#define WATCHED_MAX 16u
#define STOP_STEP_MS 5
#define STOP_STEPS 4000 /* 20 s: unmapping a large pool takes its time */

enum kind { KIND_PROCESS, KIND_FILE, KIND_FOLDER, KIND_COUNT };

struct entry {
    enum kind kind;
    pid_t pid;
    unsigned long by;
    char path[CLEANUP_PATH];
};

static struct entry entries[CLEANUP_MAX];
static volatile sig_atomic_t used;
static volatile pid_t watched[WATCHED_MAX];
static const int caught[] = {SIGINT, SIGTERM, SIGHUP};

static void stop_process(pid_t pid)
{
    kill(pid, SIGTERM);
    kill(pid, SIGCONT); /* it may have been stopped for a baseline */
    for (int i = 0; i < STOP_STEPS; i++) {
        pid_t got = waitpid(pid, NULL, WNOHANG);

        if (got == pid || (got < 0 && errno == ECHILD))
            return;
        poll(NULL, 0, STOP_STEP_MS);
    }
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

/* Lowers rather than restores: somebody else may have changed the number meanwhile. */
static void lower_count(const char *path, unsigned long by)
{
    char text[32];
    unsigned long value = 0;
    size_t at = sizeof(text);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    ssize_t n;

    if (fd < 0)
        return;
    n = read(fd, text, sizeof(text));
    for (ssize_t i = 0; i < n && text[i] >= '0' && text[i] <= '9'; i++)
        value = value * 10 + (unsigned long)(text[i] - '0');
    value = value > by ? value - by : 0;
    do
        text[--at] = (char)('0' + value % 10);
    while ((value /= 10) != 0);
    n = pwrite(fd, text + at, sizeof(text) - at, 0);
    (void)n; /* nothing is left to try */
    close(fd);
}

static void undo(const struct entry *e)
{
    switch (e->kind) {
    case KIND_PROCESS:
        stop_process(e->pid);
        break;
    case KIND_FILE:
        unlink(e->path);
        break;
    case KIND_FOLDER:
        rmdir(e->path);
        break;
    case KIND_COUNT:
        lower_count(e->path, e->by);
        break;
    }
}

unsigned cleanup_mark(void)
{
    return (unsigned)used;
}

void cleanup_undo(unsigned mark)
{
    while ((unsigned)used > mark) {
        used--;
        undo(&entries[used]);
    }
}

void cleanup_watch(pid_t pid)
{
    for (unsigned i = 0; i < WATCHED_MAX; i++)
        if (watched[i] == 0) {
            watched[i] = pid;
            return;
        }
}

void cleanup_unwatch(pid_t pid)
{
    for (unsigned i = 0; i < WATCHED_MAX; i++)
        if (watched[i] == pid)
            watched[i] = 0;
}

static void at_exit(void)
{
    cleanup_undo(0);
}

static void on_signal(int number)
{
    for (unsigned i = 0; i < WATCHED_MAX; i++)
        if (watched[i] > 0)
            kill(watched[i], SIGKILL);
    cleanup_undo(0);
    _exit(128 + number);
}

void cleanup_install(void)
{
    struct sigaction action = {.sa_handler = on_signal};

    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < sizeof(caught) / sizeof(caught[0]); i++)
        sigaddset(&action.sa_mask, caught[i]);
    for (size_t i = 0; i < sizeof(caught) / sizeof(caught[0]); i++)
        sigaction(caught[i], &action, NULL);
    atexit(at_exit);
}

void cleanup_forget(void)
{
    used = 0;
    for (unsigned i = 0; i < WATCHED_MAX; i++)
        watched[i] = 0;
    for (size_t i = 0; i < sizeof(caught) / sizeof(caught[0]); i++)
        signal(caught[i], SIG_DFL);
}

static int add(enum kind kind, pid_t pid, const char *path, unsigned long by)
{
    struct entry *e = &entries[used];

    if ((unsigned)used == CLEANUP_MAX || strlen(path) >= CLEANUP_PATH)
        return -ENOSPC;
    e->kind = kind;
    e->pid = pid;
    e->by = by;
    strcpy(e->path, path);
    used++; /* last, so that a signal never sees half an entry */
    return 0;
}

int cleanup_add_process(pid_t pid)
{
    return add(KIND_PROCESS, pid, "", 0);
}

int cleanup_add_file(const char *path)
{
    return add(KIND_FILE, 0, path, 0);
}

int cleanup_add_folder(const char *path)
{
    return add(KIND_FOLDER, 0, path, 0);
}

int cleanup_add_count(const char *path, unsigned long by)
{
    return add(KIND_COUNT, 0, path, by);
}

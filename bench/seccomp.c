/* SPDX-License-Identifier: Apache-2.0 */
#include "seccomp.h"

#include "pin.h"

#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__x86_64__)
#define THIS_ARCH AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define THIS_ARCH AUDIT_ARCH_AARCH64
#else
#error "seccomp: name the audit architecture"
#endif

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)

/* A sanitizer makes calls of its own, at the thread's end at the latest. */
static int install(void)
{
    return -ENOTSUP;
}

#else

static int install(void)
{
    struct sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, THIS_ARCH, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = sizeof(rules) / sizeof(rules[0]), .filter = rules};

    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
        return -errno;
    return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) == 0 ? 0 : -errno;
}

#endif

static void *thread_main(void *argument)
{
    struct seccomp_run *run = argument;

    pin_to(run->core);
    if (run->warm != NULL)
        run->warm(run->context);
    run->error = install();
    run->filtered = run->error == 0;
    run->measure(run->context);
    /* The thread's end in libc would make system calls; the kernel alone wakes the joiner. */
    if (run->filtered)
        syscall(SYS_exit, 0);
    return NULL;
}

int seccomp_thread(struct seccomp_run *run)
{
    pthread_t thread;
    sigset_t all, before;
    int err;

    run->filtered = false;
    /* A handler must not run, and make calls, in the thread that may make none. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    err = pthread_create(&thread, NULL, thread_main, run);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (err != 0)
        return -err;
    pthread_join(thread, NULL);
    return 0;
}

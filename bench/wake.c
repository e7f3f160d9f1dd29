/* SPDX-License-Identifier: Apache-2.0 */
#include "wake.h"

#include "say.h"
#include "shm/abi.h"
#include "shm/atomic.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define IDLE_NS 6000000

int wake_create(struct wake *w)
{
    uint8_t *memory =
        mmap(NULL, 2 * MCS_GUARD, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    if (memory == MAP_FAILED)
        return say_error(-errno, "no memory for the bare wake-up: %m");
    w->awake = (uint32_t *)memory;
    w->stop = (uint32_t *)(memory + MCS_GUARD);
    w->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (w->event < 0)
        return say_error(-errno, "no eventfd for the bare wake-up: %m");
    return 0;
}

void wake_reset(struct wake *w)
{
    uint64_t left;

    while (read(w->event, &left, sizeof(left)) > 0)
        ;                            /* or a new epoll would find it ready */
    mcs_store_release(w->awake, 0u); /* partner: the other process, which is not inside */
    mcs_store_release(w->stop, 0u);
}

void wake_idle(void)
{
    const struct timespec idle = {.tv_nsec = IDLE_NS};

    nanosleep(&idle, NULL); /* the idleness is what is measured */
}

static int ring(const struct wake *w)
{
    const uint64_t one = 1;

    return write(w->event, &one, sizeof(one)) == (ssize_t)sizeof(one) ? 0 : -errno;
}

void wake_partner(struct wake *w)
{
    /* edge-triggered and never read, as the agent has it */
    struct epoll_event event = {.events = EPOLLIN | EPOLLET};
    uint32_t woken = 0;
    int fd = epoll_create1(EPOLL_CLOEXEC);

    if (fd < 0 || epoll_ctl(fd, EPOLL_CTL_ADD, w->event, &event) != 0) {
        say_error(-errno, "no epoll for the bare wake-up: %m");
        goto out;
    }
    for (;;) {
        int n = epoll_wait(fd, &event, 1, -1);

        if (mcs_load_acquire(w->stop) != 0 || (n < 0 && errno != EINTR))
            break; /* partner: wake_client() */
        if (n == 1)
            mcs_store_release(w->awake, ++woken); /* partner: wake_client() */
    }
out:
    mcs_store_release(w->stop, 1u); /* partner: wake_client() */
    if (fd >= 0)
        close(fd);
}

size_t wake_client(struct wake *w, uint32_t *samples)
{
    size_t done = 0;

    while (done < WAKE_SAMPLES) {
        uint64_t start;

        wake_idle();
        start = mcs_ticks();
        if (ring(w) != 0)
            break;
        while (mcs_load_acquire(w->awake) <= done) { /* partner: wake_partner() */
            if (mcs_load_acquire(w->stop) != 0)
                return 0;
            mcs_pause();
        }
        samples[done++] = (uint32_t)(mcs_ticks() - start);
    }
    mcs_store_release(w->stop, 1u); /* partner: wake_partner() */
    return ring(w) == 0 ? done : 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "fault.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "shm/atomic.h"

/* Each is a mapping, of which a process may have 65530 (vm.max_map_count) by default: some are left for
 * the process itself and for the zero pages below. */
#define ENTRIES 49152

/* Written by the control thread, read by the handler in any thread: base last (release),
 * pairs with the acquire in the handler. */
static struct entry {
    uintptr_t base;
    uint64_t size;
    uint32_t faults;
} entries[ENTRIES];
static uint32_t highest; /* entries ever used */
static uint32_t lowest_free;
static uint32_t total; /* handler: after the entry's own count; control thread: before looking */
static int wake = -1;
static _Thread_local volatile sig_atomic_t faults_here;

/* The largest page of the region that the fault may lie in: a hugetlb mapping can only be
 * replaced by whole hugepages, so sizes are tried from small to large. */
static bool put_zero_pages(uintptr_t base, uint64_t size, uintptr_t at)
{
    static const uint64_t sizes[] = {4096, UINT64_C(2) << 20, UINT64_C(1) << 30};

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        uintptr_t page = at & ~(uintptr_t)(sizes[i] - 1);

        if (page < base || page + sizes[i] > base + size)
            continue;
        if (mmap((void *)page, sizes[i], PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0) != MAP_FAILED)
            return true;
    }
    return false;
}

static void on_sigbus(int sig, siginfo_t *info, void *context)
{
    uintptr_t at = (uintptr_t)info->si_addr;
    uint32_t n = mcs_load_acquire(&highest);
    int saved = errno;
    uint64_t one = 1;

    (void)context;
    for (uint32_t i = 0; i < n; i++) {
        uintptr_t base = mcs_load_acquire(&entries[i].base); /* pairs with mcd_fault_add() */

        uint64_t size = mcs_load_relaxed(&entries[i].size);

        if (base == 0 || at < base || at - base >= size)
            continue;
        if (!put_zero_pages(base, size, at))
            break;
        mcs_fetch_add(&entries[i].faults, 1u);
        mcs_fence_full(); /* the entry's count before the total; partner: mcd_fault_total() */
        mcs_fetch_add(&total, 1u);
        faults_here++;
        if (wake >= 0 && write(wake, &one, sizeof(one)) < 0) {
            /* the control thread also looks once a second */
        }
        errno = saved;
        return;
    }
    /* not ours: die of it as if there were no handler */
    signal(sig, SIG_DFL);
    raise(sig);
}

int mcd_fault_init(int wake_fd)
{
    struct sigaction sa;

    wake = wake_fd;
    memset(&sa, 0, sizeof(sa));
    sa.sa_sigaction = on_sigbus;
    sa.sa_flags = SA_SIGINFO | SA_NODEFER;
    sigemptyset(&sa.sa_mask);
    return sigaction(SIGBUS, &sa, NULL) == 0 ? 0 : -errno;
}

int mcd_fault_add(void *mem, uint64_t size)
{
    uint32_t i = lowest_free;

    while (i < ENTRIES && entries[i].base != 0)
        i++;
    if (i == ENTRIES)
        return -ENOSPC;
    lowest_free = i + 1;
    mcs_store_relaxed(&entries[i].size, size);
    mcs_store_relaxed(&entries[i].faults, 0u);
    mcs_store_release(&entries[i].base, (uintptr_t)mem); /* partner: on_sigbus() */
    if (i >= highest)
        mcs_store_release(&highest, i + 1);
    return (int)i;
}

void mcd_fault_remove(int entry)
{
    mcs_store_release(&entries[entry].base, (uintptr_t)0);
    if ((uint32_t)entry < lowest_free)
        lowest_free = (uint32_t)entry;
}

bool mcd_fault_happened(int entry)
{
    return mcs_load_relaxed(&entries[entry].faults) != 0;
}

uint32_t mcd_fault_total(void)
{
    return mcs_load_acquire(&total); /* partner: on_sigbus() */
}

unsigned long mcd_fault_count(void)
{
    return (unsigned long)faults_here;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "raw.h"

#include "say.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#pragma GCC diagnostic ignored "-Wsign-conversion" /* of DPDK's inline functions */

#define RING_BYTES (sizeof(struct rte_ring) + RAW_DEPTH * sizeof(struct mcs_desc))
#define LOOK_EVERY 64u /* round trips between two looks at the time */

void raw_ring_init(struct rte_ring *ring, uint32_t depth)
{
    memset(ring, 0, sizeof(*ring));
    ring->size = depth;
    ring->mask = depth - 1;
    ring->capacity = depth - 1;
    ring->prod.sync_type = RTE_RING_SYNC_ST;
    ring->cons.sync_type = RTE_RING_SYNC_ST;
}

int raw_create(struct raw *r)
{
    size_t size = 2 * RING_BYTES + MCS_GUARD;
    uint8_t *memory;
    int fd = memfd_create("mcshm-bench-raw", MFD_CLOEXEC);

    if (fd < 0 || ftruncate(fd, (off_t)size) != 0) {
        int err = -errno;

        if (fd >= 0)
            close(fd);
        return say_error(err, "no memory for the bare ring: %s", strerror(-err));
    }
    memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
    close(fd);
    if (memory == MAP_FAILED)
        return say_error(-errno, "no memory for the bare ring: %m");
    r->there = (struct rte_ring *)memory;
    r->back = (struct rte_ring *)(memory + RING_BYTES);
    r->stop = (uint32_t *)(memory + 2 * RING_BYTES);
    raw_reset(r);
    return 0;
}

void raw_reset(struct raw *r)
{
    raw_ring_init(r->there, RAW_DEPTH);
    raw_ring_init(r->back, RAW_DEPTH);
    mcs_store_release(r->stop, 0u); /* partner: the loops below, in the other process */
}

static bool put(struct rte_ring *ring, const struct mcs_desc *elements, unsigned n)
{
    return rte_ring_sp_enqueue_bulk_elem(ring, elements, sizeof(*elements), n, NULL) != 0;
}

static bool get(struct rte_ring *ring, struct mcs_desc *elements, unsigned n)
{
    return rte_ring_sc_dequeue_bulk_elem(ring, elements, sizeof(*elements), n, NULL) != 0;
}

void raw_rtt_partner(struct raw *r)
{
    struct mcs_desc d;

    for (;;) {
        while (!get(r->there, &d, 1))
            if (mcs_load_acquire(r->stop) != 0) /* partner: raw_rtt_client() */
                return;
        while (!put(r->back, &d, 1))
            ;
    }
}

uint64_t raw_rtt_client(struct raw *r, uint64_t until)
{
    struct mcs_desc d = {0};
    uint64_t count = 0;

    do {
        for (unsigned i = 0; i < LOOK_EVERY; i++) {
            d.length = count + i;
            while (!put(r->there, &d, 1))
                ;
            while (!get(r->back, &d, 1))
                ;
        }
        count += LOOK_EVERY;
    } while (mcs_ticks() < until);
    mcs_store_release(r->stop, 1u); /* partner: raw_rtt_partner() */
    return count;
}

void raw_rate_partner(struct raw *r)
{
    struct mcs_desc burst[RAW_BURST];

    for (;;)
        if (!get(r->there, burst, RAW_BURST) && mcs_load_acquire(r->stop) != 0)
            return; /* partner: raw_rate_client() */
}

uint64_t raw_rate_client(struct raw *r, uint64_t until)
{
    struct mcs_desc burst[RAW_BURST] = {0};
    uint64_t count = 0;

    do {
        for (unsigned i = 0; i < LOOK_EVERY; i++) {
            burst[0].length = count;
            while (!put(r->there, burst, RAW_BURST))
                ;
            count += RAW_BURST;
        }
    } while (mcs_ticks() < until);
    mcs_store_release(r->stop, 1u); /* partner: raw_rate_partner() */
    return count;
}

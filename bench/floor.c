/* SPDX-License-Identifier: Apache-2.0 */
#include "floor.h"

#include "raw.h"
#include "say.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#define RING_BYTES (sizeof(struct rte_ring) + RAW_DEPTH * sizeof(struct mcs_desc))
#define SLOT_BYTES (FLOOR_SLOTS * sizeof(struct mcs_slot))
#define LINES_BYTES ((size_t)FLOOR_SLOTS * MCS_LINE)
#define LOOK_EVERY 64u

int floor_create(struct floor *f)
{
    size_t size = RING_BYTES + SLOT_BYTES + 2 * LINES_BYTES + MCS_GUARD;
    uint8_t *memory =
        mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);

    if (memory == MAP_FAILED)
        return say_error(-errno, "no memory for the floor: %m");
    f->ring = (struct rte_ring *)memory;
    f->slots = (struct mcs_slot *)(memory + RING_BYTES);
    f->source = memory + RING_BYTES + SLOT_BYTES;
    f->destination = f->source + LINES_BYTES;
    f->stop = (uint32_t *)(f->destination + LINES_BYTES);
    floor_reset(f);
    return 0;
}

void floor_reset(struct floor *f)
{
    raw_ring_init(f->ring, RAW_DEPTH);
    memset(f->slots, 0, SLOT_BYTES);
    mcs_store_release(f->stop, 0u); /* partner: floor_partner() in the other process */
}

void floor_partner(struct floor *f)
{
    uint32_t taken = 0; /* nobody takes over from this one */
    struct mcs_ring_consumer consumer = {
        .ring = f->ring,
        .elements = (const struct mcs_desc *)(f->ring + 1),
        .taken = &taken,
        .size = RAW_DEPTH,
    };
    struct mcs_desc burst[FLOOR_BURST];

    for (;;) {
        int n = mcs_ring_take(&consumer, burst, FLOOR_BURST);

        if (n <= 0 && mcs_load_acquire(f->stop) != 0) /* partner: the clients below */
            return;
        for (int i = 0; i < n; i++) {
            const struct mcs_desc *d = &burst[i];
            struct mcs_slot *slot = &f->slots[d->slot];

            memcpy(f->destination + d->remote_addr, f->source + d->local_offset, MCS_LINE);
            slot->bytes = MCS_LINE;
            slot->queue_ns = 0;
            slot->move_ns = 0;
            /* Pairs with the client's look in await(). */
            mcs_store_release(&slot->word,
                              MCS_SLOT_WORD(d->generation, 0, MCS_PATH_LOCAL, MCS_STATE_COMPLETED));
        }
    }
}

static void await(const struct floor *f, uint32_t slot, uint32_t generation)
{
    while (mcs_load_acquire(&f->slots[slot].word) >> 32 != generation)
        ; /* partner: floor_partner() */
}

static void describe(struct mcs_desc *d, uint32_t slot, uint32_t generation)
{
    d->slot = slot;
    d->generation = generation;
    d->local_offset = (uint64_t)slot * MCS_LINE;
    d->remote_addr = (uint64_t)slot * MCS_LINE;
    d->length = MCS_LINE;
}

uint64_t floor_rtt_client(struct floor *f, uint64_t until)
{
    struct mcs_desc d = {.op = MCS_OP_WRITE};
    uint64_t count = 0, seen = 0;

    do {
        for (unsigned i = 0; i < LOOK_EVERY; i++, count++) {
            uint64_t *source = (uint64_t *)f->source;

            for (unsigned w = 0; w < MCS_LINE / 8; w++)
                source[w] = count + 1;
            /* one source and one destination, as in the round trip it stands beside */
            describe(&d, 0, (uint32_t)count + 1);
            d.slot = (uint32_t)(count % FLOOR_SLOTS);
            while (!mcs_ring_push(f->ring, &d, 1))
                ;
            await(f, d.slot, d.generation);
            seen |= *(volatile uint64_t *)f->destination ^ (count + 1);
        }
    } while (mcs_ticks() < until);
    mcs_store_release(f->stop, 1u); /* partner: floor_partner() */
    return seen == 0 ? count : 0;
}

uint64_t floor_rate_client(struct floor *f, uint64_t until)
{
    static struct mcs_desc burst[FLOOR_BURST];
    uint64_t count = 0;
    uint32_t generation = 0;
    uint32_t first = 0; /* slot of the oldest burst in flight, once all are */

    do {
        for (unsigned b = 0; b < LOOK_EVERY; b++) {
            if (first == 0)
                generation++;
            for (uint32_t i = 0; i < FLOOR_BURST; i++) {
                if (generation > 1)
                    await(f, first + i, generation - 1);
                describe(&burst[i], first + i, generation);
            }
            while (!mcs_ring_push(f->ring, burst, FLOOR_BURST))
                ;
            first = (first + FLOOR_BURST) % FLOOR_SLOTS;
            count += FLOOR_BURST;
        }
    } while (mcs_ticks() < until);
    mcs_store_release(f->stop, 1u); /* partner: floor_partner() */
    return count;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The last events: records of different sizes behind each other in a ring of bytes, the oldest make room.
 *
 *   0     tail                         head       size
 *   +-----+------+----------+------+---+----------+
 *   |     | head | key host | head | ...          |   a record goes on at the start where the end cuts it
 *   +-----+------+----------+------+---+----------+
 *
 * Positions count bytes ever written, so none comes twice. Where each 64th record begins is noted: a number
 * is found by at most 63 steps.
 */
#include "events.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "lock.h"

#define STEP 64u /* records between two that are noted */
#define MEMORY_MIN (UINT64_C(1) << 20)

struct record {
    uint32_t size; /* with key and host, a multiple of 8 */
    uint32_t crc;
    uint16_t key_length, host_length; /* with its NUL; 0: none */
    uint32_t kind;
    uint64_t tenant, hash;
    struct mco_version version;
    uint64_t object_size;
};
static_assert(sizeof(struct record) == 56, "no holes");

struct mco_events {
    struct mco_lock lock;
    uint64_t mask;
    uint8_t *ring;
    uint64_t tail, head;  /* positions: of the first record kept, behind the last one */
    uint64_t first, next; /* their numbers */
    uint64_t *noted;      /* positions of numbers that STEP divides */
    uint64_t nnoted;      /* a power of two */
};

int mco_events_create(uint64_t memory, struct mco_events **out)
{
    struct mco_events *e;

    if (memory < MEMORY_MIN || (memory & (memory - 1)) != 0)
        return -EINVAL;
    e = calloc(1, sizeof(*e));
    if (e == NULL)
        return -ENOMEM;
    e->mask = memory - 1;
    e->nnoted = memory / sizeof(struct record) / STEP;
    while ((e->nnoted & (e->nnoted - 1)) != 0)
        e->nnoted &= e->nnoted - 1;
    e->nnoted *= 2;
    e->first = e->next = 1;
    /* Pages come when they are first written: a feed that has little to say takes little. */
    e->ring = mmap(NULL, memory, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (e->ring == MAP_FAILED)
        goto fail_alloc;
    e->noted = calloc(e->nnoted, sizeof(*e->noted));
    if (e->noted == NULL)
        goto fail_ring;
    *out = e;
    return 0;
fail_ring:
    munmap(e->ring, memory);
fail_alloc:
    free(e);
    return -ENOMEM;
}

void mco_events_destroy(struct mco_events *e)
{
    if (e == NULL)
        return;
    free(e->noted);
    munmap(e->ring, e->mask + 1);
    free(e);
}

static void put(struct mco_events *e, uint64_t at, const void *from, size_t n)
{
    size_t begin = (size_t)(at & e->mask), end = (size_t)(e->mask + 1) - begin;

    if (n == 0)
        return;
    if (n <= end) {
        memcpy(e->ring + begin, from, n);
        return;
    }
    memcpy(e->ring + begin, from, end);
    memcpy(e->ring, (const uint8_t *)from + end, n - end);
}

static void get(const struct mco_events *e, uint64_t at, void *to, size_t n)
{
    size_t begin = (size_t)(at & e->mask), end = (size_t)(e->mask + 1) - begin;

    if (n <= end) {
        memcpy(to, e->ring + begin, n);
        return;
    }
    memcpy(to, e->ring + begin, end);
    memcpy((uint8_t *)to + end, e->ring, n - end);
}

/* Records begin at multiples of 8, so their size is in one piece. */
static uint32_t size_at(const struct mco_events *e, uint64_t at)
{
    uint32_t size;

    memcpy(&size, e->ring + (at & e->mask), sizeof(size));
    return size;
}

uint64_t mco_events_add(struct mco_events *e, const struct mco_event *event, const char *host)
{
    struct record r = {
        .crc = event->crc,
        .kind = event->kind,
        .tenant = event->key.tenant,
        .hash = event->key.hash,
        .version = event->version,
        .object_size = event->size,
    };
    uint64_t number;

    r.key_length = (uint16_t)(event->key.length > MCS_KEY_MAX ? MCS_KEY_MAX : event->key.length);
    r.host_length = (uint16_t)(host == NULL ? 0 : strnlen(host, MCS_ADDRESS_MAX - 1) + 1);
    r.size = (uint32_t)((sizeof(r) + r.key_length + r.host_length + 7) & ~(size_t)7);
    mco_lock(&e->lock);
    while (e->head + r.size - e->tail > e->mask + 1) {
        e->tail += size_at(e, e->tail);
        e->first++;
    }
    number = e->next++;
    if (number % STEP == 0)
        e->noted[number / STEP & (e->nnoted - 1)] = e->head;
    put(e, e->head, &r, sizeof(r));
    put(e, e->head + sizeof(r), event->key.bytes, r.key_length);
    if (host != NULL) {
        put(e, e->head + sizeof(r) + r.key_length, host, r.host_length - 1u);
        put(e, e->head + sizeof(r) + r.key_length + r.host_length - 1u, "", 1);
    }
    e->head += r.size;
    mco_unlock(&e->lock);
    return number;
}

void mco_events_range(struct mco_events *e, uint64_t *first, uint64_t *next)
{
    mco_lock(&e->lock);
    *first = e->first;
    *next = e->next;
    mco_unlock(&e->lock);
}

/* Where the record of a number that is kept begins. */
static uint64_t position(const struct mco_events *e, uint64_t number)
{
    uint64_t near = number / STEP * STEP, at = e->tail;

    if (near > e->first)
        at = e->noted[near / STEP & (e->nnoted - 1)];
    else
        near = e->first;
    for (; near < number; near++)
        at += size_at(e, at);
    return at;
}

struct reader {
    uint64_t number, at; /* of the next record; at: 0 with `found` unset */
    bool found;
    struct record r;
    uint8_t text[MCS_KEY_MAX + MCS_ADDRESS_MAX];
};

/* Copies the reader's next record, or the first that is kept, when it is gone. */
static bool take(struct mco_events *e, struct reader *r)
{
    bool any;

    mco_lock(&e->lock);
    if (r->number < e->first) {
        r->number = e->first;
        r->found = false;
    }
    any = r->number < e->next;
    if (any) {
        if (!r->found)
            r->at = position(e, r->number);
        get(e, r->at, &r->r, sizeof(r->r));
        get(e, r->at + sizeof(r->r), r->text, (size_t)r->r.key_length + r->r.host_length);
        r->at += r->r.size;
        r->found = true;
    }
    mco_unlock(&e->lock);
    return any;
}

uint64_t mco_events_read(struct mco_events *e, uint64_t from, size_t n,
                         bool (*each)(void *context, uint64_t number, const struct mco_event *event,
                                      const char *host),
                         void *context)
{
    struct reader r = {.number = from == 0 ? 1 : from};
    bool more = true;

    for (; more && n > 0 && take(e, &r); n--) {
        struct mco_event event = {
            .kind = (enum mco_event_kind)r.r.kind,
            .key = {r.text, r.r.key_length, r.r.tenant, r.r.hash},
            .version = r.r.version,
            .size = r.r.object_size,
            .crc = r.r.crc,
        };

        more = each(context, r.number++, &event,
                    r.r.host_length == 0 ? NULL : (const char *)r.text + r.r.key_length);
    }
    return r.number;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The feed of events: numbers, what is kept, what was overrun, writers and readers at once. */
#include "store/object/events.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <pthread.h>
#include <string.h>

/* Event `n` says all of itself, so a reader can tell whether it got that very one. */
static void add(struct mco_events *e, uint64_t n, const char *host)
{
    char key[MCS_KEY_MAX];
    uint32_t length = 1 + (uint32_t)(n * 7 % 97);
    struct mco_event event = {
        .kind = (enum mco_event_kind)(1 + n % 7),
        .version = {n, n + 1},
        .size = n * 3,
        .crc = (uint32_t)n ^ 0xffu,
    };

    if (n % 50 == 0)
        length = MCS_KEY_MAX - (uint32_t)(n % 3);
    memset(key, (int)('a' + n % 26), length);
    event.key = (struct mco_key){key, length, n ^ 5, n * 11};
    (void)mco_events_add(e, &event, host);
}

struct got {
    uint64_t expected; /* number */
    uint64_t offset;   /* number - n of add() */
    size_t seen, stop_after;
    bool hosts;
};

static bool check(void *context, uint64_t number, const struct mco_event *event, const char *host)
{
    struct got *g = context;
    uint64_t n = number - g->offset;
    uint32_t length = 1 + (uint32_t)(n * 7 % 97);

    if (n % 50 == 0)
        length = MCS_KEY_MAX - (uint32_t)(n % 3);
    cr_assert_eq(number, g->expected);
    cr_assert_eq(event->kind, (enum mco_event_kind)(1 + n % 7));
    cr_assert_eq(event->key.length, length);
    for (uint32_t i = 0; i < length; i++)
        cr_assert_eq(((const char *)event->key.bytes)[i], (char)('a' + n % 26));
    cr_assert_eq(event->key.tenant, n ^ 5);
    cr_assert_eq(event->key.hash, n * 11);
    cr_assert_eq(event->version.token, n);
    cr_assert_eq(event->version.sequence, n + 1);
    cr_assert_eq(event->size, n * 3);
    cr_assert_eq(event->crc, (uint32_t)n ^ 0xffu);
    if (g->hosts && n % 2 == 0)
        cr_assert_str_eq(host, "[fe80::1]:7000");
    else
        cr_assert_null(host);
    g->expected++;
    return ++g->seen != g->stop_after;
}

static bool fill(void *context, uint64_t number, const struct mco_event *event, const char *host)
{
    (void)number;
    (void)event;
    (void)host;
    ++*(size_t *)context;
    return true;
}

Test(events, memory_is_a_power_of_two_and_not_too_little)
{
    struct mco_events *e = NULL;

    cr_expect_eq(mco_events_create(0, &e), -EINVAL);
    cr_expect_eq(mco_events_create(1 << 19, &e), -EINVAL);
    cr_expect_eq(mco_events_create((1 << 20) + 8, &e), -EINVAL);
    cr_expect_null(e);
    mco_events_destroy(NULL);
}

Test(events, are_read_from_any_number_on)
{
    struct got g;
    struct mco_events *e;
    uint64_t first, next;

    cr_assert_eq(mco_events_create(1 << 20, &e), 0);
    mco_events_range(e, &first, &next);
    cr_assert_eq(first, 1u);
    cr_assert_eq(next, 1u);
    g = (struct got){.expected = 1};
    cr_assert_eq(mco_events_read(e, 0, 10, check, &g), 1u, "none yet");
    cr_assert_eq(mco_events_read(e, 99, 10, check, &g), 99u, "nor is there a later one");
    for (uint64_t n = 1; n <= 1000; n++)
        add(e, n, n % 2 == 0 ? "[fe80::1]:7000" : NULL);
    mco_events_range(e, &first, &next);
    cr_assert_eq(first, 1u);
    cr_assert_eq(next, 1001u);
    for (uint64_t from = 1; from <= 1000; from++) {
        g = (struct got){.expected = from, .hosts = true};
        cr_assert_eq(mco_events_read(e, from, 3, check, &g), from + 3 > 1001 ? 1001 : from + 3);
    }
    g = (struct got){.expected = 1, .hosts = true};
    cr_assert_eq(mco_events_read(e, 0, SIZE_MAX, check, &g), 1001u);
    cr_assert_eq(g.seen, 1000u);
    g = (struct got){.expected = 5, .hosts = true, .stop_after = 4};
    cr_assert_eq(mco_events_read(e, 5, SIZE_MAX, check, &g), 9u, "each() may end it");
    cr_assert_eq(mco_events_read(e, 1001, 10, check, &g), 1001u);
    mco_events_destroy(e);
}

Test(events, the_oldest_make_room)
{
    struct mco_events *e;
    uint64_t first = 1, next = 1, before;

    cr_assert_eq(mco_events_create(1 << 20, &e), 0);
    for (uint64_t n = 1; n <= 200000; n++) {
        add(e, n, n % 2 == 0 ? "[fe80::1]:7000" : NULL);
        if (n % 9973 != 0)
            continue;
        before = first;
        mco_events_range(e, &first, &next);
        cr_assert_geq(first, before);
        cr_assert_eq(next, n + 1);
        for (uint64_t from = first; from < next; from += 1 + from % 61) {
            struct got g = {.expected = from, .hosts = true};

            (void)mco_events_read(e, from, 2, check, &g);
            cr_assert_eq(g.seen, from + 1 == next ? 1u : 2u);
        }
    }
    mco_events_range(e, &first, &next);
    cr_assert_gt(first, 1u);
    cr_assert_gt(next - first, 5000u, "most of the memory is used");
    struct got g = {.expected = first, .hosts = true};
    cr_assert_eq(mco_events_read(e, 3, SIZE_MAX, check, &g), next, "from the first that is kept");
    cr_assert_eq(g.seen, next - first);
    mco_events_destroy(e);
}

Test(events, no_more_than_was_asked_for)
{
    struct mco_events *e;
    size_t n = 0;

    cr_assert_eq(mco_events_create(1 << 20, &e), 0);
    for (uint64_t i = 1; i <= 10; i++)
        add(e, i, NULL);
    cr_assert_eq(mco_events_read(e, 1, 4, fill, &n), 5u);
    cr_assert_eq(n, 4u);
    mco_events_destroy(e);
}

static struct mco_events *shared;

static void *write_many(void *unused)
{
    char key[64];

    (void)unused;
    for (uint64_t i = 0; i < 60000; i++) {
        struct mco_event event = {.kind = MCO_STORED, .size = i, .crc = (uint32_t)i * 3};

        memset(key, (int)('A' + i % 26), sizeof(key));
        event.key = (struct mco_key){key, 1 + (uint32_t)(i % sizeof(key)), i, ~i};
        (void)mco_events_add(shared, &event, i % 3 == 0 ? "host:1" : NULL);
    }
    return NULL;
}

static bool whole(void *context, uint64_t number, const struct mco_event *event, const char *host)
{
    uint64_t *last = context, i = event->size;
    const char *key = event->key.bytes;

    cr_assert_gt(number, *last);
    cr_assert_eq(event->key.tenant, i);
    cr_assert_eq(event->key.hash, ~i);
    cr_assert_eq(event->crc, (uint32_t)i * 3);
    cr_assert_eq(event->key.length, 1 + i % 64);
    cr_assert_eq(key[0], (char)('A' + i % 26));
    cr_assert_eq(key[event->key.length - 1], (char)('A' + i % 26));
    cr_assert((host != NULL) == (i % 3 == 0));
    *last = number;
    return true;
}

static void *read_many(void *unused)
{
    uint64_t last = 0, from = 1;

    (void)unused;
    while (from <= 2 * 60000)
        from = mco_events_read(shared, from, 100, whole, &last);
    return NULL;
}

Test(events, writers_and_readers_at_once, .timeout = 120)
{
    pthread_t t[4];
    uint64_t first, next;

    cr_assert_eq(mco_events_create(1 << 20, &shared), 0);
    for (size_t i = 0; i < 4; i++)
        cr_assert_eq(pthread_create(&t[i], NULL, i < 2 ? write_many : read_many, NULL), 0);
    for (size_t i = 0; i < 4; i++)
        pthread_join(t[i], NULL);
    mco_events_range(shared, &first, &next);
    cr_assert_eq(next, 2u * 60000 + 1);
    mco_events_destroy(shared);
}

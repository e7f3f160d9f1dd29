/* SPDX-License-Identifier: Apache-2.0 */
/* The session region and its inbox. */
#include <criterion/criterion.h>

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "shm/inbox.h"

struct box {
    void *mem;
    struct mcs_session_region agent, client;
    uint64_t head; /* the agent's private copy */
};

static struct box *box_open(uint64_t inbox_size)
{
    struct mcs_session_header h = {.session_incarnation = 5, .tick_hz = 1000};
    struct box *b = calloc(1, sizeof(*b));
    uint64_t size = mcs_session_region_size(inbox_size);

    cr_assert_not_null(b);
    cr_assert_neq(size, 0);
    b->mem = aligned_alloc(4096, size);
    cr_assert_not_null(b->mem);
    memset(b->mem, 0, size);
    mcs_session_region_create(&b->agent, b->mem, inbox_size, &h);
    cr_assert_eq(mcs_session_region_attach(&b->client, b->mem, size), 0);
    return b;
}

static void box_close(struct box *b)
{
    free(b->mem);
    free(b);
}

/* Text that can be told from its neighbours'. */
static void fill(uint8_t *out, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n; i++)
        out[i] = (uint8_t)(seed * 31 + i * 7 + 1);
}

static int put(struct box *b, uint64_t n, uint32_t name_length, uint32_t message_length)
{
    uint8_t name[MCS_NOTIFY_NAME_MAX], message[MCS_NOTIFY_MESSAGE_MAX];

    fill(name, name_length, n);
    fill(message, message_length, n + 1);
    return mcs_inbox_put(&b->agent, &b->head, n + 1, n * 10, name, name_length, message,
                         message_length);
}

/* Takes one record and checks all of it; false when there is none. */
static bool take(struct box *b, uint64_t n, uint32_t name_length, uint32_t message_length)
{
    uint8_t want[MCS_NOTIFY_NAME_MAX + MCS_NOTIFY_MESSAGE_MAX];
    const struct mcs_inbox_record *r = mcs_inbox_peek(&b->client);

    if (r == NULL)
        return false;
    cr_assert_eq(r->source, n + 1);
    cr_assert_eq(r->bytes, n * 10);
    cr_assert_eq(r->name_length, name_length);
    cr_assert_eq(r->message_length, message_length);
    fill(want, name_length, n);
    fill(want + name_length, message_length, n + 1);
    cr_assert_arr_eq(r + 1, want, name_length + message_length);
    cr_assert_eq(mcs_inbox_peek(&b->client), r, "it stays until it is released");
    mcs_inbox_release(&b->client, r);
    return true;
}

Test(region, sizes)
{
    cr_assert_eq(mcs_session_region_size(0), 0);
    cr_assert_eq(mcs_session_region_size(MCS_INBOX_SIZE_MIN / 2), 0);
    cr_assert_eq(mcs_session_region_size(MCS_INBOX_SIZE_MIN + 64), 0);
    cr_assert_eq(mcs_session_region_size((uint64_t)MCS_INBOX_SIZE_MAX * 2), 0);
    cr_assert_eq(mcs_session_region_size(UINT64_MAX), 0);
    cr_assert_geq(mcs_session_region_size(MCS_INBOX_SIZE_MIN),
                  MCS_SESSION_INBOX_OFFSET + MCS_INBOX_SIZE_MIN);
    cr_assert_eq(mcs_session_region_size(MCS_INBOX_SIZE_MAX) % 4096, 0);
}

Test(region, attach_refuses_each_contradicted_field)
{
    struct box *b = box_open(MCS_INBOX_SIZE_MIN);
    struct mcs_session_header *h = b->mem, good = *h;
    uint64_t size = good.total_size;
    struct mcs_session_region r;

    cr_assert_eq(mcs_session_region_attach(&r, b->mem, 0), -EPROTO);
    cr_assert_eq(mcs_session_region_attach(&r, b->mem, size - 1), -EPROTO);
#define REFUSED(field, value, res)                                                                 \
    h->field = (value);                                                                            \
    cr_expect_eq(mcs_session_region_attach(&r, b->mem, size), (res), #field);                      \
    *h = good
    REFUSED(magic, MCS_QUEUE_MAGIC, -EPROTO);
    REFUSED(abi_version, MCS_ABI_VERSION + 1, -EPROTONOSUPPORT);
    REFUSED(header_size, good.header_size + 8, -EPROTONOSUPPORT);
    REFUSED(words_offset, good.words_offset + 8, -EPROTO);
    REFUSED(inbox_offset, 0, -EPROTO);
    REFUSED(inbox_size, good.inbox_size * 2, -EPROTO);
    REFUSED(inbox_size, 0, -EPROTO);
    REFUSED(inbox_size, UINT64_MAX, -EPROTO);
    REFUSED(total_size, good.total_size + 4096, -EPROTO);
#undef REFUSED
    cr_assert_eq(mcs_session_region_attach(&r, b->mem, size), 0);
    cr_assert_eq(r.header->session_incarnation, 5);
    box_close(b);
}

Test(inbox, records_of_all_sizes_arrive_whole)
{
    static const uint32_t names[] = {0, 1, 63, 64, 65, 255, MCS_NOTIFY_NAME_MAX};
    static const uint32_t messages[] = {0, 1, 64, 1000, 4032, 4095, MCS_NOTIFY_MESSAGE_MAX};
    struct box *b = box_open(MCS_INBOX_SIZE_MIN);
    uint64_t n = 0;

    /* several times around, each size at many places */
    for (int round = 0; round < 20; round++)
        for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
            for (size_t j = 0; j < sizeof(messages) / sizeof(messages[0]); j++, n++) {
                cr_assert_eq(put(b, n, names[i], messages[j]), 0);
                cr_assert(take(b, n, names[i], messages[j]));
                cr_assert_null(mcs_inbox_peek(&b->client));
            }
    cr_assert_gt(b->head, 10 * (uint64_t)MCS_INBOX_SIZE_MIN);
    box_close(b);
}

Test(inbox, longer_than_allowed_is_refused)
{
    struct box *b = box_open(MCS_INBOX_SIZE_MIN);
    uint64_t head = b->head;

    cr_assert_eq(mcs_inbox_put(&b->agent, &b->head, 1, 0, "", MCS_NOTIFY_NAME_MAX + 1, "", 0),
                 -EMSGSIZE);
    cr_assert_eq(mcs_inbox_put(&b->agent, &b->head, 1, 0, "", 0, "", MCS_NOTIFY_MESSAGE_MAX + 1),
                 -EMSGSIZE);
    cr_assert_eq(mcs_inbox_put(&b->agent, &b->head, 1, 0, "", UINT32_MAX, "", UINT32_MAX),
                 -EMSGSIZE);
    cr_assert_eq(b->head, head);
    box_close(b);
}

Test(inbox, full_says_so_and_loses_nothing)
{
    struct box *b = box_open(MCS_INBOX_SIZE_MIN);
    uint64_t sent = 0, seen = 0;

    for (int round = 0; round < 50; round++) {
        uint64_t head;
        int res;

        while ((res = put(b, sent, 10, (uint32_t)sent % 700)) == 0)
            sent++;
        cr_assert_eq(res, -EAGAIN);
        head = b->head;
        cr_assert_eq(put(b, sent, 10, MCS_NOTIFY_MESSAGE_MAX), -EAGAIN);
        cr_assert_eq(b->head, head);
        cr_assert_leq(b->head - b->client.words->inbox_tail, MCS_INBOX_SIZE_MIN);
        /* some room at each round, so that the full inbox wraps at another place */
        for (int i = 0; i < 3 + round % 5; i++, seen++)
            cr_assert(take(b, seen, 10, (uint32_t)seen % 700));
    }
    while (take(b, seen, 10, (uint32_t)seen % 700))
        seen++;
    cr_assert_eq(seen, sent);
    box_close(b);
}

/* The largest record fits whenever the inbox is empty, wherever its head stands. */
Test(inbox, an_empty_inbox_takes_the_largest_record_at_any_place)
{
    struct box *b = box_open(MCS_INBOX_SIZE_MIN);

    for (uint64_t n = 0; n < 2 * MCS_INBOX_SIZE_MIN / MCS_LINE; n++) {
        b->agent.words->inbox_tail = b->agent.words->inbox_head = b->head = n * MCS_LINE;
        cr_assert_eq(put(b, n, MCS_NOTIFY_NAME_MAX, MCS_NOTIFY_MESSAGE_MAX), 0);
        cr_assert(take(b, n, MCS_NOTIFY_NAME_MAX, MCS_NOTIFY_MESSAGE_MAX));
    }
    box_close(b);
}

Test(inbox, an_impossible_tail_is_a_protocol_error)
{
    static const int64_t wrong[] = {64,   1,    -1,       -63, -(int64_t)MCS_INBOX_SIZE_MIN - 64,
                                    1000, 4096, INT64_MIN};
    struct box *b = box_open(MCS_INBOX_SIZE_MIN);
    uint64_t head;

    for (uint64_t n = 0; n < 50; n++) {
        cr_assert_eq(put(b, n, 10, 100), 0);
        cr_assert(take(b, n, 10, 100));
    }
    head = b->head;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        b->client.words->inbox_tail = head + (uint64_t)wrong[i];
        cr_assert_eq(put(b, 0, 10, 100), -EPROTO, "tail = head + %lld", (long long)wrong[i]);
        cr_assert_eq(b->head, head);
    }
    box_close(b);
}

Test(inbox, says_whether_the_reader_waits)
{
    struct box *b = box_open(MCS_INBOX_SIZE_MIN);

    cr_assert_not(mcs_inbox_reader_waits(&b->agent));
    cr_assert_eq(mcs_inbox_wait_begin(&b->client), 0);
    cr_assert(mcs_inbox_reader_waits(&b->agent));
    mcs_inbox_wait_end(&b->client);
    cr_assert_not(mcs_inbox_reader_waits(&b->agent));
    cr_assert_eq(put(b, 1, 0, 0), 0);
    cr_assert_eq(mcs_inbox_wait_begin(&b->client), 64);
    box_close(b);
}

/* ---- both ends at once -------------------------------------------------------------- */

#ifdef __SANITIZE_THREAD__
#define RECORDS 20000u
#else
#define RECORDS 100000u
#endif

static uint32_t message_of(uint64_t n)
{
    return (uint32_t)(n * 37 % 900);
}

static void *sender(void *arg)
{
    struct box *b = arg;
    uint32_t *head_futex = (uint32_t *)&b->agent.words->inbox_head;

    for (uint64_t n = 0; n < RECORDS; n++) {
        int res;

        while ((res = put(b, n, 12, message_of(n))) == -EAGAIN)
            sched_yield();
        if (res != 0)
            return (void *)"put failed";
        if (mcs_inbox_reader_waits(&b->agent))
            syscall(SYS_futex, head_futex, FUTEX_WAKE, 1, NULL, NULL, 0);
    }
    return NULL;
}

Test(inbox, sender_and_reader_as_threads_lose_no_record_and_no_wakeup)
{
    const struct timespec patience = {.tv_sec = 20};
    struct box *b = box_open(MCS_INBOX_SIZE_MIN);
    uint32_t *head_futex = (uint32_t *)&b->client.words->inbox_head;
    pthread_t thread;
    void *error;

    cr_assert_eq(pthread_create(&thread, NULL, sender, b), 0);
    for (uint64_t n = 0; n < RECORDS;) {
        uint32_t value;

        if (take(b, n, 12, message_of(n))) {
            n++;
            continue;
        }
        value = mcs_inbox_wait_begin(&b->client);
        if (mcs_inbox_peek(&b->client) == NULL)
            cr_assert(syscall(SYS_futex, head_futex, FUTEX_WAIT, value, &patience, NULL, 0) == 0 ||
                          errno == EAGAIN || errno == EINTR,
                      "nobody woke the reader: %s", strerror(errno));
        mcs_inbox_wait_end(&b->client);
    }
    cr_assert_eq(pthread_join(thread, &error), 0);
    cr_assert_null(error, "%s", (const char *)error);
    box_close(b);
}

Test(life, a_later_agent_takes_the_inbox_over_or_refuses_it)
{
    struct box *b = box_open(MCS_INBOX_SIZE_MIN);
    struct mcs_session_region r;
    uint64_t head, tail;

    cr_assert_eq(mcs_inbox_put(&b->agent, &b->head, 9, 0, "n", 1, "m", 1), 0);
    cr_assert_eq(mcs_session_region_resume(&r, b->mem, MCS_INBOX_SIZE_MIN, 5, 77, 0, &head, &tail),
                 0);
    cr_assert_eq(head, b->head);
    cr_assert_eq(tail, 0u);
    cr_assert_eq(b->client.header->agent_incarnation, 77u);
    cr_assert_eq(mcs_inbox_put(&r, &head, 9, 0, "n", 1, "m", 1), 0);
    cr_assert_eq(mcs_session_region_resume(&r, b->mem, MCS_INBOX_SIZE_MIN, 6, 77, 0, &head, &tail),
                 -EPROTO, "another session");
    cr_assert_eq(
        mcs_session_region_resume(&r, b->mem, 2 * MCS_INBOX_SIZE_MIN, 5, 77, 0, &head, &tail),
        -EPROTO, "another size");
    b->client.words->inbox_head += 1;
    cr_assert_eq(mcs_session_region_resume(&r, b->mem, MCS_INBOX_SIZE_MIN, 5, 77, 0, &head, &tail),
                 -EPROTO, "in the midst of a unit");
    b->client.words->inbox_head = 64 + MCS_INBOX_SIZE_MIN;
    cr_assert_eq(mcs_session_region_resume(&r, b->mem, MCS_INBOX_SIZE_MIN, 5, 77, 0, &head, &tail),
                 -EPROTO, "more than it holds");
    b->client.words->inbox_tail = 128;
    b->client.words->inbox_head = 64;
    cr_assert_eq(mcs_session_region_resume(&r, b->mem, MCS_INBOX_SIZE_MIN, 5, 77, 0, &head, &tail),
                 -EPROTO, "more read than written");
    box_close(b);
}

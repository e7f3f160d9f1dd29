/* SPDX-License-Identifier: Apache-2.0 */
/* What a submission checks, and what it puts into ring and argument area. */
#include "local.h"

#include <fcntl.h>

TestSuite(submit, .timeout = 10, .fini = local_teardown);

/* Nothing may have changed by a refused submission. */
static void assert_untouched(struct local *l, mcshm_batch b)
{
    mcshm_batch_status s;
    struct mcs_desc d;

    cr_assert_eq(local_take(l, &d, 1), 0);
    cr_assert_eq(mcshm_batch_poll(l->q, b, &s), MCSHM_OK);
    cr_assert_eq(s.tasks, 0);
    cr_assert_eq(l->q->nfree, l->q->shm.slots);
    cr_assert_eq(l->q->args.used, 0);
}

Test(submit, argument_errors_submit_nothing)
{
    mcshm_request r[2], good;
    struct local l;
    mcshm_batch b;

    local_setup(&l, 8, 8, 2, 4096);
    b = local_batch(&l, 8);
    good = r[0] = local_request(&l, 64);
#define BAD(field, value, want)                                                                    \
    r[1] = good;                                                                                   \
    r[1].field = (value);                                                                          \
    cr_assert_eq(mcshm_submit(l.q, b, r, 2), (want), #field);                                      \
    assert_untouched(&l, b)
    BAD(length, 0, MCSHM_INVALID_ARGUMENT);
    BAD(length, LOCAL_SIZE + 1, MCSHM_BAD_RANGE);
    BAD(length, UINT64_MAX, MCSHM_BAD_RANGE);
    BAD(local, NULL, MCSHM_INVALID_ARGUMENT);
    BAD(local, l.memory - 1, MCSHM_NOT_REGISTERED);
    BAD(local, l.memory + LOCAL_SIZE, MCSHM_NOT_REGISTERED);
    BAD(local, l.memory + LOCAL_SIZE - 63, MCSHM_BAD_RANGE);
    BAD(opcode, (mcshm_opcode)0, MCSHM_INVALID_ARGUMENT);
    BAD(opcode, (mcshm_opcode)MCS_OP_CANCEL, MCSHM_INVALID_ARGUMENT);
    BAD(flags, 0x4, MCSHM_INVALID_ARGUMENT);
    BAD(flags, MCSHM_NOTIFY, MCSHM_INVALID_ARGUMENT);
    BAD(priority, (mcshm_class)3, MCSHM_INVALID_ARGUMENT);
    BAD(segment, 0, MCSHM_INVALID_HANDLE);
#undef BAD
    cr_assert_eq(mcshm_submit(l.q, b, r, 0), MCSHM_INVALID_ARGUMENT);
    cr_assert_eq(mcshm_submit(l.q, b, NULL, 1), MCSHM_INVALID_ARGUMENT);
    cr_assert_eq(mcshm_submit(l.q, b, r, 9), MCSHM_TOO_MANY_TASKS);
    cr_assert_eq(mcshm_submit(l.q, b, r, 8), MCSHM_INVALID_ARGUMENT, "the ring never holds 8");
    assert_untouched(&l, b);
}

Test(submit, descriptor_says_what_was_asked)
{
    struct mcs_desc d;
    mcshm_request r;
    struct local l;
    mcshm_batch b;

    local_setup(&l, 8, 8, 2, 4096);
    l.c->strict = true;
    b = local_batch(&l, 1);
    r = (mcshm_request){.opcode = MCSHM_READ,
                        .flags = MCSHM_FENCE,
                        .priority = MCSHM_CLASS_BACKGROUND,
                        .deadline_us = 99,
                        .local = l.memory + 12,
                        .segment = 3,
                        .remote_address = UINT64_MAX - 5,
                        .length = 64};
    cr_assert_eq(mcshm_submit(l.q, b, &r, 1), MCSHM_OK);
    cr_assert_eq(local_take(&l, &d, 1), 1);
    cr_assert(d.op == MCS_OP_READ && d.shape == MCS_SHAPE_ONE && d.priority == 2);
    cr_assert_eq(d.flags, MCS_DESC_FENCE | MCS_DESC_STRICT);
    cr_assert(d.extent == LOCAL_EXTENT && d.local_offset == 12 && d.segment == 3);
    cr_assert(d.remote_addr == UINT64_MAX - 5 && d.length == 64 && d.deadline_us == 99);
    cr_assert_eq(d.args, MCS_ARGS_NONE);
}

Test(submit, full_ring_and_slots_are_all_or_nothing)
{
    mcshm_request r[8];
    struct mcs_desc d[8];
    mcshm_stats s;
    struct local l;
    mcshm_batch b;

    local_setup(&l, 8, 9, 2, 4096);
    for (int i = 0; i < 8; i++)
        r[i] = local_request(&l, 8);
    b = local_batch(&l, 9);
    cr_assert_eq(mcshm_submit(l.q, b, r, 5), MCSHM_OK);
    cr_assert_eq(mcshm_submit(l.q, b, r, 3), MCSHM_RING_FULL);
    cr_assert_eq(mcshm_submit(l.q, b, r, 2), MCSHM_OK);
    cr_assert_eq(local_take(&l, d, 8), 7);
    cr_assert_eq(mcshm_submit(l.q, b, r, 3), MCSHM_TOO_MANY_TASKS);
    cr_assert_eq(mcshm_submit(l.q, b, r, 2), MCSHM_OK);
    b = local_batch(&l, 9);
    cr_assert_eq(mcshm_submit(l.q, b, r, 1), MCSHM_NO_SLOTS);
    cr_assert_eq(mcshm_get_stats(l.c, &s), MCSHM_OK);
    cr_assert(s.submitted == 9 && s.ring_full == 2);
}

Test(submit, list_lays_out_pieces_and_notification)
{
    mcshm_piece pieces[2] = {{100, 5, 10}, {0, 1000, 20}};
    mcshm_notification n = {.name = "nm", .name_size = 2, .message = "text", .message_size = 4};
    const struct mcs_args *a;
    const struct mcs_piece *p;
    mcshm_request r;
    struct mcs_desc d;
    struct local l;
    mcshm_batch b;

    local_setup(&l, 8, 8, 2, 4096);
    r = local_request(&l, 0);
    r.flags = MCSHM_NOTIFY;
    r.notify = &n;
    b = local_batch(&l, 1);
    cr_assert_eq(mcshm_submit_list(l.q, b, &r, pieces, 2), MCSHM_OK);
    cr_assert_eq(local_take(&l, &d, 1), 1);
    cr_assert(d.shape == MCS_SHAPE_LIST && d.length == 30 && d.flags == MCS_DESC_NOTIFY);
    a = (const void *)(l.q->shm.args + (uint64_t)d.args * MCS_LINE);
    cr_assert(a->total == 64 + 48 + 6 && a->count == 2 && a->pieces == 64 && a->notify == 112);
    cr_assert(a->name_length == 2 && a->message_length == 4);
    cr_assert_eq(memcmp((const uint8_t *)a + a->notify, "nmtext", 6), 0);
    p = (const void *)((const uint8_t *)a + a->pieces);
    cr_assert(p[0].local == 100 && p[0].remote == 5 && p[0].length == 10 && p[1].remote == 1000);
}

Test(submit, list_errors)
{
    mcshm_piece p[2] = {{0, 0, 8}, {8, 8, 8}};
    mcshm_request r;
    struct local l;
    mcshm_batch b;

    local_setup(&l, 8, 8, 2, 128);
    r = local_request(&l, 0);
    b = local_batch(&l, 4);
    cr_assert_eq(mcshm_submit_list(l.q, b, &r, p, 0), MCSHM_INVALID_ARGUMENT);
    cr_assert_eq(mcshm_submit_list(l.q, b, &r, NULL, 2), MCSHM_INVALID_ARGUMENT);
    cr_assert_eq(mcshm_submit_list(l.q, b, NULL, p, 2), MCSHM_INVALID_ARGUMENT);
    p[1].length = 0;
    cr_assert_eq(mcshm_submit_list(l.q, b, &r, p, 2), MCSHM_INVALID_ARGUMENT);
    p[1].length = UINT64_MAX;
    cr_assert_eq(mcshm_submit_list(l.q, b, &r, p, 2), MCSHM_BAD_RANGE);
    p[1] = (mcshm_piece){UINT64_MAX - 7, 0, 8};
    cr_assert_eq(mcshm_submit_list(l.q, b, &r, p, 2), MCSHM_BAD_RANGE);
    p[1] = (mcshm_piece){LOCAL_SIZE - 7, 0, 8};
    cr_assert_eq(mcshm_submit_list(l.q, b, &r, p, 2), MCSHM_BAD_RANGE);
    assert_untouched(&l, b);
    p[1] = (mcshm_piece){LOCAL_SIZE - 8, 0, 8};
    cr_assert_eq(mcshm_submit_list(l.q, b, &r, p, 2), MCSHM_OK);
    cr_assert_eq(mcshm_submit_list(l.q, b, &r, p, 2), MCSHM_ARGS_FULL);
}

Test(submit, list_that_never_fits_is_an_error_and_not_a_retry)
{
    mcshm_piece p[3] = {{0, 0, 8}, {8, 8, 8}, {16, 16, 8}};
    mcshm_request r;
    struct local l;
    mcshm_batch b;

    local_setup(&l, 8, 8, 2, 128);
    r = local_request(&l, 0);
    b = local_batch(&l, 4);
    cr_assert_eq(mcshm_submit_list(l.q, b, &r, p, 3), MCSHM_INVALID_ARGUMENT);
    assert_untouched(&l, b);
}

Test(submit, stride_errors)
{
    mcshm_stride s = {.count = 4, .block = 8, .local_stride = 16, .remote_stride = 32};
    struct mcs_desc d;
    mcshm_request r;
    struct local l;
    mcshm_batch b;

    local_setup(&l, 8, 8, 2, 4096);
    r = local_request(&l, 0);
    b = local_batch(&l, 4);
#define BAD(field, value, want)                                                                    \
    do {                                                                                           \
        mcshm_stride bad = s;                                                                      \
        bad.field = (value);                                                                       \
        cr_assert_eq(mcshm_submit_stride(l.q, b, &r, &bad), (want), #field);                       \
        assert_untouched(&l, b);                                                                   \
    } while (0)
    BAD(count, 0, MCSHM_INVALID_ARGUMENT);
    BAD(block, 0, MCSHM_INVALID_ARGUMENT);
    BAD(count, UINT64_MAX, MCSHM_BAD_RANGE);
    BAD(block, UINT64_MAX / 2, MCSHM_BAD_RANGE);
    BAD(local_stride, UINT64_MAX / 3, MCSHM_BAD_RANGE);
    BAD(remote_stride, UINT64_MAX / 2, MCSHM_BAD_RANGE);
    BAD(count, LOCAL_SIZE / 16 + 1, MCSHM_BAD_RANGE);
#undef BAD
    cr_assert_eq(mcshm_submit_stride(l.q, b, &r, &s), MCSHM_OK);
    cr_assert_eq(local_take(&l, &d, 1), 1);
    cr_assert(d.shape == MCS_SHAPE_STRIDE && d.length == 32);
}

Test(submit, notification_limits)
{
    static char text[MCS_NOTIFY_MESSAGE_MAX + 1];
    mcshm_notification n = {.name = text, .name_size = MCS_NOTIFY_NAME_MAX + 1};
    mcshm_request r;
    struct mcs_desc d;
    struct local l;
    mcshm_batch b;

    local_setup(&l, 8, 8, 2, 8192);
    r = (mcshm_request){.segment = LOCAL_SEGMENT, .notify = &n};
    b = local_batch(&l, 4);
    cr_assert_eq(mcshm_submit_notify(l.q, b, &r), MCSHM_INVALID_ARGUMENT);
    n = (mcshm_notification){.message = text, .message_size = sizeof(text)};
    cr_assert_eq(mcshm_submit_notify(l.q, b, &r), MCSHM_INVALID_ARGUMENT);
    n = (mcshm_notification){.message_size = 1};
    cr_assert_eq(mcshm_submit_notify(l.q, b, &r), MCSHM_INVALID_ARGUMENT);
    assert_untouched(&l, b);
    n = (mcshm_notification){.name = text,
                             .name_size = MCS_NOTIFY_NAME_MAX,
                             .message = text,
                             .message_size = MCS_NOTIFY_MESSAGE_MAX};
    cr_assert_eq(mcshm_submit_notify(l.q, b, &r), MCSHM_OK);
    cr_assert_eq(local_take(&l, &d, 1), 1);
    cr_assert(d.op == MCS_OP_NOTIFY && d.length == 0 && d.args != MCS_ARGS_NONE);
}

Test(submit, argument_chunks_come_back_when_their_tasks_end)
{
    mcshm_piece p = {0, 0, 8};
    mcshm_request r;
    struct mcs_desc d;
    struct local l;
    mcshm_batch b;

    local_setup(&l, 8, 64, 2, 256); /* two blocks of two lines */
    r = local_request(&l, 0);
    b = local_batch(&l, 64);
    for (uint32_t i = 0; i < 60; i++) {
        mcshm_status status = mcshm_submit_list(l.q, b, &r, &p, 1);

        if (i == 2) {
            cr_assert_eq(status, MCSHM_ARGS_FULL, "nothing has ended");
            cr_assert_eq(mcshm_submit_list(l.q, b, &r, &p, 1), MCSHM_ARGS_FULL);
            cr_assert_eq(local_take(&l, &d, 1), 1);
            local_end(&l, &d, MCS_STATE_COMPLETED, MCS_OK, 1, 0);
        } else {
            cr_assert_eq(status, MCSHM_OK);
            if (i > 2) {
                cr_assert_eq(local_take(&l, &d, 1), 1);
                local_end(&l, &d, MCS_STATE_COMPLETED, MCS_OK, i - 1, 0);
            }
        }
    }
}

Test(submit, doorbell_rings_only_for_a_sleeper)
{
    mcshm_request r;
    struct local l;
    mcshm_batch b;
    uint64_t rung;

    local_setup(&l, 8, 8, 2, 0);
    r = local_request(&l, 8);
    b = local_submit(&l, 4, &r);
    cr_assert_eq(l.q->counters.doorbells, 0);
    mcs_queue_sleep(&l.q->shm, true);
    cr_assert_eq(mcshm_submit(l.q, b, &r, 1), MCSHM_OK);
    cr_assert_eq(l.q->counters.doorbells, 1);
    cr_assert_eq(read(l.c->doorbell, &rung, sizeof(rung)), (ssize_t)sizeof(rung));
    cr_assert_eq(rung, 1);
}

/* The doorbell's counter is as full as it can be, since nobody ever reads it: a submitter neither waits
 * nor fails, for one edge is as good as many. */
Test(submit, a_full_doorbell_holds_nobody_up)
{
    const uint64_t nearly = UINT64_C(0xfffffffffffffffd);
    mcshm_request r;
    struct local l;
    mcshm_batch b;

    local_setup(&l, 16, 16, 2, 0);
    cr_assert_eq(fcntl(l.c->doorbell, F_SETFL, O_NONBLOCK), 0); /* as the agent makes it */
    cr_assert_eq(write(l.c->doorbell, &nearly, sizeof(nearly)), (ssize_t)sizeof(nearly));
    r = local_request(&l, 8);
    b = local_batch(&l, 10);
    mcs_queue_sleep(&l.q->shm, true);
    for (int i = 0; i < 10; i++)
        cr_assert_eq(mcshm_submit(l.q, b, &r, 1), MCSHM_OK);
    cr_assert_eq(l.q->counters.doorbells, 10);
}

/* ---- copies in the caller's thread ----------------------------------------------- */

/* The connection's own segment: one buffer over the second half of the extent. */
static void own_segment(struct local *l, struct mcl_segment *s, struct mcl_buffer *b,
                        uint32_t access)
{
    *s = (struct mcl_segment){.handle = LOCAL_SEGMENT, .own = true};
    *b = (struct mcl_buffer){.start = l->memory + LOCAL_SIZE / 2,
                             .size = LOCAL_SIZE / 2,
                             .address = 0x1000,
                             .access = access};
    l->c->segments = s;
    l->c->nsegments = 1;
    l->c->buffers = b;
    l->c->nbuffers = 1;
    l->q->caller_max = 4096;
    cr_assert_eq(mcl_view_update(l->c, NULL), 0);
}

Test(submit, caller_copies_what_is_small_and_granted)
{
    struct mcl_segment segment;
    struct mcl_buffer buffer;
    mcshm_batch_status s;
    mcshm_task_status t;
    struct mcs_desc d[8];
    mcshm_request r[4];
    struct local l;
    mcshm_batch b;

    local_setup(&l, 8, 16, 2, 4096);
    own_segment(&l, &segment, &buffer, MCS_ACCESS_WRITE);
    b = local_batch(&l, 8);
    memset(l.memory, 0xab, 64);
    r[0] = local_request(&l, 64);   /* here */
    r[1] = local_request(&l, 4097); /* too long */
    r[2] = local_request(&l, 64);   /* ordered */
    r[2].flags = MCSHM_FENCE;
    r[3] = local_request(&l, 64); /* no right to read */
    r[3].opcode = MCSHM_READ;
    cr_assert_eq(mcshm_submit(l.q, b, r, 4), MCSHM_OK);
    cr_assert_eq(memcmp(l.memory, l.memory + LOCAL_SIZE / 2, 64), 0);
    cr_assert_eq(l.q->shm.doorbell->caller_active, 0);
    cr_assert_eq(local_take(&l, d, 8), 3);
    cr_assert_eq(mcshm_task_poll(l.q, b, 0, &t), MCSHM_OK);
    cr_assert(t.state == MCSHM_STATE_COMPLETED && t.path == MCSHM_PATH_CALLER && t.bytes == 64);
    cr_assert_eq(mcshm_batch_poll(l.q, b, &s), MCSHM_BUSY);
    cr_assert(s.tasks == 4 && s.ended == 1 && s.bytes == 64);
    for (uint32_t i = 0; i < 3; i++)
        local_end(&l, &d[i], MCS_STATE_COMPLETED, MCS_OK, i + 1, 0);
    cr_assert_eq(mcshm_batch_poll(l.q, b, &s), MCSHM_OK);
    cr_assert_eq(mcshm_cancel(l.q, b, 0), MCSHM_OK);
    cr_assert_eq(mcshm_batch_free(l.q, b), MCSHM_OK);
    cr_assert_eq(l.q->nfree, 16);
}

Test(submit, caller_leaves_bad_ranges_and_overlaps_to_the_agent)
{
    struct mcl_segment segment;
    struct mcl_buffer buffer;
    struct mcs_desc d[8];
    mcshm_request r[3];
    struct local l;
    mcshm_batch b;

    local_setup(&l, 8, 16, 2, 4096);
    own_segment(&l, &segment, &buffer, MCS_ACCESS_WRITE);
    b = local_batch(&l, 8);
    r[0] = local_request(&l, 64);
    r[0].remote_address = 0x1000 + LOCAL_SIZE / 2 - 63;
    r[1] = local_request(&l, 64);
    r[1].remote_address = UINT64_MAX - 10;
    r[2] = local_request(&l, 64);
    r[2].local = l.memory + LOCAL_SIZE / 2 - 32;
    cr_assert_eq(mcshm_submit(l.q, b, r, 3), MCSHM_OK);
    cr_assert_eq(local_take(&l, d, 8), 3);
}

Test(submit, caller_copies_nothing_when_the_ring_is_full)
{
    struct mcl_segment segment;
    struct mcl_buffer buffer;
    mcshm_request r[4];
    struct local l;
    mcshm_batch b;

    local_setup(&l, 4, 16, 2, 4096);
    own_segment(&l, &segment, &buffer, MCS_ACCESS_WRITE);
    b = local_batch(&l, 8);
    for (int i = 0; i < 4; i++) {
        r[i] = local_request(&l, 64);
        r[i].flags = i == 0 ? 0 : MCSHM_FENCE;
    }
    cr_assert_eq(mcshm_submit(l.q, b, r + 1, 2), MCSHM_OK);
    memset(l.memory, 0xab, 64);
    cr_assert_eq(mcshm_submit(l.q, b, r, 3), MCSHM_RING_FULL);
    cr_assert_eq(l.memory[LOCAL_SIZE / 2], 0);
    cr_assert_eq(l.q->shm.doorbell->caller_active, 0);
}

/* Takes one descriptor as soon as there is one, and looks at a byte of the other's copy. */
struct taker {
    struct local *l;
    const uint8_t *byte;
    uint32_t ready;
    uint8_t seen;
};

static void *take_one(void *arg)
{
    struct taker *t = arg;
    struct mcs_desc d;

    mcs_store_release(&t->ready, 1u); /* partner: the test below */
    while (mcs_ring_take(&t->l->consumer, &d, 1) == 0)
        mcs_pause();
    t->seen = mcs_load_relaxed(t->byte);
    return NULL;
}

Test(submit, fenced_task_is_pushed_after_the_copies_before_it)
{
    struct mcl_segment segment;
    struct mcl_buffer buffer;
    mcshm_request r[7];
    struct taker t;
    pthread_t thread;
    struct local l;
    mcshm_batch b;

    local_setup(&l, 64, 16, 2, 0); /* so deep that nothing is freed while the taker takes */
    own_segment(&l, &segment, &buffer, MCS_ACCESS_WRITE);
    l.q->caller_max = LOCAL_SIZE;
    for (int i = 0; i < 7; i++)
        r[i] = local_request(&l, LOCAL_SIZE / 2);
    r[6].flags = MCSHM_FENCE;
    t = (struct taker){.l = &l, .byte = l.memory + LOCAL_SIZE - 1};
    for (int i = 1; i <= 100; i++) {
        b = local_batch(&l, 7);
        memset(l.memory, i, LOCAL_SIZE / 2);
        t.ready = 0;
        cr_assert_eq(pthread_create(&thread, NULL, take_one, &t), 0);
        while (mcs_load_acquire(&t.ready) == 0)
            mcs_pause();
        cr_assert_eq(mcshm_submit(l.q, b, r, 7), MCSHM_OK);
        pthread_join(thread, NULL);
        mcs_ring_publish(&l.consumer);
        cr_assert_eq(t.seen, i, "round %d: the fenced task saw %u", i, t.seen);
        cr_assert_eq(l.q->shm.doorbell->caller_active, 0);
        mcs_slot_complete(&l.q->shm, 6, MCS_SLOT_WORD(i, 0, MCS_PATH_LOCAL, MCS_STATE_COMPLETED), 0,
                          0, 0, 0);
        cr_assert_eq(mcshm_batch_free(l.q, b), MCSHM_OK);
    }
}

Test(submit, withdrawn_grant_sends_the_caller_to_the_agent)
{
    struct mcl_segment segment;
    struct mcl_buffer buffer;
    struct mcs_desc d;
    mcshm_request r;
    struct local l;
    mcshm_batch b;

    local_setup(&l, 8, 16, 2, 4096);
    own_segment(&l, &segment, &buffer, MCS_ACCESS_WRITE);
    b = local_batch(&l, 8);
    l.c->region.words->grants_version++;
    r = local_request(&l, 64);
    cr_assert_eq(mcshm_submit(l.q, b, &r, 1), MCSHM_OK);
    cr_assert_eq(local_take(&l, &d, 1), 1);
    cr_assert_eq(l.q->shm.doorbell->caller_active, 0);
}

Test(submit, caller_copies_lists_and_strides)
{
    mcshm_piece p[2] = {{0, 8, 4}, {4, 0, 4}};
    mcshm_stride st = {.count = 2, .block = 2, .local_stride = 4, .remote_stride = 8};
    struct mcl_segment segment;
    struct mcl_buffer buffer;
    mcshm_request r;
    uint8_t *remote;
    struct local l;
    mcshm_batch b;

    local_setup(&l, 8, 16, 2, 0);
    own_segment(&l, &segment, &buffer, MCS_ACCESS_WRITE | MCS_ACCESS_READ);
    remote = l.memory + LOCAL_SIZE / 2;
    b = local_batch(&l, 8);
    memcpy(l.memory, "abcdefgh", 8);
    r = local_request(&l, 0);
    cr_assert_eq(mcshm_submit_list(l.q, b, &r, p, 2), MCSHM_OK);
    cr_assert_eq(memcmp(remote, "efgh\0\0\0\0abcd", 12), 0);
    r.opcode = MCSHM_READ;
    r.local = l.memory + 100;
    cr_assert_eq(mcshm_submit_stride(l.q, b, &r, &st), MCSHM_OK);
    cr_assert_eq(memcmp(l.memory + 100, "ef\0\0ab\0", 7), 0);
    cr_assert_eq(mcshm_batch_wait(l.q, b, 0), MCSHM_OK);
}

/* ---- private memory -------------------------------------------------------------- */

Test(submit, private_memory_is_staged_both_ways)
{
    static uint8_t mine[4096];
    struct mcl_private p = {.start = mine, .size = sizeof(mine), .references = 1};
    mcshm_task_status t;
    struct mcs_desc d[2];
    mcshm_request r;
    struct local l;
    mcshm_batch b;

    local_setup(&l, 8, 8, 2, 4096);
    local_private(&l, &p, 8192);
    b = local_batch(&l, 4);
    memset(mine, 1, sizeof(mine));
    r = local_request(&l, 100);
    r.local = mine + 10;
    cr_assert_eq(mcshm_submit(l.q, b, &r, 1), MCSHM_OK);
    cr_assert(l.memory[8192 + 10] == 1 && l.memory[8192 + 109] == 1);
    cr_assert(l.memory[8192 + 9] == 0 && l.memory[8192 + 110] == 0);
    r.opcode = MCSHM_READ;
    r.local = mine + 200;
    cr_assert_eq(mcshm_submit(l.q, b, &r, 1), MCSHM_OK);
    cr_assert_eq(p.tasks, 2);
    r.opcode = MCSHM_WRITE;
    cr_assert_eq(mcshm_submit(l.q, b, &r, 1), MCSHM_BUSY, "a READ is under way into it");

    cr_assert_eq(local_take(&l, d, 2), 2);
    cr_assert(d[1].extent == LOCAL_EXTENT && d[1].local_offset == 8192 + 200);
    memset(l.memory + 8192 + 200, 2, 100);
    local_end(&l, &d[0], MCS_STATE_COMPLETED, MCS_OK, 1, 0);
    local_end(&l, &d[1], MCS_STATE_COMPLETED, MCS_OK, 2, 0);
    cr_assert_eq(mine[200], 1, "not polled yet");
    cr_assert_eq(mcshm_batch_poll(l.q, b, NULL), MCSHM_OK);
    cr_assert(mine[199] == 1 && mine[200] == 2 && mine[299] == 2 && mine[300] == 1);
    cr_assert_eq(p.tasks, 0);
    mine[200] = 3;
    cr_assert_eq(mcshm_task_poll(l.q, b, 1, &t), MCSHM_OK);
    cr_assert_eq(t.path, MCSHM_PATH_STAGED);
    cr_assert_eq(mine[200], 3, "copied back once");
}

Test(submit, private_memory_that_is_going_takes_no_task)
{
    static uint8_t mine[2][4096];
    struct mcl_private p[2] = {{.start = mine[0], .size = 4096, .references = 1},
                               {.start = mine[1], .size = 4096, .references = 1}};
    mcshm_request r[2];
    struct local l;
    mcshm_batch b;

    local_setup(&l, 8, 8, 2, 4096);
    local_private(&l, &p[0], 8192);
    local_private(&l, &p[1], 16384);
    b = local_batch(&l, 4);
    memset(mine, 1, sizeof(mine));
    r[0] = r[1] = local_request(&l, 100);
    r[0].local = mine[0];
    r[1].local = mine[1];
    p[1].gone = 1; /* as another thread's mcshm_unregister() leaves it until the view changes */
    cr_assert_eq(mcshm_submit(l.q, b, r, 2), MCSHM_NOT_REGISTERED);
    assert_untouched(&l, b);
    cr_assert(p[0].tasks == 0 && p[1].tasks == 0 && l.memory[8192] == 0);
    p[1].gone = 0;
    cr_assert_eq(mcshm_submit(l.q, b, r, 2), MCSHM_OK);
    cr_assert_eq(mcl_private_unregister(l.c, mine[1]), MCSHM_BUSY);
    cr_assert(p[1].gone == 0 && p[1].tasks == 1, "it stays");
}

Test(submit, failed_staged_read_leaves_private_memory_alone)
{
    static uint8_t mine[4096];
    struct mcl_private p = {.start = mine, .size = sizeof(mine), .references = 1};
    mcshm_piece piece = {8, 0, 16};
    struct mcs_desc d;
    mcshm_request r;
    struct local l;
    mcshm_batch b;

    local_setup(&l, 8, 8, 2, 4096);
    local_private(&l, &p, 8192);
    b = local_batch(&l, 4);
    memset(l.memory + 8192, 2, 4096);
    r = local_request(&l, 0);
    r.opcode = MCSHM_READ;
    r.local = mine;
    for (uint32_t i = 0; i < 2; i++) {
        cr_assert_eq(mcshm_submit_list(l.q, b, &r, &piece, 1), MCSHM_OK);
        cr_assert_eq(local_take(&l, &d, 1), 1);
        if (i == 0)
            local_end(&l, &d, MCS_STATE_FAILED, MCS_REVOKED, 1, 1);
        else
            local_end(&l, &d, MCS_STATE_COMPLETED, MCS_OK, 2, 1);
        cr_assert_eq(mcshm_batch_poll(l.q, b, NULL), MCSHM_OK);
        cr_assert_eq(mine[8], i == 0 ? 0 : 2);
    }
    cr_assert(mine[7] == 0 && mine[23] == 2 && mine[24] == 0);
}

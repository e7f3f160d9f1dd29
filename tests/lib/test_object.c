/* SPDX-License-Identifier: Apache-2.0 */
/* Requests about objects: what is refused, what lies in the argument area, results and staging. */
#include "local.h"

#include "shm/object.h"

TestSuite(object, .timeout = 20, .fini = local_teardown);

static void setup(struct local *l, uint64_t args_size)
{
    local_setup(l, 8, 16, 4, args_size);
    l->c->objects = 1;
}

static void assert_untouched(struct local *l, mcshm_batch b)
{
    mcshm_batch_status s;
    struct mcs_desc d;

    cr_assert_eq(local_take(l, &d, 1), 0);
    cr_assert_eq(mcshm_batch_poll(l->q, b, &s), MCSHM_OK);
    cr_assert_eq(s.tasks, 0);
    cr_assert_eq(l->q->nfree, l->q->shm.slots);
    cr_assert_eq(l->q->args.used, 0);
    cr_assert_eq(l->q->staged_reads, 0);
}

static struct mcs_object_args *block(struct local *l, const struct mcs_desc *d)
{
    return (void *)(l->q->shm.args + (uint64_t)d->args * MCS_LINE);
}

static void *at(struct mcs_object_args *a, uint32_t offset)
{
    cr_assert_leq(offset, a->total);
    return (uint8_t *)a + offset;
}

static mcshm_batch submit(struct local *l, const mcshm_object_request *r, struct mcs_desc *d)
{
    mcshm_batch b = local_batch(l, 1);

    cr_assert_eq(mcshm_submit_objects(l->q, b, r), MCSHM_OK, "%s", mcshm_last_error(NULL));
    cr_assert_eq(local_take(l, d, 1), 1);
    return b;
}

Test(object, argument_errors_submit_nothing)
{
    static char long_key[MCSHM_KEY_MAX + 1];
    static uint64_t numbers[2] = {1, 2};
    mcshm_key keys[2] = {{"a", 1}, {"b", 1}}, bad[2] = {{"a", 1}, {"b", 1}};
    mcshm_span spans[2];
    uint32_t counts[2] = {1, 1};
    mcshm_object_request r, good;
    struct local l;
    mcshm_batch b;

    setup(&l, 4096);
    b = local_batch(&l, 2);
    spans[0] = spans[1] = (mcshm_span){.address = l.memory, .size = 64};
    good = (mcshm_object_request){.op = MCSHM_PUT, .keys = keys, .count = 2, .spans = spans};
#define REFUSED(want)                                                                              \
    cr_assert_eq(mcshm_submit_objects(l.q, b, &r), (want), "%s", mcshm_last_error(NULL));          \
    assert_untouched(&l, b)
#define BAD(field, value, want)                                                                    \
    r = good;                                                                                      \
    r.field = (value);                                                                             \
    REFUSED(want)
    BAD(op, (mcshm_object_op)MCS_OP_WRITE, MCSHM_INVALID_ARGUMENT);
    BAD(op, (mcshm_object_op)MCS_OP_RELEASE, MCSHM_INVALID_ARGUMENT);
    BAD(op, (mcshm_object_op)-1, MCSHM_INVALID_ARGUMENT);
    BAD(op, MCSHM_CREATE, MCSHM_INVALID_ARGUMENT); /* sizes */
    BAD(op, MCSHM_SEAL, MCSHM_INVALID_ARGUMENT);   /* holds */
    BAD(flags, 0x200, MCSHM_INVALID_ARGUMENT);
    BAD(flags, MCSHM_OBJECT_RANGES, MCSHM_INVALID_ARGUMENT);
    BAD(flags, MCSHM_OBJECT_UPSERT | MCSHM_OBJECT_NEW, MCSHM_INVALID_ARGUMENT);
    BAD(priority, (mcshm_class)3, MCSHM_INVALID_ARGUMENT);
    BAD(count, 0, MCSHM_INVALID_ARGUMENT);
    BAD(count, MCSHM_KEYS_MAX + 1, MCSHM_INVALID_ARGUMENT);
    BAD(keys, NULL, MCSHM_INVALID_ARGUMENT);
    BAD(spans, NULL, MCSHM_INVALID_ARGUMENT);
    BAD(replicas, 9, MCSHM_INVALID_ARGUMENT);
    BAD(soft_pin_ms, MCS_SOFT_PIN_MAX_MS + 1, MCSHM_INVALID_ARGUMENT);
    BAD(host, "", MCSHM_INVALID_ARGUMENT);
    bad[1] = (mcshm_key){"", 0};
    BAD(keys, bad, MCSHM_BAD_KEY);
    bad[1] = (mcshm_key){long_key, sizeof(long_key)};
    BAD(keys, bad, MCSHM_BAD_KEY);
    cr_assert_not_null(strstr(mcshm_last_error(NULL), "key 1 has 4097 bytes"));
    bad[1] = (mcshm_key){long_key, SIZE_MAX};
    BAD(keys, bad, MCSHM_BAD_KEY);
    bad[1] = (mcshm_key){NULL, 5};
    BAD(keys, bad, MCSHM_INVALID_ARGUMENT);
    bad[1] = (mcshm_key){long_key, MCS_GROUP_MAX + 1};
    BAD(groups, bad, MCSHM_INVALID_ARGUMENT);
#define BAD_SPAN(where, bytes, want)                                                               \
    spans[1] = (mcshm_span){.address = (where), .size = (bytes)};                                  \
    r = good;                                                                                      \
    REFUSED(want)
    BAD_SPAN(l.memory, 0, MCSHM_INVALID_ARGUMENT);
    BAD_SPAN(NULL, 1, MCSHM_NOT_REGISTERED);
    BAD_SPAN(l.memory - 1, 1, MCSHM_NOT_REGISTERED);
    BAD_SPAN(l.memory + 1, LOCAL_SIZE, MCSHM_BAD_RANGE);
    BAD_SPAN(l.memory + 1, UINT64_MAX, MCSHM_BAD_RANGE);
    spans[1] = spans[0];
    counts[1] = UINT32_MAX;
    BAD(span_counts, counts, MCSHM_INVALID_ARGUMENT);
    counts[1] = 200; /* never fits into the area */
    BAD(span_counts, counts, MCSHM_INVALID_ARGUMENT);
    cr_assert_not_null(strstr(mcshm_last_error(NULL), "mcshm_queue_options.args_size"));
    r = good;
    r.op = MCSHM_SEAL;
    r.holds = numbers;
    r.flags = MCSHM_OBJECT_FORCE;
    REFUSED(MCSHM_INVALID_ARGUMENT);
    r = good;
    cr_assert_eq(mcshm_submit_objects(l.q, b, NULL), MCSHM_INVALID_ARGUMENT);
    cr_assert_eq(mcshm_submit_objects(NULL, b, &r), MCSHM_INVALID_ARGUMENT);
    l.c->objects = 0;
    REFUSED(MCSHM_NOT_SUPPORTED);
}

Test(object, put_lies_in_the_argument_area)
{
    mcshm_key keys[] = {{"first", 5}, {"\0/\xff", 3}, {"empty", 5}};
    mcshm_key groups[] = {{"g", 1}, {NULL, 0}, {NULL, 0}};
    uint32_t counts[] = {2, 1, 0};
    mcshm_object_request r = {.op = MCSHM_PUT,
                              .flags = MCSHM_OBJECT_UPSERT,
                              .fence = true,
                              .priority = MCSHM_CLASS_NORMAL,
                              .deadline_us = 77,
                              .keys = keys,
                              .count = 3,
                              .span_counts = counts,
                              .groups = groups,
                              .replicas = 2,
                              .soft_pin_ms = 9,
                              .position = 4,
                              .host = "h:1"};
    struct mcs_object_piece *pieces;
    struct mcs_object_result *results;
    struct mcs_object_key *k;
    struct mcs_object_args *a;
    mcshm_object_result out[3];
    mcshm_span spans[3];
    struct mcs_desc d;
    struct local l;
    mcshm_batch b;

    setup(&l, 4096);
    for (unsigned i = 0; i < 3; i++)
        spans[i] = (mcshm_span){.address = l.memory + 100 * i, .size = 10 + i, .offset = 5};
    r.spans = spans;
    b = submit(&l, &r, &d);
    cr_assert_eq(d.op, MCS_OP_PUT);
    cr_assert_eq(d.flags, MCS_DESC_FENCE);
    cr_assert_eq(d.priority, MCS_CLASS_NORMAL);
    cr_assert_eq(d.deadline_us, 77);
    cr_assert_eq(d.segment | d.extent | d.local_offset | d.remote_addr | d.length, 0);
    a = block(&l, &d);
    cr_assert_eq(a->count, 3);
    cr_assert_eq(a->npieces, 3);
    cr_assert_eq(a->flags, MCS_OBJECT_UPSERT);
    cr_assert_eq(a->replicas, 2);
    cr_assert_eq(a->soft_pin_ms, 9);
    cr_assert_eq(a->position, 4);
    cr_assert_eq((a->keys | a->pieces | a->results) % 8, 0);
    cr_assert_arr_eq(at(a, a->host), "h:1", a->host_length);
    cr_assert_eq(a->host_length, 3);
    k = at(a, a->keys);
    cr_assert_eq(k[0].length, 5);
    cr_assert_arr_eq(at(a, k[0].text), "first", 5);
    cr_assert_eq(k[0].group_length, 1);
    cr_assert_arr_eq(at(a, k[0].group), "g", 1);
    cr_assert_arr_eq(at(a, k[1].text), "\0/\xff", 3);
    cr_assert_eq(k[1].group_length, 0);
    cr_assert(k[0].first == 0 && k[0].pieces == 2 && k[1].first == 2 && k[1].pieces == 1 &&
              k[2].pieces == 0);
    pieces = at(a, a->pieces);
    for (unsigned i = 0; i < 3; i++) {
        cr_assert_eq(pieces[i].local, 100 * i);
        cr_assert_eq(pieces[i].length, 10 + i);
        cr_assert_eq(pieces[i].extent, LOCAL_EXTENT);
        cr_assert_eq(pieces[i].offset, 0, "offsets are for ranges alone");
    }
    cr_assert_eq(mcshm_object_results(l.q, b, 0, 0, out, 3), MCSHM_BUSY);
    results = at(a, a->results);
    cr_assert_leq(a->results + 3 * sizeof(*results), a->total);
    for (unsigned i = 0; i < 3; i++)
        results[i] = (struct mcs_object_result){.size = i + 1,
                                                .status = i == 1 ? MCS_EXISTS : MCS_OK,
                                                .path = MCS_PATH_LOCAL,
                                                .tier = MCS_TIER_MEMORY,
                                                .copies = 2,
                                                .hold = 99,
                                                .crc = 7,
                                                .version = 12 + i};
    local_end(&l, &d, MCS_STATE_COMPLETED, 0, 1, 0);
    cr_assert_eq(mcshm_object_results(l.q, b, 0, 0, out, 4), MCSHM_INVALID_ARGUMENT);
    cr_assert_eq(mcshm_object_results(l.q, b, 0, 4, out, 0), MCSHM_INVALID_ARGUMENT);
    cr_assert_eq(mcshm_object_results(l.q, b, 0, SIZE_MAX, out, 1), MCSHM_INVALID_ARGUMENT);
    cr_assert_eq(mcshm_object_results(l.q, b, 1, 0, out, 1), MCSHM_INVALID_ARGUMENT);
    cr_assert_eq(mcshm_object_results(l.q, b, 0, 0, NULL, 1), MCSHM_INVALID_ARGUMENT);
    cr_assert_eq(mcshm_object_results(l.q, b, 0, 1, out, 2), MCSHM_OK);
    cr_assert_eq(out[0].status, MCSHM_EXISTS);
    cr_assert_eq(out[1].version, 14);
    cr_assert_eq(out[1].copies, 2);
    cr_assert_eq(out[1].hold, 0, "a PUT holds nothing");
    cr_assert_null(out[1].address);
    cr_assert_eq(mcshm_batch_free(l.q, b), MCSHM_OK);
    cr_assert_eq(mcshm_object_results(l.q, b, 0, 0, out, 1), MCSHM_INVALID_HANDLE);
    cr_assert_eq(l.q->args.used, 0);
}

/* Results stay where they are until the batch is freed, however full the area is. */
Test(object, results_outlive_the_task_until_the_batch_is_freed)
{
    mcshm_key key = {"k", 1};
    mcshm_object_request r = {.op = MCSHM_EXIST, .keys = &key, .count = 1};
    mcshm_object_result out;
    struct mcs_desc d, unused;
    struct local l;
    mcshm_batch b, other;
    unsigned n = 0;

    setup(&l, 1024);
    b = submit(&l, &r, &d);
    *(uint8_t *)at(block(&l, &d), block(&l, &d)->results) = MCS_NOT_FOUND;
    local_end(&l, &d, MCS_STATE_COMPLETED, 0, 1, 0);
    other = local_batch(&l, 16);
    while (mcshm_submit_objects(l.q, other, &r) == MCSHM_OK) {
        cr_assert_eq(local_take(&l, &unused, 1), 1);
        local_end(&l, &unused, MCS_STATE_COMPLETED, 0, ++n, 0);
    }
    cr_assert_eq(mcshm_submit_objects(l.q, other, &r), MCSHM_ARGS_FULL);
    cr_assert_eq(mcshm_object_results(l.q, b, 0, 0, &out, 1), MCSHM_OK);
    cr_assert_eq(out.status, MCSHM_NOT_FOUND);
    cr_assert_eq(mcshm_batch_free(l.q, b), MCSHM_OK);
    cr_assert_eq(mcshm_submit_objects(l.q, other, &r), MCSHM_OK);
}

Test(object, a_task_that_failed_has_no_results)
{
    mcshm_key key = {"k", 1};
    mcshm_object_request r = {.op = MCSHM_REMOVE, .keys = &key, .count = 1};
    mcshm_object_result out = {.version = 5};
    struct mcs_desc d;
    struct local l;
    mcshm_batch b;

    setup(&l, 4096);
    b = submit(&l, &r, &d);
    local_end(&l, &d, MCS_STATE_TIMEOUT, MCS_TIMEOUT, 1, 1);
    cr_assert_eq(mcshm_object_results(l.q, b, 0, 0, &out, 1), MCSHM_TIMEOUT);
    cr_assert_eq(out.version, 5);
    r.op = MCSHM_PREFIX;
    b = submit(&l, &r, &d);
    cr_assert_eq(block(&l, &d)->results, 0);
    local_end(&l, &d, MCS_STATE_COMPLETED, 0, 1, 0);
    cr_assert_eq(mcshm_object_results(l.q, b, 0, 0, &out, 1), MCSHM_INVALID_ARGUMENT);
}

/* Offsets beyond the extent that the agent names are found out, not followed. */
Test(object, held_bytes_lie_in_their_extent)
{
    mcshm_key key = {"k", 1};
    mcshm_object_request r = {.op = MCSHM_HOLD, .keys = &key, .count = 1};
    struct mcs_object_result *result;
    struct mcl_object_map map;
    mcshm_object_result out;
    struct mcs_desc d;
    struct local l;
    mcshm_batch b;

    setup(&l, 4096);
    map = (struct mcl_object_map){.extent = 3, .base = l.memory, .size = 4096};
    l.c->object_maps = &map;
    l.c->nobject_maps = 1;
    b = submit(&l, &r, &d);
    result = at(block(&l, &d), block(&l, &d)->results);
    local_end(&l, &d, MCS_STATE_COMPLETED, 0, 1, 0);
#define RESULT(at_offset, bytes)                                                                   \
    *result = (struct mcs_object_result){                                                          \
        .size = (bytes), .offset = (at_offset), .extent = 3, .hold = 8, .status = MCS_OK}
    RESULT(64, 100);
    cr_assert_eq(mcshm_object_results(l.q, b, 0, 0, &out, 1), MCSHM_OK);
    cr_assert_eq(out.address, l.memory + 64);
    cr_assert_eq(out.hold, 8);
    RESULT(4000, 97);
    cr_assert_eq(mcshm_object_results(l.q, b, 0, 0, &out, 1), MCSHM_PROTOCOL);
    RESULT(UINT64_MAX, 97);
    cr_assert_eq(mcshm_object_results(l.q, b, 0, 0, &out, 1), MCSHM_PROTOCOL);
    RESULT(UINT64_MAX, 0);
    cr_assert_eq(mcshm_object_results(l.q, b, 0, 0, &out, 1), MCSHM_OK);
    cr_assert_null(out.address, "an empty object is nowhere");
    l.c->object_maps = NULL;
    l.c->nobject_maps = 0;
}

/* Seven to a descriptor, zeros left out; what does not fit is told. */
Test(object, releases_fill_descriptors)
{
    uint64_t holds[60];
    struct mcs_desc d[8];
    struct mcs_release release;
    struct local l;
    size_t done;

    setup(&l, 4096); /* a ring of 7 */
    for (unsigned i = 0; i < 60; i++)
        holds[i] = i % 10 == 9 ? 0 : i + 1;
    cr_assert_eq(mcshm_object_release(l.q, holds, 60, &done), MCSHM_RING_FULL);
    cr_assert_eq(local_take(&l, d, 8), 7);
    for (unsigned i = 0, next = 0; i < 7; i++) {
        memcpy(&release, &d[i], sizeof(release));
        cr_assert_eq(release.op, MCS_OP_RELEASE);
        for (unsigned k = 0; k < MCS_RELEASE_MAX; k++, next++) {
            next += holds[next] == 0;
            cr_assert_eq(release.holds[k], holds[next]);
            cr_assert_lt(next, done);
        }
    }
    cr_assert_eq(mcshm_object_release(l.q, holds + done, 60 - done, &done), MCSHM_OK);
    cr_assert_eq(local_take(&l, d, 8), 1);
    cr_assert_eq(mcshm_object_release(l.q, NULL, 0, NULL), MCSHM_OK);
    cr_assert_eq(mcshm_object_release(l.q, NULL, 1, NULL), MCSHM_INVALID_ARGUMENT);
    cr_assert_eq(local_take(&l, d, 8), 0);
}

/* ---- private memory ---------------------------------------------------------------- */

Test(object, private_memory_is_staged_piece_by_piece)
{
    uint8_t a[128], b[128];
    struct mcl_private pa = {.start = a, .size = sizeof(a), .references = 1};
    struct mcl_private pb = {.start = b, .size = sizeof(b), .references = 1};
    mcshm_key keys[] = {{"x", 1}, {"y", 1}};
    uint32_t counts[] = {2, 2};
    mcshm_span spans[4];
    mcshm_object_request r = {
        .op = MCSHM_PUT, .keys = keys, .count = 2, .spans = spans, .span_counts = counts};
    struct mcs_object_piece *pieces;
    struct mcs_object_result *results;
    mcshm_object_result out[2];
    mcshm_task_status status;
    struct mcs_desc d;
    struct local l;
    mcshm_batch batch, second;

    setup(&l, 4096);
    local_private(&l, &pa, 0);
    local_private(&l, &pb, 4096);
    for (unsigned i = 0; i < 128; i++) {
        a[i] = (uint8_t)i;
        b[i] = (uint8_t)(200 - i);
    }
    spans[0] = (mcshm_span){.address = a + 10, .size = 20};
    spans[1] = (mcshm_span){.address = l.memory + 8192, .size = 30};
    spans[2] = (mcshm_span){.address = b, .size = 40};
    spans[3] = (mcshm_span){.address = a + 60, .size = 50};
    batch = submit(&l, &r, &d);
    pieces = at(block(&l, &d), block(&l, &d)->pieces);
    cr_assert_eq(pieces[0].local, 10);
    cr_assert_eq(pieces[1].local, 8192);
    cr_assert_eq(pieces[2].local, 4096);
    cr_assert_eq(pieces[3].local, 60);
    cr_assert_arr_eq(l.memory + 10, a + 10, 20);
    cr_assert_arr_eq(l.memory + 4096, b, 40);
    cr_assert_arr_eq(l.memory + 60, a + 60, 50);
    cr_assert_neq(pa.tasks, 0);
    results = at(block(&l, &d), block(&l, &d)->results);
    results[0] = results[1] = (struct mcs_object_result){.path = MCS_PATH_LOCAL};
    local_end(&l, &d, MCS_STATE_COMPLETED, 0, 1, 0);
    cr_assert_eq(mcshm_batch_wait(l.q, batch, 0), MCSHM_OK);
    cr_assert_eq(pa.tasks | pb.tasks, 0);
    cr_assert_eq(mcshm_object_results(l.q, batch, 0, 0, out, 2), MCSHM_OK);
    cr_assert_eq(out[1].path, MCSHM_PATH_STAGED);
    cr_assert_eq(mcshm_task_poll(l.q, batch, 0, &status), MCSHM_OK);
    cr_assert_eq(status.path, MCSHM_PATH_STAGED);

    /* and back: 25 bytes of the first, nothing of the second */
    memset(a, 0xee, sizeof(a));
    memset(b, 0xee, sizeof(b));
    spans[1] = (mcshm_span){.address = b + 64, .size = 30};
    r.op = MCSHM_GET;
    batch = submit(&l, &r, &d);
    memset(l.memory, 0x11, 8192);
    results = at(block(&l, &d), block(&l, &d)->results);
    results[0] = (struct mcs_object_result){.size = 25};
    results[1] = (struct mcs_object_result){.size = 90, .status = MCS_NOT_FOUND};
    r.op = MCSHM_PUT; /* what is still to be filled cannot be sent */
    second = local_batch(&l, 1);
    cr_assert_eq(mcshm_submit_objects(l.q, second, &r), MCSHM_BUSY);
    local_end(&l, &d, MCS_STATE_COMPLETED, 0, 1, 0);
    cr_assert_eq(a[10], 0xee, "not before it is polled");
    cr_assert_eq(mcshm_batch_poll(l.q, batch, NULL), MCSHM_OK);
    for (unsigned i = 0; i < 128; i++) {
        cr_assert_eq(a[i], i >= 10 && i < 30 ? 0x11 : 0xee, "a[%u]", i);
        cr_assert_eq(b[i], i >= 64 && i < 69 ? 0x11 : 0xee, "b[%u]", i);
    }
    cr_assert_eq(pa.tasks | pb.tasks | l.q->staged_reads, 0);
    cr_assert_eq(mcshm_submit_objects(l.q, second, &r), MCSHM_OK);
}

Test(object, ranges_come_back_each_for_itself)
{
    uint8_t a[64];
    struct mcl_private pa = {.start = a, .size = sizeof(a), .references = 1};
    mcshm_key key = {"x", 1};
    uint32_t count = 2;
    mcshm_span spans[] = {{.address = a, .size = 8, .offset = 1000},
                          {.address = a + 32, .size = 4, .offset = 3}};
    mcshm_object_request r = {.op = MCSHM_GET,
                              .flags = MCSHM_OBJECT_RANGES,
                              .keys = &key,
                              .count = 1,
                              .spans = spans,
                              .span_counts = &count};
    struct mcs_object_piece *pieces;
    struct mcs_desc d;
    struct local l;
    mcshm_batch b;

    setup(&l, 4096);
    local_private(&l, &pa, 0);
    memset(a, 0xee, sizeof(a));
    b = submit(&l, &r, &d);
    pieces = at(block(&l, &d), block(&l, &d)->pieces);
    cr_assert_eq(pieces[0].offset, 1000);
    cr_assert_eq(pieces[1].offset, 3);
    memset(l.memory, 0x11, 64);
    *(struct mcs_object_result *)at(block(&l, &d), block(&l, &d)->results) =
        (struct mcs_object_result){.size = 1008};
    local_end(&l, &d, MCS_STATE_COMPLETED, 0, 1, 0);
    cr_assert_eq(mcshm_batch_free(l.q, b), MCSHM_OK);
    for (unsigned i = 0; i < 64; i++)
        cr_assert_eq(a[i], i < 8 || (i >= 32 && i < 36) ? 0x11 : 0xee, "a[%u]", i);
}

/* One call that waits: canceled in time, and what an agent does not even answer is taken up later. */
Test(object, a_call_that_takes_too_long_is_canceled)
{
    mcshm_key key = {"k", 1};
    mcshm_object_request r = {.op = MCSHM_EXIST, .keys = &key, .count = 1};
    mcshm_object_result out;
    mcshm_task_status status;
    struct mcs_desc d[2];
    struct local l;

    setup(&l, 4096);
    l.c->control_timeout_ms = 20;
    cr_assert_eq(mcshm_objects(l.q, &r, &out, &status, 1000), MCSHM_TIMEOUT);
    cr_assert_eq(local_take(&l, d, 2), 2);
    cr_assert_eq(d[1].op, MCS_OP_CANCEL);
    cr_assert_eq(d[1].slot, d[0].slot);
    cr_assert_eq(l.q->nfree, l.q->shm.slots - 1);
    local_end(&l, &d[0], MCS_STATE_CANCELED, MCS_CANCELED, 1, 1);
    cr_assert_eq(mcshm_objects(l.q, &r, &out, &status, 1000), MCSHM_TIMEOUT);
    cr_assert_eq(l.q->nabandoned, 1);
    cr_assert_eq(l.q->nfree, l.q->shm.slots - 1, "the first one's slot is free again");
    r.op = MCSHM_PREFIX;
    cr_assert_eq(mcshm_objects(l.q, &r, &out, NULL, 1000), MCSHM_INVALID_ARGUMENT);
    r.op = MCSHM_HOLD;
    cr_assert_eq(mcshm_objects(l.q, &r, NULL, NULL, 1000), MCSHM_INVALID_ARGUMENT);
}

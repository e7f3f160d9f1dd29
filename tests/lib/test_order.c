/* SPDX-License-Identifier: Apache-2.0 */
/* Requests on GPU memory, and with gates: what is refused, and what the agent gets to read. No driver. */
#include "local.h"
#include "shm/object.h"

#define GPU_EXTENT 9u
#define GPU_SIZE 65536u

/* Suites' fini goes by local_last. */
static uint8_t *gpu;

static void teardown(void)
{
    if (gpu != NULL)
        munmap(gpu, GPU_SIZE);
    gpu = NULL;
    local_teardown();
}

TestSuite(order, .timeout = 10, .fini = teardown);

/* An extent of device memory, as it is for the CPU: whoever touches it dies. */
static void setup(struct local *l)
{
    local_setup(l, 8, 8, 4, 4096);
    gpu = mmap(NULL, GPU_SIZE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    cr_assert_neq(gpu, MAP_FAILED);
    l->c->extents[l->c->nextents++] = (struct mcl_extent){.handle = GPU_EXTENT,
                                                          .gpu = true,
                                                          .fd = -1,
                                                          .base = gpu,
                                                          .size = GPU_SIZE,
                                                          .map_size = GPU_SIZE};
    cr_assert_eq(mcl_view_update(l->c, NULL), 0);
}

static mcshm_request gpu_request(uint64_t length)
{
    return (mcshm_request){.opcode = MCSHM_WRITE,
                           .local = gpu + 256,
                           .segment = LOCAL_SEGMENT,
                           .remote_address = 0x1000,
                           .length = length};
}

static void assert_refused(struct local *l, const mcshm_request *r, mcshm_status want)
{
    mcshm_batch b = local_batch(l, 1);
    struct mcs_desc d;

    cr_assert_eq(mcshm_submit(l->q, b, r, 1), want, "%s", mcshm_last_error(l->c));
    cr_assert_eq(local_take(l, &d, 1), 0);
    cr_assert_eq(l->q->nfree, l->q->shm.slots);
    cr_assert_eq(l->q->args.used, 0);
    cr_assert_eq(mcshm_batch_free(l->q, b), MCSHM_OK);
}

Test(order, gpu_memory_without_an_order_is_refused)
{
    mcshm_piece piece = {0, 0, 64};
    mcshm_stride stride = {2, 8, 16, 16};
    mcshm_order none = {0}, only_after = {0};
    mcshm_request r;
    struct local l;
    mcshm_batch b;

    setup(&l);
    r = gpu_request(64);
    assert_refused(&l, &r, MCSHM_GPU_ORDER);
    r.opcode = MCSHM_READ;
    assert_refused(&l, &r, MCSHM_GPU_ORDER);
    r.order = &none;
    assert_refused(&l, &r, MCSHM_GPU_ORDER);
    only_after.signal = (uint32_t *)(void *)l.memory;
    r.order = &only_after;
    assert_refused(&l, &r, MCSHM_GPU_ORDER);
    r.order = NULL;
    b = local_batch(&l, 2);
    cr_assert_eq(mcshm_submit_list(l.q, b, &r, &piece, 1), MCSHM_GPU_ORDER);
    cr_assert_eq(mcshm_submit_stride(l.q, b, &r, &stride), MCSHM_GPU_ORDER);
    r.flags = MCSHM_GPU_SYNCED;
    cr_assert_eq(mcshm_submit(l.q, b, &r, 1), MCSHM_OK);
}

Test(order, synced_gpu_memory_goes_to_the_agent)
{
    struct mcs_desc d;
    mcshm_request r;
    struct local l;

    setup(&l);
    r = gpu_request(64);
    r.flags = MCSHM_GPU_SYNCED | MCSHM_FENCE;
    (void)local_submit_taken(&l, 1, &r, &d);
    cr_assert_eq(d.flags, MCS_DESC_SYNCED | MCS_DESC_FENCE);
    cr_assert(d.extent == GPU_EXTENT && d.local_offset == 256 && d.args == MCS_ARGS_NONE);
}

static const struct mcs_args *args_of(struct local *l, const struct mcs_desc *d)
{
    cr_assert_neq(d->args, MCS_ARGS_NONE);
    return (const void *)(l->q->shm.args + (uint64_t)d->args * MCS_LINE);
}

static void assert_gate(const struct mcs_args *a, unsigned index, uint64_t offset, uint32_t value)
{
    const struct mcs_gate *g = (const void *)((const uint8_t *)a + a->gates);

    cr_assert_eq(a->gates % 8, 0);
    cr_assert_leq(a->gates + (index + 1) * sizeof(*g), a->total);
    cr_assert(g[index].extent == LOCAL_EXTENT && g[index].offset == offset &&
              g[index].value == value);
}

Test(order, gates_lie_in_the_arguments)
{
    mcshm_order o = {.wait_value = 7, .signal_value = UINT32_MAX};
    const struct mcs_args *a;
    struct mcs_desc d;
    mcshm_request r;
    struct local l;

    setup(&l);
    o.wait = (const uint32_t *)(void *)(l.memory + 128);
    o.signal = (uint32_t *)(void *)(l.memory + LOCAL_SIZE - 4);
    r = gpu_request(64);
    r.order = &o;
    (void)local_submit_taken(&l, 1, &r, &d);
    cr_assert_eq(d.flags, MCS_DESC_WAIT | MCS_DESC_SIGNAL);
    a = args_of(&l, &d);
    cr_assert(a->count == 0 && a->name_length == 0);
    assert_gate(a, 0, 128, 7);
    assert_gate(a, 1, LOCAL_SIZE - 4, UINT32_MAX);

    o.wait = NULL;
    r.flags = MCSHM_GPU_SYNCED;
    (void)local_submit_taken(&l, 1, &r, &d);
    cr_assert_eq(d.flags, MCS_DESC_SYNCED | MCS_DESC_SIGNAL);
    assert_gate(args_of(&l, &d), 0, LOCAL_SIZE - 4, UINT32_MAX);
}

Test(order, gates_lie_between_pieces_and_notification)
{
    mcshm_notification n = {.name = "abc", .name_size = 3, .message = "defgh", .message_size = 5};
    mcshm_piece pieces[3] = {{0, 0, 8}, {8, 8, 8}, {16, 16, 8}};
    mcshm_order o = {.wait_value = 5};
    const struct mcs_args *a;
    struct mcs_desc d;
    mcshm_request r;
    struct local l;
    mcshm_batch b;

    setup(&l);
    o.wait = (const uint32_t *)(void *)l.memory;
    r = gpu_request(0);
    r.flags = MCSHM_NOTIFY;
    r.notify = &n;
    r.order = &o;
    b = local_batch(&l, 1);
    cr_assert_eq(mcshm_submit_list(l.q, b, &r, pieces, 3), MCSHM_OK);
    cr_assert_eq(local_take(&l, &d, 1), 1);
    a = args_of(&l, &d);
    cr_assert_eq(a->count, 3);
    cr_assert_eq(memcmp((const uint8_t *)a + a->pieces, pieces, sizeof(pieces)), 0);
    cr_assert_eq(a->gates, a->pieces + sizeof(pieces));
    assert_gate(a, 0, 0, 5);
    cr_assert_eq(a->notify, a->gates + sizeof(struct mcs_gate));
    cr_assert_eq(memcmp((const uint8_t *)a + a->notify, "abcdefgh", 8), 0);
    cr_assert_eq(a->total, a->notify + 8);
}

Test(order, each_request_has_its_own)
{
    mcshm_order o = {.wait_value = 1};
    mcshm_request r[3];
    struct mcs_desc d[3];
    struct local l;
    mcshm_batch b;

    setup(&l);
    o.wait = (const uint32_t *)(void *)l.memory;
    r[0] = r[1] = r[2] = local_request(&l, 8);
    r[1].order = &o;
    b = local_batch(&l, 3);
    cr_assert_eq(mcshm_submit(l.q, b, r, 3), MCSHM_OK);
    cr_assert_eq(local_take(&l, d, 3), 3);
    cr_assert(d[0].flags == 0 && d[0].args == MCS_ARGS_NONE);
    cr_assert_eq(d[1].flags, MCS_DESC_WAIT);
    assert_gate(args_of(&l, &d[1]), 0, 0, 1);
    cr_assert(d[2].flags == 0 && d[2].args == MCS_ARGS_NONE);
}

Test(order, a_notification_may_wait)
{
    mcshm_notification n = {.name = "n", .name_size = 1};
    mcshm_order o = {.wait_value = 3};
    struct mcs_desc d;
    mcshm_request r;
    struct local l;
    mcshm_batch b;

    setup(&l);
    o.wait = (const uint32_t *)(void *)(l.memory + 64);
    r = (mcshm_request){.segment = LOCAL_SEGMENT, .notify = &n, .order = &o};
    b = local_batch(&l, 1);
    cr_assert_eq(mcshm_submit_notify(l.q, b, &r), MCSHM_OK);
    cr_assert_eq(local_take(&l, &d, 1), 1);
    cr_assert(d.op == MCS_OP_NOTIFY && d.flags == MCS_DESC_WAIT);
    assert_gate(args_of(&l, &d), 0, 64, 3);
}

Test(order, words_that_are_no_gates_are_refused)
{
    static uint32_t aside;
    static uint8_t private_memory[4096];
    struct mcl_private p = {.start = private_memory, .size = sizeof(private_memory)};
    mcshm_order o = {0};
    mcshm_request r;
    struct local l;

    setup(&l);
    local_private(&l, &p, 8192);
    r = local_request(&l, 8);
    r.order = &o;
#define BAD(field, word, want)                                                                     \
    o = (mcshm_order){.field = (uint32_t *)(void *)(word)};                                        \
    assert_refused(&l, &r, want)
    BAD(wait, l.memory + 2, MCSHM_INVALID_ARGUMENT);
    BAD(signal, l.memory + 1, MCSHM_INVALID_ARGUMENT);
    BAD(wait, &aside, MCSHM_NOT_REGISTERED);
    BAD(signal, l.memory + LOCAL_SIZE, MCSHM_NOT_REGISTERED);
    BAD(wait, gpu, MCSHM_NOT_SUPPORTED);
    BAD(signal, gpu, MCSHM_NOT_SUPPORTED);
    BAD(wait, private_memory, MCSHM_NOT_SUPPORTED);
#undef BAD
    /* private memory is copied when it is submitted and when it is polled: no gate holds then */
    o = (mcshm_order){.wait = (const uint32_t *)(void *)l.memory};
    r.local = private_memory;
    assert_refused(&l, &r, MCSHM_NOT_SUPPORTED);
    o = (mcshm_order){.signal = (uint32_t *)(void *)l.memory};
    assert_refused(&l, &r, MCSHM_NOT_SUPPORTED);
    l.c->privates = NULL;
}

/* Targets of one's own that small copies could go to: host memory takes them, GPU memory never. */
Test(order, nothing_of_a_gpu_is_copied_in_the_callers_thread)
{
    struct mcl_buffer buffers[2];
    struct mcl_segment segment = {.handle = LOCAL_SEGMENT, .own = true};
    mcshm_order o = {0};
    struct mcs_desc d;
    mcshm_request r;
    mcshm_stats s;
    struct local l;

    setup(&l);
    buffers[0] = (struct mcl_buffer){.start = l.memory + 4096,
                                     .size = 4096,
                                     .address = 0x1000,
                                     .access = MCS_ACCESS_READ | MCS_ACCESS_WRITE};
    buffers[1] = (struct mcl_buffer){.start = gpu,
                                     .size = 4096,
                                     .address = 0x100000,
                                     .access = MCS_ACCESS_READ | MCS_ACCESS_WRITE,
                                     .gpu = true};
    l.c->buffers = buffers;
    l.c->nbuffers = 2;
    l.c->segments = &segment;
    l.c->nsegments = 1;
    l.q->caller_max = 4096;
    cr_assert_eq(mcl_view_update(l.c, NULL), 0);

    r = local_request(&l, 64);
    (void)local_submit(&l, 1, &r);
    cr_assert_eq(mcshm_get_stats(l.c, &s), MCSHM_OK);
    cr_assert_eq(s.caller_tasks, 1, "the test's own setting");
    r.remote_address = 0x100000;
    (void)local_submit_taken(&l, 1, &r, &d);
    r = gpu_request(64);
    r.flags = MCSHM_GPU_SYNCED;
    (void)local_submit_taken(&l, 1, &r, &d);
    /* nor what is to wait */
    r = local_request(&l, 64);
    o.wait = (const uint32_t *)(void *)l.memory;
    r.order = &o;
    (void)local_submit_taken(&l, 1, &r, &d);
    cr_assert_eq(mcshm_get_stats(l.c, &s), MCSHM_OK);
    cr_assert_eq(s.caller_tasks, 1);
    l.c->nbuffers = l.c->nsegments = 0;
    l.c->buffers = NULL;
    l.c->segments = NULL;
}

Test(order, objects_in_gpu_memory_need_one)
{
    mcshm_key key = {.bytes = "k", .size = 1};
    mcshm_span spans[2] = {{.size = 64}, {.size = 100}};
    uint32_t counts[1] = {2};
    mcshm_order only_after = {0};
    mcshm_object_request r = {
        .op = MCSHM_PUT, .keys = &key, .count = 1, .spans = spans, .span_counts = counts};
    const struct mcs_object_args *a;
    const struct mcs_object_piece *p;
    struct mcs_desc d;
    struct local l;
    mcshm_batch b;

    setup(&l);
    mcs_store_relaxed(&l.c->objects, 1u);
    spans[0].address = l.memory;
    spans[1].address = gpu + 256;
    b = local_batch(&l, 1);
    only_after.signal = (uint32_t *)(void *)l.memory;
    for (unsigned i = 0; i < 2; i++) {
        r.order = i == 0 ? NULL : &only_after;
        cr_assert_eq(mcshm_submit_objects(l.q, b, &r), MCSHM_GPU_ORDER);
        cr_assert_not_null(strstr(mcshm_last_error(l.c), "span 1"));
        cr_assert_eq(local_take(&l, &d, 1), 0);
        cr_assert_eq(l.q->args.used, 0);
    }
    r.order = NULL;
    r.gpu_synced = true;
    r.fence = true;
    cr_assert_eq(mcshm_submit_objects(l.q, b, &r), MCSHM_OK);
    cr_assert_eq(local_take(&l, &d, 1), 1);
    cr_assert_eq(d.flags, MCS_DESC_FENCE | MCS_DESC_SYNCED);
    a = (const void *)args_of(&l, &d);
    p = (const void *)((const uint8_t *)a + a->pieces);
    cr_assert_eq(a->gates, 0u);
    cr_assert(p[1].extent == GPU_EXTENT && p[1].local == 256 && p[1].length == 100);
}

Test(order, requests_about_objects_have_gates)
{
    mcshm_key key = {.bytes = "key", .size = 3};
    mcshm_span span = {.size = 64};
    mcshm_order o = {.wait_value = 7, .signal_value = 8};
    mcshm_object_request r = {
        .op = MCSHM_GET, .keys = &key, .count = 1, .spans = &span, .order = &o};
    const struct mcs_object_args *a;
    const struct mcs_gate *g;
    struct mcs_desc d;
    struct local l;
    mcshm_batch b;

    setup(&l);
    mcs_store_relaxed(&l.c->objects, 1u);
    span.address = gpu;
    o.wait = (const uint32_t *)(void *)(l.memory + 128);
    o.signal = (uint32_t *)(void *)(l.memory + 64);
    b = local_batch(&l, 2);
    cr_assert_eq(mcshm_submit_objects(l.q, b, &r), MCSHM_OK);
    cr_assert_eq(local_take(&l, &d, 1), 1);
    cr_assert_eq(d.flags, MCS_DESC_WAIT | MCS_DESC_SIGNAL);
    a = (const void *)args_of(&l, &d);
    cr_assert_eq(a->gates % 8, 0u);
    cr_assert_leq(a->gates + 2 * sizeof(*g), a->total);
    g = (const void *)((const uint8_t *)a + a->gates);
    cr_assert(g[0].extent == LOCAL_EXTENT && g[0].offset == 128 && g[0].value == 7);
    cr_assert(g[1].extent == LOCAL_EXTENT && g[1].offset == 64 && g[1].value == 8);
    cr_assert_arr_eq(
        (const uint8_t *)a +
            ((const struct mcs_object_key *)(const void *)((const uint8_t *)a + a->keys))->text,
        "key", 3);
    /* a gate in GPU memory is none */
    o.signal = (uint32_t *)(void *)gpu;
    cr_assert_eq(mcshm_submit_objects(l.q, b, &r), MCSHM_NOT_SUPPORTED);
}

/* Registered as private memory it would be read by a thread. */
Test(order, what_the_host_cannot_read_is_no_private_memory)
{
    struct local l;

    setup(&l);
    l.c->nextents--;
    cr_assert_eq(mcl_view_update(l.c, NULL), 0);
    cr_assert_eq(mcshm_register(l.c, gpu, 4096), MCSHM_INVALID_ARGUMENT);
    cr_assert_eq(mprotect(gpu, 4096, PROT_READ | PROT_WRITE), 0);
    cr_assert_eq(mcshm_register(l.c, gpu, 8192), MCSHM_INVALID_ARGUMENT);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Calls to the GPU driver: opened when first asked, in order within a session, none waiting for another's, nothing left behind. */
#include "cuda_rig.h"

#include <fcntl.h>
#include <dirent.h>

static unsigned threads(void)
{
    DIR *dir = opendir("/proc/self/task");
    unsigned n = 0;

    cr_assert_not_null(dir);
    while (readdir(dir) != NULL)
        n++;
    closedir(dir);
    return n;
}

Test(cuda_calls, before_the_first_call_there_is_no_driver_and_no_thread)
{
    struct rig r;
    uint64_t calls;
    unsigned n;

    fake = fake_cuda_begin();
    cr_assert_not_null(fake);
    n = threads();
    calls = fake_cuda_calls(fake, getpid(), "cuInit");
    rig_create(&r, 2, 0);
    cr_assert_not(mct_cuda_poll(r.cuda));
    cr_assert_null(mct_cuda_device_get(r.cuda, 0));
    cr_assert_eq(mct_cuda_driver_version(r.cuda), 0);
    cr_assert_eq(threads(), n);
    cr_assert_eq(fake_cuda_calls(fake, getpid(), "cuInit"), calls);
    rig_destroy(&r);
}

Test(cuda_calls, opening_finds_the_devices_and_makes_no_context)
{
    const struct mct_cuda_device *d;
    struct mcs_gpu_id none = {{1}};
    struct rig r;

    rig_create(&r, 2, 0);
    cr_assert_eq(rig_open(&r), MCS_OK);
    cr_assert_eq(mct_cuda_driver_version(r.cuda), 13000);
    for (unsigned i = 0; i < 2; i++) {
        d = mct_cuda_device_get(r.cuda, i);
        cr_assert_not_null(d);
        cr_expect(strstr(d->name, "no hardware") != NULL, "%s", d->name);
        cr_expect(d->vmm && d->posix_handles && !d->mig && !d->exclusive && d->lost == 0);
        cr_expect_eq(d->granularity, 2 * MIB);
        cr_expect_gt(d->total, 2 * MIB);
        cr_expect_eq(d->peers, 1u << (1 - i));
        cr_expect_eq(mct_cuda_device_find(r.cuda, &d->id), (int)i);
    }
    cr_assert_null(mct_cuda_device_get(r.cuda, 2));
    cr_assert_eq(mct_cuda_device_find(r.cuda, &none), -1);
    cr_assert_eq(rig_open(&r), MCS_OK, "again");
    cr_assert_eq(rig_count(FAKE_CONTEXTS), r.before[FAKE_CONTEXTS]);
    cr_assert_eq(mct_cuda_stats(r.cuda)->contexts, 0);
    rig_destroy(&r);
}

Test(cuda_calls, a_context_is_made_on_the_device_that_is_used_and_on_no_other)
{
    const struct fake_process *p;
    struct mct_cuda_call a, b;
    struct rig r;
    uint8_t *host = aligned_alloc(4096, 8192);

    rig_create(&r, 2, 0);
    cr_assert_eq(rig_open(&r), MCS_OK);
    a = rig_make(&r, 1, 2 * MIB);
    b = rig_make(&r, 1, 4 * MIB);
    rig_pin(&r, host, 8192, true); /* for device 0, too, but it needs none there */
    p = fake_cuda_process(fake, getpid());
    cr_assert_eq(mcs_load_relaxed(&p->counts[0][FAKE_CONTEXTS]), 0);
    cr_assert_eq(mcs_load_relaxed(&p->counts[1][FAKE_CONTEXTS]), 1);
    cr_assert_eq(mcs_load_relaxed(&p->counts[1][FAKE_RETAINS]), 1);
    cr_assert_eq(mct_cuda_stats(r.cuda)->contexts, 1);
    cr_assert_eq(mct_cuda_stats(r.cuda)->registered_bytes, 8192);
    cr_assert_eq(mct_cuda_memory_device(a.memory), 1);
    rig_pin(&r, host, 8192, false);
    cr_assert_eq(mct_cuda_stats(r.cuda)->registered_bytes, 0);
    cr_assert_eq(rig_free(&r, a.memory), MCS_OK);
    cr_assert_eq(rig_free(&r, b.memory), MCS_OK);
    rig_destroy(&r);
    free(host);
}

Test(cuda_calls, memory_lies_where_it_is_wanted_and_holds_zeros)
{
    struct mct_cuda_call call, again;
    struct rig_port p;
    struct rig r;
    uint8_t *bytes = malloc(2 * MIB);
    uint64_t at;

    rig_create(&r, 2, 0);
    cr_assert_eq(rig_open(&r), MCS_OK);
    rig_port_open(&r, &p);
    call = rig_make(&r, 0, 2 * MIB);
    at = call.address;
    memset(bytes, 0x5a, 2 * MIB);
    rig_write(&p, 0, at, bytes, 2 * MIB);
    cr_assert_eq(rig_free(&r, call.memory), MCS_OK);
    again = (struct mct_cuda_call){.kind = MCT_CUDA_MAKE, .device = 0, .size = 2 * MIB, .hint = at};
    cr_assert_eq(rig_call(&r, &again), MCS_OK, "%s", again.text);
    cr_assert_eq(again.address, at);
    cr_assert_geq(again.fd, 0);
    close(again.fd);
    memset(bytes, 0x5a, 2 * MIB);
    rig_read(&p, 0, bytes, again.address, 2 * MIB);
    for (uint64_t i = 0; i < 2 * MIB; i++)
        cr_assert_eq(bytes[i], 0, "byte %llu is %u", (unsigned long long)i, bytes[i]);
    cr_assert_eq(rig_free(&r, again.memory), MCS_OK);
    rig_port_close(&p);
    rig_destroy(&r);
    free(bytes);
}

Test(cuda_calls, what_cannot_be_is_refused_with_the_value_and_the_limit)
{
    struct mct_cuda_call call = {.kind = MCT_CUDA_MAKE, .device = 0, .size = 3 * MIB};
    struct mct_cuda_call made, b;
    struct rig r;

    rig_create(&r, 2, 0);
    cr_assert_eq(rig_call(&r, &call), MCS_NO_GPU, "before it was opened");
    cr_assert_eq(rig_open(&r), MCS_OK);
    cr_assert_eq(rig_call(&r, &call), MCS_INVALID_ARGUMENT);
    cr_expect(strstr(call.text, "3145728") && strstr(call.text, "2097152"), "%s", call.text);
    call.size = 0;
    cr_assert_eq(rig_call(&r, &call), MCS_INVALID_ARGUMENT);
    call.size = 2 * MIB;
    call.device = 2;
    cr_assert_eq(rig_call(&r, &call), MCS_NO_GPU);
    call.device = 1;
    call.size = UINT64_C(1) << 50;
    cr_assert_eq(rig_call(&r, &call), MCS_NO_MEMORY);
    cr_expect(strstr(call.text, "GPU-") && strstr(call.text, "FAKE GPU 1") &&
                  strstr(call.text, "CUDA_ERROR_OUT_OF_MEMORY") &&
                  strstr(call.text, "1125899906842624"),
              "%s", call.text);
    cr_assert_null(call.memory);
    cr_assert_eq(call.fd, -1);

    made = rig_make(&r, 1, 4 * MIB);
    b = (struct mct_cuda_call){
        .kind = MCT_CUDA_DMABUF, .memory = made.memory, .offset = 2 * MIB, .size = 4 * MIB};
    cr_assert_eq(rig_call(&r, &b), MCS_BAD_RANGE);
    b.size = 1000;
    cr_assert_eq(rig_call(&r, &b), MCS_BAD_RANGE);
    b.offset = UINT64_MAX - 4095;
    b.size = 8192;
    cr_assert_eq(rig_call(&r, &b), MCS_BAD_RANGE);
    b.offset = 0;
    cr_assert_eq(rig_call(&r, &b), MCS_OK, "%s", b.text);
    cr_assert_geq(b.fd, 0);
    close(b.fd);
    b = (struct mct_cuda_call){.kind = MCT_CUDA_EXPORT, .memory = made.memory};
    cr_assert_eq(rig_call(&r, &b), MCS_OK, "%s", b.text);
    cr_assert_geq(b.fd, 0);
    close(b.fd);
    cr_assert_eq(rig_free(&r, made.memory), MCS_OK);
    cr_assert_geq(mct_cuda_stats(r.cuda)->failed_calls, 8);
    rig_destroy(&r);
}

Test(cuda_calls, a_device_that_is_given_no_access_is_no_reason_to_have_no_memory)
{
    uint8_t *bytes = malloc(2 * MIB), *back = malloc(2 * MIB);
    struct mct_cuda_call memory[2];
    struct mct_cuda_piece piece;
    struct mct_cuda_job j;
    struct rig_port p;
    struct rig r;

    rig_create(&r, 2, 0);
    cr_assert_eq(rig_open(&r), MCS_OK);
    rig_port_open(&r, &p);
    /* for both devices at once, and then for device 1 alone, which has failed and nobody knows it */
    fake_cuda_arm(fake, 0, "cuMemSetAccess", FAKE_FAIL, CUDA_ERROR_DEVICE_UNAVAILABLE, 1, 1);
    fake_cuda_arm(fake, 1, "cuMemSetAccess", FAKE_FAIL, CUDA_ERROR_DEVICE_UNAVAILABLE, 2, 1);
    memory[0] = rig_make(&r, 0, 2 * MIB);
    cr_assert_eq(mcs_load_relaxed(&fake->rules[1].acted), 1);
    fake_cuda_disarm(fake);
    cr_assert_eq(mcs_load_relaxed(&mct_cuda_stats(r.cuda)->unreached), 1);
    cr_assert_eq(mcs_load_relaxed(&rig_lines[MCT_CUDA_LOG_WARNING]), 1);
    cr_expect(strstr(rig_line, "FAKE GPU 1") != NULL && strstr(rig_line, "device 0") != NULL, "%s",
              rig_line);
    memory[1] = rig_make(&r, 1, 2 * MIB);
    cr_assert_eq(mcs_load_relaxed(&rig_lines[MCT_CUDA_LOG_WARNING]), 1, "%s", rig_line);
    /* what copies from it must not touch the other one's memory */
    rig_pattern(bytes, 2 * MIB, 3);
    rig_write(&p, 1, memory[1].address, bytes, 2 * MIB);
    piece = (struct mct_cuda_piece){
        .to = memory[0].address, .from = memory[1].address, .length = 2 * MIB};
    j = (struct mct_cuda_job){
        .to_device = 0, .from_device = 1, .strict = true, .n = 1, .pieces = &piece};
    rig_post(&p, &j);
    cr_assert_eq(rig_take(&p), &j);
    cr_assert_eq(j.status, MCS_STRICT);
    j.strict = false;
    rig_post(&p, &j);
    cr_assert_eq(rig_take(&p), &j);
    cr_assert(j.status == MCS_OK && j.staged);
    rig_read(&p, 0, back, memory[0].address, 2 * MIB);
    cr_assert_eq(memcmp(bytes, back, 2 * MIB), 0);
    /* the other way nothing has changed */
    cr_assert_eq(rig_copy(&p, 1, memory[1].address, 0, memory[0].address, MIB, false), MCS_OK);
    for (unsigned i = 0; i < 2; i++)
        cr_assert_eq(rig_free(&r, memory[i].memory), MCS_OK);
    rig_port_close(&p);
    rig_destroy(&r);
    free(bytes);
    free(back);
}

/* ---- failures -------------------------------------------------------------------------------------- */

/* Opens, makes, exports, pins and frees; whatever has failed, what was made before is freed. */
static void everything(struct rig *r)
{
    static uint8_t host[8192] __attribute__((aligned(4096)));
    struct mct_cuda_call make = {.kind = MCT_CUDA_MAKE, .device = 1, .size = 2 * MIB};
    struct mct_cuda_call call;

    if (rig_open(r) != MCS_OK)
        return;
    if (rig_call(r, &make) == MCS_OK) {
        close(make.fd);
        call = (struct mct_cuda_call){.kind = MCT_CUDA_EXPORT, .memory = make.memory};
        if (rig_call(r, &call) == MCS_OK)
            close(call.fd);
        call = (struct mct_cuda_call){.kind = MCT_CUDA_DMABUF, .memory = make.memory, .size = 4096};
        if (rig_call(r, &call) == MCS_OK)
            close(call.fd);
    } else {
        cr_expect_null(make.memory);
        cr_expect_eq(make.fd, -1);
        cr_expect_neq(make.text[0], '\0');
    }
    call = (struct mct_cuda_call){
        .kind = MCT_CUDA_PIN, .device = 1, .host = host, .size = sizeof(host)};
    if (rig_call(r, &call) == MCS_OK) {
        call.kind = MCT_CUDA_UNPIN;
        cr_expect_eq(rig_call(r, &call), MCS_OK);
    }
    if (make.memory != NULL)
        cr_expect_eq(rig_free(r, make.memory), MCS_OK);
}

Test(cuda_calls, whichever_call_of_the_driver_fails_nothing_is_left_behind)
{
    static const char *const names[] = {
        "cuDeviceGet",
        "cuDeviceGetUuid_v2",
        "cuDeviceGetName",
        "cuDeviceTotalMem_v2",
        "cuMemGetAllocationGranularity",
        "cuDevicePrimaryCtxRetain",
        "cuStreamCreate",
        "cuEventCreate",
        "cuMemAddressReserve",
        "cuMemCreate",
        "cuMemMap",
        "cuMemSetAccess",
        "cuMemsetD32Async",
        "cuStreamSynchronize",
        "cuMemExportToShareableHandle",
        "cuMemGetHandleForAddressRange",
        "cuMemHostRegister_v2",
    };
    struct rig r;

    for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        uint64_t acted = 1, n = 0;

        for (n = 1; acted != 0; n++) {
            rig_create(&r, 3, 0);
            fake_cuda_arm(fake, 0, names[i], FAKE_FAIL, CUDA_ERROR_UNKNOWN, n, 1);
            everything(&r);
            acted = mcs_load_relaxed(&fake->rules[0].acted);
            fake_cuda_disarm(fake);
            rig_destroy(&r);
        }
        cr_expect_gt(n, 2, "%s was never called", names[i]);
    }
}

Test(cuda_calls, a_device_that_failed_at_its_first_use_is_used_later)
{
    struct mct_cuda_call call = {.kind = MCT_CUDA_MAKE, .device = 0, .size = 2 * MIB};
    struct rig r;

    rig_create(&r, 2, 0);
    cr_assert_eq(rig_open(&r), MCS_OK);
    fake_cuda_arm(fake, 0, "cuDevicePrimaryCtxRetain", FAKE_FAIL, CUDA_ERROR_DEVICE_UNAVAILABLE, 1,
                  1);
    cr_assert_eq(rig_call(&r, &call), MCS_GPU_CONTEXT);
    cr_expect(strstr(call.text, "CUDA_ERROR_DEVICE_UNAVAILABLE"), "%s", call.text);
    fake_cuda_disarm(fake);
    call = rig_make(&r, 0, 2 * MIB);
    cr_assert_eq(rig_free(&r, call.memory), MCS_OK);
    rig_destroy(&r);
}

/* ---- order and hanging ----------------------------------------------------------------------------- */

#define MANY 40u

struct noted {
    struct mct_cuda_call call;
    unsigned *next, came;
};

static void note(struct mct_cuda_call *call)
{
    struct noted *n = call->context;

    n->came = ++*n->next;
}

Test(cuda_calls, calls_of_one_order_come_back_in_order)
{
    struct noted calls[MANY];
    unsigned next = 0, k;
    struct rig r;

    rig_create(&r, 2, 0);
    cr_assert_eq(rig_open(&r), MCS_OK);
    for (unsigned i = 0; i < MANY; i++) {
        calls[i] = (struct noted){.next = &next};
        calls[i].call = (struct mct_cuda_call){.kind = MCT_CUDA_MAKE,
                                               .order = 1 + i % 3,
                                               .device = i % 2,
                                               .size = 2 * MIB,
                                               .done = note,
                                               .context = &calls[i]};
        mct_cuda_begin(r.cuda, &calls[i].call);
    }
    while (next < MANY)
        if (!mct_cuda_poll(r.cuda))
            cr_assert(rig_wait(r.control_fd, FOREVER_MS));
    for (unsigned i = 0; i < MANY; i++) {
        cr_assert_eq(calls[i].call.status, MCS_OK);
        close(calls[i].call.fd);
        for (k = i + 3; k < MANY; k += 3)
            cr_assert_lt(calls[i].came, calls[k].came, "%u came after %u", i, k);
        cr_assert_eq(rig_free(&r, calls[i].call.memory), MCS_OK);
    }
    rig_destroy(&r);
}

/* Until the condition holds; poll looks for what is stuck, as the agent's loop has it do. */
#define UNTIL(r, condition)                                                                        \
    do {                                                                                           \
        for (int tries_ = 0; !(condition); tries_++) {                                             \
            cr_assert_lt(tries_, FOREVER_MS / 5, "never: %s", #condition);                         \
            if (!mct_cuda_poll((r)->cuda))                                                         \
                (void)rig_wait((r)->control_fd, 5);                                                \
        }                                                                                          \
    } while (0)

Test(cuda_calls, a_call_that_hangs_holds_up_its_own_session_alone)
{
    const struct mct_cuda_stats *s;
    struct mct_cuda_call a, b, free_a, next_a;
    uint32_t warnings, notes;
    uint64_t stuck;
    bool freed, made;
    struct rig r;

    rig_create(&r, 2, 200);
    s = mct_cuda_stats(r.cuda);
    cr_assert_eq(rig_open(&r), MCS_OK);
    a = rig_make(&r, 0, 2 * MIB);
    stuck = mcs_load_relaxed(&s->stuck); /* a slow machine's */
    warnings = mcs_load_relaxed(&rig_lines[MCT_CUDA_LOG_WARNING]);
    notes = mcs_load_relaxed(&rig_lines[MCT_CUDA_LOG_INFO]);
    fake_cuda_arm(fake, 0, "cuMemRelease", FAKE_HANG, 0, 1, 1);
    free_a = (struct mct_cuda_call){.kind = MCT_CUDA_FREE, .order = 7, .memory = a.memory};
    next_a =
        (struct mct_cuda_call){.kind = MCT_CUDA_MAKE, .order = 7, .device = 0, .size = 2 * MIB};
    rig_begin(&r, &free_a, &freed);
    rig_begin(&r, &next_a, &made);
    UNTIL(&r, mcs_load_relaxed(&s->stuck) != stuck);
    for (unsigned i = 0; i < 5; i++) {
        (void)rig_wait(r.control_fd, 25);
        (void)mct_cuda_poll(r.cuda);
    }
    cr_assert_eq(mcs_load_relaxed(&s->stuck), stuck + 1, "counted more than once");
    cr_assert_eq(mcs_load_relaxed(&s->stuck_now), 1);
    cr_assert_eq(mcs_load_relaxed(&rig_lines[MCT_CUDA_LOG_WARNING]), warnings + 1);
    for (unsigned i = 0; i < 20; i++) {
        b = (struct mct_cuda_call){.kind = MCT_CUDA_MAKE, .order = 8, .device = 0, .size = 2 * MIB};
        cr_assert_eq(rig_call(&r, &b), MCS_OK, "%s", b.text);
        close(b.fd);
        cr_assert_eq(rig_free(&r, b.memory), MCS_OK);
    }
    cr_assert_not(freed);
    cr_assert_not(made, "a call of the session went before the one that hangs");
    fake_cuda_disarm(fake);
    rig_await(&r, &made);
    cr_assert(freed);
    cr_assert_eq(free_a.status, MCS_OK);
    cr_assert_eq(next_a.status, MCS_OK);
    cr_assert_eq(mcs_load_relaxed(&s->stuck_now), 0);
    cr_assert_eq(mcs_load_relaxed(&rig_lines[MCT_CUDA_LOG_INFO]) - notes,
                 mcs_load_relaxed(&rig_lines[MCT_CUDA_LOG_WARNING]) - warnings);
    close(next_a.fd);
    cr_assert_eq(rig_free(&r, next_a.memory), MCS_OK);
    rig_destroy(&r);
}

static unsigned open_descriptors(void)
{
    unsigned n = 0;

    for (int fd = 0; fd < 256; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

Test(cuda_calls, a_port_leaves_no_descriptor_behind)
{
    struct rig_port p;
    struct rig r;
    unsigned before;

    rig_create(&r, 2, 0);
    before = open_descriptors();
    rig_port_open(&r, &p);
    rig_port_close(&p);
    rig_destroy(&r);
    cr_assert_eq(open_descriptors(), before - 1, "and the rig's own is closed");
}

Test(cuda_calls, as_many_calls_hang_as_there_are_hands_and_all_come_back)
{
    const unsigned n = MCT_CUDA_HANDS + 4;
    struct mct_cuda_call calls[MCT_CUDA_HANDS + 4];
    bool done[MCT_CUDA_HANDS + 4];
    unsigned before;
    struct rig r;

    rig_create(&r, 2, 500); /* the end, too, gives so many threads so long */
    cr_assert_eq(rig_open(&r), MCS_OK);
    calls[0] = rig_make(&r, 0, 2 * MIB);
    cr_assert_eq(rig_free(&r, calls[0].memory), MCS_OK);
    before = threads();
    fake_cuda_arm(fake, 0, "cuMemCreate", FAKE_HANG, 0, 1, 0);
    for (unsigned i = 0; i < n; i++) {
        calls[i] = (struct mct_cuda_call){
            .kind = MCT_CUDA_MAKE, .order = 1 + i, .device = 0, .size = 2 * MIB};
        rig_begin(&r, &calls[i], &done[i]);
    }
    UNTIL(&r, mcs_load_relaxed(&mct_cuda_stats(r.cuda)->stuck_now) == MCT_CUDA_HANDS);
    cr_assert_leq(threads(), before + MCT_CUDA_HANDS - 1);
    fake_cuda_disarm(fake);
    for (unsigned i = 0; i < n; i++) {
        rig_await(&r, &done[i]);
        cr_assert_eq(calls[i].status, MCS_OK);
        close(calls[i].fd);
        cr_assert_eq(rig_free(&r, calls[i].memory), MCS_OK);
    }
    cr_assert_eq(mcs_load_relaxed(&mct_cuda_stats(r.cuda)->stuck_now), 0);
    rig_destroy(&r);
}

Test(cuda_calls, those_of_one_owner_that_hang_leave_hands_to_others)
{
    enum { HANG = MCT_CUDA_HANDS };
    static struct mct_cuda_call calls[HANG];
    static bool done[HANG];
    struct mct_cuda_call other;
    struct rig r;

    rig_create(&r, 2, 500); /* the end, too, gives so many threads so long */
    cr_assert_eq(rig_open(&r), MCS_OK);
    other = rig_make(&r, 0, 2 * MIB);
    cr_assert_eq(rig_free(&r, other.memory), MCS_OK);
    fake_cuda_arm(fake, 0, "cuMemCreate", FAKE_HANG, 0, 1, 0);
    for (unsigned i = 0; i < HANG; i++) {
        calls[i] = (struct mct_cuda_call){
            .kind = MCT_CUDA_MAKE, .order = 1 + i, .owner = 1, .device = 0, .size = 2 * MIB};
        rig_begin(&r, &calls[i], &done[i]);
    }
    UNTIL(&r, mcs_load_relaxed(&mct_cuda_stats(r.cuda)->stuck_now) == MCT_CUDA_SHARE);
    for (uint64_t owner = 0; owner < 3; owner += 2) {
        other = (struct mct_cuda_call){
            .kind = MCT_CUDA_PIN, .order = 1000, .owner = owner, .device = 0, .size = 4096};
        other.host = aligned_alloc(4096, 4096);
        cr_assert_eq(rig_call(&r, &other), MCS_OK, "%s", other.text);
        rig_pin(&r, other.host, 4096, false);
        free(other.host);
    }
    cr_assert_eq(mcs_load_relaxed(&mct_cuda_stats(r.cuda)->stuck_now), MCT_CUDA_SHARE);
    fake_cuda_disarm(fake);
    for (unsigned i = 0; i < HANG; i++) {
        rig_await(&r, &done[i]);
        cr_assert_eq(calls[i].status, MCS_OK);
        close(calls[i].fd);
        cr_assert_eq(rig_free(&r, calls[i].memory), MCS_OK);
    }
    rig_destroy(&r);
}

/* The last test of this file, since a thread is left behind by it. */
Test(cuda_calls, z_the_end_does_not_wait_for_a_call_that_hangs)
{
    /* what the thread that is left behind may still look at */
    static struct mct_cuda_call call;
    static bool done;
    struct rig r;

    rig_create(&r, 2, 50);
    cr_assert_eq(rig_open(&r), MCS_OK);
    fake_cuda_arm(fake, 0, "cuMemCreate", FAKE_HANG, 0, 1, 0);
    call = (struct mct_cuda_call){.kind = MCT_CUDA_MAKE, .device = 0, .size = 2 * MIB};
    rig_begin(&r, &call, &done);
    UNTIL(&r, mcs_load_relaxed(&fake->rules[0].waiting) == 1);
    mct_cuda_destroy(r.cuda);
    cr_assert_not(done);
}

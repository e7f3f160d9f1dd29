/* SPDX-License-Identifier: Apache-2.0 */
/* What tests/fake-cuda promises of streams, copies, lost devices, rules, other processes and its settings. */
#include "fake_cuda.h"

/* ---- streams and copies --------------------------------------------------------------------- */

Test(fake_cuda_run, streams_do_their_work_later_and_in_order)
{
    uint8_t *host;
    CUdeviceptr at;
    CUevent e;
    CUstream s;

    begin();
    ok(d->host_alloc((void **)&host, 8192, 0));
    at = alloc(4096);
    ok(d->stream_create(&s, CU_STREAM_NON_BLOCKING));
    ok(d->event_create(&e, CU_EVENT_DISABLE_TIMING));
    ok(d->event_query(e)); /* never recorded */
    memset(host, 0, 8192);
    fake_cuda_arm(control, 0, "run:fill", FAKE_HANG, 0, 1, 0);
    ok(d->fill8(at, 7, 4096, s));
    ok(d->copy((uintptr_t)host, at, 4096, s));
    ok(d->event_record(e, s));
    fails(d->event_query(e), CUDA_ERROR_NOT_READY);
    fails(d->stream_query(s), CUDA_ERROR_NOT_READY);
    wrong(d->mem_free(at), "under an operation");
    wrong(d->host_free(host), "under an operation");
    fake_cuda_disarm(control);
    await_event(e);
    cr_assert_eq(host[0], 7);
    cr_assert_eq(host[4095], 7);
    cr_assert_eq(host[4096], 0);
    ok(d->fill32(at, 0x01020304, 1024, s));
    ok(d->stream_synchronize(s));
    ok(d->stream_query(s));
    ok(d->copy_to_host(host, at, 4096));
    cr_assert_eq(host[4092], 4);
    cr_assert_eq(host[4095], 1);
    ok(d->event_destroy(e));
    wrong(d->event_query(e), "no event");
    ok(d->stream_destroy(s));
    ok(d->mem_free(at));
    ok(d->host_free(host));
    wrong(d->host_free(host), "nothing such");
    end();
}

Test(fake_cuda_run, events_order_streams)
{
    CUdeviceptr at;
    uint8_t byte = 0;
    CUevent e;
    CUstream a, b;

    begin();
    at = alloc(1);
    ok(d->stream_create(&a, CU_STREAM_NON_BLOCKING));
    ok(d->stream_create(&b, CU_STREAM_NON_BLOCKING));
    ok(d->event_create(&e, CU_EVENT_DISABLE_TIMING));
    fake_cuda_arm(control, 0, "run:fill", FAKE_SLEEP, 20, 1, 1); /* the first one only */
    ok(d->fill8(at, 1, 1, a));
    ok(d->event_record(e, a));
    ok(d->stream_wait_event(b, e, 0));
    ok(d->fill8(at, 2, 1, b));
    ok(d->stream_synchronize(b));
    ok(d->copy_to_host(&byte, at, 1));
    cr_assert_eq(byte, 2);
    ok(d->event_destroy(e));
    ok(d->stream_destroy(a));
    ok(d->stream_destroy(b));
    ok(d->mem_free(at));
    end();
}

Test(fake_cuda_run, the_null_stream_waits_for_the_others)
{
    CUdeviceptr at;
    uint8_t byte = 0;
    CUstream s;

    begin();
    at = alloc(1);
    ok(d->stream_create(&s, CU_STREAM_DEFAULT));
    fake_cuda_arm(control, 0, "run:fill", FAKE_SLEEP, 20, 1, 1);
    ok(d->fill8(at, 9, 1, s));
    ok(d->copy_to_host(&byte, at, 1));
    cr_assert_eq(byte, 9);
    ok(d->stream_destroy(s));
    ok(d->mem_free(at));
    end();
}

Test(fake_cuda_run, batches_move_every_piece)
{
    enum { PIECES = 100, BYTES = 1000 };
    static uint8_t bytes[PIECES * BYTES], back[PIECES * BYTES];
    CUmemcpyAttributes a[2] = {{.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM}, {.flags = 0}};
    CUdeviceptr at, to[PIECES], from[PIECES];
    size_t sizes[PIECES], first[2] = {0, 0}, failed;
    CUstream s;

    begin();
    fill(bytes, sizeof(bytes), 3);
    at = alloc(sizeof(bytes));
    ok(d->stream_create(&s, CU_STREAM_NON_BLOCKING));
    ok(d->host_register(bytes, sizeof(bytes), CU_MEMHOSTREGISTER_PORTABLE));
    ok(d->host_register(back, sizeof(back), CU_MEMHOSTREGISTER_PORTABLE));
    for (unsigned i = 0; i < PIECES; i++) {
        to[i] = at + (PIECES - 1 - i) * BYTES;
        from[i] = (uintptr_t)bytes + i * BYTES;
        sizes[i] = BYTES;
    }
    ok(d->copy_batch(to, from, sizes, PIECES, a, first, 1, s));
    for (unsigned i = 0; i < PIECES; i++)
        from[i] = (uintptr_t)back + i * BYTES;
    ok(d->copy_batch_12(from, to, sizes, PIECES, a, first, 1, &failed, s));
    ok(d->stream_synchronize(s));
    cr_assert_arr_eq(back, bytes, sizeof(bytes));
    wrong(d->copy_batch(to, from, sizes, PIECES, a, first, 1, NULL), "null stream");
    wrong(d->copy_batch(to, from, sizes, 0, a, first, 1, s), "0 copies");
    wrong(d->copy_batch(to, from, sizes, PIECES, a, first, 2, s), "attributes 1");
    a[0].srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_INVALID;
    wrong(d->copy_batch(to, from, sizes, PIECES, a, first, 1, s), "order 0");
    a[0].srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_ANY;
    sizes[7] = 0;
    wrong(d->copy_batch(to, from, sizes, PIECES, a, first, 1, s), "copy 7");
    sizes[7] = BYTES;
    to[7] = at + sizeof(bytes) - 1;
    wrong(d->copy_batch_12(to, from, sizes, PIECES, a, first, 1, &failed, s), "outside");
    cr_assert_eq(failed, 7);
    ok(d->host_unregister(bytes));
    ok(d->host_unregister(back));
    wrong(d->host_unregister(back), "nothing such");
    ok(d->stream_destroy(s));
    ok(d->mem_free(at));
    end();
}

Test(fake_cuda_run, host_memory_is_registered_as_the_driver_wants_it)
{
    static uint8_t global[8192];
    const size_t size = 1 << 20;
    int64_t pageable;
    CUdeviceptr at;
    uint8_t *p;

    begin();
    p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ok(d->host_register(p, size, CU_MEMHOSTREGISTER_PORTABLE));
    fails(d->host_device_pointer(&at, p, 0), CUDA_ERROR_INVALID_VALUE);
    ok(d->host_unregister(p));
    ok(d->host_register(p, size, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP));
    cr_assert_eq(count(FAKE_REGISTERED_BYTES), (int64_t)size);
    fails(d->host_register(p + 4096, 4096, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    ok(d->host_device_pointer(&at, p + 8, 0));
    cr_assert_eq(at, (uintptr_t)p + 8);
    ok(d->host_unregister(p));
    ok(d->host_register(p + 4096, 4096, 0));
    ok(d->host_register(p + 8192, 4096, 0));
    at = alloc(16384);
    ok(d->copy(at, (uintptr_t)p + 4096, 4096, NULL));
    ok(d->stream_synchronize(NULL));
    ok(d->copy(at, (uintptr_t)p + 12288, 4096, NULL));
    wrong(d->copy(at, (uintptr_t)p, 4097, NULL), "not registered");
    wrong(d->copy(at, (uintptr_t)p + 4096, 8192, NULL), "not 8192 bytes");
    wrong(d->copy((uintptr_t)p + 8192, at, 4097, NULL), "not 4097 bytes");
    ok(d->mem_free(at));
    ok(d->host_unregister(p + 8192));
    ok(d->host_unregister(p + 4096));
    ok(d->host_register(p, size, CU_MEMHOSTREGISTER_PORTABLE));
    munmap(p, size);
    wrong(d->host_unregister(p), "unmapped before");
    p = mmap(p, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    ok(d->host_unregister(p));
    at = alloc(8192);
    pageable = count(FAKE_PAGEABLE);
    ok(d->copy(at, (uintptr_t)global, 8192, NULL)); /* is done when it returns */
    cr_assert_eq(count(FAKE_PAGEABLE), pageable + 1);
    munmap(p, size);
    fails(d->host_register(p, size, 0), CUDA_ERROR_INVALID_VALUE);
    wrong(d->copy(at, (uintptr_t)p, 8192, NULL), "no memory");
    wrong(d->copy(at + 1, (uintptr_t)global, 8192, NULL), "outside an allocation");
    ok(d->mem_free(at));
    wrong(d->copy((uintptr_t)global, at, 8, NULL), "no memory");
    end();
}

Test(fake_cuda_run, gates_are_written_and_waited_for)
{
    uint32_t *word;
    CUdeviceptr at, value;
    CUstream s, other;

    begin();
    ok(d->host_alloc((void **)&word, 4096, CU_MEMHOSTALLOC_PORTABLE));
    ok(d->host_device_pointer(&at, word, 0));
    ok(d->stream_create(&s, CU_STREAM_NON_BLOCKING));
    ok(d->stream_create(&other, CU_STREAM_NON_BLOCKING));
    value = alloc(4096);
    ok(d->stream_wait32(s, at, 5, CU_STREAM_WAIT_VALUE_GEQ));
    ok(d->stream_write32(s, at + 4, 1, CU_STREAM_WRITE_VALUE_DEFAULT));
    fails(d->stream_query(s), CUDA_ERROR_NOT_READY);
    mcs_store_release(word, 4);
    fails(d->stream_query(s), CUDA_ERROR_NOT_READY);
    mcs_store_release(word, 6);
    while (mcs_load_acquire(word + 1) != 1)
        sched_yield();
    ok(d->stream_synchronize(s));
    ok(d->stream_wait32(s, value, 3, CU_STREAM_WAIT_VALUE_EQ));
    ok(d->fill32(value, 3, 1, other));
    ok(d->stream_synchronize(s));
    wrong(d->stream_write32(s, at + 2, 1, 0), "flags");
    wrong(d->stream_write32(s, at, 1, 1), "flags"); /* of the earlier form of the call */
    wrong(d->stream_wait32(s, at, 1, CU_STREAM_WAIT_VALUE_FLUSH), "flags");
    wrong(d->stream_write32(s, (uintptr_t)&word, 1, 0), "no such");
    ok(d->mem_free(value));
    ok(d->stream_destroy(s));
    ok(d->stream_destroy(other));
    ok(d->host_free(word));
    end();
}

static void in_a_stream(void *context)
{
    *(CUresult *)context = d->stream_query(NULL);
}

Test(fake_cuda_run, functions_of_a_stream_may_not_call_the_driver)
{
    CUresult res = CUDA_SUCCESS;
    CUstream s;

    begin();
    ok(d->stream_create(&s, CU_STREAM_NON_BLOCKING));
    ok(d->launch_host_func(s, in_a_stream, &res));
    ok(d->stream_synchronize(s));
    cr_assert_eq(res, CUDA_ERROR_NOT_PERMITTED);
    cr_assert_eq(mcs_load_relaxed(&me()->misuses), ++misuses);
    ok(d->stream_destroy(s));
    end();
}

/* ---- two devices ---------------------------------------------------------------------------- */

Test(fake_cuda_run, devices_touch_what_they_were_given)
{
    CUmemGenericAllocationHandle h[2];
    CUdeviceptr at[2];
    uint8_t byte = 0;
    int64_t staged;
    CUstream s;

    begin();
    for (int i = 0; i < 2; i++) {
        h[i] = create(i);
        at[i] = map(h[i], i);
    }
    ok(d->stream_create(&s, CU_STREAM_NON_BLOCKING));
    ok(d->fill8(at[0], 5, 1, s));
    /* memory without access of the one device, but of its own: the driver stages */
    staged = count(FAKE_STAGED);
    ok(d->copy_peer(at[1], contexts[1], at[0], contexts[0], 1, s));
    ok(d->stream_synchronize(s));
    cr_assert_eq(count(FAKE_STAGED), staged + 1);
    wrong(d->copy_peer(at[1], contexts[0], at[0], contexts[0], 1, s), "its context");
    access_set(at[1], SIZE, 0);
    ok(d->copy(at[1] + 1, at[1], 1, s));
    ok(d->stream_synchronize(s));
    cr_assert_eq(count(FAKE_STAGED), staged + 1);
    ok(d->copy_to_host(&byte, at[1] + 1, 1));
    cr_assert_eq(byte, 5);
    ok(d->ctx_enable_peer(contexts[1], 0));
    fails(d->ctx_enable_peer(contexts[1], 0), CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
    wrong(d->ctx_enable_peer(contexts[0], 0), "its own peer");
    ok(d->stream_destroy(s));
    for (int i = 0; i < 2; i++) {
        unmap(at[i]);
        ok(d->mem_release(h[i]));
    }
    end();
}

/* A process of its own wherever the rest of the run has devices that work. */
static void lose(CUdeviceptr target, CUdeviceptr good)
{
    CUdeviceptr other;
    CUevent e;
    CUstream s;

    ok(d->stream_create(&s, CU_STREAM_NON_BLOCKING));
    ok(d->event_create(&e, CU_EVENT_DISABLE_TIMING));
    ok(d->fill8(target, 1, 1, s));
    (void)d->event_record(e, s); /* is early enough, or fails likewise */
    while (d->event_query(e) != CUDA_ERROR_ILLEGAL_ADDRESS)
        sched_yield();
    fails(d->event_query(e), CUDA_ERROR_ILLEGAL_ADDRESS);
    fails(d->stream_query(s), CUDA_ERROR_ILLEGAL_ADDRESS);
    fails(d->mem_alloc(&other, 1), CUDA_ERROR_ILLEGAL_ADDRESS);
    fails(d->mem_unmap(good, SIZE), CUDA_ERROR_ILLEGAL_ADDRESS);
    ok(d->ctx_push(contexts[1]));
    other = alloc(1);
    ok(d->fill8(other, 1, 1, NULL));
    ok(d->stream_synchronize(NULL));
    ok(d->mem_free(other));
    ok(d->ctx_pop(NULL));
    ok(d->primary_release(0)); /* with all that is left in it */
}

Test(fake_cuda_run, a_device_that_touches_what_it_may_not_is_lost)
{
#ifdef __SANITIZE_THREAD__
    cr_skip_test("it loses a device that later tests of this process want");
#endif
    CUmemGenericAllocationHandle h;
    CUdeviceptr none;

    begin();
    h = create(0);
    none = map(h, -1);
    lose(none, map(h, 0));
}

Test(fake_cuda_run, a_rule_loses_a_device)
{
#ifdef __SANITIZE_THREAD__
    cr_skip_test("it loses a device that later tests of this process want");
#endif
    CUmemGenericAllocationHandle h;
    CUdeviceptr at;

    begin();
    h = create(0);
    at = map(h, 0);
    fake_cuda_arm(control, 0, "run:fill", FAKE_FAIL, CUDA_ERROR_ILLEGAL_ADDRESS, 1, 1);
    lose(at, at);
    cr_assert_eq(mcs_load_relaxed(&control->rules[0].acted), 1);
}

/* ---- rules ---------------------------------------------------------------------------------- */

static void *alloc_in_thread(void *context)
{
    CUdeviceptr *at = context;

    ok(d->ctx_push(contexts[0]));
    ok(d->mem_alloc(at, 1));
    ok(d->ctx_pop(NULL));
    return NULL;
}

Test(fake_cuda_run, rules_fail_and_hold_calls)
{
    CUdeviceptr at, other = 0, third;
    pthread_t t;

    begin();
    fake_cuda_arm(control, 0, "cuMemAlloc_v2", FAKE_FAIL, CUDA_ERROR_OUT_OF_MEMORY, 2, 1);
    at = alloc(1);
    fails(d->mem_alloc(&other, 1), CUDA_ERROR_OUT_OF_MEMORY);
    other = alloc(1);
    fake_cuda_arm(control, 0, "cuMemAlloc_v2", FAKE_HANG, 0, 1, 1);
    cr_assert_eq(pthread_create(&t, NULL, alloc_in_thread, &third), 0);
    while (mcs_load_relaxed(&control->rules[0].waiting) == 0)
        sched_yield();
    ok(d->mem_free(at)); /* who hangs holds no lock */
    at = alloc(1);
    fake_cuda_disarm(control);
    pthread_join(t, NULL);
    ok(d->mem_free(third));
    ok(d->mem_free(at));
    ok(d->mem_free(other));
    cr_assert_gt(fake_cuda_calls(control, getpid(), "cuMemAlloc_v2"), 4);
    cr_assert_eq(fake_cuda_calls(control, getpid(), "cuIpcOpenMemHandle_v2"), 0);
    end();
}

/* ---- other processes ------------------------------------------------------------------------ */

/* Each end is a process that had no driver before; TSan's one process has. */
static pid_t other_process(void (*f)(int), int *fd)
{
    int pair[2];
    pid_t pid;

    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    control = fake_cuda_begin();
    pid = fork();
    if (pid == 0) {
        close(pair[0]);
        f(pair[1]);
        _exit(0);
    }
    close(pair[1]);
    *fd = pair[0];
    return pid;
}

static void exporter(int fd)
{
    CUmemAllocationProp p = properties(0);
    CUmemGenericAllocationHandle h;
    static const uint8_t bytes[5000] = {1, 2, 3};
    CUipcMemHandle ipc;
    CUdeviceptr at;
    char c;

    begin();
    at = alloc(sizeof(bytes));
    ok(d->copy_from_host(at, bytes, sizeof(bytes)));
    ok(d->ipc_get(&ipc, at));
    ok(d->mem_create(&h, 2 * GRANULE, &p, 0));
    cr_assert_eq(write(fd, &ipc, sizeof(ipc)), sizeof(ipc));
    cr_assert_eq(read(fd, &c, 1), 1);
}

Test(fake_cuda_run, ipc_handles_open_once_and_memory_goes_with_its_last_holder)
{
#ifdef __SANITIZE_THREAD__
    cr_skip_test("it forks before the driver is loaded");
#endif
    size_t free_before, left, total, size;
    static uint8_t bytes[5000];
    CUipcMemHandle ipc, own;
    CUdeviceptr at, again, mine, block;
    pid_t pid;
    int fd;

    pid = other_process(exporter, &fd);
    begin();
    cr_assert_eq(read(fd, &ipc, sizeof(ipc)), sizeof(ipc));
    cr_assert_eq(fake_cuda_count(control, pid, FAKE_HANDLES), 1);
    cr_assert_eq(fake_cuda_count(control, pid, FAKE_ALLOCATIONS), 1);
    ok(d->mem_get_info(&free_before, &total));
    cr_assert_eq(total - free_before, 3 * GRANULE);
    ok(d->ipc_open(&at, ipc, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    ok(d->copy_to_host(bytes, at, sizeof(bytes)));
    cr_assert_eq(bytes[2], 3);
    wrong(d->ipc_open(&again, ipc, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS), "open already");
    /* what is open is the block that the allocation was cut from */
    ok(d->copy_to_host(bytes, at + 1, sizeof(bytes)));
    ok(d->mem_range(&block, &size, at));
    cr_assert(block < at && size == GRANULE, "%zu bytes", size);
    mine = alloc(1);
    ok(d->ipc_get(&own, mine));
    wrong(d->ipc_open(&again, own, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS), "this very process");
    wrong(d->ipc_close(mine), "not such memory");
    ok(d->mem_free(mine));
    kill(pid, SIGKILL);
    cr_assert_eq(waitpid(pid, NULL, 0), pid);
    /* what this process has open is still there, what only the dead one had is not */
    ok(d->copy_to_host(bytes, at, sizeof(bytes)));
    ok(d->mem_get_info(&left, &total));
    cr_assert_eq(total - left, GRANULE);
    ok(d->ipc_close(at));
    wrong(d->ipc_close(at), "not such memory");
    fails(d->ipc_open(&again, ipc, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS), CUDA_ERROR_INVALID_VALUE);
    ok(d->mem_get_info(&left, &total));
    cr_assert_eq(left, total);
    cr_assert_eq(count(FAKE_OPENS), 1);
    end();
}

static void forked(int fd)
{
    int n;

    (void)fd;
    _exit(d->device_get_count(&n) == CUDA_ERROR_NOT_INITIALIZED ? 7 : 1);
}

Test(fake_cuda_run, nothing_works_after_a_fork)
{
#ifdef __SANITIZE_THREAD__
    cr_skip_test("TSan and threads do not survive it");
#endif
    int fd, status;
    pid_t pid;

    begin();
    pid = other_process(forked, &fd);
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 7);
    end();
}

/* ---- settings ------------------------------------------------------------------------------- */

static void holds_a_context(int fd)
{
    char c = 'c';

    begin();
    cr_assert_eq(write(fd, &c, 1), 1);
    cr_assert_eq(read(fd, &c, 1), 0);
}

Test(fake_cuda_run, exclusive_devices_are_one_process_s)
{
#ifdef __SANITIZE_THREAD__
    cr_skip_test("settings are read once a process");
#endif
    CUcontext c;
    pid_t pid;
    int fd;
    char byte;

    setenv("FAKE_CUDA_COMPUTE_MODE", "3", 1);
    pid = other_process(holds_a_context, &fd);
    cr_assert_eq(read(fd, &byte, 1), 1);
    load();
    fails(d->primary_retain(&c, 0), CUDA_ERROR_DEVICE_UNAVAILABLE);
    close(fd);
    cr_assert_eq(waitpid(pid, NULL, 0), pid);
    ok(d->primary_retain(&c, 0));
    ok(d->primary_release(0));
}

Test(fake_cuda_run, visible_devices_are_chosen_and_ordered)
{
#ifdef __SANITIZE_THREAD__
    cr_skip_test("settings are read once a process");
#endif
    char name[100];
    int n;

    setenv("FAKE_CUDA_DEVICES", "4", 1);
    setenv("CUDA_VISIBLE_DEVICES", "3,GPU-facecd01,7,0", 1);
    load();
    ok(d->device_get_count(&n));
    cr_assert_eq(n, 2); /* what comes behind one that is not there is not seen */
    ok(d->device_get_name(name, sizeof(name), 0));
    cr_assert_not_null(strstr(name, "FAKE GPU 3"));
    ok(d->device_get_name(name, sizeof(name), 1));
    cr_assert_not_null(strstr(name, "FAKE GPU 1"));
}

static void sees_nothing(const char *devices)
{
    char why[300];

    setenv("CUDA_VISIBLE_DEVICES", devices, 1);
    control = fake_cuda_begin();
    cr_assert_eq(mcs_cuda_load(&d, why, sizeof(why)), -ENODEV);
}

Test(fake_cuda_run, no_visible_device_is_no_device)
{
#ifdef __SANITIZE_THREAD__
    cr_skip_test("settings are read once a process");
#endif
    sees_nothing("");
}

Test(fake_cuda_run, a_device_named_twice_hides_all)
{
#ifdef __SANITIZE_THREAD__
    cr_skip_test("settings are read once a process");
#endif
    sees_nothing("0,1,GPU-facecd00");
}

Test(fake_cuda_run, functions_and_abilities_can_be_missing)
{
#ifdef __SANITIZE_THREAD__
    cr_skip_test("settings are read once a process");
#endif
    CUmemAllocationProp p = properties(0);
    CUmemGenericAllocationHandle h;
    int v = -1;

    setenv("FAKE_CUDA_MISSING", "cuMemcpyBatchAsync,cuMemGetHandleForAddressRange", 1);
    setenv("FAKE_CUDA_POSIX", "0", 1);
    setenv("FAKE_CUDA_PEER", "0", 1);
    setenv("FAKE_CUDA_FAIL", "cuMemCreate:2=CUDA_ERROR_UNKNOWN,cuDeviceGetCount:3+=46", 1);
    begin();
    cr_assert_null(d->copy_batch_12);
    cr_assert_null(d->mem_range_handle);
    cr_assert_not_null(d->copy_batch);
    fails(d->mem_create(&h, GRANULE, &p, 0), CUDA_ERROR_NOT_SUPPORTED);
    p.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
    fails(d->mem_create(&h, GRANULE, &p, 0), CUDA_ERROR_UNKNOWN);
    ok(d->mem_create(&h, GRANULE, &p, 0));
    fails(d->mem_export(&v, h, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
          CUDA_ERROR_INVALID_VALUE);
    ok(d->mem_release(h));
    ok(d->device_can_access_peer(&v, 0, 1));
    cr_assert_eq(v, 0);
    fails(d->ctx_enable_peer(contexts[1], 0), CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
    ok(d->device_get_count(&v)); /* mcs_cuda_load() was the first one */
    fails(d->device_get_count(&v), CUDA_ERROR_DEVICE_UNAVAILABLE);
    fails(d->device_get_count(&v), CUDA_ERROR_DEVICE_UNAVAILABLE);
    end();
}

/* SPDX-License-Identifier: Apache-2.0 */
/* What tests/fake-cuda promises of devices, contexts and memory: it is as a GPU's driver is, and catches who misuses it. */
#include "fake_cuda.h"

/* ---- devices -------------------------------------------------------------------------------- */

Test(fake_cuda, devices_say_that_they_are_none)
{
    char name[128], pci[16];
    CUuuid a, b;
    int n, v;

    begin();
    ok(d->device_get_count(&n));
    cr_assert_eq(n, 2);
    for (int i = 0; i < 2; i++) {
        ok(d->device_get_name(name, sizeof(name), i));
        cr_assert_not_null(strstr(name, "FAKE"));
        cr_assert_not_null(strstr(name, "no hardware"));
        ok(d->device_get_pci_bus_id(pci, sizeof(pci), i));
        ok(d->device_get_attribute(&v, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, i));
        cr_assert_eq(v, 1);
    }
    ok(d->device_get_uuid(&a, 0));
    ok(d->device_get_uuid(&b, 1));
    /* what a location has of it */
    cr_assert_neq(memcmp(a.bytes, b.bytes, 13), 0);
    ok(d->device_can_access_peer(&v, 0, 1));
    cr_assert_eq(v, 1);
    wrong(d->device_get_name(name, sizeof(name), 2), "no device 2");
    wrong(d->device_get_name(name, sizeof(name), -1), "no device");
    fails(d->device_get(&v, 2), CUDA_ERROR_INVALID_DEVICE);
    wrong(d->device_get_attribute(&v, (CUdevice_attribute)9999, 0), "attribute 9999");
    end();
}

/* ---- contexts ------------------------------------------------------------------------------- */

static void *forgets_to_pop(void *context)
{
    (void)context;
    ok(d->ctx_push(contexts[0]));
    return NULL;
}

static void *calls_without_context(void *context)
{
    CUstream *s = context;
    CUdeviceptr at;
    CUevent e;

    wrong(d->event_create(&e, 0), "no context is current");
    wrong(d->mem_alloc(&at, 1), "no context is current");
    wrong(d->stream_query(*s), "no context is current");
    wrong(d->host_register(&at, 1, 0), "no context is current");
    return NULL;
}

Test(fake_cuda, contexts_are_of_a_thread_and_calls_need_one)
{
    CUcontext was, old;
    pthread_t t;
    CUstream s;

    begin();
    ok(d->ctx_get_current(&was));
    cr_assert_eq(was, contexts[0]);
    ok(d->stream_create(&s, CU_STREAM_NON_BLOCKING));
    cr_assert_eq(pthread_create(&t, NULL, calls_without_context, &s), 0);
    pthread_join(t, NULL);
    cr_assert_eq(pthread_create(&t, NULL, forgets_to_pop, NULL), 0);
    pthread_join(t, NULL);
    cr_assert_eq(mcs_load_relaxed(&me()->misuses), ++misuses);
    cr_assert_not_null(strstr(me()->sentence, "ended with 1 contexts"));
    ok(d->ctx_push(contexts[1]));
    wrong(d->stream_query(s), "the current context of 1");
    ok(d->ctx_pop(&was));
    cr_assert_eq(was, contexts[1]);
    ok(d->ctx_pop(NULL));
    wrong(d->ctx_pop(NULL), "nothing was pushed");
    /* everything of a context goes before its last release */
    wrong(d->primary_release(0), "left in it");
    ok(d->ctx_push(contexts[0]));
    ok(d->stream_destroy(s));
    wrong(d->stream_query(s), "no stream");
    ok(d->primary_retain(&old, 0));
    cr_assert_eq(old, contexts[0]);
    cr_assert_eq(count(FAKE_CONTEXTS), 2);
    cr_assert_eq(count(FAKE_RETAINS), 3);
    ok(d->primary_release(0));
    end();
    wrong(d->primary_release(0), "not held");
    wrong(d->ctx_push(contexts[0]), "no context");
}

/* ---- memory --------------------------------------------------------------------------------- */

Test(fake_cuda, memory_is_shared_by_its_descriptor)
{
    static uint8_t bytes[SIZE], back[SIZE];
    CUmemGenericAllocationHandle h, again, held;
    CUmemAllocationProp p = properties(0);
    CUdeviceptr at, other, base;
    size_t size;
    int fd = -1;

    begin();
    fill(bytes, SIZE, 1);
    h = create(0);
    ok(d->mem_export(&fd, h, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    ok(d->mem_import(&again, (void *)(uintptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    close(fd);
    at = map(h, 0);
    other = map(again, 0);
    cr_assert_neq(at, other);
    ok(d->copy_from_host(at, bytes, SIZE));
    ok(d->copy_to_host(back, other, SIZE));
    cr_assert_arr_eq(back, bytes, SIZE);
    memset(&p, 0, sizeof(p));
    ok(d->mem_properties(&p, again));
    cr_assert_eq(p.location.id, 0);
    cr_assert_eq(p.requestedHandleTypes, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    ok(d->mem_range(&base, &size, at + 100));
    cr_assert_eq(base, at);
    cr_assert_eq(size, SIZE);
    /* the mapping keeps what its handle gave back */
    ok(d->mem_release(h));
    wrong(d->mem_release(h), "released already");
    wrong(d->mem_export(&fd, h, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0), "released already");
    ok(d->mem_retain(&held, (void *)(uintptr_t)(at + 1)));
    cr_assert_eq(held, h);
    ok(d->mem_release(held));
    ok(d->mem_retain(&held, (void *)(uintptr_t)at));
    unmap(at);
    ok(d->mem_release(held));
    wrong(d->mem_release(held), "no allocation handle");
    ok(d->mem_release(again));
    fails(d->mem_retain(&held, (void *)(uintptr_t)at), CUDA_ERROR_INVALID_VALUE);
    fails(d->mem_range(&base, &size, at), CUDA_ERROR_NOT_FOUND);
    unmap(other);
    end();
}

Test(fake_cuda, what_others_send_is_refused_with_an_error)
{
    const char *const names[] = {"fake-cuda gpu=9 vmm=1 exportable=1 rdma=0",
                                 "fake-cuda gpu=0 vmm=0 exportable=0 rdma=1", "anything"};
    CUmemGenericAllocationHandle h;
    CUipcMemHandle ipc;
    CUdeviceptr at;
    int fd;

    begin();
    for (unsigned i = 0; i < 3; i++) {
        fd = memfd_create(names[i], MFD_ALLOW_SEALING);
        cr_assert_eq(ftruncate(fd, SIZE), 0);
        fails(d->mem_import(&h, (void *)(uintptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
              CUDA_ERROR_INVALID_VALUE);
        close(fd);
    }
    fails(d->mem_import(&h, (void *)(uintptr_t)-1, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
          CUDA_ERROR_INVALID_VALUE);
    memset(&ipc, 0x5a, sizeof(ipc));
    fails(d->ipc_open(&at, ipc, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS), CUDA_ERROR_INVALID_VALUE);
    end();
}

Test(fake_cuda, addresses_and_mappings_are_checked)
{
    const CUmemAllocationProp p = properties(0);
    CUmemAllocationProp q = properties(7);
    CUmemAccessDesc a = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0},
                         .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle h;
    CUdeviceptr at, hinted;
    size_t granularity;

    begin();
    ok(d->mem_granularity(&granularity, &p, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    cr_assert_eq(granularity, GRANULE);
    wrong(d->mem_create(&h, GRANULE + 1, &p, 0), "no multiple");
    wrong(d->mem_create(&h, 0, &p, 0), "no multiple");
    fails(d->mem_create(&h, GRANULE, &q, 0), CUDA_ERROR_INVALID_DEVICE);
    wrong(d->mem_reserve(&at, GRANULE + 4096, 0, 0, 0), "granularity");
    ok(d->mem_reserve(&at, 2 * SIZE, 0, 0, 0));
    h = create(0);
    wrong(d->mem_map(at + 4096, SIZE, 0, h, 0), "offset 0");
    cr_assert_eq(d->mem_map(at, 2 * SIZE, 0, h, 0), CUDA_ERROR_INVALID_VALUE,
                 "more than there is; who imports cannot know");
    cr_assert_eq(d->mem_map(at, SIZE - GRANULE, 0, h, 0), CUDA_ERROR_INVALID_VALUE,
                 "less than all of it");
    wrong(d->mem_map(at + 2 * SIZE - GRANULE, SIZE, 0, h, 0), "not reserved");
    ok(d->mem_map(at, SIZE, 0, h, 0));
    wrong(d->mem_map(at + GRANULE, SIZE, 0, h, 0), "already");
    ok(d->mem_map(at + SIZE, SIZE, 0, h, 0));
    wrong(d->mem_set_access(at, GRANULE, &a, 1), "not what is mapped");
    ok(d->mem_set_access(at, 2 * SIZE, &a, 1));
    a.location.id = 5;
    wrong(d->mem_set_access(at, SIZE, &a, 1), "no device 5");
    wrong(d->mem_unmap(at, GRANULE), "not what is mapped");
    wrong(d->mem_unmap(at + 4096, SIZE), "not what is mapped");
    wrong(d->mem_address_free(at, 2 * SIZE), "still mapped");
    ok(d->mem_unmap(at, 2 * SIZE));
    wrong(d->mem_unmap(at, 2 * SIZE), "not what is mapped");
    wrong(d->mem_address_free(at, SIZE), "no reservation");
    ok(d->mem_address_free(at, 2 * SIZE));
    wrong(d->mem_address_free(at, 2 * SIZE), "no reservation");
    ok(d->mem_reserve(&hinted, SIZE, 0, at, 0));
    cr_assert_eq(hinted, at);
    ok(d->mem_reserve(&at, SIZE, 0, hinted, 0));
    cr_assert_neq(hinted, at);
    ok(d->mem_address_free(at, SIZE));
    ok(d->mem_address_free(hinted, SIZE));
    wrong(d->mem_release(12345), "no allocation handle");
    ok(d->mem_release(h));
    end();
}

Test(fake_cuda, pointers_are_told_apart)
{
    static uint8_t host[4096];
    unsigned long long id, other;
    unsigned char capable;
    CUdeviceptr at, mapped;
    CUmemGenericAllocationHandle h;
    unsigned type;
    int ordinal;

    begin();
    fails(d->pointer_attribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (uintptr_t)host),
          CUDA_ERROR_INVALID_VALUE);
    ok(d->host_register(host, sizeof(host), CU_MEMHOSTREGISTER_PORTABLE));
    ok(d->pointer_attribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (uintptr_t)host));
    cr_assert_eq(type, CU_MEMORYTYPE_HOST);
    ok(d->host_unregister(host));
    at = alloc(1000);
    ok(d->pointer_attribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at + 999));
    cr_assert_eq(type, CU_MEMORYTYPE_DEVICE);
    fails(d->pointer_attribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at + 1000),
          CUDA_ERROR_INVALID_VALUE);
    ok(d->pointer_attribute(&capable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, at));
    cr_assert_eq(capable, 1);
    ok(d->pointer_attribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, at));
    ok(d->mem_free(at));
    at = alloc(1000);
    ok(d->pointer_attribute(&other, CU_POINTER_ATTRIBUTE_BUFFER_ID, at));
    cr_assert_neq(id, other);
    h = create(1);
    mapped = map(h, 1);
    ok(d->pointer_attribute(&capable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, mapped));
    cr_assert_eq(capable, 0);
    ok(d->pointer_attribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, mapped));
    cr_assert_eq(ordinal, 1);
    ok(d->mem_release(h));
    unmap(mapped);
    ok(d->mem_free(at));
    wrong(d->mem_free(at), "not such memory");
    wrong(d->mem_free(at + 1), "not such memory");
    end();
}

Test(fake_cuda, the_cpu_cannot_touch_device_memory, .signal = SIGSEGV)
{
    begin();
    signal(SIGSEGV, SIG_DFL); /* no report of a sanitizer's */
    *(volatile uint8_t *)(uintptr_t)alloc(4096) = 1;
}

Test(fake_cuda, misuse_aborts_unless_it_is_told_otherwise, .signal = SIGABRT)
{
    char why[300];

    control = fake_cuda_begin();
    cr_assert_eq(mcs_cuda_load(&d, why, sizeof(why)), 0);
    d->ctx_pop(NULL);
}

Test(fake_cuda, memory_runs_out)
{
    CUmemAllocationProp p = properties(0);
    CUmemGenericAllocationHandle h;
    size_t left, total, now;
    uint8_t bytes[4];
    CUdeviceptr at;

    begin();
    ok(d->mem_get_info(&left, &total));
    fails(d->mem_create(&h, total + GRANULE, &p, 0), CUDA_ERROR_OUT_OF_MEMORY);
    ok(d->mem_create(&h, left - GRANULE, &p, 0)); /* nobody touches it */
    ok(d->mem_get_info(&now, &total));
    cr_assert_eq(now, GRANULE);
    ok(d->mem_release(h));
    ok(d->mem_get_info(&now, &total));
    cr_assert_eq(now, left);
    /* what is new is not empty, and is cleared by who wants it so */
    at = alloc(SIZE);
    ok(d->copy_to_host(bytes, at + SIZE - 4, 4));
    cr_assert_neq(bytes[3], 0);
    ok(d->fill8(at + 1, 0, SIZE - 2, NULL));
    ok(d->stream_synchronize(NULL));
    ok(d->copy_to_host(bytes, at + SIZE - 4, 4));
    cr_assert_eq(bytes[2], 0);
    cr_assert_neq(bytes[3], 0);
    ok(d->copy_to_host(bytes, at, 4));
    cr_assert_neq(bytes[0], 0);
    cr_assert_eq(bytes[1], 0);
    ok(d->mem_free(at));
    end();
}

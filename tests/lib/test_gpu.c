/* SPDX-License-Identifier: Apache-2.0 */
/* Allocations in GPU memory: where they are mapped, which contexts are touched, what fails, what comes back. */
#include "gpu.h"

#include <sys/wait.h>

TestSuite(gpu, .timeout = 60);

static void *alloc_at(struct gpu_world *w, size_t size, const char *location)
{
    void *p = NULL;

    cr_assert_eq(mcshm_alloc(w->c, size, 0, location, &p), MCSHM_OK, "%s", mcshm_last_error(w->c));
    cr_assert_not_null(p);
    return p;
}

Test(gpu, an_allocation_is_the_agents_memory)
{
    struct gpu_world w = {0};
    uint8_t out[256], in[256];
    CUdeviceptr agents;
    CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    uint8_t *first, *second;

    for (size_t i = 0; i < sizeof(out); i++)
        out[i] = (uint8_t)(i * 7 + 1);
    gpu_start(&w, MCS_FEATURE_GPU, NULL);
    gpu_driver(&w);
    first = alloc_at(&w, 5000, "cuda:0");
    second = alloc_at(&w, 256, "cuda:0");
    cr_assert_eq(second - first, 5120, "in the same extent");
    cr_assert_eq(gpu_count(&w, FAKE_MAPPINGS), 1);
    cr_assert_eq((uintptr_t)first, LATER_GPU_ADDRESS, "where the agent has published it");
    cr_assert_eq(gpu_count(&w, FAKE_HANDLES), 1, "the mapping holds it");

    gpu_check(mcs_cuda_enter(w.cuda, w.primary[0]));
    gpu_check(w.cuda->mem_reserve(&agents, GPU_SIZE, 0, 0, 0));
    gpu_check(w.cuda->mem_map(agents, GPU_SIZE, 0, w.handle, 0));
    gpu_check(w.cuda->mem_set_access(agents, GPU_SIZE, &access, 1));
    gpu_check(w.cuda->copy_from_host((uintptr_t)second, out, sizeof(out)));
    gpu_check(w.cuda->copy_to_host(in, agents + 5120, sizeof(in)));
    cr_assert_arr_eq(in, out, sizeof(in));
    gpu_check(w.cuda->mem_unmap(agents, GPU_SIZE));
    gpu_check(w.cuda->mem_address_free(agents, GPU_SIZE));
    mcs_cuda_leave(w.cuda);

    cr_assert_eq(mcshm_free(w.c, first), MCSHM_OK);
    cr_assert_eq(gpu_count(&w, FAKE_MAPPINGS), 1);
    cr_assert_eq(mcshm_free(w.c, first), MCSHM_NOT_REGISTERED);
    cr_assert_eq(mcshm_free(w.c, second), MCSHM_OK);
    cr_assert_eq(gpu_count(&w, FAKE_MAPPINGS), 0);
    cr_assert_eq(gpu_count(&w, FAKE_RESERVATIONS), 0);
    /* what is not given back goes with the connection: gpu_stop() looks */
    (void)alloc_at(&w, 64, "cuda:0");
    gpu_stop(&w);
}

Test(gpu, only_the_device_that_is_used_has_a_context)
{
    struct gpu_world w = {0};
    const struct fake_process *p;

    gpu_start(&w, MCS_FEATURE_GPU, NULL);
    gpu_driver(&w);
    (void)alloc_at(&w, 64, "cuda:0");
    p = fake_cuda_process(w.fake, getpid());
    cr_assert_not_null(p);
    cr_assert_eq(mcs_load_relaxed(&p->counts[0][FAKE_RETAINS]), 2, "the test's and the library's");
    cr_assert_eq(mcs_load_relaxed(&p->counts[1][FAKE_RETAINS]), 1);
    gpu_stop(&w);
}

static void assert_location(struct gpu_world *w, const char *location, int device)
{
    const struct mcs_msg_gpu_alloc *m;
    CUuuid uuid;
    void *p = alloc_at(w, 64, location);

    m = &w->a.log[gpu_asked_last(w, MCS_MSG_GPU_ALLOC)].b.gpu_alloc;
    gpu_check(w->cuda->device_get_uuid(&uuid, device));
    cr_assert_arr_eq(m->gpu, uuid.bytes, sizeof(m->gpu), "%s", location);
    cr_assert_eq(mcshm_free(w->c, p), MCSHM_OK);
}

Test(gpu, locations_are_ordinals_or_uuids)
{
    static const struct {
        const char *text;
        mcshm_status want;
    } bad[] = {
        {"cuda:2", MCSHM_NO_GPU},
        {"cuda:9999", MCSHM_NO_GPU},
        {"cuda:GPU-00000000-0000-0000-0000-000000000000", MCSHM_NO_GPU},
        {"cuda:facecd", MCSHM_NOT_SUPPORTED}, /* less than 8 digits */
        {"cuda:GPU-facecd0", MCSHM_NOT_SUPPORTED},
        {"cuda:", MCSHM_NOT_SUPPORTED},
        {"cuda:x", MCSHM_NOT_SUPPORTED},
        {"cuda:-1", MCSHM_NOT_SUPPORTED},
        {"cuda:0 ", MCSHM_NOT_SUPPORTED},
        {"cuda:GPU-facecd00-0000-0000-0000-0000000000000000000000000000000000000000000",
         MCSHM_NOT_SUPPORTED},
        {"gpu:0", MCSHM_OK}, /* the agent's to refuse */
    };
    struct gpu_world w = {0};
    struct mcs_gpu_id id;
    char text[MCS_GPU_ID_TEXT], location[64];
    CUuuid uuid;
    void *p;

    gpu_start(&w, MCS_FEATURE_GPU, NULL);
    gpu_driver(&w);
    assert_location(&w, "cuda:0", 0);
    gpu_check(w.cuda->device_get_uuid(&uuid, 0));
    memcpy(id.bytes, uuid.bytes, sizeof(id.bytes));
    mcs_gpu_id_print(&id, NULL, text);
    snprintf(location, sizeof(location), "cuda:%s", text);
    assert_location(&w, location, 0);
    for (char *c = location + 9; *c != '\0'; c++)
        *c = *c >= 'a' && *c <= 'f' ? (char)(*c - 'a' + 'A') : *c;
    assert_location(&w, location, 0);
    /* as others' buffers have it: the first 26 digits */
    strcpy(location, "cuda:");
    for (int i = 0; i < 13; i++)
        sprintf(location + 5 + 2 * i, "%02x", id.bytes[i]);
    assert_location(&w, location, 0);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        cr_assert_eq(mcshm_alloc(w.c, 64, 0, bad[i].text, &p), bad[i].want, "%s: %s", bad[i].text,
                     mcshm_last_error(w.c));
    gpu_stop(&w);
}

/* B78: each call leaves the thread with the context that it had, or with none. */
Test(gpu, the_callers_context_stays_current)
{
    struct gpu_world w = {0};
    const void *mapped;
    CUdeviceptr foreign;
    mcshm_segment s;
    mcshm_gate gate;
    uint32_t value;
    void *p;

    gpu_start(&w, MCS_FEATURE_GPU, NULL);
    gpu_driver(&w);
    gpu_check(mcs_cuda_enter(w.cuda, w.primary[0]));
    gpu_check(w.cuda->mem_alloc(&foreign, 4096));
    mcs_cuda_leave(w.cuda);
    cr_assert_eq(mcshm_segment_open(w.c, "other", &s), MCSHM_OK);
    for (int round = 0; round < 2; round++) {
        CUcontext own = round == 0 ? NULL : w.primary[1];

        if (own != NULL)
            gpu_check(mcs_cuda_enter(w.cuda, own));
#define CALL(call)                                                                                 \
    cr_assert_eq(call, MCSHM_OK, "%s", mcshm_last_error(w.c));                                     \
    cr_assert_eq(gpu_current(&w), own, #call)
        CALL(mcshm_alloc(w.c, 64, 0, "cuda:0", &p));
        CALL(mcshm_free(w.c, p));
        CALL(mcshm_register_gpu(w.c, (void *)(uintptr_t)foreign, 4096));
        CALL(mcshm_unregister(w.c, (void *)(uintptr_t)foreign));
        CALL(mcshm_gate_create(w.c, "cuda:0", &gate));
        CALL(mcshm_gate_record(w.c, &gate, NULL, &value));
        CALL(mcshm_gate_follow(w.c, &gate, NULL, value));
        gpu_check(mcs_cuda_enter(w.cuda, w.primary[0]));
        gpu_check(w.cuda->stream_synchronize(NULL));
        mcs_cuda_leave(w.cuda);
        CALL(mcshm_gate_destroy(w.c, &gate));
        CALL(mcshm_map(w.c, s, 0x10000, 64, &mapped));
        CALL(mcshm_unmap(w.c, mapped));
        cr_assert_eq(mcshm_alloc(w.c, 64, 0, "cuda:7", &p), MCSHM_NO_GPU);
        cr_assert_eq(gpu_current(&w), own);
#undef CALL
        if (own != NULL)
            mcs_cuda_leave(w.cuda);
    }
    gpu_check(mcs_cuda_enter(w.cuda, w.primary[0]));
    gpu_check(w.cuda->mem_free(foreign));
    mcs_cuda_leave(w.cuda);
    gpu_stop(&w);
}

Test(gpu, a_refusal_of_the_driver_leaves_nothing)
{
    static const struct {
        const char *call;
        int result;
        mcshm_status want;
    } cases[] = {
        {"cuDevicePrimaryCtxRetain", CUDA_ERROR_DEVICE_UNAVAILABLE, MCSHM_GPU_CONTEXT},
        {"cuCtxPushCurrent_v2", CUDA_ERROR_INVALID_CONTEXT, MCSHM_GPU_CONTEXT},
        {"cuMemImportFromShareableHandle", CUDA_ERROR_INVALID_VALUE, MCSHM_GPU_CONTEXT},
        {"cuMemMap", CUDA_ERROR_OUT_OF_MEMORY, MCSHM_NO_MEMORY},
        {"cuMemSetAccess", CUDA_ERROR_ECC_UNCORRECTABLE, MCSHM_GPU_LOST},
    };
    struct gpu_world w = {0};
    void *p;

    gpu_start(&w, MCS_FEATURE_GPU, NULL);
    gpu_driver(&w);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint32_t asked = later_asked(&w.a, 0, MCS_MSG_GPU_ALLOC);
        uint32_t given = later_asked(&w.a, 0, MCS_MSG_FREE);

        fake_cuda_arm(w.fake, 0, cases[i].call, FAKE_FAIL, cases[i].result, 1, 1);
        cr_assert_eq(mcshm_alloc(w.c, 64, 0, "cuda:0", &p), cases[i].want, "%s: %s", cases[i].call,
                     mcshm_last_error(w.c));
        cr_assert_not_null(strstr(mcshm_last_error(w.c), "GPU-facecd00"));
        cr_assert_not_null(strstr(mcshm_last_error(w.c), "FAKE GPU 0"));
        cr_assert_not_null(strstr(mcshm_last_error(w.c), "CUDA_ERROR_"));
        cr_assert_null(p);
        cr_assert_eq(gpu_count(&w, FAKE_MAPPINGS), 0);
        cr_assert_eq(gpu_count(&w, FAKE_RESERVATIONS), 0);
        cr_assert_eq(gpu_count(&w, FAKE_HANDLES), 1);
        cr_assert_eq(later_asked(&w.a, 0, MCS_MSG_GPU_ALLOC) - asked,
                     later_asked(&w.a, 0, MCS_MSG_FREE) - given, "what was given was given back");
    }
    /* both places: with the published address's alignment and without */
    fake_cuda_arm(w.fake, 0, "cuMemAddressReserve", FAKE_FAIL, CUDA_ERROR_OUT_OF_MEMORY, 1, 2);
    cr_assert_eq(mcshm_alloc(w.c, 64, 0, "cuda:0", &p), MCSHM_NO_MEMORY);
    fake_cuda_arm(w.fake, 0, "cuMemAddressReserve", FAKE_FAIL, CUDA_ERROR_INVALID_VALUE, 1, 1);
    cr_assert_eq(mcshm_alloc(w.c, 64, 0, "cuda:0", &p), MCSHM_OK);
    gpu_stop(&w);
}

Test(gpu, an_extent_comes_back_to_a_later_agent)
{
    struct gpu_world w = {0};
    const struct mcs_msg_allocs_back *back;
    int at;

    gpu_start(&w, MCS_FEATURE_GPU, NULL);
    gpu_driver(&w);
    (void)alloc_at(&w, 4096, NULL);
    (void)alloc_at(&w, 512, "cuda:0");
    (void)alloc_at(&w, 1000, "cuda:0");
    later_kill(&w.a);
    later_await(&w.a.resumes, 1);
    cr_assert_eq(later_asked(&w.a, 2, MCS_MSG_EXTENT_BACK), 2);
    at = gpu_asked_last(&w, MCS_MSG_EXTENT_BACK);
    cr_assert(w.a.log[at].b.extent_back.extent == LATER_GPU &&
              w.a.log[at].b.extent_back.memory == MCS_MEMORY_GPU &&
              w.a.log[at].b.extent_back.size == GPU_SIZE);
    cr_assert_eq(w.a.log[at].ino, later_ino(w.a.gpu_fd));
    back = &w.a.log[gpu_asked_last(&w, MCS_MSG_ALLOCS_BACK)].b.allocs_back;
    cr_assert(back->extent == LATER_GPU && back->count == 2);
    cr_assert(back->allocs[0].size == 512 && back->allocs[1].offset == 512 &&
              back->allocs[1].size == 1000);
    cr_assert_eq(gpu_count(&w, FAKE_MAPPINGS), 1, "it was never unmapped");
    gpu_stop(&w);
}

/* As when [gpu] enable was changed in between. */
Test(gpu, a_later_agent_without_gpus_is_not_asked)
{
    struct gpu_world w = {0};
    void *p;

    gpu_start(&w, MCS_FEATURE_GPU, NULL);
    gpu_driver(&w);
    (void)alloc_at(&w, 64, "cuda:0");
    mcs_store_release(&w.a.features, 0); /* later_hello() */
    later_kill(&w.a);
    later_await(&w.a.resumes, 1);
    cr_assert_eq(mcshm_alloc(w.c, 64, 0, "cuda:0", &p), MCSHM_NO_GPU);
    cr_assert_eq(later_asked(&w.a, 2, MCS_MSG_GPU_ALLOC), 0);
    gpu_stop(&w);
}

struct allocating {
    struct gpu_world *w;
    void *out;
    mcshm_status status;
};

static void *allocate(void *arg)
{
    struct allocating *a = arg;

    a->status = mcshm_alloc(a->w->c, 4096, 0, "cuda:0", &a->out);
    return NULL;
}

static void await_waiting(struct gpu_world *w, uint64_t n)
{
    int64_t end = mcl_now_ns() + INT64_C(15000000000);

    while (mcs_load_acquire(&w->fake->rules[0].waiting) != n) { /* the double's threads */
        cr_assert_lt(mcl_now_ns(), end, "waited in vain for %llu threads in the driver",
                     (unsigned long long)n);
        usleep(500);
    }
}

/* A driver that hangs holds up who asked for GPU memory, and nobody else, nor the way to a later agent. */
Test(gpu, a_hanging_driver_holds_up_no_other_call)
{
    struct gpu_world w = {0};
    struct allocating a = {.w = &w};
    pthread_t thread;
    mcshm_info info;
    void *p;
    int at;

    gpu_start(&w, MCS_FEATURE_GPU, NULL);
    gpu_driver(&w);
    fake_cuda_arm(w.fake, 0, "cuMemMap", FAKE_HANG, 0, 1, 1);
    cr_assert_eq(pthread_create(&thread, NULL, allocate, &a), 0);
    await_waiting(&w, 1);
    cr_assert_eq(mcshm_alloc(w.c, 64, 0, NULL, &p), MCSHM_OK);
    later_kill(&w.a);
    later_await(&w.a.resumes, 1);
    for (at = gpu_asked_last(&w, MCS_MSG_ALLOCS_BACK);
         w.a.log[at].h.type != MCS_MSG_ALLOCS_BACK || w.a.log[at].b.allocs_back.extent != LATER_GPU;
         at--)
        cr_assert_gt(at, 0, "it has no address yet");
    cr_assert_eq(w.a.log[at].b.allocs_back.allocs[0].size, 4096);
    cr_assert_eq(mcshm_get_info(w.c, &info), MCSHM_OK);
    cr_assert_eq(mcshm_alloc(w.c, 64, 0, NULL, &p), MCSHM_OK);
    fake_cuda_disarm(w.fake);
    pthread_join(thread, NULL);
    cr_assert_eq(a.status, MCSHM_OK);
    cr_assert_eq(mcshm_free(w.c, a.out), MCSHM_OK);
    gpu_stop(&w);
}

/* B77, the client's side. */
Test(gpu, closing_does_not_wait_for_a_hanging_driver)
{
    mcshm_options o = {.control_timeout_ms = 200, .reconnect_ms = 1000};
    struct gpu_world w = {0};

    gpu_start(&w, MCS_FEATURE_GPU, &o);
    gpu_driver(&w);
    (void)alloc_at(&w, 64, "cuda:0");
    fake_cuda_arm(w.fake, 0, "cuMemUnmap", FAKE_HANG, 0, 1, 1);
    gpu_close(&w); /* the suite's time limit is the test's */
    await_waiting(&w, 1);
    fake_cuda_disarm(w.fake);
    await_waiting(&w, 0);
    for (int64_t end = mcl_now_ns() + INT64_C(15000000000); gpu_count(&w, FAKE_RETAINS) != 2;) {
        cr_assert_lt(mcl_now_ns(), end, "its thread has not gone on");
        usleep(500);
    }
    gpu_assert_flat(&w);
    gpu_release(&w);
}

Test(gpu, a_forked_child_leaves_the_driver_alone)
{
    struct gpu_world w = {0};
    int status;
    pid_t pid;
    void *p;

    gpu_start(&w, MCS_FEATURE_GPU, NULL);
    gpu_driver(&w);
    (void)alloc_at(&w, 64, "cuda:0");
    pid = fork();
    if (pid == 0) {
        bool good = mcshm_alloc(w.c, 64, 0, "cuda:0", &p) == MCSHM_FORKED;

        mcshm_close(w.c);
        _exit(good ? 0 : 1);
    }
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    cr_assert_null(fake_cuda_process(w.fake, pid));
    cr_assert_eq(gpu_count(&w, FAKE_MAPPINGS), 1);
    gpu_stop(&w);
}

Test(gpu, memory_of_others_is_mapped_and_granted_anew)
{
    struct gpu_world w = {0};
    const void *mapped;
    mcshm_segment s;

    gpu_start(&w, MCS_FEATURE_GPU, NULL);
    gpu_driver(&w);
    cr_assert_eq(mcshm_segment_open(w.c, "other", &s), MCSHM_OK);
    cr_assert_eq(later_asked(&w.a, 0, MCS_MSG_MAP), 0, "nothing of it for the caller's thread");
    cr_assert_eq(mcshm_map(w.c, s, 0x10100, 64, &mapped), MCSHM_OK, "%s", mcshm_last_error(w.c));
    cr_assert_eq((uintptr_t)mapped % LATER_GRANULARITY, 4096, "the reply's offset");
    cr_assert_eq(gpu_count(&w, FAKE_MAPPINGS), 1);
    later_kill(&w.a);
    later_await(&w.a.resumes, 1);
    for (int64_t end = mcl_now_ns() + INT64_C(15000000000); later_asked(&w.a, 2, MCS_MSG_MAP) == 0;)
        cr_assert_lt(mcl_now_ns(), end);
    cr_assert_eq(gpu_count(&w, FAKE_MAPPINGS), 1);
    cr_assert_eq(mcshm_unmap(w.c, mapped), MCSHM_OK);
    cr_assert_eq(gpu_count(&w, FAKE_MAPPINGS), 0);
    cr_assert_eq(later_asked(&w.a, 2, MCS_MSG_UNMAP), 1);
    fake_cuda_arm(w.fake, 0, "cuMemMap", FAKE_FAIL, CUDA_ERROR_OUT_OF_MEMORY, 1, 1);
    cr_assert_eq(mcshm_map(w.c, s, 0x10100, 64, &mapped), MCSHM_NO_MEMORY);
    cr_assert_eq(later_asked(&w.a, 2, MCS_MSG_UNMAP), 2, "the grant is given back");
    (void)mcshm_map(w.c, s, 0x10100, 64, &mapped); /* goes with the connection */
    gpu_stop(&w);
}

struct mapping {
    struct gpu_world *w;
    mcshm_segment segment;
    const void *out;
    mcshm_status status;
};

static void *map_it(void *arg)
{
    struct mapping *m = arg;

    m->status = mcshm_map(m->w->c, m->segment, 0x10100, 64, &m->out);
    return NULL;
}

Test(gpu, a_mapping_that_was_being_made_is_granted_anew)
{
    struct gpu_world w = {0};
    struct mapping m = {.w = &w};
    pthread_t thread;

    gpu_start(&w, MCS_FEATURE_GPU, NULL);
    gpu_driver(&w);
    cr_assert_eq(mcshm_segment_open(w.c, "other", &m.segment), MCSHM_OK);
    fake_cuda_arm(w.fake, 0, "cuMemMap", FAKE_HANG, 0, 1, 1);
    cr_assert_eq(pthread_create(&thread, NULL, map_it, &m), 0);
    await_waiting(&w, 1);
    later_kill(&w.a);
    later_await(&w.a.resumes, 1);
    fake_cuda_disarm(w.fake);
    pthread_join(thread, NULL);
    cr_assert_eq(m.status, MCSHM_OK);
    for (int64_t end = mcl_now_ns() + INT64_C(15000000000); later_asked(&w.a, 2, MCS_MSG_MAP) == 0;)
        cr_assert_lt(mcl_now_ns(), end, "the later agent knows nothing of it");
    gpu_stop(&w);
}

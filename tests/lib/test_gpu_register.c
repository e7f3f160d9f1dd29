/* SPDX-License-Identifier: Apache-2.0 */
/* GPU memory of other libraries: how its parts are handed over. */
#include "gpu.h"

TestSuite(gpu_register, .timeout = 60);

#define PIECE LATER_GRANULARITY
#define PIECES 3u

/* Several allocations one behind the other, as PyTorch's expandable segments. */
struct segments {
    CUdeviceptr at;
    CUmemGenericAllocationHandle handles[PIECES];
};

static void segments_make(struct gpu_world *w, struct segments *s, bool exportable)
{
    CUmemAllocationProp p = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                             .requestedHandleTypes = exportable
                                                         ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
                                                         : CU_MEM_HANDLE_TYPE_NONE,
                             .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};

    gpu_check(mcs_cuda_enter(w->cuda, w->primary[0]));
    gpu_check(w->cuda->mem_reserve(&s->at, PIECES * PIECE, 0, 0, 0));
    for (unsigned i = 0; i < PIECES; i++) {
        gpu_check(w->cuda->mem_create(&s->handles[i], PIECE, &p, 0));
        gpu_check(w->cuda->mem_map(s->at + i * PIECE, PIECE, 0, s->handles[i], 0));
        gpu_check(w->cuda->mem_set_access(s->at + i * PIECE, PIECE, &access, 1));
    }
    mcs_cuda_leave(w->cuda);
}

static void segments_free(struct gpu_world *w, struct segments *s)
{
    gpu_check(mcs_cuda_enter(w->cuda, w->primary[0]));
    for (unsigned i = 0; i < PIECES; i++) {
        gpu_check(w->cuda->mem_unmap(s->at + i * PIECE, PIECE));
        gpu_check(w->cuda->mem_release(s->handles[i]));
    }
    gpu_check(w->cuda->mem_address_free(s->at, PIECES * PIECE));
    mcs_cuda_leave(w->cuda);
}

static CUdeviceptr plain_alloc(struct gpu_world *w, unsigned device, size_t size)
{
    CUdeviceptr at;

    gpu_check(mcs_cuda_enter(w->cuda, w->primary[device]));
    gpu_check(w->cuda->mem_alloc(&at, size));
    mcs_cuda_leave(w->cuda);
    return at;
}

static void plain_free(struct gpu_world *w, unsigned device, CUdeviceptr at)
{
    gpu_check(mcs_cuda_enter(w->cuda, w->primary[device]));
    gpu_check(w->cuda->mem_free(at));
    mcs_cuda_leave(w->cuda);
}

static void start(struct gpu_world *w)
{
    gpu_start(w, MCS_FEATURE_GPU, NULL);
    gpu_driver(w);
}

static mcshm_status reg(struct gpu_world *w, CUdeviceptr at, size_t size)
{
    return mcshm_register_gpu(w->c, (void *)(uintptr_t)at, size);
}

static mcshm_status unreg(struct gpu_world *w, CUdeviceptr at)
{
    return mcshm_unregister(w->c, (void *)(uintptr_t)at);
}

/* The n-th GPU_IMPORT of all; its descriptor's inode, 0: none. */
static const struct mcs_msg_gpu_import *import_asked(struct gpu_world *w, unsigned n, ino_t *ino)
{
    const struct mcs_msg_gpu_import *found = NULL;

    pthread_mutex_lock(&w->a.mutex);
    for (uint32_t i = 0; i < w->a.nlog && found == NULL; i++) {
        if (w->a.log[i].h.type == MCS_MSG_GPU_IMPORT && n-- == 0) {
            found = &w->a.log[i].b.gpu_import;
            *ino = w->a.log[i].ino;
        }
    }
    pthread_mutex_unlock(&w->a.mutex);
    cr_assert_not_null(found);
    return found;
}

static void assert_part(struct gpu_world *w, unsigned n, uint64_t total, uint64_t at, uint64_t size,
                        uint64_t offset, bool last)
{
    const struct mcs_msg_gpu_import *m;
    ino_t ino;

    m = import_asked(w, n, &ino);
    cr_assert(m->total == total && m->at == at && m->size == size && m->offset == offset,
              "part %u: %llu of %llu at %llu, from %llu", n, (unsigned long long)m->size,
              (unsigned long long)m->total, (unsigned long long)m->at,
              (unsigned long long)m->offset);
    cr_assert_eq(m->last, last);
    cr_assert_eq(m->whole, PIECE);
    cr_assert(m->ipc == 0 && ino != 0);
}

Test(gpu_register, parts_follow_the_allocations)
{
    const uint64_t from = 4096, total = 2 * PIECE + 8192 - from;
    struct gpu_world w = {0};
    struct segments s;
    ino_t first, second;

    start(&w);
    segments_make(&w, &s, true);
    cr_assert_eq(reg(&w, s.at + from, total), MCSHM_OK, "%s", mcshm_last_error(w.c));
    cr_assert_eq(later_asked(&w.a, 0, MCS_MSG_GPU_IMPORT), 3);
    assert_part(&w, 0, total, 0, PIECE - from, from, false);
    assert_part(&w, 1, total, PIECE - from, PIECE, 0, false);
    assert_part(&w, 2, total, 2 * PIECE - from, 8192, 0, true);
    (void)import_asked(&w, 0, &first);
    (void)import_asked(&w, 1, &second);
    cr_assert_neq(first, second, "each its own memory");
    cr_assert_eq(gpu_count(&w, FAKE_HANDLES), 1 + PIECES, "what was retained is released");
    cr_assert_eq(unreg(&w, s.at + from), MCSHM_OK);
    cr_assert_eq(later_asked(&w.a, 0, MCS_MSG_UNREGISTER), 1);
    cr_assert_eq(unreg(&w, s.at + from), MCSHM_NOT_REGISTERED);
    segments_free(&w, &s);
    gpu_stop(&w);
}

/* Descriptors of device memory that a program executed by this one would have, and keep the memory by. */
static unsigned inherited(void)
{
    char path[64], link[256];
    unsigned n = 0;

    for (int fd = 3; fd < 1024; fd++) {
        ssize_t length;

        snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
        length = readlink(path, link, sizeof(link) - 1);
        link[length > 0 ? length : 0] = '\0';
        n += strstr(link, "fake-cuda gpu") != NULL && (fcntl(fd, F_GETFD) & FD_CLOEXEC) == 0;
    }
    return n;
}

Test(gpu_register, what_is_exported_does_not_pass_to_programs_that_are_executed)
{
    struct gpu_world w;
    struct segments s;
    unsigned before;

    start(&w);
    segments_make(&w, &s, true);
    before = inherited(); /* the played agent's */
    cr_assert_eq(reg(&w, s.at, PIECES * PIECE), MCSHM_OK, "%s", mcshm_last_error(w.c));
    cr_assert_eq(inherited(), before);
    cr_assert_eq(unreg(&w, s.at), MCSHM_OK);
    segments_free(&w, &s);
    gpu_stop(&w);
}

Test(gpu_register, plain_allocations_go_by_ipc_with_an_offset)
{
    struct gpu_world w = {0};
    const struct mcs_msg_gpu_import *m;
    uint64_t allocation;
    CUdeviceptr at;
    ino_t ino;

    start(&w);
    at = plain_alloc(&w, 0, 100000);
    cr_assert_eq(reg(&w, at + 1000, 5000), MCSHM_OK, "%s", mcshm_last_error(w.c));
    m = import_asked(&w, 0, &ino);
    cr_assert(m->ipc == 1 && ino == 0 && m->last == 1);
    cr_assert(m->total == 5000 && m->size == 5000 && m->offset == 1000 && m->at == 0);
    allocation = m->allocation;
    cr_assert_neq(allocation, 0);
    cr_assert_eq(reg(&w, at + 8000, 5000), MCSHM_OK);
    m = import_asked(&w, 1, &ino);
    cr_assert(m->offset == 8000 && m->allocation == allocation, "the same allocation");
    cr_assert_eq(gpu_count(&w, FAKE_OPENS), 0, "B80: nobody opens his own handle");
    cr_assert_eq(unreg(&w, at + 1000), MCSHM_OK);
    cr_assert_eq(unreg(&w, at + 8000), MCSHM_OK);
    plain_free(&w, 0, at);
    /* B75: what lies there now is another one */
    at = plain_alloc(&w, 0, 100000);
    cr_assert_eq(reg(&w, at, 5000), MCSHM_OK);
    m = import_asked(&w, 2, &ino);
    cr_assert_neq(m->allocation, allocation);
    cr_assert_eq(unreg(&w, at), MCSHM_OK);
    plain_free(&w, 0, at);
    gpu_stop(&w);
}

Test(gpu_register, no_context_is_made_for_it)
{
    struct gpu_world w = {0};
    CUdeviceptr at;

    start(&w);
    at = plain_alloc(&w, 1, 4096);
    cr_assert_eq(reg(&w, at, 4096), MCSHM_OK, "%s", mcshm_last_error(w.c));
    cr_assert_eq(gpu_count(&w, FAKE_RETAINS), 2, "the memory's own context serves");
    cr_assert_eq(unreg(&w, at), MCSHM_OK);
    plain_free(&w, 1, at);
    gpu_stop(&w);
}

Test(gpu_register, the_same_range_counts_and_others_overlap)
{
    struct gpu_world w = {0};
    CUdeviceptr at;
    void *own, *p;

    start(&w);
    at = plain_alloc(&w, 0, 100000);
    cr_assert_eq(reg(&w, at + 4096, 4096), MCSHM_OK);
    cr_assert_eq(reg(&w, at + 4096, 4096), MCSHM_OK);
    cr_assert_eq(later_asked(&w.a, 0, MCS_MSG_GPU_IMPORT), 1);
    cr_assert_eq(reg(&w, at + 4096, 4097), MCSHM_OVERLAP);
    cr_assert_eq(reg(&w, at, 4097), MCSHM_OVERLAP);
    cr_assert_eq(reg(&w, at + 8191, 1), MCSHM_OVERLAP);
    cr_assert_eq(reg(&w, at, 4096), MCSHM_OK, "beside it");
    cr_assert_eq(mcshm_alloc(w.c, 4096, 0, "cuda:0", &own), MCSHM_OK);
    cr_assert_eq(mcshm_register_gpu(w.c, own, 64), MCSHM_OVERLAP);
    cr_assert_not_null(strstr(mcshm_last_error(w.c), "need no registration"));
    cr_assert_eq(mcshm_alloc(w.c, 4096, 0, NULL, &p), MCSHM_OK);
    cr_assert_eq(mcshm_register_gpu(w.c, p, 64), MCSHM_OVERLAP);
    cr_assert_eq(unreg(&w, at + 4096), MCSHM_OK);
    cr_assert_eq(later_asked(&w.a, 0, MCS_MSG_UNREGISTER), 0);
    cr_assert_eq(unreg(&w, at + 4096), MCSHM_OK);
    cr_assert_eq(later_asked(&w.a, 0, MCS_MSG_UNREGISTER), 1);
    cr_assert_eq(unreg(&w, at), MCSHM_OK);
    plain_free(&w, 0, at);
    gpu_stop(&w);
}

Test(gpu_register, what_cannot_be_shared_is_refused_with_the_reason)
{
    static uint8_t host[4096];
    struct gpu_world w = {0};
    struct segments s;
    CUdeviceptr at;

    start(&w);
    cr_assert_eq(mcshm_register_gpu(w.c, NULL, 4), MCSHM_INVALID_ARGUMENT);
    cr_assert_eq(mcshm_register_gpu(w.c, host, 0), MCSHM_INVALID_ARGUMENT);
    cr_assert_eq(mcshm_register_gpu(w.c, host, SIZE_MAX), MCSHM_INVALID_ARGUMENT);
    cr_assert_eq(mcshm_register_gpu(w.c, host, sizeof(host)), MCSHM_NOT_REGISTERED);
    segments_make(&w, &s, false);
    cr_assert_eq(reg(&w, s.at, 4096), MCSHM_NOT_SUPPORTED);
    cr_assert_not_null(strstr(mcshm_last_error(w.c), "CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR"));
    cr_assert_not_null(strstr(mcshm_last_error(w.c), "mcshm_alloc()"), "and what to do: %s",
                       mcshm_last_error(w.c));
    segments_free(&w, &s);
    segments_make(&w, &s, true);
    cr_assert_eq(reg(&w, s.at, PIECES * PIECE + 1), MCSHM_NOT_REGISTERED, "beyond its end");
    segments_free(&w, &s);
    at = plain_alloc(&w, 0, 4096);
    fake_cuda_arm(w.fake, 0, "cuIpcGetMemHandle", FAKE_FAIL, CUDA_ERROR_NOT_SUPPORTED, 1, 1);
    cr_assert_eq(reg(&w, at, 4096), MCSHM_NOT_SUPPORTED);
    fake_cuda_arm(w.fake, 0, "cuIpcGetMemHandle", FAKE_FAIL, CUDA_ERROR_ECC_UNCORRECTABLE, 1, 1);
    cr_assert_eq(reg(&w, at, 4096), MCSHM_GPU_LOST);
    plain_free(&w, 0, at);
    cr_assert_eq(later_asked(&w.a, 0, MCS_MSG_GPU_IMPORT), 0);
    gpu_stop(&w);
}

static int descriptors(void)
{
    int n = 0;

    for (int fd = 0; fd < 1024; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

static enum later_say refuse_second_part(struct later *a, const struct mcs_msg *m, uint32_t *status)
{
    (void)a;
    *status = MCS_LIMIT;
    return m->h.type == MCS_MSG_GPU_IMPORT && m->b.gpu_import.at != 0 ? LATER_REFUSE : LATER_ANSWER;
}

Test(gpu_register, a_refusal_of_the_agent_leaves_nothing)
{
    struct gpu_world w = {0};
    struct segments s;
    int before;

    start(&w);
    segments_make(&w, &s, true);
    cr_assert_eq(reg(&w, s.at, PIECE), MCSHM_OK);
    cr_assert_eq(unreg(&w, s.at), MCSHM_OK);
    before = descriptors(); /* the agent's thread has none open on the way any more */
    mcs_store_release(&w.a.hook, refuse_second_part);
    cr_assert_eq(reg(&w, s.at, 3 * PIECE), MCSHM_LIMIT);
    cr_assert_eq(later_asked(&w.a, 0, MCS_MSG_GPU_IMPORT), 3);
    cr_assert_eq(descriptors(), before);
    mcs_store_release(&w.a.hook, NULL);
    cr_assert_eq(reg(&w, s.at, 3 * PIECE), MCSHM_OK);
    cr_assert_eq(unreg(&w, s.at), MCSHM_OK);
    cr_assert_eq(descriptors(), before);
    segments_free(&w, &s);
    gpu_stop(&w);
}

/* The first life dies of the second part. */
static enum later_say die_of_second_part(struct later *a, const struct mcs_msg *m, uint32_t *status)
{
    *status = MCS_INVALID_ARGUMENT;
    if (m->h.type != MCS_MSG_GPU_IMPORT || m->b.gpu_import.at == 0)
        return LATER_ANSWER;
    if (mcs_load_relaxed(&a->lives) == 1)
        return LATER_DIE;
    /* as an agent does: it follows upon nothing */
    return a->asked[MCS_MSG_GPU_IMPORT] == 1 ? LATER_REFUSE : LATER_ANSWER;
}

Test(gpu_register, parts_begin_anew_with_a_later_agent)
{
    struct gpu_world w = {0};
    struct segments s;

    start(&w);
    segments_make(&w, &s, true);
    mcs_store_release(&w.a.hook, die_of_second_part);
    cr_assert_eq(reg(&w, s.at, 2 * PIECE), MCSHM_OK, "%s", mcshm_last_error(w.c));
    cr_assert_eq(later_asked(&w.a, 1, MCS_MSG_GPU_IMPORT), 2);
    cr_assert_eq(later_asked(&w.a, 2, MCS_MSG_GPU_IMPORT), 3, "the second part, then both");
    cr_assert_eq(unreg(&w, s.at), MCSHM_OK);
    segments_free(&w, &s);
    gpu_stop(&w);
}

Test(gpu_register, a_later_agent_gets_the_parts_again)
{
    const uint64_t total = 2 * PIECE;
    struct gpu_world w = {0};
    const struct mcs_msg_gpu_import *m;
    struct segments s;
    CUdeviceptr at;
    ino_t before, after;
    int back;

    start(&w);
    segments_make(&w, &s, true);
    cr_assert_eq(reg(&w, s.at, total), MCSHM_OK);
    later_kill(&w.a);
    later_await(&w.a.resumes, 1);
    back = gpu_asked_last(&w, MCS_MSG_EXTENT_BACK);
    cr_assert(w.a.log[back].b.extent_back.extent == LATER_IMPORT &&
              w.a.log[back].b.extent_back.memory == MCS_MEMORY_GPU &&
              w.a.log[back].b.extent_back.size == total && w.a.log[back].ino == 0);
    cr_assert_eq(later_asked(&w.a, 2, MCS_MSG_GPU_IMPORT), 2);
    cr_assert_eq(later_asked(&w.a, 2, MCS_MSG_ALLOCS_BACK), 0);
    assert_part(&w, 2, total, 0, PIECE, 0, false);
    assert_part(&w, 3, total, PIECE, PIECE, 0, true);
    (void)import_asked(&w, 1, &before);
    (void)import_asked(&w, 3, &after);
    cr_assert_eq(before, after);
    cr_assert_eq(unreg(&w, s.at), MCSHM_OK);
    segments_free(&w, &s);

    at = plain_alloc(&w, 0, 4096);
    cr_assert_eq(reg(&w, at, 4096), MCSHM_OK);
    later_kill(&w.a);
    later_await(&w.a.resumes, 2);
    m = import_asked(&w, 5, &after);
    cr_assert(m->ipc == 1 && m->last == 1 && after == 0);
    cr_assert_eq(unreg(&w, at), MCSHM_OK);
    plain_free(&w, 0, at);
    gpu_stop(&w);
}

struct registering {
    struct gpu_world *w;
    CUdeviceptr at;
    mcshm_status bad;
};

static void *register_often(void *arg)
{
    struct registering *r = arg;

    for (int i = 0; i < 100 && r->bad == MCSHM_OK; i++) {
        r->bad = reg(r->w, r->at, 4096);
        if (r->bad == MCSHM_OK)
            r->bad = unreg(r->w, r->at);
    }
    return NULL;
}

/* B75: eight threads, four ranges of one allocation. */
Test(gpu_register, threads_register_parts_of_one_allocation)
{
    struct registering r[8];
    struct gpu_world w = {0};
    pthread_t threads[8];
    CUdeviceptr at;

    start(&w);
    at = plain_alloc(&w, 0, 65536);
    for (unsigned i = 0; i < 8; i++) {
        r[i] = (struct registering){.w = &w, .at = at + (i % 4) * 8192};
        cr_assert_eq(pthread_create(&threads[i], NULL, register_often, &r[i]), 0);
    }
    for (unsigned i = 0; i < 8; i++) {
        pthread_join(threads[i], NULL);
        cr_assert_eq(r[i].bad, MCSHM_OK);
    }
    cr_assert_eq(w.c->nextents, 0);
    plain_free(&w, 0, at);
    gpu_stop(&w);
}

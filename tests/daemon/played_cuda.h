/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transports/cuda played by the test: calls are done when the test says so, in the order in which they came, with the
 * outcome that it wants.  For tests of what the agent makes of them; what the driver is asked for is transports/cuda's
 * matter.  Included by one file of a program.
 */
#ifndef TESTS_PLAYED_CUDA_H
#define TESTS_PLAYED_CUDA_H

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "transports/cuda/cuda.h"

#define PC_GRANULARITY (UINT64_C(2) << 20)
#define PC_TOTAL (UINT64_C(1) << 30)
#define PC_DEVICES 2u
#define PC_KINDS (MCT_CUDA_UNPIN + 1)

struct mct_cuda_memory {
    unsigned device;
    uint64_t size;
};

struct mct_cuda {
    int control_fd;
    struct mct_cuda_device devices[PC_DEVICES];
    struct mct_cuda_stats stats;
};

static struct {
    struct mct_cuda *cuda;
    bool no_driver;
    bool holds[PC_KINDS];              /* calls of this kind stay until pc_end() */
    enum mcs_status refuses[PC_KINDS]; /* what the next ones of a kind come to; OK: all is well */
    unsigned begun[PC_KINDS];
    unsigned every; /* nothing is done but at each so many-th look; 0: at each */
    unsigned looks;
    struct mct_cuda_call *first, **last;
    uint64_t made, pinned; /* bytes that are there */
    uint64_t last_size;    /* of the last MAKE or IMPORT */
    unsigned parts;        /* of the last IMPORT */
} pc;

static inline struct mcs_gpu_id pc_id(unsigned device)
{
    struct mcs_gpu_id id;

    memset(&id, 0x10 + (int)device, sizeof(id));
    return id;
}

int mct_cuda_create(const struct mct_cuda_env *env, struct mct_cuda **out)
{
    struct mct_cuda *c = calloc(1, sizeof(*c));

    cr_assert_not_null(c);
    c->control_fd = env->control_fd;
    for (unsigned i = 0; i < PC_DEVICES; i++) {
        struct mct_cuda_device *d = &c->devices[i];

        *d = (struct mct_cuda_device){.id = pc_id(i),
                                      .node = -1,
                                      .vmm = true,
                                      .posix_handles = true,
                                      .total = PC_TOTAL,
                                      .granularity = PC_GRANULARITY};
        snprintf(d->name, sizeof(d->name), "PLAYED GPU %u", i);
    }
    memset(&pc.begun, 0, sizeof(pc.begun));
    pc.first = NULL;
    pc.last = &pc.first;
    pc.made = pc.pinned = 0;
    pc.cuda = c;
    *out = c;
    return 0;
}

void mct_cuda_destroy(struct mct_cuda *c)
{
    cr_assert_null(pc.first, "a call is under way");
    cr_assert_eq(pc.made, 0);
    cr_assert_eq(pc.pinned, 0);
    free(c);
    pc.cuda = NULL;
}

static inline void pc_wake(void)
{
    const uint64_t one = 1;

    cr_assert_eq(write(pc.cuda->control_fd, &one, sizeof(one)), (ssize_t)sizeof(one));
}

void mct_cuda_begin(struct mct_cuda *c, struct mct_cuda_call *call)
{
    (void)c;
    call->next = NULL;
    *pc.last = call;
    pc.last = &call->next;
    pc.begun[call->kind]++;
    pc_wake();
}

static inline void pc_make(struct mct_cuda_call *call)
{
    struct mct_cuda_memory *m = calloc(1, sizeof(*m));

    cr_assert_not_null(m);
    cr_assert(call->kind == MCT_CUDA_IMPORT || call->size % PC_GRANULARITY == 0);
    m->device = call->device;
    m->size = call->size;
    call->memory = m;
    call->address = call->hint;
    pc.made += m->size;
    pc.last_size = call->size;
    if (call->kind == MCT_CUDA_MAKE)
        cr_assert((call->fd = memfd_create("played", MFD_CLOEXEC)) >= 0);
    pc.parts = call->nparts;
}

/* No memory lies behind it. */
static inline void pc_dmabuf(struct mct_cuda_call *call)
{
    cr_assert(call->offset % 4096 == 0 && call->size % 4096 == 0 && call->size != 0);
    cr_assert_leq(call->offset + call->size, call->memory->size);
    call->fd = memfd_create("played dmabuf", MFD_CLOEXEC);
    cr_assert(call->fd >= 0 && ftruncate(call->fd, (off_t)call->size) == 0);
}

static inline void pc_run(struct mct_cuda_call *call)
{
    call->status = pc.refuses[call->kind];
    call->fd = -1;
    if (call->kind == MCT_CUDA_OPEN && pc.no_driver)
        call->status = MCS_NO_GPU;
    snprintf(call->text, sizeof(call->text), "%s",
             call->status == MCS_OK ? "" : "the played driver says no");
    if (call->kind == MCT_CUDA_FREE) { /* whatever it says */
        pc.made -= call->memory->size;
        free(call->memory);
    }
    if (call->status != MCS_OK)
        return;
    if (call->kind == MCT_CUDA_MAKE || call->kind == MCT_CUDA_IMPORT)
        pc_make(call);
    else if (call->kind == MCT_CUDA_DMABUF)
        pc_dmabuf(call);
    else if (call->kind == MCT_CUDA_PIN)
        pc.pinned += call->size;
    else if (call->kind == MCT_CUDA_UNPIN)
        pc.pinned -= call->size;
}

/* The next call of what is not held; NULL: there is none. */
static inline struct mct_cuda_call *pc_take(void)
{
    for (struct mct_cuda_call **link = &pc.first; *link != NULL; link = &(*link)->next) {
        struct mct_cuda_call *call = *link;

        if (pc.holds[call->kind])
            continue;
        *link = call->next;
        if (pc.last == &call->next)
            pc.last = link;
        return call;
    }
    return NULL;
}

bool mct_cuda_poll(struct mct_cuda *c)
{
    struct mct_cuda_call *call;
    bool any = false;

    (void)c;
    if (pc.every != 0 && ++pc.looks % pc.every != 0)
        return false;
    while ((call = pc_take()) != NULL) {
        pc_run(call);
        call->done(call);
        any = true;
    }
    return any;
}

/* Calls of that kind are done from now on. */
static inline void pc_end(enum mct_cuda_call_kind kind)
{
    pc.holds[kind] = false;
    pc_wake();
}

const struct mct_cuda_device *mct_cuda_device_get(const struct mct_cuda *c, unsigned index)
{
    return index < PC_DEVICES ? &c->devices[index] : NULL;
}

int mct_cuda_device_find(const struct mct_cuda *c, const struct mcs_gpu_id *id)
{
    for (unsigned i = 0; i < PC_DEVICES; i++)
        if (memcmp(&c->devices[i].id, id, sizeof(*id)) == 0)
            return (int)i;
    return -1;
}

int mct_cuda_driver_version(const struct mct_cuda *c)
{
    (void)c;
    return 13000;
}

const struct mct_cuda_stats *mct_cuda_stats(const struct mct_cuda *c)
{
    return &c->stats;
}

unsigned mct_cuda_memory_device(const struct mct_cuda_memory *m)
{
    return m->device;
}

/* Engines copy nothing here. */
int mct_cuda_port_open(struct mct_cuda *c, int wake_fd, struct mct_cuda_port **out)
{
    (void)c;
    (void)wake_fd;
    *out = NULL;
    return 0;
}

void mct_cuda_port_close(struct mct_cuda_port *p)
{
    (void)p;
}

void mct_cuda_post(struct mct_cuda_port *p, struct mct_cuda_job *job)
{
    (void)p;
    (void)job;
    cr_assert_fail("a copy");
}

struct mct_cuda_job *mct_cuda_port_take(struct mct_cuda_port *p)
{
    (void)p;
    return NULL;
}

bool mct_cuda_port_arm(struct mct_cuda_port *p)
{
    (void)p;
    return true;
}

#endif

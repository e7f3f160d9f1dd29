/* SPDX-License-Identifier: Apache-2.0 */
/* Protection domains and registrations. */
#include "inside.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#undef ibv_reg_mr
#undef ibv_reg_mr_iova

uint64_t fake_lock_limit = UINT64_MAX;
/* Of all devices together and never used twice, so that a key of another device, or an old one, fits nowhere. */
static uint32_t last_key = 0x1000;

void fake_memlock(uint64_t bytes)
{
    pthread_mutex_lock(&fake_lock);
    fake_lock_limit = bytes;
    fake_leave();
}

struct ibv_pd *ibv_alloc_pd(struct ibv_context *context)
{
    struct context *c = FAKE_OF(context, v.context, context);
    int error = fake_enter_on(FAKE_ALLOC_PD, &c->o, "ibv_alloc_pd");
    struct pd *pd = NULL;

    if (error == 0 && c->o.device->fatal)
        error = EIO;
    if (error == 0) {
        pd = fake_alloc(sizeof(*pd));
        pd->v.context = context;
        c->users++;
        fake_live(&pd->o, FAKE_PD, c->o.device, &pd->v, sizeof(pd->v));
    }
    fake_leave();
    errno = error != 0 ? error : errno;
    return pd != NULL ? &pd->v : NULL;
}

int ibv_dealloc_pd(struct ibv_pd *v)
{
    struct pd *pd = FAKE_OF(pd, v, v);
    int error = fake_enter_on(FAKE_DEALLOC_PD, &pd->o, "ibv_dealloc_pd");

    if (error == 0) {
        if (pd->users != 0)
            fake_abort("ibv_dealloc_pd: %u objects of it are still there", pd->users);
        FAKE_OF(context, v.context, v->context)->users--;
        fake_die(&pd->o);
    }
    fake_leave();
    return error;
}

/* Bytes registered with all devices, and registrations of this one. */
static uint64_t locked(const struct device *d, unsigned *own)
{
    uint64_t sum = 0;

    *own = 0;
    for (struct fake_object *o = fake_objects; o != NULL; o = o->next)
        if (o->alive && o->kind == FAKE_MR) {
            sum += FAKE_OF(region, o, o)->r.length;
            *own += o->device == d;
        }
    return sum;
}

/* Is all of it mapped? */
static bool is_mapped(uint64_t address, uint64_t length)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), first = address & ~(page - 1);
    uint64_t pages = (address + length - first + page - 1) / page;
    unsigned char in[1024];

    for (uint64_t n; pages > 0; pages -= n, first += n * page) {
        n = pages < sizeof(in) ? pages : sizeof(in);
        if (mincore((void *)(uintptr_t)first, n * page, in) != 0)
            return false;
    }
    return true;
}

static int map_dmabuf(struct region *r)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), off = r->r.offset & (page - 1);

    if ((r->r.iova & (page - 1)) != off)
        return EINVAL;
    r->map_size = r->r.length + off;
    r->map = mmap(NULL, r->map_size, PROT_READ | PROT_WRITE, MAP_SHARED, r->r.fd,
                  (off_t)(r->r.offset - off));
    if (r->map == MAP_FAILED) {
        r->map = NULL;
        return EBADF;
    }
    r->bytes = (uint8_t *)r->map + off;
    return 0;
}

static struct ibv_mr *reg(struct ibv_pd *v, const struct fake_region *as, const char *what)
{
    struct pd *pd = FAKE_OF(pd, v, v);
    int error = fake_enter_on(FAKE_REG_MR, &pd->o, what);
    struct device *d = pd->o.device;
    struct region *r = NULL;
    unsigned own;

    if (error == 0 && d->fatal)
        error = EIO;
    if (error == 0 &&
        (as->length == 0 || (d->v.attr.max_mr_size != 0 && as->length > d->v.attr.max_mr_size) ||
         as->address + as->length < as->address || as->iova + as->length < as->iova ||
         ((as->access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)) != 0 &&
          (as->access & IBV_ACCESS_LOCAL_WRITE) == 0)))
        error = EINVAL;
    if (error == 0 && as->fd < 0 && (as->iova - as->address) % 4096 != 0)
        error = EINVAL;
    if (error == 0 && as->fd < 0 && !is_mapped(as->address, as->length))
        error = EFAULT;
    if (error == 0 &&
        (locked(d, &own) + as->length > fake_lock_limit || own >= (unsigned)d->v.attr.max_mr))
        error = ENOMEM;
    if (error != 0)
        goto out;
    r = fake_alloc(sizeof(*r));
    r->r = *as;
    r->bytes = (uint8_t *)(uintptr_t)as->address;
    error = as->fd >= 0 ? map_dmabuf(r) : 0;
    if (error != 0) {
        free(r);
        r = NULL;
        goto out;
    }
    r->pd = pd;
    r->r.lkey = ++last_key;
    r->r.rkey = ++last_key;
    r->v = (struct ibv_mr){
        .context = v->context,
        .pd = v,
        .addr = (void *)(uintptr_t)as->address,
        .length = as->length,
        .handle = r->r.lkey,
        .lkey = r->r.lkey,
        .rkey = r->r.rkey,
    };
    pd->users++;
    fake_live(&r->o, FAKE_MR, d, &r->v, sizeof(r->v));
out:
    fake_leave();
    errno = error != 0 ? error : errno;
    return r != NULL ? &r->v : NULL;
}

struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *address, size_t length, uint64_t iova,
                                unsigned int access)
{
    struct fake_region as = {
        .address = (uintptr_t)address, .length = length, .iova = iova, .fd = -1, .access = access};

    return reg(pd, &as, "ibv_reg_mr_iova2");
}

struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *address, size_t length, int access)
{
    return ibv_reg_mr_iova2(pd, address, length, (uintptr_t)address, (unsigned)access);
}

struct ibv_mr *ibv_reg_mr_iova(struct ibv_pd *pd, void *address, size_t length, uint64_t iova,
                               int access)
{
    return ibv_reg_mr_iova2(pd, address, length, iova, (unsigned)access);
}

struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova,
                                 int fd, int access)
{
    struct fake_region as = {
        .length = length, .iova = iova, .offset = offset, .fd = fd, .access = (unsigned)access};

    return reg(pd, &as, "ibv_reg_dmabuf_mr");
}

int ibv_dereg_mr(struct ibv_mr *v)
{
    struct region *r = FAKE_OF(region, v, v);
    int error = fake_enter_on(FAKE_DEREG_MR, &r->o, "ibv_dereg_mr");

    if (error != 0)
        goto out;
    if (r->users != 0 && !r->o.device->fatal)
        fake_abort("ibv_dereg_mr: %u work requests that use it are under way", r->users);
    if (r->r.fd < 0 && !is_mapped(r->r.address, r->r.length))
        fake_abort("ibv_dereg_mr: its memory was unmapped before");
    if (r->map != NULL)
        munmap(r->map, r->map_size);
    r->pd->users--;
    fake_die(&r->o);
out:
    fake_leave();
    return error;
}

struct region *fake_region_of(const struct device *d, uint32_t key, bool remote)
{
    for (struct fake_object *o = fake_objects; o != NULL; o = o->next) {
        struct region *r = FAKE_OF(region, o, o);

        if (o->alive && o->kind == FAKE_MR && o->device == d &&
            (remote ? r->r.rkey : r->r.lkey) == key)
            return r;
    }
    return NULL;
}

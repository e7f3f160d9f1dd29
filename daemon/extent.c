/* SPDX-License-Identifier: Apache-2.0 */
#include "extent.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fault.h"
#include "gpu_memory.h"
#include "ledger.h"
#include "log.h"
#include "pool_place.h"
#include "registration.h"
#include "shm/region.h"
#include "shm/failpoint.h"

#define ORDINARY_PAGE 4096u

void mcd_pool_init(struct mcd_pool *p, const struct mcd_config *c)
{
    *p = (struct mcd_pool){
        .config = c,
        .next_address = c->address_base,
        .next_id = 1,
        .page_size = c->pages == MCD_PAGES_OFF ? ORDINARY_PAGE : c->page_size,
    };
}

void mcd_pool_fini(struct mcd_pool *p)
{
    mcd_pool_places_destroy(p->book);
    p->book = NULL;
}

static uint64_t free_hugepages(uint64_t page_size)
{
    unsigned long long n = 0;
    char path[96];
    FILE *f;

    snprintf(path, sizeof(path), "/sys/kernel/mm/hugepages/hugepages-%llukB/free_hugepages",
             (unsigned long long)(page_size >> 10));
    f = fopen(path, "re");
    if (f != NULL) {
        if (fscanf(f, "%llu", &n) != 1)
            n = 0;
        fclose(f);
    }
    return n;
}

int mcd_pool_check(const struct mcd_pool *p, char *error, size_t error_size)
{
    uint64_t page = p->config->page_size;
    uint64_t want = (p->config->pool_size + page - 1) / page;
    uint64_t have = free_hugepages(page);

    if (p->config->pages == MCD_PAGES_REQUIRE && have < want) {
        snprintf(error, error_size,
                 "[pool] pages = require, size = %llu bytes: want %llu free hugepages of %llu KiB, "
                 "there are %llu (%llu short); reserve them with scripts/hugepages/reserve.sh, "
                 "lower the size, or set pages = prefer",
                 (unsigned long long)p->config->pool_size, (unsigned long long)want,
                 (unsigned long long)(page >> 10), (unsigned long long)have,
                 (unsigned long long)(want - have));
        return -ENOMEM;
    }
    return 0;
}

static void note_places(struct mcd_pool *p)
{
    if (p->ledger == NULL)
        return;
    mcd_ledger_head(p->ledger)->next_address = p->next_address;
    mcd_ledger_head(p->ledger)->next_extent = p->next_id;
}

static struct mcd_pool *places_of(struct mcd_pool *p)
{
    return p->places != NULL ? p->places : p;
}

/* Without memory for them no place is used again. */
static struct mcd_pool_places *book_of(struct mcd_pool *p)
{
    if (p->book == NULL)
        p->book = mcd_pool_places_create(p->config->address_base);
    return p->book;
}

static uint64_t behind(uint64_t address, uint64_t size)
{
    return (address + size + MCD_POOL_PLACE_STEP - 1) & ~(MCD_POOL_PLACE_STEP - 1);
}

void mcd_pool_keep(struct mcd_pool *p, uint64_t address, uint64_t size)
{
    p = places_of(p);
    if (address + size > p->next_address)
        p->next_address = behind(address, size);
    if (p->earlier < p->next_address)
        p->earlier = p->next_address;
    mcd_pool_places_take(book_of(p), address, size);
    note_places(p);
}

/* May there be who says nothing but addresses? */
static bool has_strangers(const struct mcd_pool *p)
{
    return strcmp(p->config->mooncake_listen, "off") != 0;
}

uint64_t mcd_pool_place(struct mcd_pool *p, uint64_t size, uint64_t came)
{
    uint64_t at = 0;

    p = places_of(p);
    if (p->next_address + size > MCD_POOL_PLACE_END)
        at = mcd_pool_places_again(book_of(p), size, has_strangers(p) ? 0 : came, p->earlier);
    if (at != 0)
        return at;
    at = p->next_address;
    p->next_address = behind(at, size);
    mcd_pool_places_take(book_of(p), at, size);
    note_places(p);
    return at;
}

uint64_t mcd_pool_now(struct mcd_pool *p)
{
    return mcd_pool_places_now(book_of(places_of(p)));
}

void mcd_pool_unplace(struct mcd_pool *p, uint64_t address, uint64_t size)
{
    mcd_pool_places_leave(places_of(p)->book, address, size, MCD_POOL_PLACE_UNNAMED);
}

void mcd_pool_leave(struct mcd_pool *p, uint64_t address, uint64_t size)
{
    p = places_of(p);
    mcd_pool_places_leave(p->book, address, size,
                          has_strangers(p) ? MCD_POOL_PLACE_SPENT : MCD_POOL_PLACE_NAMED);
}

uint64_t mcd_pool_page(const struct mcd_pool *p)
{
    return p->config->pages == MCD_PAGES_OFF ? ORDINARY_PAGE : p->config->page_size;
}

int mcd_pool_plan(struct mcd_pool *p, uint64_t size, int node, uint64_t room, uint64_t came,
                  struct mcd_extent_job *job)
{
    const struct mcd_config *c = p->config;
    uint64_t page = mcd_pool_page(p);

    if (size > c->pool_size)
        return -E2BIG;
    if (size < c->extent_size && c->extent_size <= mcd_pool_left(p) && c->extent_size <= room)
        size = c->extent_size;
    size = (size + page - 1) & ~(page - 1);
    if (size > mcd_pool_left(p)) {
        p->refused++;
        return -ENOMEM;
    }
    p->used += size;
    *job = (struct mcd_extent_job){
        .size = size,
        .kind = {.page_size = page, .node = node},
        .may_fall_back = c->pages == MCD_PAGES_PREFER,
        .hint = (void *)(uintptr_t)mcd_pool_place(p, size, came),
        .fd = -1,
    };
    return 0;
}

void mcd_extent_job_run(struct mcd_extent_job *job)
{
    job->page_size = job->kind.page_size;
    job->res = mcs_region_create("mcshm-extent", job->size, job->page_size, job->kind.node,
                                 job->hint, &job->fd, &job->map);
    if (job->res != 0 && job->may_fall_back && job->page_size > ORDINARY_PAGE) {
        job->page_size = ORDINARY_PAGE;
        job->res = mcs_region_create("mcshm-extent", job->size, job->page_size, job->kind.node,
                                     job->hint, &job->fd, &job->map);
    }
}

static void unlink_extent(struct mcd_pool *p, struct mcd_extent *e)
{
    if (e->prev != NULL)
        e->prev->next = e->next;
    else
        p->extents = e->next;
    if (e->next != NULL)
        e->next->prev = e->prev;
    p->count--;
}

static void link_extent(struct mcd_pool *p, struct mcd_extent *e)
{
    e->pool = p;
    e->id = places_of(p)->next_id++;
    e->refs = 1;
    e->next = p->extents;
    if (e->next != NULL)
        e->next->prev = e;
    p->extents = e;
    p->count++;
    note_places(places_of(p));
}

static struct mcd_extent *extent_new(struct mcd_pool *p, int fd, void *map, uint64_t size,
                                     uint64_t address)
{
    struct mcd_extent *e = calloc(1, sizeof(*e));

    if (e == NULL)
        return NULL;
    e->map = map;
    e->size = size;
    e->address = address;
    e->fd = fd;
    e->guard = MCS_FAIL(extent_guard);
    if (e->guard == 0)
        e->guard = mcd_fault_add(map, size);
    if (e->guard < 0) {
        free(e);
        return NULL;
    }
    link_extent(p, e);
    return e;
}

int mcd_extent_of_gpu(struct mcd_pool *p, const struct mcd_extent *as, struct mcd_extent **out)
{
    struct mcd_extent *e = MCS_FAIL(gpu_extent) != 0 ? NULL : calloc(1, sizeof(*e));
    uint32_t id;

    if (e == NULL)
        return -ENOMEM;
    *e = *as;
    id = e->id;
    e->guard = -1;
    e->alloc = e->foreign ? NULL : mcd_alloc_create(e->size);
    if (!e->foreign && e->alloc == NULL) {
        free(e);
        return -ENOMEM;
    }
    link_extent(p, e);
    if (id != 0)
        e->id = id;
    *out = e;
    return 0;
}

int mcd_pool_finish(struct mcd_pool *p, struct mcd_extent_job *job, struct mcd_extent **out)
{
    struct mcd_extent *e = NULL;
    int res = job->res;

    if (res != 0) {
        p->refused++;
        goto error_unreserve;
    }
    if (job->page_size != job->kind.page_size) {
        p->fallbacks++;
        if (!p->warned)
            mcd_warning("no free hugepages of %llu KiB: pool memory takes ordinary pages, which "
                        "is slower; reserve some with scripts/hugepages/reserve.sh",
                        (unsigned long long)(job->kind.page_size >> 10));
        p->warned = true;
    }
    p->page_size = job->page_size;
    res = MCS_FAIL(extent_made);
    if (res != 0)
        goto error_unmap;
    e = extent_new(p, job->fd, job->map, job->size, (uint64_t)(uintptr_t)job->hint);
    if (e == NULL) {
        res = -ENOMEM;
        goto error_unmap;
    }
    e->kind = (struct mcd_kind){.page_size = job->page_size, .node = job->kind.node};
    e->alloc = mcd_alloc_create(job->size);
    if (e->alloc == NULL) {
        mcd_extent_put(p, e);
        return -ENOMEM;
    }
    *out = e;
    return 0;

error_unmap:
    mcs_region_unmap(job->map, job->size);
    close(job->fd);
error_unreserve:
    mcd_pool_unplace(p, (uint64_t)(uintptr_t)job->hint, job->size);
    p->used -= job->size;
    return res;
}

int mcd_extent_adopt(struct mcd_pool *p, int fd, uint64_t size, uint64_t came,
                     struct mcd_extent **out)
{
    uint64_t page_size, address;
    struct mcd_extent *e;
    void *map = NULL;
    int res;

    res = mcs_region_check(fd, size, &page_size);
    if (res != 0)
        return res;
    size = (size + page_size - 1) & ~(page_size - 1);
    /* the whole pages must be there too, lest the last one faults */
    res = mcs_region_check(fd, size, &page_size);
    if (res != 0)
        return res;
    if (size > mcd_pool_left(p)) {
        p->refused++;
        return -ENOMEM;
    }
    res = MCS_FAIL(extent_adopt);
    if (res != 0)
        return res;
    address = mcd_pool_place(p, size, came);
    res = mcs_region_map(fd, size, true, (void *)(uintptr_t)address, &map);
    if (res != 0)
        goto error_unplace;
    if (page_size <= ORDINARY_PAGE)
        (void)madvise(map, size, MADV_HUGEPAGE); /* a hint, as for memory of our own */
    e = extent_new(p, fd, map, size, address);
    if (e == NULL) {
        res = -ENOMEM;
        goto error_unmap;
    }
    e->kind = (struct mcd_kind){.page_size = page_size, .node = -1};
    e->foreign = true;
    p->used += size;
    *out = e;
    return 0;

error_unmap:
    mcs_region_unmap(map, size);
error_unplace:
    mcd_pool_unplace(p, address, size);
    return res;
}

int mcd_extent_record(struct mcd_pool *p, struct mcd_extent *e, uint64_t session)
{
    struct mcd_ledger_extent r = {
        .session = session,
        .size = e->size,
        .page_size = e->kind.page_size,
        .address = e->address,
        .handle = e->handle,
        .id = e->id,
        .node = e->kind.node,
        .flags = (e->foreign ? MCD_LEDGER_FOREIGN : 0) | (e->gpu != NULL ? MCD_LEDGER_GPU : 0),
    };
    struct stat st;

    if (p->ledger == NULL)
        return 0;
    if (e->gpu != NULL) {
        memcpy(r.gpu, mcd_gpu_tie_id(e->tie), sizeof(r.gpu));
    } else {
        if (fstat(e->fd, &st) != 0)
            return -errno;
        r.ino = st.st_ino;
        r.dev = st.st_dev;
    }
    e->record = mcd_ledger_add(p->ledger, MCD_LEDGER_EXTENT, &r);
    return e->record != NULL ? 0 : -ENOMEM;
}

void mcd_extent_forget(struct mcd_pool *p, struct mcd_extent *e)
{
    mcd_ledger_drop(p->ledger, MCD_LEDGER_EXTENT, e->record);
    e->record = NULL;
    e->owner = NULL;
}

int mcd_extent_take_back(struct mcd_pool *p, struct mcd_ledger_extent *r, int fd,
                         struct mcd_extent **out)
{
    uint64_t page_size;
    struct mcd_extent *e;
    struct stat st;
    void *map = NULL;
    int res;

    res = mcs_region_check(fd, r->size, &page_size);
    if (res != 0)
        return res;
    if (fstat(fd, &st) != 0 || st.st_ino != r->ino || st.st_dev != r->dev)
        return -ESTALE;
    res = mcs_region_map(fd, r->size, true, (void *)(uintptr_t)r->address, &map);
    if (res != 0)
        return res;
    if (page_size <= ORDINARY_PAGE)
        (void)madvise(map, r->size, MADV_HUGEPAGE); /* a hint, as when it was made */
    e = extent_new(p, fd, map, r->size, r->address);
    if (e == NULL)
        goto error;
    e->kind = (struct mcd_kind){.page_size = r->page_size, .node = r->node};
    e->id = r->id;
    e->foreign = (r->flags & MCD_LEDGER_FOREIGN) != 0;
    e->alloc = e->foreign ? NULL : mcd_alloc_create(r->size);
    if (!e->foreign && e->alloc == NULL) {
        unlink_extent(p, e);
        mcd_fault_remove(e->guard);
        free(e);
        goto error;
    }
    e->handle = r->handle;
    e->record = r;
    p->page_size = r->page_size;
    *out = e;
    return 0;

error:
    mcs_region_unmap(map, r->size);
    return -ENOMEM;
}

struct mcd_extent *mcd_extent_get(struct mcd_extent *e)
{
    e->refs++;
    return e;
}

void mcd_extent_gone(struct mcd_extent *e)
{
    struct mcd_pool *p = e->pool;

    mcd_pool_leave(p, e->address, e->size);
    if (e->gpu == NULL) {
        p->used -= e->hollow ? 0 : e->size;
        mcd_fault_remove(e->guard);
        if (p->reap != NULL) {
            p->reap(p->reap_context, e->map, e->size, e->fd);
        } else {
            mcs_region_unmap(e->map, e->size);
            close(e->fd);
        }
    }
    mcd_alloc_destroy(e->alloc);
    free(e);
}

static void free_extent(void *context, int res, const char *text)
{
    struct mcd_extent *e = context;

    (void)res;
    (void)text;
    if (e->tie != NULL)
        e->pool->release(e->pool->release_context, e);
    else
        mcd_extent_gone(e);
}

void mcd_extent_put(struct mcd_pool *p, struct mcd_extent *e)
{
    if (--e->refs != 0)
        return;
    unlink_extent(p, e);
    if (e->registered != NULL)
        mcd_registration_drop(e->registered, free_extent, e);
    else
        free_extent(e, 0, "");
}

/* SPDX-License-Identifier: Apache-2.0 */
/* What an agent holds: made and taken apart. */
#include "store.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "internal.h"

#define OBJECTS_MAX UINT64_C(1000000000)

static int check(const struct mco_options *o, const struct mco_policy_ops **ops, char *error,
                 size_t error_size)
{
    *ops = mco_policy_find(o->policy);
    if (*ops == NULL) {
        snprintf(error, error_size, "[store] policy = %s: there is no such policy", o->policy);
        return -EINVAL;
    }
    if (o->objects == 0 || o->objects > OBJECTS_MAX) {
        snprintf(error, error_size, "[store] objects = %llu: 1 to %llu are possible",
                 (unsigned long long)o->objects, (unsigned long long)OBJECTS_MAX);
        return -EINVAL;
    }
    return 0;
}

static int make(struct mco_store *s, char *error, size_t error_size)
{
    uint64_t size;
    int res = mco_table_open(s, error, error_size);

    if (res != 0)
        return res;
    size = (uint64_t)s->table.max_records * sizeof(struct mco_policy_entry);
    s->entries = mmap(NULL, size, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (s->entries == MAP_FAILED) {
        s->entries = NULL;
        res = -ENOMEM;
    }
    if (res == 0)
        res = mco_index_create(s);
    if (res == 0)
        res = mco_space_create(s);
    if (res == 0)
        res = mco_groups_create(s);
    if (res == 0)
        res = mco_extents_load(s);
    if (res == 0)
        res = mco_early_create(s);
    if (res != 0)
        snprintf(error, error_size, "no address space or memory for an index of %llu objects",
                 (unsigned long long)s->o.objects);
    return res;
}

int mco_create(const struct mco_options *o, struct mco_store **out, char *error, size_t error_size)
{
    const struct mco_policy_ops *ops = NULL;
    struct mco_store *s = NULL;
    int res = check(o, &ops, error, error_size);

    if (res == 0)
        s = calloc(1, sizeof(*s));
    if (res == 0 && s == NULL) {
        snprintf(error, error_size, "no memory for the object store");
        res = -ENOMEM;
    }
    if (s == NULL) {
        if (o->table_fd >= 0)
            close(o->table_fd);
        return res;
    }
    s->o = *o;
    s->ops = ops;
    s->leaving.next = s->leaving.prev = &s->leaving;
    s->on_disk.next = s->on_disk.prev = &s->on_disk;
    s->awaited.next = s->awaited.prev = &s->awaited;
    res = make(s, error, error_size);
    if (res != 0)
        mco_destroy(s);
    else
        *out = s;
    return res;
}

void mco_destroy(struct mco_store *s)
{
    if (s == NULL)
        return;
    mco_tenants_free(s);
    mco_groups_destroy(s);
    mco_places_free(s);
    free(s->early);
    mco_space_destroy(s);
    mco_index_destroy(s);
    if (s->entries != NULL)
        munmap(s->entries, (uint64_t)s->table.max_records * sizeof(struct mco_policy_entry));
    free(s->guards);
    mco_table_close(&s->table);
    free(s);
}

void mco_tune(struct mco_store *s, unsigned high, unsigned low, uint64_t lease_ns)
{
    mco_lock(&s->lock);
    s->o.high = high;
    s->o.low = low;
    s->o.lease_ns = lease_ns;
    mco_unlock(&s->lock);
}

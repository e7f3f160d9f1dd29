/* SPDX-License-Identifier: Apache-2.0 */
/* Objects on their way back: head and key are looked at, data go straight to where they belong. */
#include "store/object/disk_internal.h"

#include <errno.h>
#include <string.h>

#include "shm/failpoint.h"

static bool matches(const struct mco_disk_read *r)
{
    const struct mco_disk_bin *b = r->bin;
    struct mco_disk_record h;
    uint64_t hash;

    memcpy(&h, r->slot, sizeof(h));
    if (h.magic != MCO_DISK_RECORD_MAGIC || h.key_length != r->length ||
        h.unit != (r->place & (MCO_DISK_UNITS_MAX - 1)) || h.generation != b->generation ||
        h.salt != b->salt || h.crc != mco_disk_record_crc(&h, r->slot + sizeof(h)))
        return false;
    hash = mco_key_hash(h.tenant, r->slot + sizeof(h), h.key_length);
    return h.tenant == r->tenant && hash == r->hash && h.size == r->view.size &&
           mco_version_compare(&h.version, &r->view.version) == 0;
}

static int look(struct mco_disk *d, struct mco_disk_read *r)
{
    const struct mco_view *v = &r->view;
    struct mco_disk_record h;

    if (!matches(r))
        return -EBADMSG;
    memcpy(&h, r->slot, sizeof(h));
    if (r->layout.small && v->size > 0)
        memcpy(v->data, r->slot + r->layout.data, v->size);
    if (d->verify && v->size > 0 && mco_disk_crc(0, v->data, v->size) != h.data_crc)
        return -EBADMSG;
    return 0;
}

/* A head longer than a slot does not exist: 40 KiB have room for the longest key and small data. */
static_assert(MCO_DISK_SLOT >= MCO_DISK_SMALL + MCS_KEY_MAX + sizeof(struct mco_disk_record) + 64,
              "a small record fits in a slot");

static void give_back(struct mco_disk *d, struct mco_disk_read *r, int res)
{
    if (res == 0) {
        mco_disk_count(d, reads, 1);
        mco_disk_count(d, read_bytes, r->view.size);
    } else if (res == -EBADMSG) {
        mco_disk_count(d, checksum_errors, 1);
        d->log(1,
               "an object of %llu bytes on the store's disk, %s, is damaged: it is dropped there",
               (unsigned long long)r->view.size, d->path);
        mco_disk_drop_place(d, r->place);
    } else {
        mco_disk_count(d, read_errors, 1);
    }
    MCS_FAILPOINT(disk_fetched);
    (void)mcs_fetch_add(&d->stats.queued, UINT64_MAX); /* one less; with mco_disk_get_stats() */
    d->calls.fetched(d->store, r->view.object, mco_disk_passing(res) ? -EBUSY : res);
    if (r->slot != NULL)
        d->slots[d->nslots++] = r->slot;
    r->slot = NULL;
    if (r->bin != NULL)
        mco_disk_bin_put(d, r->bin);
    r->bin = NULL;
    mco_disk_lock(d);
    r->next = d->free_reads;
    d->free_reads = r;
    mco_disk_unlock(d);
}

static void came(struct mco_disk_read *r, int res)
{
    struct mco_disk *d = r->disk;

    if (r->res == 0)
        r->res = res;
    if (--r->left > 0)
        return;
    give_back(d, r, r->res != 0 ? r->res : look(d, r));
    mco_disk_pump(d);
}

static void head_came(struct mct_file_io *io, int res)
{
    came((struct mco_disk_read *)io, res);
}

static void data_came(struct mct_file_io *io, int res)
{
    came((struct mco_disk_read *)((char *)io - offsetof(struct mco_disk_read, data)), res);
}

static void file_gone(struct mco_disk *d, struct mco_disk_bin *b)
{
    d->log(0, "a file of the store's disk is gone from %s: the objects in it are lost", d->path);
    mco_disk_bin_remove(d, b, false);
}

static void begin(struct mco_disk *d, struct mco_disk_read *r)
{
    uint32_t unit = (uint32_t)(r->place & (MCO_DISK_UNITS_MAX - 1));
    int res = d->lost ? -EIO : 0;
    struct mco_disk_bin *b;

    r->layout = mco_disk_layout(r->length, r->view.size);
    r->res = 0;
    r->slot = d->slots[--d->nslots];
    mco_disk_lock(d);
    r->bin = mco_disk_bin_find(d, r->place);
    mco_disk_unlock(d);
    if (res == 0 && r->bin == NULL)
        res = -ENOENT;
    if (res == 0)
        res = mco_disk_bin_get(d, r->bin);
    MCS_FAILPOINT(disk_fetch);
    if (res != 0) {
        b = r->bin;
        r->bin = NULL;
        give_back(d, r, res);
        if (res == -ENOENT && b != NULL)
            file_gone(d, b);
        return;
    }
    r->left = r->layout.small ? 1 : 2;
    r->head = (struct mct_file_io){.file = r->bin->file,
                                   .op = MCT_FILE_READ,
                                   .buffer = r->slot,
                                   .size = (uint64_t)r->layout.head_units * MCO_DISK_UNIT,
                                   .offset = (uint64_t)unit * MCO_DISK_UNIT,
                                   .done = head_came};
    r->data = (struct mct_file_io){.file = r->bin->file,
                                   .op = MCT_FILE_READ,
                                   .buffer = r->view.data,
                                   .size = r->view.size,
                                   .offset = (uint64_t)unit * MCO_DISK_UNIT + r->layout.data,
                                   .done = data_came};
    mct_file_start(&r->head);
    if (!r->layout.small)
        mct_file_start(&r->data);
}

void mco_disk_read_next(struct mco_disk *d)
{
    while (d->nslots > 0) {
        struct mco_disk_read *r;

        mco_disk_lock(d);
        r = d->reads;
        if (r != NULL) {
            d->reads = r->next;
            if (d->reads == NULL)
                d->reads_last = &d->reads;
        }
        mco_disk_unlock(d);
        if (r == NULL)
            return;
        begin(d, r);
    }
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table: a sparse memfd of three rows of records of 128 bytes, each row at a place of its own.
 *
 *   0        64 KiB           128 MiB ...          2^37            2^38
 *   +--------+--------+       +---------+          +---------+
 *   | head   | extents| ...   |         |   ...    | objects | ...  conts ...
 *   +--------+--------+       +---------+          +---------+
 *
 * A row has memory from its start on, chunk by chunk, as it is needed. A record is filled first, then made
 * valid by one store; it is made invalid by one store before anything of it changes. The sums are no defence
 * against forgers (nobody else can write here) but tell what a death, or a fault of the memory, has left half done.
 */
#include <errno.h>
#include <fcntl.h>
#include <isa-l/crc.h>
#include <linux/memfd.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "internal.h"
#include "shm/failpoint.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U /* linux/memfd.h since 6.3 */
#endif

#define MAGIC UINT64_C(0x5342414f434d0001)
#define VERSION 1u
#define EXTENTS_AT (UINT64_C(64) << 10)
#define OBJECTS_AT (UINT64_C(1) << 37)
#define CONTS_AT (UINT64_C(1) << 38)
#define CHUNK 2048u /* records: 256 KiB */
#define KIND_OBJECT (UINT64_C(0x4f424a01) << 32)
#define KIND_AWAY (UINT64_C(0x41574101) << 32) /* an object's, without its range */
#define KIND_EXTENT (UINT64_C(0x45585401) << 32)
#define SEALED (UINT64_C(1) << 32)
#define SUMMED (UINT64_C(1) << 33)
#define SEQUENCES 1024u /* are noted ahead */

/* ---- sums ----------------------------------------------------------------------------------- */

static uint32_t sum_of(uint32_t crc, const void *bytes, size_t size)
{
    return crc32_iscsi((unsigned char *)(uintptr_t)bytes, (int)size, crc);
}

/* A number that tells when it is none. */
static uint64_t told(uint32_t n)
{
    return (uint64_t)~n << 32 | n;
}

static bool is_told(uint64_t word, uint32_t *n)
{
    *n = (uint32_t)word;
    return word == told(*n);
}

static uint32_t tail_length(const struct mco_record *r)
{
    return r->key_length + ((r->flags & MCO_GROUPED) != 0 ? 8u : 0u);
}

static uint32_t conts_of(uint32_t length)
{
    return length <= MCO_TAIL ? 0 : (length - MCO_TAIL + MCO_CONT_BYTES - 1) / MCO_CONT_BYTES;
}

/* Calls for each piece of the tail; it is known to be whole. */
static uint64_t check_of(const struct mco_store *s, uint32_t n, bool ranged)
{
    const struct mco_record *r = mco_record_at(s, n);
    uint32_t left = tail_length(r), at = r->cont;
    uint32_t part = left < MCO_TAIL ? left : MCO_TAIL;
    uint32_t crc =
        sum_of((uint32_t)s->table.head->identity ^ n, &r->tenant,
               offsetof(struct mco_record, offset) - offsetof(struct mco_record, tenant));

    if (ranged)
        crc = sum_of(crc, &r->offset,
                     offsetof(struct mco_record, cont) - offsetof(struct mco_record, offset));
    crc = sum_of(crc, &r->cont,
                 offsetof(struct mco_record, state) - offsetof(struct mco_record, cont));
    crc = sum_of(crc, r->tail, part);
    for (left -= part; left > 0; left -= part) {
        const struct mco_cont *c = &s->table.conts[at];

        part = left < MCO_CONT_BYTES ? left : MCO_CONT_BYTES;
        crc = sum_of(crc, c->bytes, part);
        at = c->next;
    }
    return (ranged ? KIND_OBJECT : KIND_AWAY) | crc;
}

static uint64_t seal_of(const struct mco_record *r, uint32_t crc, bool summed)
{
    uint64_t words[5] = {r->tenant, r->token, r->sequence, r->size, (uint64_t)crc << 1 | summed};

    return sum_of(0x5ea1, words, sizeof(words)) | SEALED | (summed ? SUMMED : 0);
}

/* ---- rows ----------------------------------------------------------------------------------- */

static int allocate(int fd, uint64_t at, uint64_t size)
{
    int res;

    do
        res = fallocate(fd, 0, (off_t)at, (off_t)size) == 0 ? 0 : -errno;
    while (res == -EINTR);
    return res;
}

/* Memory for records [from, to) of the row at `base`. A shortage shows here and not as a SIGBUS later. */
static int row_memory(struct mco_store *s, uint64_t base, uint32_t from, uint32_t to)
{
    int res = MCS_FAIL(objects_grow);

    if (res == 0)
        res = allocate(s->table.fd, base + (uint64_t)from * 128, (uint64_t)(to - from) * 128);
    return res;
}

static int grow(struct mco_store *s, uint64_t base, uint32_t have, uint32_t max, uint64_t *word)
{
    uint32_t to = max - have < CHUNK ? max : have + CHUNK;
    int res;

    if (have >= max)
        return -ENOSPC;
    res = row_memory(s, base, have, to);
    if (res != 0)
        return res;
    mcs_store_relaxed(word, told(to));
    return (int)(to - have);
}

static int grow_records(struct mco_store *s)
{
    struct mco_table *t = &s->table;
    int more = grow(s, OBJECTS_AT, t->nrecords, t->max_records, &t->head->objects);

    if (more < 0)
        return more;
    for (uint32_t i = t->nrecords + (uint32_t)more; i-- > t->nrecords;) {
        t->records[i].check = 0;
        t->records[i].state = MCO_FREE;
        t->next[i] = t->free_record;
        t->free_record = i;
    }
    /* relaxed: partner: mco_walk(), which takes the lock for each record that it looks at */
    mcs_store_relaxed(&t->nrecords, t->nrecords + (uint32_t)more);
    return 0;
}

static int grow_conts(struct mco_store *s)
{
    struct mco_table *t = &s->table;
    int more = grow(s, CONTS_AT, t->nconts, t->max_conts, &t->head->conts);

    if (more < 0)
        return more;
    for (uint32_t i = t->nconts + (uint32_t)more; i-- > t->nconts;) {
        t->conts[i].next = t->free_cont;
        t->free_cont = i;
    }
    t->nconts += (uint32_t)more;
    return 0;
}

static int grow_extents(struct mco_store *s)
{
    struct mco_table *t = &s->table;
    int more = grow(s, EXTENTS_AT, t->nextents, t->max_extents, &t->head->extents);

    if (more < 0)
        return more;
    for (uint32_t i = t->nextents + (uint32_t)more; i-- > t->nextents;) {
        t->extents[i].check = 0;
        t->extents[i].more[0] = t->free_extent;
        t->free_extent = i;
    }
    t->nextents += (uint32_t)more;
    return 0;
}

/* ---- objects' records ------------------------------------------------------------------------- */

uint32_t mco_record_new(struct mco_store *s, const struct mco_key *key, uint64_t group)
{
    struct mco_table *t = &s->table;
    uint32_t length = key->length + (group != 0 ? 8u : 0u), conts = conts_of(length), n, part;
    const uint8_t *bytes = key->bytes;
    struct mco_record *r;
    uint32_t *link;

    while (t->free_record == MCO_NONE)
        if (grow_records(s) != 0)
            return MCO_NONE;
    while (t->nconts - t->conts_used < conts)
        if (grow_conts(s) != 0)
            return MCO_NONE;
    n = t->free_record;
    t->free_record = t->next[n];
    mco_tenant_find(s, key->tenant)->records++;               /* the caller has made it */
    mcs_store_relaxed(&t->records_used, t->records_used + 1); /* partner: mco_table_ahead() */
    r = &t->records[n];
    memset(&r->sealed, 0, sizeof(*r) - offsetof(struct mco_record, sealed));
    r->tenant = key->tenant;
    r->key_length = (uint16_t)key->length;
    r->flags = group != 0 ? MCO_GROUPED : 0;
    r->node = MCO_NONE;
    r->place = MCO_NO_PLACE;
    if (group != 0)
        memcpy(r->tail, &group, sizeof(group));
    part = length < MCO_TAIL ? length : MCO_TAIL;
    memcpy(r->tail + (length - key->length), bytes, part - (length - key->length));
    bytes += part - (length - key->length);
    link = &r->cont;
    for (length -= part; length > 0; length -= part) {
        struct mco_cont *c = &t->conts[t->free_cont];

        part = length < MCO_CONT_BYTES ? length : MCO_CONT_BYTES;
        *link = t->free_cont;
        t->free_cont = c->next;
        t->conts_used++;
        memcpy(c->bytes, bytes, part);
        bytes += part;
        link = &c->next;
    }
    *link = MCO_NONE;
    s->entries[n] = (struct mco_policy_entry){.hash = key->hash};
    return n;
}

void mco_record_free(struct mco_store *s, uint32_t n)
{
    struct mco_table *t = &s->table;
    struct mco_record *r = &t->records[n];
    uint32_t at = r->cont;

    mco_record_invalid(s, n);
    mco_tenant_find(s, r->tenant)->records--;
    for (uint32_t left = conts_of(tail_length(r)); left > 0; left--) {
        uint32_t next = t->conts[at].next;

        t->conts[at].next = t->free_cont;
        t->free_cont = at;
        t->conts_used--;
        at = next;
    }
    t->next[n] = t->free_record;
    t->free_record = n;
    mcs_store_relaxed(&t->records_used, t->records_used - 1); /* as in mco_record_new() */
}

void mco_record_valid(struct mco_store *s, uint32_t n, bool ranged)
{
    MCS_FAILPOINT(object_filled);
    mcs_fence_compiler(); /* partner: mco_record_sound(), after this process's death */
    mcs_store_relaxed(&mco_record_at(s, n)->check, check_of(s, n, ranged));
    MCS_FAILPOINT(object_valid);
}

void mco_record_left(struct mco_store *s, uint32_t n, uint8_t left)
{
    mcs_fence_compiler(); /* as in mco_record_valid() */
    mcs_store_relaxed(&mco_record_at(s, n)->left, left);
    mcs_fence_compiler();
    MCS_FAILPOINT(object_left);
}

void mco_record_invalid(struct mco_store *s, uint32_t n)
{
    mcs_store_relaxed(&mco_record_at(s, n)->check, UINT64_C(0)); /* as in mco_record_valid() */
    mcs_fence_compiler();
    MCS_FAILPOINT(object_invalid);
}

void mco_record_seal(struct mco_store *s, uint32_t n, uint32_t crc, bool summed)
{
    struct mco_record *r = mco_record_at(s, n);

    r->crc = crc;
    MCS_FAILPOINT(object_seal);
    mcs_fence_compiler(); /* partner: mco_record_sound(), after this process's death */
    mcs_store_relaxed(&r->sealed, seal_of(r, crc, summed));
    MCS_FAILPOINT(object_sealed);
}

bool mco_record_summed(const struct mco_record *r)
{
    return (r->sealed & SUMMED) != 0;
}

bool mco_record_sound(const struct mco_store *s, uint32_t n, uint64_t *seen)
{
    const struct mco_table *t = &s->table;
    const struct mco_record *r = &t->records[n];
    uint32_t conts = conts_of(tail_length(r)), at = r->cont;
    bool ranged = r->check >> 32 == KIND_OBJECT >> 32;

    if ((!ranged && (r->check >> 32 != KIND_AWAY >> 32 || r->left != MCO_AWAY)) ||
        r->left > MCO_AWAY || (r->left == MCO_AWAY && r->sealed == 0) || r->key_length == 0 ||
        r->key_length > MCS_KEY_MAX || (r->flags & ~(MCO_HARD | MCO_OPEN | MCO_GROUPED)) != 0)
        return false;
    for (uint32_t i = 0; i < conts; i++) {
        if (at >= t->nconts || (seen[at / 64] >> at % 64 & 1) != 0)
            return false;
        at = t->conts[at].next;
    }
    if (at != MCO_NONE || r->check != check_of(s, n, ranged))
        return false;
    if (r->sealed != 0 && r->sealed != seal_of(r, r->crc, (r->sealed & SUMMED) != 0))
        return false;
    at = r->cont;
    for (uint32_t i = 0; i < conts; i++) {
        seen[at / 64] |= UINT64_C(1) << at % 64;
        at = t->conts[at].next;
    }
    return true;
}

bool mco_record_is(const struct mco_store *s, uint32_t n, const struct mco_key *key)
{
    const struct mco_record *r = mco_record_at(s, n);
    uint32_t skip = (r->flags & MCO_GROUPED) != 0 ? 8u : 0u, at = r->cont, left = key->length;
    uint32_t part = MCO_TAIL - skip < left ? MCO_TAIL - skip : left;
    const uint8_t *bytes = key->bytes;

    if (r->key_length != key->length || r->tenant != key->tenant ||
        memcmp(r->tail + skip, bytes, part) != 0)
        return false;
    for (left -= part; left > 0; left -= part) {
        const struct mco_cont *c = &s->table.conts[at];

        bytes += part;
        part = left < MCO_CONT_BYTES ? left : MCO_CONT_BYTES;
        if (memcmp(c->bytes, bytes, part) != 0)
            return false;
        at = c->next;
    }
    return true;
}

void mco_record_key(const struct mco_store *s, uint32_t n, uint8_t *bytes)
{
    const struct mco_record *r = mco_record_at(s, n);
    uint32_t skip = (r->flags & MCO_GROUPED) != 0 ? 8u : 0u, at = r->cont, left = r->key_length;
    uint32_t part = MCO_TAIL - skip < left ? MCO_TAIL - skip : left;

    memcpy(bytes, r->tail + skip, part);
    for (left -= part; left > 0; left -= part) {
        const struct mco_cont *c = &s->table.conts[at];

        bytes += part;
        part = left < MCO_CONT_BYTES ? left : MCO_CONT_BYTES;
        memcpy(bytes, c->bytes, part);
        at = c->next;
    }
}

uint64_t mco_record_group(const struct mco_record *r)
{
    uint64_t group = 0;

    if ((r->flags & MCO_GROUPED) != 0)
        memcpy(&group, r->tail, sizeof(group));
    return group;
}

/* ---- extents' records --------------------------------------------------------------------------- */

static uint64_t extent_check(const struct mco_store *s, uint32_t n)
{
    const struct mco_extent_record *r = &s->table.extents[n];

    return KIND_EXTENT | sum_of((uint32_t)s->table.head->identity ^ ~n, &r->id,
                                offsetof(struct mco_extent_record, zero) -
                                    offsetof(struct mco_extent_record, id));
}

int mco_extent_record_new(struct mco_store *s, const struct mco_extent *e, uint32_t *n)
{
    struct mco_table *t = &s->table;
    struct mco_extent_record *r;
    int res;

    if (t->free_extent == MCO_NONE) {
        res = grow_extents(s);
        if (res != 0)
            return res;
    }
    *n = t->free_extent;
    r = &t->extents[*n];
    t->free_extent = (uint32_t)r->more[0];
    *r = (struct mco_extent_record){.id = e->id,
                                    .open = e->open,
                                    .tenant = e->tenant,
                                    .size = e->size,
                                    .page_size = e->page_size,
                                    .address = e->address,
                                    .ino = e->ino,
                                    .dev = e->dev,
                                    .node = e->node};
    mcs_fence_compiler(); /* partner: mco_extent_record_sound(), after this process's death */
    mcs_store_relaxed(&r->check, extent_check(s, *n));
    MCS_FAILPOINT(object_extent_added);
    return 0;
}

void mco_extent_record_free(struct mco_store *s, uint32_t n)
{
    struct mco_extent_record *r = &s->table.extents[n];

    mcs_store_relaxed(&r->check, UINT64_C(0)); /* as in mco_extent_record_new() */
    mcs_fence_compiler();
    MCS_FAILPOINT(object_extent_gone);
    r->more[0] = s->table.free_extent;
    s->table.free_extent = n;
}

bool mco_extent_record_sound(const struct mco_store *s, uint32_t n)
{
    const struct mco_extent_record *r = &s->table.extents[n];

    return r->check == extent_check(s, n) && r->id != 0 && r->open <= 1 && r->size != 0 &&
           r->size % MCO_UNIT == 0 && r->size / MCO_UNIT < MCO_NONE;
}

/* ---- words of the head ---------------------------------------------------------------------------- */

uint32_t mco_extent_id(struct mco_store *s)
{
    uint32_t id = (uint32_t)s->table.head->extent_ids;

    if (id == MCO_NONE)
        return 0;
    mcs_store_relaxed(&s->table.head->extent_ids, told(id + 1));
    return id + 1;
}

/* Noted ahead: what the word does not reach yet was given to nobody. */
uint64_t mco_sequence(struct mco_store *s)
{
    uint64_t v = s->sequence++;

    if (v >= s->table.head->sequence)
        mcs_store_relaxed(&s->table.head->sequence, v + SEQUENCES);
    return v;
}

void mco_sequence_beyond(struct mco_store *s, uint64_t sequence)
{
    if (sequence > UINT64_MAX / 2)
        return; /* nobody has counted so far: ours do not follow */
    if (sequence >= s->sequence)
        s->sequence = sequence + 1;
    if (sequence >= s->table.head->sequence)
        mcs_store_relaxed(&s->table.head->sequence, sequence + SEQUENCES);
}

static uint64_t token_check(uint64_t token)
{
    return KIND_EXTENT | sum_of(0x70ce, &token, sizeof(token));
}

uint64_t mco_token(const struct mco_store *s)
{
    const struct mco_table_head *h = s->table.head;
    uint64_t token = 0;

    for (unsigned i = 0; i < 2; i++) {
        uint64_t v = mcs_load_relaxed(&h->token[i]);

        if (mcs_load_relaxed(&h->token_check[i]) == token_check(v) && v > token)
            token = v;
    }
    return token;
}

void mco_note_token(struct mco_store *s, uint64_t token)
{
    struct mco_table_head *h = s->table.head;
    unsigned i;

    mco_lock(&s->lock);
    if (token > mco_token(s)) {
        /* the other one stays as it is until this one is whole */
        i = h->token[0] == mco_token(s) && h->token_check[0] == token_check(h->token[0]);
        /* relaxed: partner: mco_token() of another thread, which finds it sound or takes the other one */
        mcs_store_relaxed(&h->token_check[i], UINT64_C(0));
        mcs_fence_compiler();
        mcs_store_relaxed(&h->token[i], token);
        mcs_fence_compiler();
        mcs_store_relaxed(&h->token_check[i], token_check(token));
    }
    mco_unlock(&s->lock);
}

uint64_t mco_identity(const struct mco_store *s)
{
    return s->table.head->identity;
}

int mco_table_fd(const struct mco_store *s)
{
    return s->table.fd;
}

uint64_t mco_table_bytes(const struct mco_store *s)
{
    return EXTENTS_AT + 128 * ((uint64_t)s->table.nrecords + s->table.nconts + s->table.nextents);
}

void mco_table_ahead(struct mco_store *s)
{
    struct mco_table *t = &s->table;
    uint32_t have = mcs_load_relaxed(&t->nrecords); /* partner: grow_records() */

    /* memory first, which takes a while, then under the lock it is there already */
    if (have < t->max_records && have - mcs_load_relaxed(&t->records_used) < CHUNK / 2)
        (void)row_memory(s, OBJECTS_AT, have,
                         t->max_records - have < CHUNK ? t->max_records : have + CHUNK);
    mco_lock(&s->lock);
    if (t->nrecords < t->max_records && t->nrecords - t->records_used < CHUNK / 2)
        (void)grow_records(s); /* if there is no memory, whoever needs it is told */
    if (t->conts_used > 0 && t->nconts < t->max_conts && t->nconts - t->conts_used < CHUNK / 2)
        (void)grow_conts(s);
    mco_unlock(&s->lock);
}

/* ---- life ------------------------------------------------------------------------------------------ */

static int table_memfd(int *out)
{
    unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
    int fd = memfd_create("mcshm-objects", flags | MFD_NOEXEC_SEAL);

    if (fd < 0 && errno == EINVAL)
        fd = memfd_create("mcshm-objects", flags); /* a kernel before 6.3 */
    if (fd < 0)
        return -errno;
    if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) != 0) {
        close(fd);
        return -EPERM;
    }
    *out = fd;
    return 0;
}

static int map_row(int fd, uint64_t at, uint64_t count, void *out)
{
    void *p =
        mmap(NULL, count * 128, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, (off_t)at);

    if (p == MAP_FAILED)
        return -errno;
    memcpy(out, &p, sizeof(p));
    return 0;
}

static void unmap_rows(struct mco_table *t)
{
    if (t->head != NULL)
        munmap(t->head, EXTENTS_AT);
    if (t->extents != NULL)
        munmap(t->extents, (uint64_t)t->max_extents * 128);
    if (t->records != NULL)
        munmap(t->records, (uint64_t)t->max_records * 128);
    if (t->conts != NULL)
        munmap(t->conts, (uint64_t)t->max_conts * 128);
    if (t->next != NULL)
        munmap(t->next, (uint64_t)t->max_records * sizeof(*t->next));
    t->head = NULL;
    t->extents = NULL;
    t->records = NULL;
    t->conts = NULL;
    t->next = NULL;
}

void mco_table_close(struct mco_table *t)
{
    unmap_rows(t);
    if (t->fd >= 0)
        close(t->fd);
    t->fd = -1;
}

/* A row of so many records ends within the file, which holes in it do. */
static bool has_row(uint64_t size, uint64_t at, uint32_t n)
{
    return n == 0 || at + (uint64_t)n * 128 <= size;
}

/* The head of an earlier life: is it one, and how long are the rows? */
static bool sound_head(struct mco_table *t, uint64_t size)
{
    const struct mco_table_head *h = t->head;
    uint32_t ids;

    return h->magic == MAGIC && h->version == VERSION && is_told(h->extents, &t->nextents) &&
           is_told(h->objects, &t->nrecords) && is_told(h->conts, &t->nconts) &&
           is_told(h->extent_ids, &ids) && t->nextents <= MCO_EXTENTS_MAX &&
           t->nrecords <= (CONTS_AT - OBJECTS_AT) / 128 && t->nconts <= UINT32_MAX / 2 &&
           has_row(size, EXTENTS_AT, t->nextents) && has_row(size, OBJECTS_AT, t->nrecords) &&
           has_row(size, CONTS_AT, t->nconts);
}

static int map_rows(struct mco_table *t)
{
    int res = map_row(t->fd, EXTENTS_AT, t->max_extents, &t->extents);

    if (res == 0)
        res = map_row(t->fd, OBJECTS_AT, t->max_records, &t->records);
    if (res == 0)
        res = map_row(t->fd, CONTS_AT, t->max_conts, &t->conts);
    if (res == 0) {
        void *p = mmap(NULL, (uint64_t)t->max_records * sizeof(*t->next), PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

        if (p == MAP_FAILED)
            res = -errno;
        else
            t->next = p;
    }
    return res;
}

static int map_head(struct mco_table *t)
{
    return map_row(t->fd, 0, EXTENTS_AT / 128, &t->head);
}

/* Of an earlier life. 0; -EPROTO: it is none, and t is as before. */
static int adopt(struct mco_table *t, int fd)
{
    struct stat st;
    int seals = fcntl(fd, F_GET_SEALS), res; /* of memfds alone */

    if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || fstat(fd, &st) != 0 ||
        (uint64_t)st.st_size < EXTENTS_AT)
        return -EPROTO;
    t->fd = fd;
    res = map_head(t);
    if (res == 0 && !sound_head(t, (uint64_t)st.st_size))
        res = -EPROTO;
    if (res == 0) {
        /* what was there stays reachable, also when there is to be less from now on */
        if (t->nrecords > t->max_records)
            t->max_records = t->nrecords;
        if (t->nconts > t->max_conts)
            t->max_conts = t->nconts;
        if (t->nextents > t->max_extents)
            t->max_extents = t->nextents;
    } else {
        unmap_rows(t);
        t->fd = -1;
        t->nextents = t->nrecords = t->nconts = 0;
    }
    return res;
}

static int make(struct mco_table *t)
{
    struct mco_table_head *h;
    int res = table_memfd(&t->fd);

    if (res == 0)
        res = allocate(t->fd, 0, EXTENTS_AT);
    if (res == 0)
        res = map_head(t);
    if (res != 0)
        return res;
    h = t->head;
    h->version = VERSION;
    if (getrandom(&h->identity, sizeof(h->identity), 0) != sizeof(h->identity))
        return -EIO;
    h->identity |= 1; /* not 0 */
    h->extents = h->objects = h->conts = h->extent_ids = told(0);
    h->sequence = 1;
    mcs_fence_compiler(); /* partner: sound_head(), after this process's death */
    mcs_store_relaxed(&h->magic, MAGIC);
    return 0;
}

/* Later than all that earlier lives have left on disk, where it was not read yet: us since 1970, which nobody outruns. */
static uint64_t by_the_clock(void)
{
    struct timespec t;

    clock_gettime(CLOCK_REALTIME, &t);
    return 1 + (uint64_t)t.tv_sec * 1000000u + (uint64_t)t.tv_nsec / 1000u;
}

int mco_table_open(struct mco_store *s, char *error, size_t error_size)
{
    struct mco_table *t = &s->table;
    int res = -EPROTO;

    t->fd = -1;
    t->max_records = (uint32_t)s->o.objects;
    t->max_conts =
        (uint32_t)(s->o.objects < UINT32_MAX / 8 ? s->o.objects * 2 + 64 : UINT32_MAX / 4);
    t->max_extents = MCO_EXTENTS_MAX;
    t->free_record = t->free_cont = t->free_extent = MCO_NONE;
    if (s->o.table_fd >= 0) {
        res = adopt(t, s->o.table_fd);
        if (res != 0) {
            if (s->o.log != NULL)
                s->o.log(1,
                         "store: the table of objects of an earlier life cannot be read: %s; "
                         "beginning with an empty one",
                         strerror(-res));
            close(s->o.table_fd);
        }
        s->adopted = res == 0;
    }
    if (res != 0)
        res = make(t);
    if (res == 0 && !s->adopted && s->o.tier != NULL)
        t->head->sequence = by_the_clock();
    if (res == 0)
        res = map_rows(t);
    if (res != 0) {
        snprintf(error, error_size, "no memory for the table of objects: %s", strerror(-res));
        mco_table_close(t);
        return res;
    }
    if (t->head->sequence == 0 || t->head->sequence > UINT64_MAX / 2)
        t->head->sequence = 1; /* damaged: what is recovered says where it stood */
    s->sequence = t->head->sequence;
    return 0;
}

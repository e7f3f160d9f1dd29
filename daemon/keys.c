/* SPDX-License-Identifier: Apache-2.0 */
#include "keys.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "log.h"

/* Keys that a buffer has on a device: one for each chunk. Neither is 0. */
static uint64_t chunks_of(uint64_t length, uint64_t chunk)
{
    return (length - 1) / chunk + 1;
}

/* ---- written ----------------------------------------------------------------------- */

/* Where the device stands in the list, or would: MCD_PAGE_NICS when there is no room. */
static uint32_t place_of(const uint64_t *list, uint32_t n, uint64_t id)
{
    uint32_t i = 0;

    while (i < n && list[i] != id)
        i++;
    return i;
}

bool mcd_keys_add(struct mcd_keys_page *p, const struct mct_rdma *rdma, const struct mcd_buffer *b)
{
    const struct mcd_registration *r = b->registration;
    const uint32_t *keys[MCD_PAGE_NICS] = {NULL}, *found;
    uint32_t nnics = p->nnics, mask = 0, i = p->nbuffers;
    uint64_t chunk = 0, chunks = 0, room = MCD_PAGE_KEYS - p->nkeys, id, want = 0;

    if (i == MCD_PAGE_BUFFERS)
        return false;
    if (r != NULL && r->state == MCD_REGISTRATION_MADE) {
        chunk = mct_rdma_memory_chunk(r->memory);
        chunks = chunks_of(b->length, chunk);
    }
    for (unsigned n = 0; chunks != 0 && n < mct_rdma_nics(rdma); n++) {
        uint32_t at;

        found = mct_rdma_memory_keys(r->memory, n, &id);
        at = found == NULL ? MCD_PAGE_NICS : place_of(p->nic, nnics, id);
        if (at == MCD_PAGE_NICS)
            continue;
        if (want + chunks > room && p->nkeys != 0)
            return false;
        if (want + chunks > room) {
            mcd_log_limited(MCD_LOG_WARNING,
                            "a buffer of %llu bytes has %llu keys for each RDMA device, and a "
                            "message to peers takes %u: they do not reach it over all devices; "
                            "raise [rdma] chunk or publish smaller buffers",
                            (unsigned long long)b->length, (unsigned long long)chunks,
                            MCD_PAGE_KEYS);
            break;
        }
        want += chunks;
        p->nic[at] = id;
        nnics += at == nnics;
        keys[at] = found;
        mask |= 1u << at;
    }
    p->nnics = nnics;
    p->chunk[i] = mask != 0 ? chunk : 0;
    p->nics[i] = mask;
    p->nbuffers++;
    for (uint32_t n = 0; n < nnics; n++) {
        if (keys[n] == NULL)
            continue;
        memcpy(p->rkey + p->nkeys, keys[n], chunks * sizeof(keys[n][0]));
        p->nkeys += (uint32_t)chunks;
    }
    return true;
}

void mcd_keys_fill(struct mcd_keys_page *p, Mcd__Buffers *m)
{
    m->nic = p->nic;
    m->n_nic = p->nnics;
    m->key_chunk = p->chunk;
    m->key_nics = p->nics;
    m->n_key_chunk = m->n_key_nics = p->nbuffers;
    m->rkey = p->rkey;
    m->n_rkey = p->nkeys;
}

/* ---- read --------------------------------------------------------------------------- */

/* An agent without RDMA writes none of the vectors. */
static bool has_keys(const Mcd__Buffers *m)
{
    return m->n_key_chunk != 0;
}

bool mcd_keys_are_good(const Mcd__Buffers *m)
{
    uint64_t keys = 0;

    if (!has_keys(m))
        return m->n_nic == 0 && m->n_key_nics == 0 && m->n_rkey == 0;
    if (m->n_key_chunk != m->n_address || m->n_key_nics != m->n_address || m->n_nic > MCD_PAGE_NICS)
        return false;
    for (uint32_t i = 0; i < m->n_nic; i++)
        if (m->nic[i] == 0 || place_of(m->nic, i, m->nic[i]) != i)
            return false;
    for (size_t i = 0; i < m->n_address; i++) {
        uint32_t mask = m->key_nics[i];
        uint64_t chunks;

        if ((uint64_t)mask >> m->n_nic != 0 || (mask != 0 && m->key_chunk[i] == 0))
            return false;
        if (mask == 0)
            continue;
        chunks = chunks_of(m->length[i], m->key_chunk[i]);
        if (chunks > m->n_rkey) /* so that the sum does not overflow either */
            return false;
        keys += chunks * (uint64_t)__builtin_popcount(mask);
        if (keys > m->n_rkey)
            return false;
    }
    return keys == m->n_rkey;
}

/* Ids of the devices in a mask. */
static uint32_t put_ids(uint64_t *out, const Mcd__Buffers *m, uint32_t mask)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < m->n_nic; i++)
        if ((mask >> i & 1) != 0)
            out[n++] = m->nic[i];
    return n;
}

int mcd_keys_take(struct mcd_snapshot *s, const Mcd__Buffers *m, uint64_t *left)
{
    struct mcd_buffer *b = &s->buffers[s->count - m->n_address];
    size_t n = 0, nids = 0, at = 0;
    struct mct_rdma_keys *keys;
    struct mcd_snapshot_block *block;
    uint64_t *ids;
    uint32_t *rkeys, mask = 0;

    if (!has_keys(m) || m->n_rkey == 0)
        return 0;
    /* Descriptors, then the lists of devices, of which neighbours mostly have the same, then all keys. */
    for (size_t i = 0; i < m->n_address; i++) {
        n += m->key_nics[i] != 0;
        if (m->key_nics[i] != 0 && m->key_nics[i] != mask) {
            mask = m->key_nics[i];
            nids += (size_t)__builtin_popcount(mask);
        }
    }
    if (m->n_rkey > *left)
        return -E2BIG;
    block = malloc(sizeof(*block) + n * sizeof(*keys) + nids * sizeof(*ids) +
                   m->n_rkey * sizeof(*rkeys));
    if (block == NULL)
        return -ENOMEM;
    keys = (struct mct_rdma_keys *)(void *)block->bytes;
    ids = (uint64_t *)(void *)(keys + n);
    rkeys = (uint32_t *)(void *)(ids + nids);
    memcpy(rkeys, m->rkey, m->n_rkey * sizeof(*rkeys));
    block->next = s->blocks;
    s->blocks = block;
    *left -= m->n_rkey;
    mask = 0;
    nids = 0;
    for (size_t i = 0; i < m->n_address; i++) {
        if (m->key_nics[i] == 0)
            continue;
        if (m->key_nics[i] != mask) {
            ids += nids;
            mask = m->key_nics[i];
            nids = put_ids(ids, m, mask);
        }
        *keys = (struct mct_rdma_keys){
            .address = b[i].address,
            .length = b[i].length,
            .chunk = m->key_chunk[i],
            .nnics = (uint32_t)nids,
            .nchunks = (uint32_t)chunks_of(b[i].length, m->key_chunk[i]),
            .nics = ids,
            .rkeys = rkeys + at,
        };
        at += (size_t)keys->nnics * keys->nchunks;
        b[i].keys = keys++;
    }
    return 0;
}

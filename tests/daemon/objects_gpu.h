/* SPDX-License-Identifier: Apache-2.0 */
/* An engine with a store and the played copiers of two GPUs: the client has memory of each beside its host memory. */
#ifndef TESTS_OBJECTS_GPU_H
#define TESTS_OBJECTS_GPU_H

#include "daemon/leg.h"
#include "gpu_world.h"
#include "objects.h"

static struct mct_cuda_memory og_gpu[2]; /* handles GW_LOCAL, GW_SECOND; devices 0, 1 */

/* Into a world that was made with ob_cuda. */
static inline void og_add(struct ob *o)
{
    gw_memory(&og_gpu[0], 0, GW_ADDRESS, GW_LOCAL, 0);
    gw_memory(&og_gpu[1], 1, GW_ADDRESS + GW_SIZE, GW_SECOND, 1);
    o->f.session->extents[MCD_HANDLE_INDEX(GW_LOCAL)] = &og_gpu[0].extent;
    o->f.session->extents[MCD_HANDLE_INDEX(GW_SECOND)] = &og_gpu[1].extent;
}

static inline void og_init_sized(struct ob *o, uint64_t size, uint64_t extent_size, uint64_t slice)
{
    ob_cuda = (struct mct_cuda *)&gw;
    ob_init_sized(o, size, extent_size, slice, 100);
    og_add(o);
}

static inline void og_init(struct ob *o)
{
    og_init_sized(o, 16u << 20, 8u << 20, 64 << 10);
}

static inline void og_free(void)
{
    for (unsigned i = 0; i < 2; i++) {
        munmap(og_gpu[i].extent.map, GW_SIZE);
        free(og_gpu[i].bytes);
    }
}

static inline void og_fini(struct ob *o)
{
    gw.at_once = true;
    ob_fini(o);
    cr_assert(gw.closed);
    og_free();
}

/* A request whose pieces may lie in GPU memory. */
static inline void og_begin(struct ob *o, uint8_t op, uint32_t flags)
{
    ob_begin(o, op, flags);
    o->flags = MCS_DESC_SYNCED;
}

/* A piece more of the last key, in that memory. */
static inline struct mcs_object_piece *og_piece(struct ob *o, uint32_t handle, uint64_t at,
                                                uint64_t length)
{
    struct mcs_object_piece *p = ob_piece(o, at, length);

    p->extent = handle;
    return p;
}

static inline struct mcs_object_result og_one(struct ob *o, uint8_t op, const char *key,
                                              uint32_t handle, uint64_t at, uint64_t size,
                                              uint32_t flags)
{
    og_begin(o, op, flags);
    ob_name(o, key);
    og_piece(o, handle, at, size);
    ob_ok(o);
    return ob_result(o, 0);
}

/* Pushed, and turned until so many jobs are out. */
static inline struct mcs_desc og_out(struct ob *o, unsigned n)
{
    struct mcs_desc d;

    ob_write(o);
    d = ob_desc(o);
    fix_push(&o->f, &d);
    for (int i = 0; i < 100000 && gw.nposted < n; i++)
        ob_turns(o, 1);
    cr_assert_eq(gw.nposted, n);
    return d;
}

static inline void og_cancel(struct ob *o, const struct mcs_desc *d)
{
    struct mcs_desc cancel = {.op = MCS_OP_CANCEL, .slot = d->slot, .generation = d->generation};

    fix_push(&o->f, &cancel);
    ob_turns(o, 20);
}

/* All that is out comes back, until nothing is posted any more. */
static inline void og_finish_all(struct ob *o, enum mcs_status status)
{
    do {
        while (gw_finish(status)) {
        }
        ob_turns(o, 4);
    } while (gw.nposted != 0);
}

/* Where an object's bytes lie. */
static inline uint8_t *og_data(struct ob *o, const char *key)
{
    struct mco_key k = mco_key(7, key, (uint32_t)strlen(key));
    struct mco_view v;

    cr_assert_eq(mco_pin(o->st.objects, &k, NULL, 0, &v), MCS_OK);
    mco_unpin(o->st.objects, v.object);
    return v.data;
}

static inline unsigned og_path(struct mcs_slot s)
{
    return s.word >> 8 & 0xff;
}

#endif

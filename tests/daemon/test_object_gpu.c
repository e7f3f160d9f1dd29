/* SPDX-License-Identifier: Apache-2.0 */
/* Objects that are put from GPU memory and got into it: which bytes, by which copies, and what may be asked for. */
#include "objects_gpu.h"

Test(object_gpu, put_and_get)
{
    static const uint64_t sizes[] = {1, 63, 4096, 100001, 3 << 20};
    static struct ob o;
    uint64_t moved = 0;

    og_init(&o);
    gw.at_once = true;
    for (unsigned i = 0; i < 5; i++) {
        uint64_t size = sizes[i], from = 7 * i, to = (4u << 20) + 3 * i;
        const uint8_t *bytes = og_gpu[0].bytes + from;
        struct mcs_object_result r;
        char key[16];

        snprintf(key, sizeof(key), "k%u", i);
        r = og_one(&o, MCS_OP_PUT, key, GW_LOCAL, from, size, 0);
        cr_assert(r.status == MCS_OK && r.size == size && r.copies == 1);
        cr_assert_eq(r.crc, mct_crc32c(0, bytes, size));
        cr_assert(r.path == MCS_PATH_CUDA && r.tier == MCS_TIER_MEMORY);
        /* to another device, where there is more room than it takes */
        r = og_one(&o, MCS_OP_GET, key, GW_SECOND, to, size + 9, i % 2 ? MCS_OBJECT_VERIFY : 0);
        cr_assert(r.status == MCS_OK && r.size == size && r.path == MCS_PATH_CUDA);
        cr_assert_arr_eq(og_gpu[1].bytes + to, bytes, size);
        cr_assert_eq(og_gpu[1].bytes[to + size],
                     (uint8_t)((to + size) * 7 + (to + size) / 251 + 31));
        moved += size;
        if (size <= FIX_EXTENT_SIZE) {
            cr_assert_eq(ob_get(&o, key, 0, size, MCS_OBJECT_VERIFY).path, MCS_PATH_LOCAL);
            cr_assert_arr_eq(o.f.local.map, bytes, size);
        }
    }
    cr_assert_eq(o.f.engine->counters.objects.gpu_put_bytes, moved);
    cr_assert_eq(o.f.engine->counters.objects.gpu_get_bytes, moved);
    cr_assert_eq(o.f.engine->counters.gpu_tasks, 0u, "legs are no tasks");
    cr_assert_eq(ob_stats(&o).pinned, 0u);
    og_fini(&o);
}

/* A device address is no pointer of the agent's. */
Test(object_gpu, without_an_order_it_is_refused)
{
    static struct ob o;
    static const uint32_t flags[] = {0, MCS_OBJECT_RANGES};

    og_init(&o);
    ob_put(&o, "there", 0, 100, 0);
    for (unsigned i = 0; i < 3; i++) {
        ob_begin(&o, i == 0 ? MCS_OP_PUT : MCS_OP_GET, flags[i / 2]);
        ob_name(&o, i == 0 ? "new" : "there");
        ob_piece(&o, 0, 50);
        og_piece(&o, GW_LOCAL, 0, 50);
        ob_name(&o, i == 0 ? "host" : "there");
        ob_piece(&o, 500, 100);
        ob_ok(&o);
        cr_assert_eq(ob_result(&o, 0).status, MCS_GPU_ORDER);
        cr_assert_eq(ob_result(&o, 1).status, MCS_OK);
    }
    og_begin(&o, MCS_OP_PUT, 0);
    ob_name(&o, "beyond");
    og_piece(&o, GW_LOCAL, GW_SIZE - 99, 100);
    ob_name(&o, "nowhere");
    og_piece(&o, GW_LOCAL + MCD_TABLE_SIZE, 0, 100);
    ob_ok(&o);
    cr_assert_eq(ob_result(&o, 0).status, MCS_BAD_RANGE);
    cr_assert_eq(ob_result(&o, 1).status, MCS_INVALID_HANDLE);
    cr_assert_eq(gw.jobs, 0u);
    cr_assert(!ob_exists(&o, "new") && ob_stats(&o).writing == 0 && ob_stats(&o).pinned == 0);
    og_fini(&o);
}

/* One key in host memory and memory of two GPUs, in odd pieces, put so and got otherwise. */
Test(object_gpu, pieces_of_all_kinds)
{
    enum { SIZE = 1000 + 70001 + 1 + 40000 + 300 };
    static struct ob o;
    uint8_t *want = malloc(SIZE), *m;
    struct mcs_object_result r;

    for (unsigned k = 0; k < 2; k++) { /* with and without checksums */
        og_init_sized(&o, 16u << 20, 8u << 20, 4096);
        gw.at_once = true;
        o.st.checksum = k == 0;
        m = o.f.local.map;
        ob_paint(m, FIX_EXTENT_SIZE, 5);
        memcpy(want, m + 10, 1000);
        memcpy(want + 1000, og_gpu[0].bytes + 5, 70001);
        memcpy(want + 71001, m + 5000, 1);
        memcpy(want + 71002, og_gpu[1].bytes + 77, 40000);
        memcpy(want + 111002, m + 9000, 300);
        og_begin(&o, MCS_OP_PUT, 0);
        ob_name(&o, "k");
        ob_piece(&o, 10, 1000);
        og_piece(&o, GW_LOCAL, 5, 70001);
        ob_piece(&o, 5000, 1);
        og_piece(&o, GW_SECOND, 77, 40000);
        ob_piece(&o, 9000, 300);
        cr_assert_eq(ob_ok(&o), (uint64_t)SIZE);
        r = ob_result(&o, 0);
        cr_assert_eq(r.status, MCS_OK);
        if (k == 0)
            cr_assert_eq(r.crc, mct_crc32c(0, want, SIZE));

        og_begin(&o, MCS_OP_GET, MCS_OBJECT_VERIFY);
        ob_name(&o, "k");
        og_piece(&o, GW_SECOND, 1 << 20, 500);
        ob_piece(&o, 500000, 100000);
        og_piece(&o, GW_LOCAL, 2 << 20, 20000);
        cr_assert_eq(ob_ok(&o), (uint64_t)SIZE);
        cr_assert_arr_eq(og_gpu[1].bytes + (1 << 20), want, 500);
        cr_assert_arr_eq(m + 500000, want + 500, 100000);
        cr_assert_arr_eq(og_gpu[0].bytes + (2 << 20), want + 100500, SIZE - 100500);

        og_begin(&o, MCS_OP_GET,
                 k == 0 ? MCS_OBJECT_RANGES : MCS_OBJECT_RANGES | MCS_OBJECT_VERIFY);
        ob_name(&o, "k");
        og_piece(&o, GW_LOCAL, 3 << 20, 3000)->offset = 100;
        ob_piece(&o, 700000, 64)->offset = SIZE - 64;
        og_piece(&o, GW_SECOND, 3 << 20, 1)->offset = 0;
        ob_name(&o, "k");
        og_piece(&o, GW_SECOND, 4 << 20, 2)->offset = SIZE - 1; /* beyond its end */
        cr_assert_eq(ob_ok(&o), 3065u);
        cr_assert_eq(ob_result(&o, 0).status, MCS_OK);
        cr_assert_eq(ob_result(&o, 1).status, MCS_BAD_RANGE);
        cr_assert_arr_eq(og_gpu[0].bytes + (3 << 20), want + 100, 3000);
        cr_assert_arr_eq(m + 700000, want + SIZE - 64, 64);
        cr_assert_eq(og_gpu[1].bytes[3 << 20], want[0]);
        cr_assert(og_one(&o, MCS_OP_GET, "k", GW_LOCAL, 0, SIZE - 1, 0).status == MCS_TOO_SMALL);
        og_fini(&o);
    }
    free(want);
}

/* Blocks of a model's layers: each key has a piece in each of many places. They go together in few copies. */
Test(object_gpu, many_keys_of_many_pieces)
{
    enum { KEYS = 100, LAYERS = 10, BLOCK = 4000 };
    static struct ob o;
    uint64_t jobs;
    char key[16];

    og_init(&o);
    gw.at_once = true;
    for (unsigned round = 0; round < 2; round++) {
        og_begin(&o, round == 0 ? MCS_OP_PUT : MCS_OP_GET, MCS_OBJECT_CHAIN);
        for (unsigned i = 0; i < KEYS; i++) {
            snprintf(key, sizeof(key), "block-%u", i);
            ob_name(&o, key);
            for (unsigned l = 0; l < LAYERS; l++)
                og_piece(&o, round == 0 ? GW_LOCAL : GW_SECOND, (l * KEYS + i) * (BLOCK + 96ull),
                         BLOCK);
        }
        jobs = gw.jobs;
        cr_assert_eq(ob_ok(&o), (uint64_t)KEYS * LAYERS * BLOCK);
        for (unsigned i = 0; i < KEYS; i++)
            cr_assert_eq(ob_result(&o, i).status, MCS_OK, "key %u: %u", i, ob_result(&o, i).status);
        cr_assert_leq(gw.jobs - jobs, 8u, "%llu jobs", (unsigned long long)(gw.jobs - jobs));
    }
    for (unsigned i = 0; i < KEYS * LAYERS; i++)
        cr_assert_arr_eq(og_gpu[1].bytes + i * (BLOCK + 96ull),
                         og_gpu[0].bytes + i * (BLOCK + 96ull), BLOCK, "block %u", i);
    og_fini(&o);
}

/* The copiers take the largest of them in parts that are bounded, and engines turn meanwhile. */
Test(object_gpu, a_large_one_is_copied_in_bounded_parts)
{
    enum { SIZE = 24 << 20 };
    static struct ob o;
    struct mcs_desc d, host;

    og_init_sized(&o, 64u << 20, 32u << 20, 64 << 10);
    og_begin(&o, MCS_OP_PUT, 0);
    ob_name(&o, "large");
    og_piece(&o, GW_LOCAL, 0, SIZE);
    d = og_out(&o, 4);
    ob_turns(&o, 50);
    cr_assert_eq(gw.nposted, 4u, "its window is full");
    cr_assert_leq(gw.most_bytes, (uint64_t)MCD_GPU_WINDOW / MCD_GPU_BUS);
    cr_assert_eq(mcs_slot_peek(&o.f.client, d.slot) & 0x7f, MCS_STATE_PENDING);
    host = fix_desc(&o.f, MCS_OP_WRITE, 4096);
    host.slot = host.batch = 1;
    fix_push(&o.f, &host);
    cr_assert_eq(fix_state(fix_end(&o.f, &host)), MCS_STATE_COMPLETED);
    gw.at_once = true;
    cr_assert_eq(fix_state(ob_end(&o, &d)), MCS_STATE_COMPLETED);
    cr_assert_eq(ob_result(&o, 0).size, (uint64_t)SIZE);
    og_fini(&o);
}

/* Nobody finds an object before its bytes are there; those of other keys go on meanwhile. */
Test(object_gpu, nothing_is_there_before_its_bytes)
{
    static struct ob o;
    struct mcs_desc d;

    og_init(&o);
    og_begin(&o, MCS_OP_PUT, 0);
    ob_name(&o, "gpu");
    og_piece(&o, GW_LOCAL, 0, 1000);
    ob_name(&o, "host");
    ob_piece(&o, 0, 1000);
    d = og_out(&o, 1);
    ob_turns(&o, 20);
    cr_assert_eq(mcs_slot_peek(&o.f.client, d.slot) & 0x7f, MCS_STATE_PENDING);
    cr_assert_eq(ob_stats(&o).objects, 1u, "host is");
    cr_assert_eq(ob_stats(&o).writing, 1u);
    gw_finish(MCS_OK);
    cr_assert_eq(fix_state(ob_end(&o, &d)), MCS_STATE_COMPLETED);
    cr_assert_eq(og_path(o.f.client.slot_table[d.slot]), MCS_PATH_CUDA);
    cr_assert_eq(ob_result(&o, 0).crc, mct_crc32c(0, og_gpu[0].bytes, 1000));
    cr_assert_eq(ob_stats(&o).objects, 2u);
    og_fini(&o);
}

/* With STRICT nothing is copied through memory of the driver's. */
Test(object_gpu, strict)
{
    static struct ob o;

    og_init(&o);
    gw.at_once = true;
    for (unsigned i = 0; i < 2; i++) {
        og_begin(&o, MCS_OP_PUT, 0);
        o.flags |= MCS_DESC_STRICT;
        ob_name(&o, "k");
        og_piece(&o, GW_LOCAL, 0, 1000);
        ob_ok(&o);
        cr_assert_eq(ob_result(&o, 0).status, i == 0 ? MCS_STRICT : MCS_OK);
        o.extents[0].pinned = 2;
    }
    cr_assert_eq(gw.jobs, 1u);
    og_fini(&o);
}

/* Wrong bytes are found out before one of them is given out. */
Test(object_gpu, a_wrong_checksum)
{
    static struct ob o;
    static const uint32_t flags[] = {MCS_OBJECT_VERIFY, MCS_OBJECT_VERIFY | MCS_OBJECT_RANGES};

    for (unsigned i = 0; i < 2; i++) {
        og_init(&o);
        gw.at_once = true;
        og_one(&o, MCS_OP_PUT, "k", GW_LOCAL, 0, 5000, 0);
        cr_assert_eq(og_one(&o, MCS_OP_PUT, "good", GW_LOCAL, 0, 5000, 0).status, MCS_OK);
        og_data(&o, "k")[4000] ^= 1;
        gw.jobs = 0;
        og_begin(&o, MCS_OP_GET, flags[i]);
        ob_name(&o, "k");
        og_piece(&o, GW_SECOND, 0, 5000);
        ob_name(&o, "good");
        og_piece(&o, GW_SECOND, 1 << 20, 5000);
        ob_ok(&o);
        cr_assert_eq(ob_result(&o, 0).status, MCS_CHECKSUM);
        cr_assert_eq(ob_result(&o, 1).status, MCS_OK);
        cr_assert_eq(gw.jobs, 1u);
        cr_assert_eq(og_gpu[1].bytes[4000], (uint8_t)(4000 * 7 + 4000 / 251 + 31), "not touched");
        cr_assert_eq(og_one(&o, MCS_OP_GET, "k", GW_SECOND, 0, 5000, 0).status, MCS_NOT_FOUND);
        og_fini(&o);
    }
}

/* What a client does to its pieces while they are looked at costs it its own bytes. */
Test(object_gpu, pieces_that_change)
{
    enum { SIZE = 200000 };
    static struct ob o;
    struct mcs_object_piece *p;
    struct mcs_desc d;

    for (unsigned i = 0; i < 4; i++) {
        bool put = i % 2 == 0;

        og_init_sized(&o, 16u << 20, 8u << 20, 4096);
        gw.at_once = true;
        ob_put(&o, "there", 0, SIZE + 100, 0);
        og_begin(&o, put ? MCS_OP_PUT : MCS_OP_GET, put ? 0 : MCS_OBJECT_VERIFY);
        ob_name(&o, put ? "new" : "there");
        ob_piece(&o, 0, SIZE);
        og_piece(&o, i < 2 ? GW_LOCAL : FIX_EXTENT, 0, 100);
        ob_write(&o);
        p = (struct mcs_object_piece *)(void *)(o.f.client.args + o.args.pieces);
        d = ob_desc(&o);
        fix_push(&o.f, &d);
        while (put ? ob_stats(&o).writing == 0 : ob_stats(&o).pinned == 0)
            ob_turns(&o, 1);
        cr_assert(!ob_ended(&o, &d));
        p[1].extent = i < 2 ? FIX_EXTENT : GW_LOCAL;
        cr_assert_eq(fix_state(ob_end(&o, &d)), MCS_STATE_COMPLETED);
        cr_assert_eq(ob_result(&o, 0).status, i < 2 ? MCS_OK : MCS_BAD_RANGE, "case %u", i);
        cr_assert(ob_stats(&o).writing == 0 && ob_stats(&o).pinned == 0);
        og_fini(&o);
    }
}

/* All legs of a queue are taken: requests wait for one another's, and all of them end. */
Test(object_gpu, more_requests_than_legs)
{
    enum { N = 60 };
    static struct ob o;
    struct mcs_desc d[N];
    uint32_t step = 512;

    og_init(&o);
    for (unsigned i = 0; i < N; i++) {
        char key[16];
        uint8_t *block;

        snprintf(key, sizeof(key), "k%u", i);
        og_begin(&o, MCS_OP_PUT, 0);
        ob_name(&o, key);
        og_piece(&o, i % 2 ? GW_LOCAL : GW_SECOND, i * 1000, 1000);
        ob_write(&o);
        cr_assert_leq(o.args.total, step);
        block = o.f.client.args + (i + 1) * step;
        memcpy(block, o.f.client.args, o.args.total);
        d[i] = ob_desc(&o);
        d[i].slot = i;
        d[i].batch = i % 16;
        d[i].batch_generation = 1;
        d[i].args = (i + 1) * step / MCS_LINE;
        fix_push(&o.f, &d[i]);
        ob_turns(&o, 4);
    }
    ob_turns(&o, 100);
    cr_assert_eq(gw.nposted, MCD_LEGS);
    og_finish_all(&o, MCS_OK);
    for (unsigned i = 0; i < N; i++)
        cr_assert_eq(fix_state(ob_end(&o, &d[i])), MCS_STATE_COMPLETED, "request %u", i);
    cr_assert_eq(ob_stats(&o).objects, (uint64_t)N);
    og_fini(&o);
}

/* ---- order ------------------------------------------------------------------------------- */

static uint32_t *word(struct ob *o, unsigned i)
{
    return (uint32_t *)(void *)o->f.local.map + i;
}

static void gate(struct ob *o, uint8_t flags)
{
    o->flags = flags;
    if ((flags & MCS_DESC_WAIT) != 0)
        o->gates[o->ngates++] = (struct mcs_gate){.extent = FIX_EXTENT, .value = 5, .offset = 0};
    if ((flags & MCS_DESC_SIGNAL) != 0)
        o->gates[o->ngates++] = (struct mcs_gate){.extent = FIX_EXTENT, .value = 9, .offset = 4};
}

Test(object_gpu, it_begins_when_its_gate_opens)
{
    static struct ob o;
    struct mcs_desc d, fence;

    og_init(&o);
    gw.at_once = true;
    for (unsigned i = 0; i < 2; i++) {
        *word(&o, 0) = *word(&o, 1) = 0;
        ob_begin(&o, i == 0 ? MCS_OP_PUT : MCS_OP_GET, 0);
        ob_name(&o, "k");
        og_piece(&o, i == 0 ? GW_LOCAL : GW_SECOND, 0, 1000);
        gate(&o, MCS_DESC_WAIT | MCS_DESC_SIGNAL);
        ob_write(&o);
        d = ob_desc(&o);
        fix_push(&o.f, &d);
        fence = fix_desc(&o.f, MCS_OP_WRITE, 64);
        fence.slot = fence.batch = 1;
        fence.flags = MCS_DESC_FENCE;
        fix_push(&o.f, &fence);
        ob_turns(&o, 100);
        cr_assert(!ob_ended(&o, &d) && !ob_ended(&o, &fence));
        cr_assert(ob_stats(&o).writing == 0 && ob_stats(&o).pinned == 0 && gw.jobs == i);
        og_gpu[0].bytes[3] = 0xab; /* by a kernel, before it opens the gate */
        cr_assert_eq(*word(&o, 1), 0u);
        mcs_store_release(word(&o, 0), 5u); /* partner: mcd_gate_look() */
        cr_assert_eq(fix_state(ob_end(&o, &d)), MCS_STATE_COMPLETED);
        cr_assert_eq(ob_result(&o, 0).status, MCS_OK);
        cr_assert_eq(mcs_load_acquire(word(&o, 1)), 9u);
        cr_assert_eq(fix_state(fix_end(&o.f, &fence)), MCS_STATE_COMPLETED);
    }
    cr_assert_eq(og_gpu[1].bytes[3], 0xab);
    cr_assert_eq(o.f.engine->counters.gate_waits, 2u);
    og_fini(&o);
}

Test(object_gpu, a_gate_that_stays_shut)
{
    static struct ob o;
    struct mcs_desc d;

    og_init(&o);
    for (unsigned i = 0; i < 4; i++) {
        *word(&o, 0) = *word(&o, 1) = 0;
        ob_begin(&o, MCS_OP_PUT, 0);
        ob_name(&o, "k");
        og_piece(&o, GW_LOCAL, 0, 1000);
        gate(&o, MCS_DESC_WAIT | MCS_DESC_SIGNAL);
        o.deadline = i == 0 ? 20000 : 0;
        ob_write(&o);
        d = ob_desc(&o);
        fix_push(&o.f, &d);
        ob_turns(&o, 20);
        if (i == 1) {
            og_cancel(&o, &d);
        } else if (i == 2) { /* its memory goes */
            o.f.session->extents[MCD_HANDLE_INDEX(FIX_EXTENT)] = NULL;
        } else if (i == 3) {
            cr_assert(!ob_ended(&o, &d));
            break; /* with the queue */
        }
        ob_end(&o, &d);
        cr_assert_eq(fix_error(o.f.client.slot_table[d.slot]), i == 0   ? MCS_TIMEOUT
                                                               : i == 1 ? MCS_CANCELED
                                                                        : MCS_REVOKED);
        cr_assert_eq(*word(&o, 1), i == 2 ? 0u : 9u);
        o.f.session->extents[MCD_HANDLE_INDEX(FIX_EXTENT)] = &o.f.local;
    }
    cr_assert_eq(gw.jobs, 0u);
    og_fini(&o);
}

Test(object_gpu, gates_that_are_none)
{
    static struct ob o;
    struct mcs_object_args *a;
    struct mcs_desc d;

    og_init(&o);
    for (unsigned i = 0; i < 5; i++) {
        enum mcs_status want = MCS_BAD_RANGE;

        ob_begin(&o, MCS_OP_EXIST, 0);
        ob_name(&o, "k");
        gate(&o, MCS_DESC_WAIT | MCS_DESC_SIGNAL);
        a = ob_write(&o);
        switch (i) {
        case 0:
            a->gates += 8; /* the second one is not in the block */
            break;
        case 1:
            a->gates = UINT32_MAX & ~7u;
            break;
        case 2:
            a->gates += 4;
            want = MCS_INVALID_ARGUMENT;
            break;
        case 3:
            o.gates[1].extent = GW_LOCAL;
            memcpy((uint8_t *)a + a->gates, o.gates, sizeof(o.gates));
            want = MCS_NOT_SUPPORTED;
            break;
        default:
            o.gates[0].extent++;
            memcpy((uint8_t *)a + a->gates, o.gates, sizeof(o.gates));
            want = MCS_INVALID_HANDLE;
            break;
        }
        d = ob_desc(&o);
        fix_refused(&o.f, &d, want);
    }
    og_fini(&o);
}

/* Any request about objects may say what comes after it; those that need not wait are not held up. */
Test(object_gpu, a_signal_alone)
{
    static struct ob o;

    og_init(&o);
    for (unsigned i = 0; i < 2; i++) {
        *word(&o, 1) = 0;
        ob_begin(&o, i == 0 ? MCS_OP_PUT : MCS_OP_EXIST, 0);
        ob_name(&o, "k");
        if (i == 0)
            ob_piece(&o, 64, 1000);
        gate(&o, MCS_DESC_SIGNAL);
        ob_ok(&o);
        cr_assert_eq(mcs_load_acquire(word(&o, 1)), 9u);
    }
    og_fini(&o);
}

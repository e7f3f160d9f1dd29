/* SPDX-License-Identifier: Apache-2.0 */
/* Tasks to another host, from the ring to the slot, over a fake transport. */
#include "far.h"
#include "transports/rdma/rdma.h"

#define MiB (1u << 20)

Test(remote, write_and_read)
{
    struct far x;
    struct mcs_desc d;

    far_init(&x, 1);
    far_fill(x.f.local.map, MiB, 1);
    d = far_desc(&x, MCS_OP_WRITE, 0, 0, 4096, MiB - 4096);
    fix_push(&x.f, &d);
    far_completes(&x, &d, MiB - 4096);
    cr_assert_arr_eq(fake.memory + 4096, x.f.local.map, MiB - 4096);
    cr_assert_geq(far_link(&x, 0)->posted, 4u, "it is cut");
    memset(x.f.local.map, 0, MiB);
    d = far_desc(&x, MCS_OP_READ, 1, 100, 4097, 10000);
    fix_push(&x.f, &d);
    far_completes(&x, &d, 10000);
    cr_assert_arr_eq(fake.memory + 4097, x.f.local.map + 100, 10000);
    cr_assert_eq(x.f.local.map[99] | x.f.local.map[10100], 0);
    far_fini(&x);
}

Test(remote, lists_strides_and_joined_pieces)
{
    /* the first three join; the fourth leaves a gap at the peer */
    static const struct mcs_piece pieces[] = {
        {0, 0, 100}, {100, 100, 50}, {150, 150, 1}, {151, 200, 9}, {50000, 60000, 40000}};
    struct far x;
    struct mcs_desc d;
    uint64_t posted;

    far_init(&x, 1);
    far_fill(x.f.local.map, MiB, 2);
    far_args(&x, pieces, 5, "", "");
    d = far_desc(&x, MCS_OP_WRITE, 0, 10, 1000, 40160);
    d.shape = MCS_SHAPE_LIST;
    d.args = 0;
    fix_push(&x.f, &d);
    far_completes(&x, &d, 40160);
    for (unsigned i = 0; i < 5; i++)
        cr_assert_arr_eq(fake.memory + 1000 + pieces[i].remote,
                         x.f.local.map + 10 + pieces[i].local, pieces[i].length);
    cr_assert_eq(far_link(&x, 0)->posted, 3u);
    cr_assert_eq(fake.memory[1151], 0);
    posted = far_link(&x, 0)->posted;
    memset(x.f.local.map, 0, MiB);
    far_args(&x, NULL, 0, "", "");
    ((struct mcs_args *)x.f.client.args)->count = 7;
    ((struct mcs_args *)x.f.client.args)->block = 64;
    ((struct mcs_args *)x.f.client.args)->local_stride = 128;
    ((struct mcs_args *)x.f.client.args)->remote_stride = 64;
    d = far_desc(&x, MCS_OP_READ, 1, 0, 1000, 7 * 64);
    d.shape = MCS_SHAPE_STRIDE;
    d.args = 0;
    fix_push(&x.f, &d);
    far_completes(&x, &d, 7 * 64);
    for (unsigned i = 0; i < 7; i++)
        cr_assert_arr_eq(fake.memory + 1000 + i * 64, x.f.local.map + (size_t)i * 128, 64);
    cr_assert_eq(far_link(&x, 0)->posted, posted + 7);
    far_fini(&x);
}

/* No handle is 0, and a descriptor may name it all the same. */
Test(remote, handle_0_names_nothing)
{
    struct far x;
    struct mcs_desc d;

    far_init(&x, 1);
    d = far_desc(&x, MCS_OP_WRITE, 0, 0, 0, 64);
    d.extent = 0;
    fix_push(&x.f, &d);
    far_ends(&x, &d, MCS_STATE_INVALID, MCS_INVALID_HANDLE);
    far_fini(&x);
}

/* Pieces cost a look each, however small: one slice has a bounded number of them. */
Test(remote, a_slice_joins_a_bounded_number_of_pieces)
{
    struct far x;
    struct mcs_args *a;
    struct mcs_desc d;

    far_init(&x, 1);
    far_link(&x, 0)->latency = 1000000;
    far_fill(x.f.local.map, MiB, 4);
    far_args(&x, NULL, 0, "", "");
    a = (struct mcs_args *)x.f.client.args;
    a->count = 100000;
    a->block = a->local_stride = a->remote_stride = 1;
    d = far_desc(&x, MCS_OP_WRITE, 0, 0, 0, 100000);
    d.shape = MCS_SHAPE_STRIDE;
    d.args = 0;
    fix_push(&x.f, &d);
    far_until_out(&x, 1);
    cr_assert_leq(fake.last_length, 1024u);
    far_completes(&x, &d, 100000);
    cr_assert_arr_eq(fake.memory, x.f.local.map, 100000);
    far_fini(&x);
}

/* A slice lies in one buffer of the segment, even where two touch. */
Test(remote, pieces_join_within_one_buffer_only)
{
    static const struct mcs_piece pieces[] = {{0, 0, 64}, {64, 64, 64}};
    struct far x;
    struct mcs_desc d;
    struct mcd_snapshot *s;

    far_init(&x, 1);
    s = calloc(1, sizeof(*s) + 2 * sizeof(struct mcd_buffer));
    s->count = 2;
    for (unsigned i = 0; i < 2; i++)
        s->buffers[i] = (struct mcd_buffer){
            .address = FAKE_BASE + i * 64, .length = 64, .access = MCS_ACCESS_WRITE};
    free(x.segment->snapshot);
    x.segment->snapshot = s;
    far_args(&x, pieces, 2, "", "");
    d = far_desc(&x, MCS_OP_WRITE, 0, 0, 0, 128);
    d.shape = MCS_SHAPE_LIST;
    d.args = 0;
    fix_push(&x.f, &d);
    far_completes(&x, &d, 128);
    cr_assert_eq(far_link(&x, 0)->posted, 2u);
    far_fini(&x);
}

/* A slice has the registrations of both its ends as they are when it is posted, where it may use them. */
Test(remote, slices_know_the_registrations_of_their_ends)
{
    static const struct mct_rdma_keys keys[2];
    struct far x;
    struct mcs_desc d;
    struct mcd_snapshot *s;
    struct mct_rdma_memory *memory = (struct mct_rdma_memory *)&x;

    far_init(&x, 1);
    s = calloc(1, sizeof(*s) + 2 * sizeof(struct mcd_buffer));
    s->count = 2;
    for (unsigned i = 0; i < 2; i++)
        s->buffers[i] = (struct mcd_buffer){.address = FAKE_BASE + i * 4096,
                                            .length = 4096,
                                            .access = MCS_ACCESS_READ,
                                            .keys = &keys[i]};
    s->buffers[1].access = MCS_ACCESS_WRITE;
    free(x.segment->snapshot);
    x.segment->snapshot = s;

    d = far_desc(&x, MCS_OP_READ, 0, 0, 0, 4096);
    fix_push(&x.f, &d);
    far_completes(&x, &d, 4096);
    cr_assert(fake.last_registration == NULL && fake.last_keys == NULL, "the own end has none");

    x.f.local.registration = memory;
    d = far_desc(&x, MCS_OP_READ, 1, 0, 0, 4096);
    fix_push(&x.f, &d);
    far_completes(&x, &d, 4096);
    cr_assert_eq(fake.last_registration, memory);
    cr_assert_eq(fake.last_keys, &keys[0]);

    d = far_desc(&x, MCS_OP_WRITE, 2, 0, 4096 + 96, 4000);
    fix_push(&x.f, &d);
    far_completes(&x, &d, 4000);
    cr_assert_eq(fake.last_registration, memory);
    cr_assert_eq(fake.last_keys, &keys[1]);

    fake.last_registration = NULL;
    mcs_store_release(&x.remote.fresh,
                      x.remote.wanted + 1); /* as if its owner had been asked again */
    d = far_desc(&x, MCS_OP_WRITE, 3, 0, 0, 4096);
    fix_push(&x.f, &d);
    far_ends(&x, &d, MCS_STATE_INVALID, MCS_ACCESS);
    cr_assert_null(fake.last_registration, "a write without the right does not leave");
    x.f.local.registration = NULL;
    far_fini(&x);
}

Test(remote, notifications_come_after_the_data)
{
    struct far x;
    struct mcs_desc d;

    far_init(&x, 1);
    far_link(&x, 0)->latency = 50000;
    far_args(&x, NULL, 0, "ready", "block 7");
    d = far_desc(&x, MCS_OP_WRITE, 0, 0, 0, MiB);
    d.flags = MCS_DESC_NOTIFY;
    d.args = 0;
    far_fill(x.f.local.map, MiB, 3);
    fix_push(&x.f, &d);
    while (fake.nnotes == 0) {
        cr_assert(!far_ended(&x, &d));
        mcd_engine_turn(x.f.engine);
    }
    cr_assert_arr_eq(fake.memory, x.f.local.map, MiB);
    far_completes(&x, &d, MiB);
    cr_assert_eq(fake.notes[0].source, x.f.session->incarnation);
    cr_assert_eq(fake.notes[0].bytes, MiB);
    cr_assert_eq(fake.notes[0].name_length, 5u);
    cr_assert_arr_eq(fake.notes[0].text, "readyblock 7", 12);
    d = far_desc(&x, MCS_OP_NOTIFY, 1, 0, 0, 0);
    d.args = 0;
    fix_push(&x.f, &d);
    far_completes(&x, &d, 0);
    cr_assert_eq(fake.nnotes, 2u);
    cr_assert_neq(fake.notes[0].notice, fake.notes[1].notice);
    far_fini(&x);
}

Test(remote, a_full_inbox_is_tried_again_until_the_deadline)
{
    struct far x;
    struct mcs_desc d, late, other;

    far_init(&x, 1);
    fake.inbox_room = 0;
    far_args(&x, NULL, 0, "n", "");
    d = far_desc(&x, MCS_OP_NOTIFY, 0, 0, 0, 0);
    d.args = 0;
    fix_push(&x.f, &d);
    late = far_desc(&x, MCS_OP_NOTIFY, 1, 0, 0, 0);
    late.args = 0;
    late.deadline_us = 20000;
    fix_push(&x.f, &late);
    other = far_desc(&x, MCS_OP_WRITE, 2, 0, 0, 64); /* passes them */
    fix_push(&x.f, &other);
    far_completes(&x, &other, 64);
    far_ends(&x, &late, MCS_STATE_TIMEOUT, MCS_INBOX_FULL);
    cr_assert(!far_ended(&x, &d));
    fake.inbox_room = 1;
    far_completes(&x, &d, 0);
    far_fini(&x);
}

Test(remote, unknown_addresses_are_looked_up_afresh_once)
{
    struct far x;
    struct mcs_desc d;

    far_init(&x, 1);
    free(x.segment->snapshot);
    x.segment->snapshot = far_snapshot(4096, MCS_ACCESS_READ | MCS_ACCESS_WRITE);
    d = far_desc(&x, MCS_OP_WRITE, 0, 0, 4096, 64);
    fix_push(&x.f, &d);
    far_turns(&x, 1000);
    cr_assert(!far_ended(&x, &d));
    cr_assert_eq(x.remote.wanted, 1u);
    free(x.segment->snapshot);
    x.segment->snapshot = far_snapshot(8192, MCS_ACCESS_READ | MCS_ACCESS_WRITE);
    mcs_store_release(&x.remote.fresh, 1u); /* partner: mcd_remote_timer() */
    far_completes(&x, &d, 64);
    /* still not there: refused, nothing was sent */
    d = far_desc(&x, MCS_OP_WRITE, 0, 0, 8192, 64);
    fix_push(&x.f, &d);
    far_turns(&x, 10);
    cr_assert_eq(x.remote.wanted, 2u);
    mcs_store_release(&x.remote.fresh, 2u); /* as above */
    far_ends(&x, &d, MCS_STATE_INVALID, MCS_BAD_RANGE);
    /* rights, too */
    free(x.segment->snapshot);
    x.segment->snapshot = far_snapshot(8192, MCS_ACCESS_READ);
    d = far_desc(&x, MCS_OP_WRITE, 0, 0, 0, 64);
    fix_push(&x.f, &d);
    far_turns(&x, 10);
    mcs_store_release(&x.remote.fresh, 3u); /* as above */
    far_ends(&x, &d, MCS_STATE_INVALID, MCS_ACCESS);
    cr_assert_eq(far_link(&x, 0)->posted, 1u);
    /* nobody brings a description: the deadline ends it */
    d = far_desc(&x, MCS_OP_WRITE, 0, 0, 0, 64);
    d.deadline_us = 20000;
    fix_push(&x.f, &d);
    far_ends(&x, &d, MCS_STATE_TIMEOUT, MCS_TIMEOUT);
    far_fini(&x);
}

Test(remote, bad_local_ranges_are_refused_at_once)
{
    struct far x;
    struct mcs_desc d;

    far_init(&x, 1);
    d = far_desc(&x, MCS_OP_WRITE, 0, FIX_EXTENT_SIZE - 63, 0, 64);
    fix_refused(&x.f, &d, MCS_BAD_RANGE);
    d = far_desc(&x, MCS_OP_READ, 0, UINT64_MAX - 10, 0, 64);
    fix_refused(&x.f, &d, MCS_BAD_RANGE);
    d = far_desc(&x, MCS_OP_READ, 0, 0, 0, 64);
    d.extent++;
    fix_refused(&x.f, &d, MCS_INVALID_HANDLE);
    d = far_desc(&x, MCS_OP_READ, 0, 0, 0, 64);
    d.extent = 0; /* what look-ups begin with */
    fix_refused(&x.f, &d, MCS_INVALID_HANDLE);
    cr_assert_eq(far_link(&x, 0)->posted, 0u);
    cr_assert_eq(x.remote.wanted, 0u);
    far_fini(&x);
}

Test(remote, refusals_of_the_peer_end_the_task_and_spare_the_rail)
{
    struct far x;
    struct mcs_desc d;
    unsigned before;

    far_init(&x, 1);
    before = x.route->rails[0].rail.changes;
    far_link(&x, 0)->refuse = 1;
    far_link(&x, 0)->refuse_with = MCS_ACCESS;
    d = far_desc(&x, MCS_OP_WRITE, 0, 0, 0, 64);
    fix_refused(&x.f, &d, MCS_ACCESS);
    /* something had moved */
    far_link(&x, 0)->rate = 1;
    d = far_desc(&x, MCS_OP_WRITE, 0, 0, 0, MiB);
    fix_push(&x.f, &d);
    while (far_link(&x, 0)->moved == 0)
        far_turns(&x, 1);
    far_link(&x, 0)->refuse = 1;
    far_link(&x, 0)->refuse_with = MCS_REVOKED;
    far_ends(&x, &d, MCS_STATE_FAILED, MCS_REVOKED);
    cr_assert_eq(x.route->rails[0].rail.changes, before);
    /* the peer has forgotten the export, and it has been opened anew since */
    far_link(&x, 0)->rate = 0;
    far_link(&x, 0)->latency = 20000;
    far_link(&x, 0)->refuse = 1;
    far_link(&x, 0)->refuse_with = MCS_STALE;
    d = far_desc(&x, MCS_OP_WRITE, 0, 0, 0, 64);
    fix_push(&x.f, &d);
    far_until_out(&x, 1);
    x.remote.export_index++;
    far_completes(&x, &d, 64);
    far_fini(&x);
}

Test(remote, a_lost_write_is_sent_again_once_its_connection_is_dead)
{
    struct far x;
    struct mcs_desc d, write, read;

    far_init(&x, 2);
    for (unsigned i = 0; i < 2; i++) {
        far_link(&x, i)->rate = 0.1;
        far_link(&x, i)->latency = 3000000;
    }
    far_fill(x.f.local.map, MiB, 4);
    d = far_desc(&x, MCS_OP_WRITE, 0, 0, 0, MiB);
    fix_push(&x.f, &d);
    far_until_out(&x, 2);
    far_link(&x, 1)->silent = true; /* so that no kill is answered */
    fake_lose(far_link(&x, 0), far_link(&x, 0)->conns[0], -ECONNRESET);
    far_turns(&x, 2);
    cr_assert_eq(x.route->nunsettled, 1u);
    /* nothing is written meanwhile, but read */
    write = far_desc(&x, MCS_OP_WRITE, 1, 0, 2 * MiB, 64);
    fix_push(&x.f, &write);
    read = far_desc(&x, MCS_OP_READ, 2, 512, 3 * MiB, 64);
    fix_push(&x.f, &read);
    far_turns(&x, 20);
    far_link(&x, 1)->silent = false;
    cr_assert(!far_ended(&x, &write));
    far_completes(&x, &read, 64);
    far_completes(&x, &d, MiB);
    far_completes(&x, &write, 64);
    cr_assert_arr_eq(fake.memory, x.f.local.map, 512);
    cr_assert_arr_eq(fake.memory + 1024, x.f.local.map + 1024, MiB - 1024);
    cr_assert_eq(fake.killed, 1u);
    cr_assert_eq(x.f.engine->counters.kills, 1u);
    cr_assert_gt(x.route->moved_over, 0u);
    far_fini(&x);
}

Test(remote, a_new_connection_kills_the_old_one_first)
{
    struct far x;
    struct mcs_desc d;

    far_init(&x, 1);
    far_link(&x, 0)->rate = 0.1;
    far_fill(x.f.local.map, MiB, 5);
    d = far_desc(&x, MCS_OP_WRITE, 0, 0, 0, MiB);
    fix_push(&x.f, &d);
    far_until_out(&x, 1);
    fake_lose(far_link(&x, 0), far_link(&x, 0)->conns[0], -EPIPE);
    far_turns(&x, 100);
    cr_assert_eq(fake.slices, 0u);
    cr_assert_eq(x.route->rails[0].rail.state, MCD_RAIL_DOWN);
    cr_assert_eq(x.route->rails[0].rail.reason, MCD_RAIL_LOST);
    cr_assert_eq(mcs_load_relaxed(&x.route->wants), 1u);
    far_link(&x, 0)->rate = 0;
    far_adopt(&x, x.route, 0);
    cr_assert_eq(x.route->rails[0].rail.state, MCD_RAIL_PROBATION);
    far_completes(&x, &d, MiB);
    cr_assert_eq(fake.killed, 1u);
    cr_assert_arr_eq(fake.memory, x.f.local.map, MiB);
    cr_assert_eq(x.route->rails[0].rail.state, MCD_RAIL_UP);
    far_fini(&x);
}

/* What nothing can settle is not sent again, and the slot says so. */
Test(remote, without_kill_a_lost_write_fails_and_says_so)
{
    static struct mct_ops no_kill;
    struct far x;
    struct mcs_desc d;
    struct mcs_slot s;

    far_init(&x, 1);
    no_kill = fake_ops;
    no_kill.capabilities &= ~MCT_CAP_KILL;
    x.route->rails[0].ops = &no_kill;
    far_link(&x, 0)->rate = 0.001;
    d = far_desc(&x, MCS_OP_WRITE, 0, 0, 0, 64 << 10);
    fix_push(&x.f, &d);
    far_until_out(&x, 1);
    fake_lose(far_link(&x, 0), far_link(&x, 0)->conns[0], -EPIPE);
    s = fix_end(&x.f, &d);
    cr_assert_eq(fix_state(s), MCS_STATE_FAILED);
    cr_assert_eq(fix_error(s), MCS_RAIL);
    cr_assert(!far_settled(s));
    x.route->rails[0].ops = &fake_ops;
    far_fini(&x);
}

Test(remote, without_a_rail_tasks_wait_for_down_ns_and_no_longer)
{
    struct far x;
    struct mcs_desc d, late;

    far_init(&x, 1);
    fake_lose(far_link(&x, 0), far_link(&x, 0)->conns[0], -ECONNRESET);
    d = far_desc(&x, MCS_OP_WRITE, 0, 0, 0, 64);
    fix_push(&x.f, &d);
    late = far_desc(&x, MCS_OP_READ, 1, 0, 0, 64);
    late.deadline_us = 5000;
    fix_push(&x.f, &late);
    fake.step = 100000;
    far_ends(&x, &late, MCS_STATE_TIMEOUT, MCS_PEER_UNREACHABLE);
    far_ends(&x, &d, MCS_STATE_FAILED, MCS_PEER_UNREACHABLE);
    cr_assert(far_settled(x.f.client.slot_table[0]));
    /* nor does anybody describe the segment afresh */
    d = far_desc(&x, MCS_OP_WRITE, 0, 0, FAKE_SIZE, 64);
    fix_push(&x.f, &d);
    far_ends(&x, &d, MCS_STATE_FAILED, MCS_PEER_UNREACHABLE);
    /* an interface that is down is no rail either, even with a connection */
    far_adopt(&x, x.route, 0);
    fix_call(x.f.engine, mcd_route_tell,
             &(struct mcd_route_word){.route = x.route, .rail = 0, .reason = MCD_RAIL_CARRIER});
    cr_assert_eq(x.route->rails[0].rail.state, MCD_RAIL_DOWN);
    cr_assert_eq(x.route->rails[0].rail.reason, MCD_RAIL_CARRIER);
    d = far_desc(&x, MCS_OP_WRITE, 0, 0, 0, 64);
    fix_push(&x.f, &d);
    far_ends(&x, &d, MCS_STATE_FAILED, MCS_PEER_UNREACHABLE);
    fix_call(x.f.engine, mcd_route_tell,
             &(struct mcd_route_word){.route = x.route, .rail = 0, .usable = true});
    far_adopt(&x, x.route, 0);
    d = far_desc(&x, MCS_OP_WRITE, 0, 0, 0, 64);
    fix_push(&x.f, &d);
    far_completes(&x, &d, 64);
    far_fini(&x);
}

Test(remote, a_dead_peer_holds_up_nobody_else)
{
    struct far x;
    struct mcd_remote remote;
    struct mcd_route *dead;
    struct mcd_segment *segment;
    struct mcd_open open;
    struct mcs_desc d[8], other, local;

    far_init(&x, 1);
    dead = far_route(x.f.engine, 1, 256 << 10);
    far_adopt(&x, dead, 0);
    dead->rails[0].link->silent = true;
    dead->o.down_ns = UINT64_C(3600000000000);
    segment = far_segment(&remote, dead);
    open = (struct mcd_open){.handle = 0x80003005u, .segment = segment};
    x.f.session->opens[MCD_HANDLE_INDEX(0x80003005u)] = &open;
    for (unsigned i = 0; i < 8; i++) {
        d[i] = far_desc(&x, MCS_OP_WRITE, i, 0, 0, MiB);
        d[i].segment = 0x80003005u;
        fix_push(&x.f, &d[i]);
    }
    other = far_desc(&x, MCS_OP_WRITE, 8, 0, 0, MiB);
    local = fix_desc(&x.f, MCS_OP_WRITE, FIX_EXTENT_SIZE);
    local.slot = 9;
    fix_push(&x.f, &other);
    fix_push(&x.f, &local);
    far_completes(&x, &other, MiB);
    cr_assert_eq(fix_state(fix_end(&x.f, &local)), MCS_STATE_COMPLETED);
    fake.step = 1000000;
    far_turns(&x, 1000); /* a second: it is given up, and held */
    cr_assert_eq(dead->rails[0].rail.state, MCD_RAIL_DOWN);
    cr_assert_eq(dead->rails[0].rail.reason, MCD_RAIL_SILENT);
    cr_assert_geq(dead->nunsettled, 1u);
    for (unsigned i = 0; i < 8; i++)
        cr_assert(!far_ended(&x, &d[i]));
    other = far_desc(&x, MCS_OP_READ, 8, 0, 0, 64);
    fix_push(&x.f, &other);
    far_completes(&x, &other, 64);
    /* the control thread learns that it is another one */
    fix_call(
        x.f.engine, mcd_route_tell,
        &(struct mcd_route_word){.route = dead, .rail = -1, .usable = true, .verdict = MCS_STALE});
    for (unsigned i = 0; i < 8; i++)
        far_ends(&x, &d[i], MCS_STATE_FAILED, MCS_STALE);
    d[0] = far_desc(&x, MCS_OP_WRITE, 0, 0, 0, 64);
    d[0].segment = 0x80003005u;
    fix_refused(&x.f, &d[0], MCS_STALE);
    fix_call(x.f.engine, mcd_route_detach, dead);
    mcd_route_destroy(dead);
    mcd_segment_put(segment);
    far_fini(&x);
}

/* A canceled task gives the kill of its lost connection a moment, and can then say that all is quiet. */
/* What has come back and was not looked at yet is not asked for again: it is not the transport's. */
/* A transport that does not give back what it was asked for loses its connections. */
Test(remote, a_fence_holds_across_lanes_and_local_tasks)
{
    struct far x;
    struct mcs_desc first, local, fenced, after;

    far_init(&x, 1);
    far_link(&x, 0)->latency = 200000;
    first = far_desc(&x, MCS_OP_WRITE, 0, 0, 0, 64);
    fix_push(&x.f, &first);
    /* a local task behind a fence waits for the one that is under way to the peer */
    local = fix_desc(&x.f, MCS_OP_WRITE, 64);
    local.slot = 1;
    local.flags = MCS_DESC_FENCE;
    fix_push(&x.f, &local);
    /* one to the peer waits for the local one; one without a fence passes both, from another class */
    fenced = far_desc(&x, MCS_OP_READ, 2, 4096, 0, 64);
    fenced.flags = MCS_DESC_FENCE;
    fix_push(&x.f, &fenced);
    after = far_desc(&x, MCS_OP_READ, 3, 8192, 0, 64);
    after.priority = MCS_CLASS_HIGH;
    fix_push(&x.f, &after);
    far_until_out(&x, 2);
    far_turns(&x, 20);
    cr_assert_eq(fake.slices, 2u);
    cr_assert(!far_ended(&x, &local));
    cr_assert(!far_ended(&x, &fenced));
    far_completes(&x, &fenced, 64);
    cr_assert(far_ended(&x, &first));
    cr_assert(far_ended(&x, &local));
    far_fini(&x);
}

/* Work that never ends in memory that stays: quiet for a moment all the same. */
Test(remote, damaged_bytes_are_sent_again_elsewhere_and_the_rail_is_left)
{
    struct far x;
    struct mcs_desc d;

    far_init(&x, 2);
    far_link(&x, 0)->damage = 1000;
    far_fill(x.f.local.map, MiB, 6);
    for (unsigned i = 0; i < 8; i++) {
        d = far_desc(&x, MCS_OP_WRITE, i, i * 65536, i * 65536, 65536);
        fix_push(&x.f, &d);
        far_completes(&x, &d, 65536);
    }
    cr_assert_arr_eq(fake.memory, x.f.local.map, 8 * 65536);
    for (unsigned i = 0; i < 64 && x.route->rails[0].rail.reason != MCD_RAIL_CHECKSUMS; i++) {
        d = far_desc(&x, MCS_OP_WRITE, 0, 0, 0, MiB);
        fix_push(&x.f, &d);
        far_completes(&x, &d, MiB);
    }
    cr_assert_eq(x.route->rails[0].rail.reason, MCD_RAIL_CHECKSUMS);
    cr_assert_not(mcd_rail_works(&x.route->rails[0].rail));
    /* damaged on the way of both: that is the source's own doing, and its task's end */
    far_link(&x, 1)->damage = 1000;
    d = far_desc(&x, MCS_OP_WRITE, 0, 0, 0, 64);
    fix_push(&x.f, &d);
    far_ends(&x, &d, MCS_STATE_FAILED, MCS_CHECKSUM);
    cr_assert_eq(x.route->rails[1].rail.state, MCD_RAIL_UP);
    far_fini(&x);
}

Test(remote, a_notification_that_may_have_arrived_says_so_when_it_comes_again)
{
    struct far x;
    struct mcs_desc d;

    far_init(&x, 1);
    far_link(&x, 0)->rate = 0.000001;
    far_args(&x, NULL, 0, "once", "");
    d = far_desc(&x, MCS_OP_NOTIFY, 0, 0, 0, 0);
    d.args = 0;
    fix_push(&x.f, &d);
    far_until_out(&x, 1);
    fake_lose(far_link(&x, 0), far_link(&x, 0)->conns[0], -EPIPE);
    far_link(&x, 0)->rate = 0;
    far_adopt(&x, x.route, 0);
    far_completes(&x, &d, 0);
    cr_assert_eq(fake.notes[0].notice >> 63, 1u);
    far_fini(&x);
}

Test(remote, arguments_that_change_under_way_harm_nobody)
{
    static const struct mcs_piece good[] = {{0, 0, 600000}, {600000, 600000, 100}};
    struct far x;
    struct mcs_desc d;
    struct mcs_piece *pieces;

    far_init(&x, 1);
    x.route->rails[0].rail.window_max = 1; /* one slice at a time */
    pieces = (struct mcs_piece *)(x.f.client.args + 64);
    for (unsigned how = 0; how < 4; how++) {
        far_args(&x, good, 2, "", "");
        far_link(&x, 0)->max_out = 1;
        far_link(&x, 0)->rate = 1;
        d = far_desc(&x, MCS_OP_WRITE, 0, 0, 0, 600100);
        d.shape = MCS_SHAPE_LIST;
        d.args = 0;
        fix_push(&x.f, &d);
        far_until_out(&x, 1);
        if (how == 0)
            pieces[0].length = 10; /* shorter than what was sent */
        else if (how == 1)
            pieces[0].length = UINT64_MAX;
        else if (how == 2)
            pieces[0].local = FIX_EXTENT_SIZE;
        else
            pieces[1].length = 0;
        far_ends(&x, &d, MCS_STATE_FAILED, how == 3 ? MCS_INVALID_ARGUMENT : MCS_REVOKED);
        far_turns(&x, 1000);
    }
    far_fini(&x);
}

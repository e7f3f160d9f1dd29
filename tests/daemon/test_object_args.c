/* SPDX-License-Identifier: Apache-2.0 */
/* What a client can get wrong, or lie about, in a request about objects. */
#include "objects.h"

/* A good GET of two keys with a piece each; its head in the argument area is the caller's to spoil. */
static struct mcs_object_args *write_good(struct ob *o, uint8_t op)
{
    ob_begin(o, op, 0);
    for (unsigned i = 0; i < 2; i++) {
        ob_name(o, i == 0 ? "one" : "two")->size = 64;
        if (op == MCS_OP_GET || op == MCS_OP_PUT)
            ob_piece(o, i * 1000, 64);
    }
    return ob_write(o);
}

static void refused(struct ob *o, enum mcs_status want, const char *what)
{
    struct mcs_desc d = ob_desc(o);
    struct mcs_slot s;

    fix_push(&o->f, &d);
    s = ob_end(o, &d);
    cr_assert_eq(fix_state(s), MCS_STATE_INVALID, "%s: state %u", what, fix_state(s));
    cr_assert_eq(fix_error(s), want, "%s: error %u", what, fix_error(s));
    cr_assert_eq(s.bytes, 0u);
}

#define SPOILED(op, want, field, value)                                                            \
    do {                                                                                           \
        write_good(&o, (op))->field = (value);                                                     \
        refused(&o, (want), #op " " #field " = " #value);                                          \
    } while (0)

Test(object_args, heads)
{
    static struct ob o;

    ob_init(&o);
    SPOILED(MCS_OP_GET, MCS_BAD_RANGE, total, 127);
    SPOILED(MCS_OP_GET, MCS_BAD_RANGE, total, o.f.client.args_size + 1);
    SPOILED(MCS_OP_GET, MCS_BAD_RANGE, total, UINT64_MAX);
    SPOILED(MCS_OP_GET, MCS_INVALID_ARGUMENT, count, 0);
    SPOILED(MCS_OP_GET, MCS_INVALID_ARGUMENT, count, MCS_KEYS_MAX + 1);
    SPOILED(MCS_OP_GET, MCS_INVALID_ARGUMENT, count, UINT32_MAX);
    SPOILED(MCS_OP_GET, MCS_BAD_RANGE, count, 3000);
    SPOILED(MCS_OP_GET, MCS_BAD_RANGE, keys, 4);
    SPOILED(MCS_OP_GET, MCS_BAD_RANGE, keys, UINT32_MAX & ~7u);
    SPOILED(MCS_OP_GET, MCS_BAD_RANGE, pieces, 12);
    SPOILED(MCS_OP_GET, MCS_BAD_RANGE, pieces, UINT32_MAX & ~7u);
    SPOILED(MCS_OP_GET, MCS_BAD_RANGE, npieces, MCS_PIECES_MAX);
    SPOILED(MCS_OP_GET, MCS_INVALID_ARGUMENT, npieces, MCS_PIECES_MAX + 1);
    SPOILED(MCS_OP_GET, MCS_BAD_RANGE, results, 20);
    SPOILED(MCS_OP_GET, MCS_BAD_RANGE, results, UINT32_MAX & ~7u);
    SPOILED(MCS_OP_EXIST, MCS_BAD_RANGE, results, UINT32_MAX & ~7u);
    SPOILED(MCS_OP_GET, MCS_INVALID_ARGUMENT, flags, MCS_OBJECT_UPSERT);
    SPOILED(MCS_OP_GET, MCS_INVALID_ARGUMENT, flags, MCS_OBJECT_FLAGS + 1);
    SPOILED(MCS_OP_PUT, MCS_INVALID_ARGUMENT, flags, MCS_OBJECT_UPSERT | MCS_OBJECT_NEW);
    SPOILED(MCS_OP_EXIST, MCS_INVALID_ARGUMENT, flags, MCS_OBJECT_RANGES);
    SPOILED(MCS_OP_GET, MCS_INVALID_ARGUMENT, replicas, 1);
    SPOILED(MCS_OP_PUT, MCS_INVALID_ARGUMENT, replicas, MCS_REPLICAS_MAX + 1);
    SPOILED(MCS_OP_PUT, MCS_INVALID_ARGUMENT, soft_pin_ms, MCS_SOFT_PIN_MAX_MS + 1);
    SPOILED(MCS_OP_EXIST, MCS_INVALID_ARGUMENT, lease_ms, MCS_SOFT_PIN_MAX_MS + 1);
    SPOILED(MCS_OP_EXIST, MCS_INVALID_ARGUMENT, position, UINT32_MAX);
    SPOILED(MCS_OP_EXIST, MCS_INVALID_ARGUMENT, npieces, 1);
    SPOILED(MCS_OP_PUT, MCS_INVALID_ARGUMENT, host_length, MCS_ADDRESS_MAX);
    SPOILED(MCS_OP_PUT, MCS_BAD_RANGE, host, UINT32_MAX);
    SPOILED(MCS_OP_PUT, MCS_INVALID_ARGUMENT, reserved[16], 1);
    SPOILED(MCS_OP_PUT, MCS_INVALID_ARGUMENT, gates, 128); /* and no flag asks for one */
    cr_assert(ob_stats(&o).objects == 0 && ob_stats(&o).writing == 0);
    ob_fini(&o);
}

Test(object_args, descriptors)
{
    static struct ob o;
    struct mcs_desc d;

    ob_init(&o);
    write_good(&o, MCS_OP_PUT);
    for (unsigned i = 0; i < 10; i++) {
        enum mcs_status want = MCS_INVALID_ARGUMENT;

        d = ob_desc(&o);
        switch (i) {
        case 0:
            d.shape = MCS_SHAPE_LIST;
            break;
        case 1:
            d.flags = MCS_DESC_NOTIFY;
            break;
        case 2:
            d.priority = MCS_CLASS_COUNT;
            break;
        case 3:
            d.extent = FIX_EXTENT;
            break;
        case 4:
            d.segment = FIX_SEGMENT;
            break;
        case 5:
            d.length = 1;
            break;
        case 6:
            d.local_offset = 1;
            break;
        case 7:
            d.remote_addr = 1;
            break;
        case 8:
            d.args = MCS_ARGS_NONE;
            want = MCS_BAD_RANGE;
            break;
        default:
            d.args = (uint32_t)(o.f.client.args_size / MCS_LINE) - 1; /* half a head */
            want = MCS_BAD_RANGE;
            break;
        }
        fix_refused(&o.f, &d, want);
    }
    /* an agent without a store */
    d = ob_desc(&o);
    {
        struct mcd_objects *objects = o.f.engine->objects;

        o.f.engine->objects = NULL;
        fix_refused(&o.f, &d, MCS_NOT_SUPPORTED);
        o.f.engine->objects = objects;
    }
    ob_fini(&o);
}

/* Each key is judged alone; the good one among them is served. */
Test(object_args, keys_and_pieces)
{
    static struct ob o;
    static const enum mcs_status want[] = {
        MCS_BAD_KEY,        MCS_BAD_KEY,   MCS_BAD_RANGE, MCS_BAD_RANGE,
        MCS_BAD_RANGE,      MCS_BAD_RANGE, MCS_OK,        MCS_INVALID_ARGUMENT,
        MCS_INVALID_HANDLE, MCS_BAD_RANGE, MCS_BAD_RANGE, MCS_INVALID_ARGUMENT,
        MCS_BAD_RANGE,      MCS_BAD_RANGE,
    };
    const unsigned n = sizeof(want) / sizeof(want[0]);

    ob_init(&o);
    ob_begin(&o, MCS_OP_PUT, 0);
    for (unsigned i = 0; i < n; i++) {
        char key[16];

        snprintf(key, sizeof(key), "key-%u", i);
        ob_name(&o, key);
        ob_piece(&o, i * 1000, 64);
    }
    o.keys[0].length = 0;
    o.keys[1].length = MCS_KEY_MAX + 1;
    o.keys[2].text = UINT32_MAX - 128;
    o.keys[3].first = n;
    o.keys[4].pieces = UINT32_MAX;
    o.keys[5].first = UINT32_MAX;
    o.pieces[7].length = 0;
    o.pieces[8].extent = FIX_TARGET; /* of another session */
    o.pieces[9].local = FIX_EXTENT_SIZE - 63;
    o.pieces[10].length = UINT64_MAX;
    o.keys[11].group_length = MCS_GROUP_MAX + 1;
    o.keys[12].group = UINT32_MAX;
    o.keys[12].group_length = 1;
    o.pieces[13].local = UINT64_MAX;
    cr_assert_eq(ob_ok(&o), 64u);
    for (unsigned i = 0; i < n; i++)
        cr_assert_eq(ob_result(&o, i).status, want[i], "key %u: %u", i, ob_result(&o, i).status);
    cr_assert(ob_stats(&o).objects == 1 && ob_stats(&o).writing == 0);

    /* there is no result of a single key to say so */
    ob_begin(&o, MCS_OP_PREFIX, 0);
    ob_name(&o, "key-6");
    ob_name(&o, "");
    {
        struct mcs_slot s = ob_run(&o);

        cr_assert_eq(fix_state(s), MCS_STATE_FAILED);
        cr_assert_eq(fix_error(s), MCS_BAD_KEY);
        cr_assert_eq(s.bytes, 1u);
    }
    ob_fini(&o);
}

Test(object_args, sizes)
{
    static struct ob o;
    static char longest[MCS_KEY_MAX];

    ob_init(&o);
    memset(longest, 'k', sizeof(longest));
    ob_begin(&o, MCS_OP_PUT, 0);
    ob_key(&o, longest, sizeof(longest));
    ob_piece(&o, 0, 64);
    cr_assert_eq(ob_ok(&o), 64u);
    ob_begin(&o, MCS_OP_EXIST, 0);
    for (unsigned i = 0; i < 7; i++)
        ob_key(&o, longest, MCS_KEY_MAX - i);
    cr_assert_eq(ob_ok(&o), 1u);
    cr_assert_eq(ob_byte(&o, 0), MCS_OK);
    cr_assert_eq(ob_byte(&o, 1), MCS_NOT_FOUND);

    /* larger than the store */
    ob_begin(&o, MCS_OP_PUT, 0);
    ob_name(&o, "large");
    for (unsigned i = 0; i < 9; i++)
        ob_piece(&o, 0, FIX_EXTENT_SIZE);
    ob_name(&o, "more than there are bytes");
    for (unsigned i = 0; i < 2; i++)
        ob_piece(&o, 0, 1);
    cr_assert_eq(ob_ok(&o), 2u);
    cr_assert_eq(ob_result(&o, 0).status, MCS_BAD_RANGE);
    cr_assert_eq(ob_result(&o, 1).status, MCS_OK);
    ob_begin(&o, MCS_OP_CREATE, 0);
    ob_name(&o, "large")->size = UINT64_MAX;
    ob_name(&o, "none")->size = 0;
    cr_assert_eq(ob_ok(&o), 1u);
    cr_assert_eq(ob_result(&o, 0).status, MCS_BAD_RANGE);
    cr_assert_eq(ob_result(&o, 1).status, MCS_OK);
    cr_assert_eq(ob_seal(&o, ob_result(&o, 1).hold).status, MCS_OK);
    cr_assert(ob_exists(&o, "none"));
    ob_fini(&o);
}

/* Pieces that change between two looks at them. */
Test(object_args, pieces_that_shrink)
{
    static struct ob o;
    struct mcs_object_piece *p;
    struct mcs_desc d;

    ob_init_sized(&o, 8u << 20, 1u << 20, 4096, 10);
    ob_begin(&o, MCS_OP_PUT, 0);
    ob_name(&o, "k");
    for (unsigned i = 0; i < 8; i++)
        ob_piece(&o, i << 16, 1 << 16);
    ob_write(&o);
    p = (struct mcs_object_piece *)(o.f.client.args + o.args.pieces);
    d = ob_desc(&o);
    fix_push(&o.f, &d);
    while (ob_stats(&o).writing == 0)
        ob_turns(&o, 1);
    ob_turns(&o, 2);
    cr_assert(!ob_ended(&o, &d));
    for (unsigned i = 0; i < 8; i++)
        p[i].length = 1;
    cr_assert_eq(fix_state(ob_end(&o, &d)), MCS_STATE_COMPLETED);
    cr_assert_eq(ob_result(&o, 0).status, MCS_BAD_RANGE);
    cr_assert(ob_stats(&o).writing == 0 && ob_stats(&o).objects == 0);
    ob_fini(&o);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The agent as one Mooncake process among others: its two ports, and what it opens at others. */
#include "mooncake_world.h"

#include "daemon/mooncake_frame.h"

/* Sends bytes to the handshake port, and takes the answer up to its end. */
static size_t ask(struct world *w, const void *bytes, size_t n, void *out, size_t room)
{
    int fd = world_connect(world_port(w));
    size_t have;

    cr_assert_eq(send(fd, bytes, n, MSG_NOSIGNAL), (ssize_t)n);
    have = world_take(w, fd, out, room, 0);
    close(fd);
    return have;
}

static size_t ask_frame(struct world *w, unsigned type, const char *json, char *out, size_t room)
{
    uint8_t *frame, reply[65536];
    size_t size, have;
    uint64_t length;

    cr_assert_eq(mcd_mooncake_frame_make((enum mcd_mooncake_type)type, true, json, strlen(json),
                                         &frame, &size),
                 0);
    have = ask(w, frame, size, reply, sizeof(reply));
    free(frame);
    out[0] = '\0';
    if (have == 0)
        return 0;
    memcpy(&length, reply, 8);
    cr_assert_eq(length, have - 8);
    cr_assert_eq(reply[8], type, "the answer repeats the type");
    snprintf(out, room, "%.*s", (int)(have - 9), (char *)reply + 9);
    return have - 9;
}

/* ---- the handshake port ------------------------------------------------------------ */

Test(mooncake_hand, answers)
{
    static const uint8_t probe[] = {4, 0, 0, 0, 0, 0, 0, 0, 3, '{', '}', '\n'};
    static const uint8_t old[] = {2, 0, 0, 0, 0, 0, 0, 0, '{', '}'};
    static const char want[] = "\x16\0\0\0\0\0\0\0\3{\"status\":\"success\"}\n";
    struct world w;
    char text[65536], part[128];
    size_t n;

    world_init(&w, "127.0.0.1:0");
    n = ask(&w, probe, sizeof(probe), text, sizeof(text));
    cr_assert_eq(n, sizeof(want) - 1);
    cr_assert_arr_eq(text, want, n);

    cr_assert_gt(ask_frame(&w, MCD_MOONCAKE_METADATA, "{}\n", text, sizeof(text)), 0u);
    snprintf(part, sizeof(part), "{\"name\":\"%s\",\"protocol\":\"tcp\"", mcd_mooncake_name(w.m));
    cr_assert_not_null(strstr(text, part), "%s", text);
    snprintf(part, sizeof(part), "\"tcp_data_port\":%u,\"tcp_proto_version\":2",
             mcd_mooncake_data_port(w.m));
    cr_assert_not_null(strstr(text, part), "%s", text);
    snprintf(part, sizeof(part), "\"addr\":%lu,\"length\":%u", w.f.target.address, FIX_EXTENT_SIZE);
    cr_assert_not_null(strstr(text, part), "%s", text);

    ask_frame(&w, MCD_MOONCAKE_CONNECTION, "{\"qp_num\":[1]}", text, sizeof(text));
    cr_assert_not_null(strstr(text, "\"qp_num\":[]"), "%s", text);
    n = ask(&w, old, sizeof(old), text, sizeof(text));
    cr_assert(n > 9 && text[8] == '{', "as it was asked: without a type");
    cr_assert_eq(mcd_mooncake_get_counters(w.m)->bad_frames, 0u);
    world_fini(&w);
}

Test(mooncake_hand, nonsense)
{
    static const struct {
        const char *bytes;
        size_t n;
    } bad[] = {{"\0\0\0\0\0\0\0\0", 8},
               {"\1\0\0\0\0\0\0\1\3", 9},
               {"\xff\xff\xff\xff\xff\xff\xff\xff", 8},
               {"\3\0\0\0\0\0\0\0\3[]", 11},
               {"\3\0\0\0\0\0\0\0\1{{", 11},
               {"\2\0\0\0\0\0\0\0ab", 10},
               {"\1\0\0\0\0\0\0\0\3", 9},
               {"\3\0\0\0\0\0\0\0\2{}", 11},
               {"GET / HTTP/1.1\r\n\r\n", 18}};
    struct world w;
    char text[256];

    world_init(&w, "127.0.0.1:0");
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        cr_assert_eq(ask(&w, bad[i].bytes, bad[i].n, text, sizeof(text)), 0u, "%zu", i);
    cr_assert_eq(mcd_mooncake_get_counters(w.m)->bad_frames, sizeof(bad) / sizeof(bad[0]));
    cr_assert_gt(ask_frame(&w, MCD_MOONCAKE_PROBE, "{}", text, sizeof(text)), 0u);
    world_fini(&w);
}

/* Who connects and says nothing keeps nobody out. */
Test(mooncake_hand, crowd)
{
    enum { N = 400 };
    static int fds[N];
    struct world w;
    char text[256];

    world_init(&w, "127.0.0.1:0");
    for (int i = 0; i < N; i++) {
        fds[i] = world_connect(world_port(&w));
        if (i % 2)
            cr_assert_eq(send(fds[i], "\x40\0\0", 3, 0), 3);
        if (i % 16 == 0)
            world_turn(&w);
    }
    cr_assert_gt(ask_frame(&w, MCD_MOONCAKE_PROBE, "{}", text, sizeof(text)), 0u);
    cr_assert_leq(mcd_mooncake_get_counters(w.m)->handshakes_open, 256u);
    cr_assert_gt(mcd_mooncake_get_counters(w.m)->pushed_out, 0u);
    for (int i = 0; i < N; i++)
        close(fds[i]);
    world_until(&w, mcd_mooncake_get_counters(w.m)->handshakes_open == 0);
    world_fini(&w);
}

static void expect_note(struct world *w, const char *name, const char *message)
{
    struct mcs_session_region *r = &w->f.owner->region;
    const struct mcs_inbox_record *note;

    world_until(w, (note = mcs_inbox_peek(r)) != NULL);
    cr_assert_eq(note->name_length, strlen(name));
    cr_assert_eq(note->message_length, strlen(message));
    cr_assert_arr_eq((const char *)(note + 1), name, strlen(name));
    cr_assert_arr_eq((const char *)(note + 1) + strlen(name), message, strlen(message));
    mcs_inbox_release(r, note);
}

Test(mooncake_hand, notify)
{
    struct world w;
    char text[8192], json[8192];

    world_init(&w, "127.0.0.1:0");
    for (int i = 0; i < 2; i++) { /* to all that are public; to the one that is named */
        snprintf(json, sizeof(json), "{\"name\":\"%s\",\"notify_msg\":\"m%d\"}", i ? "public" : "x",
                 i);
        ask_frame(&w, MCD_MOONCAKE_NOTIFY, json, text, sizeof(text));
        cr_assert_str_eq(text, "{\"name\":\"\",\"notify_msg\":\"success\"}\n");
        expect_note(&w, i ? "public" : "x", i ? "m1" : "m0");
    }
    /* too long, and nobody there: an empty answer is Mooncake's refusal */
    snprintf(json, sizeof(json), "{\"name\":\"x\",\"notify_msg\":\"%*d\"}",
             (int)MCS_NOTIFY_MESSAGE_MAX + 1, 7);
    ask_frame(&w, MCD_MOONCAKE_NOTIFY, json, text, sizeof(text));
    cr_assert_str_eq(text, "{\"name\":\"\",\"notify_msg\":\"\"}\n");
    w.f.segment->flags = 0;
    ask_frame(&w, MCD_MOONCAKE_NOTIFY, "{\"name\":\"public\",\"notify_msg\":\"m\"}", text,
              sizeof(text));
    cr_assert_str_eq(text, "{\"name\":\"\",\"notify_msg\":\"\"}\n");
    cr_assert_eq(mcd_mooncake_get_counters(w.m)->notifies, 2u);
    cr_assert_eq(mcd_mooncake_get_counters(w.m)->notifies_refused, 2u);
    world_fini(&w);
}

/* An inbox that nobody empties fills up, and then refuses. */
Test(mooncake_hand, notify_full_inbox)
{
    struct world w;
    char text[8192], json[8192];
    int sent = 0;

    world_init(&w, "127.0.0.1:0");
    snprintf(json, sizeof(json), "{\"name\":\"x\",\"notify_msg\":\"%*d\"}",
             (int)MCS_NOTIFY_MESSAGE_MAX, 7);
    do {
        ask_frame(&w, MCD_MOONCAKE_NOTIFY, json, text, sizeof(text));
        cr_assert_lt(++sent, 1000);
    } while (strstr(text, "success") != NULL);
    cr_assert_gt(sent, 1);
    world_fini(&w);
}

/* ---- the data port ----------------------------------------------------------------- */

static void header(uint8_t out[24], uint8_t op, uint64_t size, uint64_t address)
{
    memset(out, 0, 24);
    memcpy(out, &size, 8);
    memcpy(out + 8, &address, 8);
    out[16] = op;
}

Test(mooncake_data, write_read_and_withdraw)
{
    static const uint8_t ok[] = {0, 0, 0, 0, 'V', 'T', 'C', 'M'};
    static const uint8_t rejected[] = {1, 0, 0, 0, 'V', 'T', 'C', 'M'};
    struct world w;
    uint8_t h[24], got[64];
    int fd;

    world_init(&w, "127.0.0.1:0");
    fd = world_connect(mcd_mooncake_data_port(w.m));
    header(h, 0x81, 5, w.f.target.address + 1000);
    cr_assert_eq(send(fd, h, 24, 0), 24);
    cr_assert_eq(send(fd, "hello", 5, 0), 5);
    cr_assert_eq(world_take(&w, fd, got, 8, 8), 8u);
    cr_assert_arr_eq(got, ok, 8);
    header(h, 0x80, 5, w.f.target.address + 1000);
    cr_assert_eq(send(fd, h, 24, 0), 24);
    cr_assert_eq(world_take(&w, fd, got, 13, 13), 13u);
    cr_assert_arr_eq(got + 8, "hello", 5);
    cr_assert_eq(mcd_mooncake_get_counters(w.m)->data_accepted, 1u);

    w.f.segment->flags = 0; /* not public any more */
    world_changed(&w);
    cr_assert_eq(send(fd, h, 24, 0), 24);
    cr_assert_eq(world_take(&w, fd, got, sizeof(got), 0), 8u);
    cr_assert_arr_eq(got, rejected, 8);
    close(fd);
    world_until(&w, (mcd_mooncake_poll(w.m), mcd_mooncake_get_counters(w.m)->data_open == 0));
    world_fini(&w);
}

/* ---- opening ----------------------------------------------------------------------- */

static struct mcs_slot task(struct world *w, uint8_t op, uint64_t at, uint64_t length)
{
    struct mcs_desc d = fix_desc(&w->f, op, length);

    d.remote_addr = at;
    return world_run(w, &d);
}

/* The agent opens itself: all of both roles. */
Test(mooncake_open, itself)
{
    struct world w;
    struct mcd_open open = {.handle = FIX_SEGMENT};
    struct mcs_slot s;

    world_init(&w, "127.0.0.1:0");
    world_open(&w, mcd_mooncake_name(w.m), 5000);
    world_until(&w, w.opened);
    cr_assert_eq(w.status, MCS_OK, "%s", w.text);
    cr_assert_not_null(w.segment);
    cr_assert_eq(w.segment->snapshot->count, 1u);
    open.segment = w.segment;
    mcs_store_release(&w.f.session->opens[MCD_HANDLE_INDEX(FIX_SEGMENT)], &open);
    for (unsigned i = 0; i < FIX_EXTENT_SIZE; i++)
        w.f.local.map[i] = (uint8_t)(i * 7 + 1);
    s = task(&w, MCS_OP_WRITE, w.f.target.address, FIX_EXTENT_SIZE);
    cr_assert_eq(fix_state(s), MCS_STATE_COMPLETED, "error %u", fix_error(s));
    cr_assert_eq(s.bytes, FIX_EXTENT_SIZE);
    cr_assert_arr_eq(w.f.target.map, w.f.local.map, FIX_EXTENT_SIZE);
    memset(w.f.local.map, 0, FIX_EXTENT_SIZE);
    s = task(&w, MCS_OP_READ, w.f.target.address + 5, 1000);
    cr_assert_eq(fix_state(s), MCS_STATE_COMPLETED, "error %u", fix_error(s));
    cr_assert_arr_eq(w.f.target.map + 5, w.f.local.map, 1000);
    s = task(&w, MCS_OP_READ, w.f.target.address + 5, FIX_EXTENT_SIZE);
    cr_assert_eq(fix_state(s), MCS_STATE_INVALID);
    cr_assert_eq(fix_error(s), MCS_BAD_RANGE);

    /* a second one shares it; the last one's end takes the connections down */
    {
        struct mcd_segment *first = w.segment;

        world_open(&w, mcd_mooncake_name(w.m), 5000);
        world_until(&w, w.opened);
        cr_assert_eq(w.segment, first);
        mcd_segment_put(w.segment);
    }
    mcs_store_release(&w.f.session->opens[MCD_HANDLE_INDEX(FIX_SEGMENT)], NULL);
    world_until(&w, mcd_mooncake_get_counters(w.m)->peers == 1 &&
                        mcd_mooncake_get_counters(w.m)->data_open == 4);
    mcd_segment_put(w.segment);
    world_until(&w, mcd_mooncake_get_counters(w.m)->peers == 0 &&
                        (mcd_mooncake_poll(w.m), mcd_mooncake_get_counters(w.m)->data_open == 0));
    cr_assert_eq(mcd_mooncake_get_counters(w.m)->opens, 2u);
    world_fini(&w);
}

/* An address that was not there when it was opened is looked for before it is refused. */
Test(mooncake_open, buffers_that_come_later)
{
    struct world w;
    struct mcd_open open = {.handle = FIX_SEGMENT};
    struct mcs_slot s;

    world_init(&w, "127.0.0.1:0");
    w.f.segment->flags = 0;
    world_changed(&w);
    world_open(&w, mcd_mooncake_name(w.m), 5000);
    world_until(&w, w.opened);
    cr_assert_eq(w.status, MCS_OK, "%s", w.text);
    open.segment = w.segment;
    mcs_store_release(&w.f.session->opens[MCD_HANDLE_INDEX(FIX_SEGMENT)], &open);
    s = task(&w, MCS_OP_WRITE, w.f.target.address, 100);
    cr_assert_eq(fix_error(s), MCS_BAD_RANGE);
    w.f.segment->flags = MCS_SEGMENT_PUBLIC;
    world_changed(&w);
    s = task(&w, MCS_OP_WRITE, w.f.target.address, 100);
    cr_assert_eq(fix_state(s), MCS_STATE_COMPLETED, "error %u", fix_error(s));
    mcs_store_release(&w.f.session->opens[MCD_HANDLE_INDEX(FIX_SEGMENT)], NULL);
    mcd_segment_put(w.segment);
    world_fini(&w);
}

static void fails(struct world *w, const char *name, uint64_t limit_ms, uint32_t status)
{
    world_open(w, name, limit_ms);
    world_until(w, w->opened);
    cr_assert_eq(w->status, status, "%s: status %u: %s", name, w->status, w->text);
    cr_assert_neq(w->text[0], '\0');
    cr_assert_null(w->segment);
}

Test(mooncake_open, what_is_not_there)
{
    struct world w;
    uint16_t port;
    char name[300];
    int fd;

    world_init(&w, "127.0.0.1:0");
    fails(&w, "", 1000, MCS_INVALID_ARGUMENT);
    memset(name, 'x', 299);
    name[299] = '\0';
    fails(&w, name, 1000, MCS_INVALID_ARGUMENT);
    fails(&w, "a b:c", 1000, MCS_INVALID_ARGUMENT);
    fd = world_listen(&port);
    snprintf(name, sizeof(name), "127.0.0.1:%u", port);
    fails(&w, name, 100, MCS_PEER_UNREACHABLE); /* says nothing */
    close(fd);
    fails(&w, name, 1000, MCS_PEER_UNREACHABLE); /* is gone */
    world_until(&w, (mcd_mooncake_poll(w.m), mcd_mooncake_get_counters(w.m)->peers == 0));
    cr_assert_eq(mcd_mooncake_get_counters(w.m)->opens_failed, 5u);
    world_fini(&w);
}

/* Opens a process that answers so. */
static void fails_on(const char *json, unsigned type, uint32_t status)
{
    struct world w;
    uint16_t port;
    char name[64], got[64];
    uint8_t *frame;
    size_t size;
    int listener, fd;

    world_init(&w, "127.0.0.1:0");
    listener = world_listen(&port);
    snprintf(name, sizeof(name), "127.0.0.1:%u", port);
    world_open(&w, name, 5000);
    fd = world_accept(&w, listener);
    cr_assert_eq(world_take(&w, fd, got, 12, 12), 12u);
    cr_assert_arr_eq(got, "\4\0\0\0\0\0\0\0\1{}\n", 12);
    cr_assert_eq(mcd_mooncake_frame_make((enum mcd_mooncake_type)type, true, json, strlen(json),
                                         &frame, &size),
                 0);
    for (size_t at = 0; at < size && !w.opened; at += 7) { /* in pieces */
        size_t n = size - at < 7 ? size - at : 7;

        cr_assert_eq(send(fd, frame + at, n, MSG_NOSIGNAL), (ssize_t)n);
        world_turn(&w);
    }
    world_until(&w, w.opened);
    cr_assert_eq(w.status, status, "%s: status %u: %s", json, w.status, w.text);
    free(frame);
    close(fd);
    close(listener);
    world_fini(&w);
}

#define D(rest) "{\"name\":\"127.0.0.1:1\",\"tcp_data_port\":1,\"protocol\":" rest "}"

Test(mooncake_open, what_cannot_be_used)
{
    fails_on("null", MCD_MOONCAKE_METADATA, MCS_PROTOCOL);
    fails_on(D("\"tcp\""), MCD_MOONCAKE_PROBE, MCS_PROTOCOL);
    fails_on(D("\"rdma\""), MCD_MOONCAKE_METADATA, MCS_PROTOCOL);
    fails_on(D("\"tcp\",\"buffers\":[{}]"), MCD_MOONCAKE_METADATA, MCS_PROTOCOL);
    fails_on(D("\"tcp\""), MCD_MOONCAKE_METADATA, MCS_PEER_UNREACHABLE); /* nobody at port 1 */
}

Test(mooncake_open, canceled_at_every_stage)
{
    for (int stage = 0; stage < 4; stage++) {
        struct world w;
        uint16_t port;
        char name[64], json[128], got[64];
        uint8_t *frame;
        size_t size;
        int listener, fd = -1;

        world_init(&w, "127.0.0.1:0");
        listener = world_listen(&port);
        snprintf(name, sizeof(name), "127.0.0.1:%u", port);
        world_open(&w, name, 5000);
        if (stage > 0)
            fd = world_accept(&w, listener);
        if (stage > 1) {
            snprintf(json, sizeof(json),
                     "{\"name\":\"127.0.0.1:1\",\"protocol\":\"tcp\",\"tcp_data_port\":%u}", port);
            cr_assert_eq(mcd_mooncake_frame_make(MCD_MOONCAKE_METADATA, true, json, strlen(json),
                                                 &frame, &size),
                         0);
            cr_assert_eq(world_take(&w, fd, got, 12, 12), 12u);
            cr_assert_eq(send(fd, frame, size, MSG_NOSIGNAL), (ssize_t)size);
            free(frame);
            close(fd);
            fd = -1;
        }
        if (stage > 2)
            fd = world_accept(&w, listener); /* the first data connection */
        mcd_mooncake_cancel(w.opening);
        world_turn(&w);
        mcd_mooncake_poll(w.m);
        cr_assert(!w.opened);
        if (fd >= 0)
            close(fd);
        world_fini(&w);
        close(listener);
    }
}

/* ---- start ------------------------------------------------------------------------- */

/* A listener whose port has a free one before it. */
static int listen_after_a_free_one(uint16_t *port)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    bool is_free = false;
    int fd = -1, before;

    while (!is_free) {
        close(fd);
        fd = world_listen(port);
        before = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        at.sin_port = htons((uint16_t)(*port - 1));
        is_free = bind(before, (struct sockaddr *)&at, sizeof(at)) == 0;
        close(before);
    }
    return fd;
}

Test(mooncake_start, ports)
{
    struct world w;
    struct mcd_mooncake *second;
    uint16_t taken;
    char error[512] = "", listen[64];
    int fd;

    world_init(&w, "127.0.0.1:0");
    snprintf(w.a.config.mooncake_listen, sizeof(w.a.config.mooncake_listen), "%s",
             mcd_mooncake_name(w.m));
    cr_assert_eq(mcd_mooncake_create(&w.a, &second, error, sizeof(error)), -EADDRINUSE);
    cr_assert_not_null(strstr(error, "[mooncake] listen"), "%s", error);
    cr_assert_null(second);
    snprintf(w.a.config.mooncake_listen, sizeof(w.a.config.mooncake_listen), "nonsense");
    cr_assert_eq(mcd_mooncake_create(&w.a, &second, error, sizeof(error)), -EINVAL);
    snprintf(w.a.config.mooncake_listen, sizeof(w.a.config.mooncake_listen), "off");
    cr_assert_eq(mcd_mooncake_create(&w.a, &second, error, sizeof(error)), 0);
    cr_assert_null(second);
    snprintf(w.a.config.mooncake_listen, sizeof(w.a.config.mooncake_listen), "127.0.0.1:0");
    snprintf(w.a.config.mooncake_metadata, sizeof(w.a.config.mooncake_metadata), "redis://x:1");
    cr_assert_eq(mcd_mooncake_create(&w.a, &second, error, sizeof(error)), -EINVAL);
    cr_assert_not_null(strstr(error, "P2PHANDSHAKE"), "%s", error);
    w.a.config.require_encryption = 1;
    cr_assert_eq(mcd_mooncake_create(&w.a, &second, error, sizeof(error)), -EINVAL);
    cr_assert_not_null(strstr(error, "require_encryption"), "%s", error);
    world_fini(&w);

    /* data on the next port; on any when that is taken */
    fd = listen_after_a_free_one(&taken);
    snprintf(listen, sizeof(listen), "127.0.0.1:%u", taken - 1);
    world_init(&w, listen);
    cr_assert_eq(world_port(&w), taken - 1);
    cr_assert_neq(mcd_mooncake_data_port(w.m), taken);
    world_fini(&w);
    close(fd);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Segments of other hosts: how they are opened, described, and what owners may say. */
#include "agents.h"
#include "daemon/remote_open.h"
#include "transports/rdma/rdma.h"

/* An owner whose answers the test makes up. */
struct owner {
    struct ag_raw raw;
    unsigned opens, closes, describes;
    uint32_t close_count;
    bool silent; /* does not answer OPEN */
    struct mcd_wire_header open;
    int listener;      /* for its data connections, -1: it gives none */
    uint32_t total[2]; /* said in the first and second page */
    uint32_t count[2];
    void (*keys)(Mcd__Buffers *m); /* what it says of RDMA keys */
};

static void answer_open(struct owner *o, const struct mcd_wire_header *h)
{
    Mcd__Opened m = MCD__OPENED__INIT;

    m.export = 3;
    m.incarnation = 99;
    m.tenant = 5;
    m.error = (char *)"";
    ag_raw_answer(&o->raw, h, MCS_OK, &m.base);
}

static void answer_describe(struct owner *o, const struct mcd_wire_header *h, uint32_t first)
{
    unsigned page = first != 0;
    uint32_t n = o->count[page];
    uint64_t *address = calloc(n + 1, sizeof(*address)), *length = calloc(n + 1, sizeof(*length));
    uint32_t *access = calloc(n + 1, sizeof(*access));
    int32_t *node = calloc(n + 1, sizeof(*node));
    Mcd__Buffers m = MCD__BUFFERS__INIT;

    for (uint32_t i = 0; i < n; i++) {
        address[i] = ((uint64_t)first + i + 1) * 4096;
        length[i] = 4096;
        access[i] = MCS_ACCESS_READ;
    }
    m.version = 1;
    m.total = o->total[page];
    m.first = first;
    m.n_address = m.n_length = m.n_access = m.n_node = n;
    m.address = address;
    m.length = length;
    m.access = access;
    m.node = node;
    if (o->keys != NULL)
        o->keys(&m);
    ag_raw_answer(&o->raw, h, MCS_OK, &m.base);
    free(address);
    free(length);
    free(access);
    free(node);
}

static void answer_rails(struct owner *o, const struct mcd_wire_header *h)
{
    uint8_t bytes[MCT_TCP_TOKEN] = {1};
    ProtobufCBinaryData token = {.len = sizeof(bytes), .data = bytes};
    Mcd__Tokens m = MCD__TOKENS__INIT;

    m.error = (char *)"";
    m.token = &token;
    m.n_token = 1;
    ag_raw_answer(&o->raw, h, MCS_OK, &m.base);
}

static void asked(struct ag_raw *r, const struct mcd_wire_header *h, const uint8_t *m, size_t size)
{
    struct owner *o = r->context;
    Mcd__Close *c;
    Mcd__Describe *d;

    switch (h->type) {
    case MCD_WIRE_OPEN:
        o->opens++;
        o->open = *h;
        if (!o->silent)
            answer_open(o, h);
        break;
    case MCD_WIRE_DESCRIBE:
        o->describes++;
        d = mcd__describe__unpack(NULL, size, m);
        answer_describe(o, h, d->first);
        mcd__describe__free_unpacked(d, NULL);
        break;
    case MCD_WIRE_CLOSE:
        o->closes++;
        c = mcd__close__unpack(NULL, size, m);
        cr_assert_eq(c->export, 3);
        cr_assert_eq(c->incarnation, 99);
        o->close_count += c->count;
        mcd__close__free_unpacked(c, NULL);
        break;
    case MCD_WIRE_RAILS:
        if (o->listener >= 0)
            answer_rails(o, h);
        break;
    default:
        break;
    }
}

static void owner_init(struct owner *o, struct ag *a)
{
    memset(o, 0, sizeof(*o));
    o->listener = -1;
    ag_raw_call(&o->raw, a, 77);
    o->raw.context = o;
    o->raw.request = asked;
    ag_until(a, NULL, (ag_raw_run(&o->raw), o->raw.ready != 0));
    ag_raw_hello(&o->raw, "127.0.0.1:1");
    ag_until(a, NULL, (ag_raw_run(&o->raw), o->raw.hellos != 0));
}

#define owner_until(a, o, c) ag_until((a), NULL, (ag_raw_run(&(o)->raw), (c)))

/* A description in two pages, of which the second one says that there are more than the first said. */
Test(opening, a_description_that_grows_between_its_pages_is_nonsense, .timeout = 60)
{
    struct ag a;
    struct owner o;
    struct ag_opened x;

    ag_init(&a);
    owner_init(&o, &a);
    o.total[0] = 20;
    o.count[0] = 10;
    o.total[1] = 5000;
    o.count[1] = 4990;
    ag_open(&a, &x, "127.0.0.1:1", "x", 5);
    owner_until(&a, &o, x.calls != 0);
    cr_assert_eq(x.status, MCS_PROTOCOL, "%s", x.text);
    cr_assert_geq(a.cluster->wire_stats.malformed, 1);
    ag_raw_fini(&o.raw);
    ag_fini(&a);
}

static uint64_t key_nics_[1] = {7}, key_chunk_[16];
static uint32_t key_mask_[16], rkey_[16];

/* Each buffer has one key on one device. */
static void good_keys(Mcd__Buffers *m)
{
    for (unsigned i = 0; i < 16; i++) {
        key_chunk_[i] = 1 << 20;
        key_mask_[i] = 1;
        rkey_[i] = 100 + i;
    }
    m->nic = key_nics_;
    m->key_chunk = key_chunk_;
    m->key_nics = key_mask_;
    m->rkey = rkey_;
    m->n_nic = 1;
    m->n_key_chunk = m->n_key_nics = m->n_rkey = m->n_address;
}

static void few_keys(Mcd__Buffers *m)
{
    good_keys(m);
    m->n_rkey--;
}

static void other_keys(Mcd__Buffers *m)
{
    good_keys(m);
    m->n_key_chunk--;
}

/* The keys that it names are the buffers' own, and fewer of them than it says are nonsense. */
Test(opening, a_description_with_keys, .timeout = 60)
{
    static void (*const bad[])(Mcd__Buffers *) = {few_keys, other_keys};
    const struct mct_rdma_keys *k;
    struct ag a;
    struct owner o;
    struct ag_opened x;

    ag_init(&a);
    owner_init(&o, &a);
    o.total[0] = o.total[1] = 15;
    o.count[0] = 10;
    o.count[1] = 5;
    o.keys = good_keys;
    ag_open(&a, &x, "127.0.0.1:1", "x", 5);
    owner_until(&a, &o, x.calls != 0);
    cr_assert_eq(x.status, MCS_OK, "%s", x.text);
    cr_assert_eq(x.segment->snapshot->count, 15);
    for (uint32_t i = 0; i < 15; i++) {
        k = x.segment->snapshot->buffers[i].keys;
        cr_assert(k != NULL && k->nnics == 1 && k->nchunks == 1 && k->nics[0] == 7);
        cr_assert_eq(k->address, (i + 1) * 4096);
        cr_assert_eq(k->rkeys[0], 100 + i % 10, "numbered by page");
    }
    for (unsigned i = 0; i < 2; i++) {
        uint64_t before = a.cluster->wire_stats.malformed;

        o.keys = bad[i];
        mcs_fetch_add(&x.segment->remote->wanted, 1u); /* partner: mcd_remotes_poll() */
        owner_until(&a, &o, x.segment->remote->status == MCS_PROTOCOL);
        cr_assert_eq(a.cluster->wire_stats.malformed, before + 1);
        cr_assert_not_null(x.segment->snapshot->buffers[0].keys, "what it said before still holds");
        o.keys = good_keys;
        mcd_remote_revive(x.segment->remote);
        owner_until(&a, &o, x.segment->remote->described);
    }
    mcd_segment_put(x.segment);
    ag_settle(&a);
    ag_raw_fini(&o.raw);
    ag_fini(&a);
}

/* Whoever opens it later asks anew. */
Test(opening, nonsense_once_is_not_nonsense_for_ever, .timeout = 60)
{
    struct ag a;
    struct owner o;
    struct ag_opened x, y;

    ag_init(&a);
    owner_init(&o, &a);
    o.total[0] = o.count[0] = 10;
    ag_open(&a, &x, "127.0.0.1:1", "x", 5);
    owner_until(&a, &o, x.calls != 0);
    cr_assert_eq(x.status, MCS_OK, "%s", x.text);
    o.total[0] = UINT32_MAX;                       /* and an engine misses an address */
    mcs_fetch_add(&x.segment->remote->wanted, 1u); /* partner: mcd_remotes_poll() */
    owner_until(&a, &o, x.segment->remote->status == MCS_PROTOCOL);
    o.total[0] = o.count[0] = 11;
    ag_open(&a, &y, "127.0.0.1:1", "x", 5);
    owner_until(&a, &o, y.calls != 0);
    cr_assert_eq(y.status, MCS_OK, "%s", y.text);
    cr_assert_eq(y.segment->remote->status, MCS_OK);
    cr_assert_eq(y.segment->snapshot->count, 11);
    mcd_segment_put(x.segment);
    mcd_segment_put(y.segment);
    ag_settle(&a);
    ag_raw_fini(&o.raw);
    ag_fini(&a);
}

/* The answer comes when nobody waits for it any more: it is given back. */
Test(opening, an_open_that_comes_too_late_is_undone, .timeout = 60)
{
    struct ag a;
    struct owner o;
    struct ag_opened x;

    ag_init(&a);
    owner_init(&o, &a);
    o.silent = true;
    ag_open(&a, &x, "127.0.0.1:1", "x", 5);
    owner_until(&a, &o, o.opens != 0);
    mcd_remote_cancel(x.opening);
    answer_open(&o, &o.open);
    owner_until(&a, &o, o.closes != 0);
    cr_assert_eq(o.close_count, 1);
    cr_assert_eq(x.calls, 0);
    ag_raw_fini(&o.raw);
    ag_fini(&a);
}

Test(opening, ends_in_time_whatever_the_owner_does, .timeout = 60)
{
    struct ag a;
    struct owner o;
    struct ag_opened x;

    ag_init(&a);
    a.agent->config.open_ms = 300;
    owner_init(&o, &a);
    o.silent = true;
    ag_open(&a, &x, "127.0.0.1:1", "x", 5);
    owner_until(&a, &o, x.calls != 0);
    cr_assert_eq(x.status, MCS_TIMEOUT, "%s", x.text);
    cr_assert_not_null(strstr(x.text, "300"), "%s", x.text);
    ag_raw_fini(&o.raw);
    ag_fini(&a);
}

/* An owner that withdraws its segment and publishes it again is reached again, also while
 * somebody still has the segment from before. */
Test(opening, a_segment_that_is_there_again_can_be_opened, .timeout = 60)
{
    struct ag a, b;
    struct ag_segment s;
    struct ag_opened x, y;
    struct mcd_snapshot *old;

    ag_init(&a);
    ag_init(&b);
    ag_publish(&b, &s, "x", 5);
    ag_open(&a, &x, b.cluster->address, "x", 5);
    ag_until(&a, &b, x.calls != 0);
    cr_assert_eq(x.status, MCS_OK, "%s", x.text);
    ag_withdraw(&s);
    ag_until(&a, &b, x.segment->remote->status == MCS_STALE);
    ag_open(&a, &y, b.cluster->address, "x", 5);
    ag_until(&a, &b, y.calls != 0);
    cr_assert_eq(y.status, MCS_NOT_FOUND, "%s", y.text);
    s.segment->named = true;
    s.segment->prev = NULL;
    s.segment->next = b.agent->segments;
    b.agent->segments = s.segment;
    cr_assert_eq(mcd_segment_add(s.segment, &s.extent, 0, AG_SIZE / 2, MCS_ACCESS_READ, &old), 0);
    mcd_segments_changed(b.agent);
    ag_open(&a, &y, b.cluster->address, "x", 5);
    ag_until(&a, &b, y.calls != 0);
    cr_assert_eq(y.status, MCS_OK, "%s", y.text);
    cr_assert_eq(y.segment->remote->status, MCS_OK);
    cr_assert_eq(y.segment->snapshot->count, 1);
    cr_assert_eq(y.segment->snapshot->buffers[0].length, AG_SIZE / 2);
    mcd_segment_put(x.segment);
    mcd_segment_put(y.segment);
    ag_settle(&a);
    ag_fini(&a);
    ag_unpublish(&s);
    ag_fini(&b);
}

/* The last segment of a peer was closed long ago and its routes are on their way out, when it is
 * wanted again: new ones are made once the old ones are gone. */
Test(opening, a_peer_whose_routes_are_leaving, .timeout = 60)
{
    struct ag a, b;
    struct ag_segment s;
    struct ag_opened x;

    ag_init(&a);
    ag_init(&b);
    ag_publish(&b, &s, "x", 5);
    for (int i = 0; i < 3; i++) {
        ag_open(&a, &x, b.cluster->address, "x", 5);
        ag_until(&a, &b, x.calls != 0);
        cr_assert_eq(x.status, MCS_OK, "%s", x.text);
        mcd_segment_put(x.segment);
        mcd_ways_drop(ag_peer(&a, &b)); /* begins */
    }
    ag_until(&a, &b, ag_peer(&b, &a)->exports->count == 0);
    ag_fini(&a);
    ag_unpublish(&s);
    ag_fini(&b);
}

/* Takes a data connection, says that it is welcome, and hangs up; 1 when it has done so. */
static unsigned hang_up(int listener, int *fd)
{
    struct mct_tcp_open open;
    struct mct_tcp_opened opened = {
        .magic = MCT_TCP_MAGIC, .version = MCT_TCP_VERSION, .size = sizeof(opened)};

    if (*fd < 0)
        *fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (*fd < 0 || recv(*fd, &open, sizeof(open), 0) != (ssize_t)sizeof(open))
        return 0;
    opened.conn = open.conn;
    cr_assert_eq(send(*fd, &opened, sizeof(opened), 0), (ssize_t)sizeof(opened));
    close(*fd);
    *fd = -1;
    return 1;
}

/* Data connections that are lost as soon as they are there are not opened as fast as that goes. */
Test(opening, a_peer_that_hangs_up_on_data_connections, .timeout = 60)
{
    struct ag a;
    struct owner o;
    struct ag_opened x;
    struct mcd_wire_header h = {.type = MCD_WIRE_HELLO};
    Mcd__Hello m = MCD__HELLO__INIT;
    struct sockaddr_in s = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof(s);
    char text[64], *rails[] = {text};
    unsigned connections = 0;
    uint64_t end;
    int fd = -1;

    ag_init(&a);
    memset(&o, 0, sizeof(o));
    o.listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    cr_assert_eq(bind(o.listener, (struct sockaddr *)&s, sizeof(s)), 0);
    cr_assert_eq(listen(o.listener, 8), 0);
    cr_assert_eq(getsockname(o.listener, (struct sockaddr *)&s, &n), 0);
    snprintf(text, sizeof(text), "127.0.0.1:%u", ntohs(s.sin_port));
    ag_raw_call(&o.raw, &a, 77);
    o.raw.context = &o;
    o.raw.request = asked;
    owner_until(&a, &o, o.raw.ready != 0);
    m.agent_version = (char *)"raw";
    m.address = (char *)"127.0.0.1:1";
    m.rails = rails;
    m.n_rails = 1;
    cr_assert_eq(mcd_wire_send(o.raw.wire, &h, &m.base), 0);
    owner_until(&a, &o, o.raw.hellos != 0);
    o.total[0] = o.count[0] = 1;
    ag_open(&a, &x, "127.0.0.1:1", "x", 5);
    owner_until(&a, &o, x.calls != 0);
    cr_assert_eq(x.status, MCS_OK, "%s", x.text);
    owner_until(&a, &o, (connections += hang_up(o.listener, &fd)) != 0);
    end = mcd_now_ns() + 1000000000;
    while (mcd_now_ns() < end) {
        connections += hang_up(o.listener, &fd);
        ag_raw_run(&o.raw);
        loop_once(a.agent, 1);
    }
    cr_assert_lt(connections, 12);
    owner_until(&a, &o, (connections += hang_up(o.listener, &fd)) >= 4); /* but it goes on trying */
    mcd_segment_put(x.segment);
    ag_settle(&a);
    close(o.listener);
    ag_raw_fini(&o.raw);
    ag_fini(&a);
}

/* Churn on both sides, a connection that breaks again and again, openings that are given up:
 * for the sanitizers, and everything must be given back in the end. */
Test(opening, much_at_once, .timeout = 120)
{
    struct ag a, b;
    struct ag_segment s[4];
    struct ag_opened x[16] = {0};
    struct mcd_segment *held[16] = {0};
    unsigned seed = 3, done = 0;

    ag_init(&a);
    ag_init(&b);
    a.agent->config.connect_ms = b.agent->config.connect_ms = 10;
    for (unsigned i = 0; i < 4; i++) {
        char name[8];

        snprintf(name, sizeof(name), "s%u", i);
        ag_publish(&b, &s[i], name, 5);
    }
    for (unsigned round = 0; round < 1500; round++) {
        unsigned i = (seed = seed * 1103515245u + 12345u) >> 16 & 15;
        unsigned what = seed >> 24 & 15;
        char name[8];

        if (x[i].calls != 0 && x[i].segment != NULL) {
            held[i] = x[i].segment;
            done++;
        }
        if (x[i].calls != 0)
            memset(&x[i], 0, sizeof(x[i]));
        if (what < 8 && x[i].opening == NULL) {
            if (held[i] != NULL)
                mcd_segment_put(held[i]);
            held[i] = NULL;
            snprintf(name, sizeof(name), "s%u", what & 3);
            ag_open(&a, &x[i], b.cluster->address, name, 5);
        } else if (what < 10 && x[i].opening != NULL && x[i].calls == 0) {
            mcd_remote_cancel(x[i].opening);
            memset(&x[i], 0, sizeof(x[i]));
        } else if (what == 10) {
            struct mcd_peer *p = ag_peer(i & 1 ? &a : &b, i & 1 ? &b : &a);

            if (p != NULL && p->wire != NULL)
                mcd_peer_failed(p, MCS_PEER_UNREACHABLE, "test");
        } else if (what == 11) {
            struct ag_segment *g = &s[i & 3];

            snprintf(name, sizeof(name), "s%u", i & 3);
            ag_unpublish(g);
            ag_publish(&b, g, name, 5);
        }
        ag_turn(&a, &b);
    }
    cr_assert_gt(done, 20);
    for (unsigned i = 0; i < 16; i++) {
        if (x[i].opening != NULL && x[i].calls == 0)
            mcd_remote_cancel(x[i].opening);
        if (x[i].segment != NULL)
            mcd_segment_put(x[i].segment);
        if (held[i] != NULL)
            mcd_segment_put(held[i]);
    }
    for (const struct mcd_peer *p = a.cluster->peers; p != NULL; p = p->next)
        cr_assert(p->remotes == NULL && p->openings == NULL);
    ag_fini(&a);
    for (unsigned i = 0; i < 4; i++)
        ag_unpublish(&s[i]);
    ag_fini(&b);
}

Test(opening, names_that_say_where)
{
    char address[MCD_ADDRESS_TEXT_MAX], text[700];
    const char *rest;

    cr_assert(mcd_name_split("10.0.0.1:9420/a/b", address, &rest));
    cr_assert_str_eq(address, "10.0.0.1:9420");
    cr_assert_str_eq(rest, "a/b");
    cr_assert(mcd_name_split("[::1]:9420/a", address, &rest));
    cr_assert_str_eq(address, "[::1]:9420");
    cr_assert(mcd_name_split("host:1", address, &rest));
    cr_assert_str_eq(rest, "");
    cr_assert_not(mcd_name_split("layer/0", address, &rest));
    cr_assert_not(mcd_name_split("", address, &rest));
    cr_assert_not(mcd_name_split("/x", address, &rest));
    cr_assert_not(mcd_name_split("host:99999/x", address, &rest));
    memset(text, 'h', sizeof(text));
    text[sizeof(text) - 1] = '\0';
    cr_assert_not(mcd_name_split(text, address, &rest));
    memcpy(text + 600, ":1/x", 5);
    cr_assert_not(mcd_name_split(text, address, &rest));
}

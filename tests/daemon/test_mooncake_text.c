/* SPDX-License-Identifier: Apache-2.0 */
/* Mooncake's JSON and handshake frames: what this agent writes, and whatever a peer could. */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/mooncake_frame.h"
#include "daemon/mooncake_text.h"

/* ---- descriptors ------------------------------------------------------------------- */

static struct mcd_snapshot *buffers(uint32_t n)
{
    struct mcd_snapshot *s = calloc(1, sizeof(*s) + n * sizeof(s->buffers[0]));

    cr_assert_not_null(s);
    s->count = n;
    for (uint32_t i = 0; i < n; i++) {
        s->buffers[i].address = UINT64_C(0x7f0000000000) + i * UINT64_C(0x200000);
        s->buffers[i].length = 4096 + i;
    }
    return s;
}

Test(mooncake_text, there_and_back)
{
    const struct mcd_mooncake_self self = {"10.0.0.2:15123", "10.0.0.2", 15999};
    struct mcd_mooncake_descriptor d;
    struct mcd_snapshot *s = buffers(3);
    char error[160] = "", *text;
    size_t size;
    uint32_t left_out;

    cr_assert_eq(mcd_mooncake_describe(&self, s, 1 << 20, &text, &size, &left_out), 0);
    cr_assert_eq(size, strlen(text));
    cr_assert_eq(left_out, 0u);
    cr_assert_not_null(strstr(text, "\"protocol\":\"tcp\""));
    cr_assert_eq(mcd_mooncake_parse(text, size, &d, error, sizeof(error)), 0, "%s", error);
    cr_assert_str_eq(d.name, self.name);
    cr_assert_str_eq(d.host, self.host);
    cr_assert(d.port == 15999 && d.v2 && d.buffers->count == 3);
    for (int i = 0; i < 3; i++) {
        cr_assert_eq(d.buffers->buffers[i].address, s->buffers[i].address);
        cr_assert_eq(d.buffers->buffers[i].length, s->buffers[i].length);
        cr_assert_eq(d.buffers->buffers[i].access, (unsigned)(MCS_ACCESS_READ | MCS_ACCESS_WRITE));
    }
    free(d.buffers);
    free(text);
    free(s);
}

Test(mooncake_text, no_buffers)
{
    const struct mcd_mooncake_self self = {"[::1]:1", "::1", 2};
    struct mcd_mooncake_descriptor d;
    char error[160] = "", *text;
    size_t size;
    uint32_t left_out;

    cr_assert_eq(mcd_mooncake_describe(&self, NULL, 1 << 20, &text, &size, &left_out), 0);
    cr_assert_eq(mcd_mooncake_parse(text, size, &d, error, sizeof(error)), 0, "%s", error);
    cr_assert_eq(d.buffers->count, 0u);
    free(d.buffers);
    free(text);
}

/* What does not fit is left out, and the rest is whole. */
Test(mooncake_text, limit)
{
    const struct mcd_mooncake_self self = {"10.0.0.2:15123", "10.0.0.2", 15999};
    struct mcd_snapshot *s = buffers(20000);
    struct mcd_mooncake_descriptor d;
    char error[160] = "", *text;
    size_t size;
    uint32_t left_out;

    for (size_t limit = 100000; limit <= 1 << 20; limit += 77777) {
        cr_assert_eq(mcd_mooncake_describe(&self, s, limit, &text, &size, &left_out), 0);
        cr_assert_leq(size, limit);
        cr_assert_gt(size, limit - 400, "room is used");
        cr_assert_eq(mcd_mooncake_parse(text, size, &d, error, sizeof(error)), 0, "%s", error);
        cr_assert_eq(d.buffers->count + left_out, 20000u);
        free(d.buffers);
        free(text);
    }
    free(s);
}

/* Seen from a process of release 0.3.13. */
#define STOCK                                                                                      \
    "{\"buffers\":[{\"addr\":140306252025856,\"length\":1048576,\"name\":\"127.0.0.1:16945\"}],"   \
    "\"name\":\"127.0.0.1:16945\",\"protocol\":\"tcp\",\"rdma_server_name\":\"\","                 \
    "\"tcp_data_host\":\"127.0.0.1\",\"tcp_data_port\":15231,\"tcp_proto_version\":2,"             \
    "\"timestamp\":\"2026-11-30 09:43:37.771801\"}\n"

Test(mooncake_text, stock)
{
    struct mcd_mooncake_descriptor d;
    char error[160] = "";

    cr_assert_eq(mcd_mooncake_parse(STOCK, strlen(STOCK), &d, error, sizeof(error)), 0);
    cr_assert_str_eq(d.host, "127.0.0.1");
    cr_assert(d.port == 15231 && d.v2 && d.buffers->count == 1);
    cr_assert_eq(d.buffers->buffers[0].address, UINT64_C(140306252025856));
    free(d.buffers);
}

#define D(rest) "{\"name\":\"h:1\",\"protocol\":\"tcp\",\"tcp_data_port\":7" rest "}"

Test(mooncake_text, older_and_stranger_ones)
{
    static const struct {
        const char *text;
        bool v2;
        uint32_t count;
    } good[] = {
        {D(""), false, 0},
        {D(",\"tcp_proto_version\":1"), false, 0},
        {D(",\"tcp_proto_version\":3"), true, 0},
        {D(",\"unknown\":{\"a\":[1,2,{}]},\"buffers\":null"), false, 0},
        {D(",\"tcp_data_host\":null"), false, 0},
        /* out of order, twice, overlapping, touching */
        {D(",\"buffers\":[{\"addr\":300,\"length\":10},{\"addr\":100,\"length\":10},"
           "{\"addr\":105,\"length\":10},{\"addr\":100,\"length\":3},{\"addr\":310,\"length\":1}]"),
         false, 3},
        {D(",\"buffers\":[{\"addr\":9007199254740000,\"length\":10}]"), false, 1},
    };
    struct mcd_mooncake_descriptor d;
    char error[160] = "";

    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        cr_assert_eq(
            mcd_mooncake_parse(good[i].text, strlen(good[i].text), &d, error, sizeof(error)), 0,
            "%s: %s", good[i].text, error);
        cr_assert_eq(d.v2, good[i].v2);
        cr_assert_eq(d.buffers->count, good[i].count, "%s: %u", good[i].text, d.buffers->count);
        for (uint32_t k = 1; k < d.buffers->count; k++)
            cr_assert_geq(d.buffers->buffers[k].address,
                          d.buffers->buffers[k - 1].address + d.buffers->buffers[k - 1].length);
        free(d.buffers);
    }
}

Test(mooncake_text, bad_ones)
{
    static const char *bad[] = {
        "",
        "{",
        "null",
        "[]",
        "7",
        "\"x\"",
        "{}",
        "{} x",
        D("") "}",
        "\0{}",
        "{\"name\":\"\",\"protocol\":\"tcp\",\"tcp_data_port\":7}",
        "{\"name\":7,\"protocol\":\"tcp\",\"tcp_data_port\":7}",
        "{\"name\":\"a b\",\"protocol\":\"tcp\",\"tcp_data_port\":7}",
        "{\"name\":\"ab\\n\",\"protocol\":\"tcp\",\"tcp_data_port\":7}",
        "{\"name\":\"a\\\"b\",\"protocol\":\"tcp\",\"tcp_data_port\":7}",
        "{\"name\":\"h:1\",\"protocol\":\"rdma\",\"tcp_data_port\":7}",
        "{\"name\":\"h:1\",\"protocol\":[\"tcp\",\"rdma\"],\"tcp_data_port\":7}",
        "{\"name\":\"h:1\",\"tcp_data_port\":7}",
        "{\"name\":\"h:1\",\"protocol\":\"tcp\"}",
        "{\"name\":\"h:1\",\"protocol\":\"tcp\",\"tcp_data_port\":0}",
        "{\"name\":\"h:1\",\"protocol\":\"tcp\",\"tcp_data_port\":65536}",
        "{\"name\":\"h:1\",\"protocol\":\"tcp\",\"tcp_data_port\":-1}",
        "{\"name\":\"h:1\",\"protocol\":\"tcp\",\"tcp_data_port\":\"7\"}",
        "{\"name\":\"h:1\",\"protocol\":\"tcp\",\"tcp_data_port\":1.5}",
        "{\"name\":\"h:1\",\"protocol\":\"tcp\",\"tcp_data_port\":1e999}",
        D(",\"tcp_proto_version\":\"2\""),
        D(",\"tcp_proto_version\":-2"),
        D(",\"tcp_data_host\":5"),
        D(",\"tcp_data_host\":\"a b\""),
        D(",\"buffers\":{}"),
        D(",\"buffers\":5"),
        D(",\"buffers\":[5]"),
        D(",\"buffers\":[{}]"),
        D(",\"buffers\":[{\"addr\":0,\"length\":1}]"),
        D(",\"buffers\":[{\"addr\":1,\"length\":0}]"),
        D(",\"buffers\":[{\"addr\":-1,\"length\":1}]"),
        D(",\"buffers\":[{\"addr\":1,\"length\":1.25}]"),
        D(",\"buffers\":[{\"addr\":18446744073709551615,\"length\":1}]"),
        D(",\"buffers\":[{\"addr\":9007199254740994,\"length\":1}]"),
        D(",\"buffers\":[{\"addr\":\"1\",\"length\":1}]"),
    };
    struct mcd_mooncake_descriptor d;
    char error[160];

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        error[0] = '\0';
        cr_assert_eq(mcd_mooncake_parse(bad[i], strlen(bad[i]), &d, error, sizeof(error)), -EBADMSG,
                     "%s", bad[i]);
        cr_assert_neq(error[0], '\0', "%s: no reason", bad[i]);
        cr_assert_null(d.buffers);
    }
}

Test(mooncake_text, deep_and_long)
{
    size_t n = 1 << 20;
    char *text = malloc(n + 1), error[160];
    struct mcd_mooncake_descriptor d;

    cr_assert_not_null(text);
    memset(text, '[', n);
    cr_assert_eq(mcd_mooncake_parse(text, n, &d, error, sizeof(error)), -EBADMSG);
    memset(text, '"', 1);
    memset(text + 1, 'a', n - 2);
    text[n - 1] = '"';
    cr_assert_eq(mcd_mooncake_parse(text, n, &d, error, sizeof(error)), -EBADMSG);
    /* cut off anywhere */
    for (size_t i = 0; i < strlen(STOCK) - 2; i++)
        cr_assert_eq(mcd_mooncake_parse(STOCK, i, &d, error, sizeof(error)), -EBADMSG);
    free(text);
}

Test(mooncake_text, too_many_buffers)
{
    uint32_t n = MCD_MOONCAKE_BUFFERS_MAX + 1;
    size_t used;
    char *text = malloc(128 + n * 32u), error[160];
    struct mcd_mooncake_descriptor d;

    cr_assert_not_null(text);
    used = (size_t)sprintf(
        text, "{\"name\":\"h:1\",\"protocol\":\"tcp\",\"tcp_data_port\":7,\"buffers\":[");
    for (uint32_t i = 0; i < n; i++)
        used += (size_t)sprintf(text + used, "{\"addr\":%u,\"length\":1},", i + 1);
    memcpy(text + used - 1, "]}", 2);
    cr_assert_eq(mcd_mooncake_parse(text, used + 1, &d, error, sizeof(error)), -EBADMSG);
    free(text);
}

Test(mooncake_text, rpc_meta)
{
    char text[256], host[64];

    mcd_mooncake_rpc_meta("10.0.0.1", 12001, text, sizeof(text));
    cr_assert_str_eq(text, "{\"ip_or_host_name\":\"10.0.0.1\",\"rpc_port\":12001}");
    cr_assert_eq(mcd_mooncake_parse_rpc_meta(text, strlen(text), host, sizeof(host)), 0);
    cr_assert_str_eq(host, "10.0.0.1");
    cr_assert_eq(mcd_mooncake_parse_rpc_meta("{}", 2, host, sizeof(host)), -EBADMSG);
    cr_assert_eq(mcd_mooncake_parse_rpc_meta(text, strlen(text), host, 5), -EBADMSG);
    mcd_mooncake_rpc_meta("10.0.0.1", 12001, text, 20);
    cr_assert_str_eq(text, "");
}

Test(mooncake_text, notify)
{
    static const char good[] = "{\"name\":\"n\\u00fc\",\"notify_msg\":\"m\\n\"}\n";
    static const char *bad[] = {"{}", "{\"name\":\"a\"}", "{\"name\":\"a\",\"notify_msg\":5}", "["};
    char *name, *message;
    char *big = malloc(100000);

    cr_assert_eq(mcd_mooncake_parse_notify(good, strlen(good), &name, &message), 0);
    cr_assert_str_eq(name, "n\xc3\xbc");
    cr_assert_str_eq(message, "m\n");
    free(name);
    free(message);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        cr_assert_eq(mcd_mooncake_parse_notify(bad[i], strlen(bad[i]), &name, &message), -EBADMSG);
    cr_assert_not_null(big);
    memset(big, ' ', 100000);
    memcpy(big, good, strlen(good));
    cr_assert_eq(mcd_mooncake_parse_notify(big, 100000, &name, &message), -EBADMSG, "too long");
    free(big);
}

/* ---- frames ------------------------------------------------------------------------ */

static void sockets(int fd[2])
{
    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, fd), 0);
}

Test(mooncake_text, frame_of_the_book)
{
    static const uint8_t probe[] = {4, 0, 0, 0, 0, 0, 0, 0, 3, '{', '}', '\n'};
    struct mcd_mooncake_frame f = {0};
    uint8_t *made;
    size_t size;
    int fd[2];

    cr_assert_eq(mcd_mooncake_frame_make(MCD_MOONCAKE_PROBE, true, "{}\n", 3, &made, &size), 0);
    cr_assert_eq(size, sizeof(probe));
    cr_assert_arr_eq(made, probe, size);
    free(made);
    sockets(fd);
    for (size_t i = 0; i < sizeof(probe); i++) {
        cr_assert_eq(mcd_mooncake_frame_read(&f, fd[1]), 0);
        cr_assert_eq(send(fd[0], probe + i, 1, 0), 1);
    }
    cr_assert_eq(mcd_mooncake_frame_read(&f, fd[1]), 1);
    cr_assert(f.typed && f.type == MCD_MOONCAKE_PROBE && f.json_size == 3);
    cr_assert_arr_eq(f.json, "{}\n", 3);
    mcd_mooncake_frame_free(&f);
    close(fd[0]);
    close(fd[1]);
}

Test(mooncake_text, frame_without_a_type)
{
    static const uint8_t old[] = {2, 0, 0, 0, 0, 0, 0, 0, '{', '}'};
    struct mcd_mooncake_frame f = {0};
    uint8_t *made;
    size_t size;
    int fd[2];

    sockets(fd);
    cr_assert_eq(send(fd[0], old, sizeof(old), 0), (ssize_t)sizeof(old));
    cr_assert_eq(mcd_mooncake_frame_read(&f, fd[1]), 1);
    cr_assert(!f.typed && f.type == MCD_MOONCAKE_CONNECTION && f.json_size == 2);
    cr_assert_eq(mcd_mooncake_frame_make(f.type, f.typed, "{}", 2, &made, &size), 0);
    cr_assert_eq(size, sizeof(old));
    cr_assert_arr_eq(made, old, size);
    free(made);
    mcd_mooncake_frame_free(&f);
    close(fd[0]);
    close(fd[1]);
}

Test(mooncake_text, frame_lengths)
{
    static const uint64_t bad[] = {0, MCD_MOONCAKE_FRAME_MAX + 1, UINT64_C(1) << 32, UINT64_MAX};
    struct mcd_mooncake_frame f = {0};
    uint64_t length = MCD_MOONCAKE_FRAME_MAX;
    char scrap[65536] = {1};
    size_t sent = 0;
    int fd[2], res;

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        sockets(fd);
        cr_assert_eq(send(fd[0], &bad[i], 8, 0), 8);
        cr_assert_eq(mcd_mooncake_frame_read(&f, fd[1]), -EMSGSIZE);
        mcd_mooncake_frame_free(&f);
        close(fd[0]);
        close(fd[1]);
    }
    sockets(fd);
    cr_assert_eq(send(fd[0], &length, 8, 0), 8);
    cr_assert_eq(mcd_mooncake_frame_read(&f, fd[1]), 0);
    cr_assert_leq(f.room, 4096u, "nothing is set aside for what was only announced");
    while ((res = mcd_mooncake_frame_read(&f, fd[1])) == 0 && sent < length) {
        ssize_t n = send(fd[0], scrap, sizeof(scrap), MSG_DONTWAIT);

        if (n > 0)
            sent += (size_t)n;
        cr_assert_leq(f.room, 2 * (sent + 4096));
        scrap[0] = 'x';
    }
    cr_assert_eq(res == 0 ? mcd_mooncake_frame_read(&f, fd[1]) : res, 1);
    cr_assert(f.typed && f.type == MCD_MOONCAKE_METADATA &&
              f.json_size == MCD_MOONCAKE_FRAME_MAX - 1);
    mcd_mooncake_frame_free(&f);
    close(fd[0]);
    cr_assert_eq(mcd_mooncake_frame_read(&f, fd[1]), -ECONNRESET);
    mcd_mooncake_frame_free(&f);
    close(fd[1]);
}

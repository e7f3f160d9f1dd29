/* SPDX-License-Identifier: Apache-2.0 */
#include "mooncake_text.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>

#define EXACT_MAX 9007199254740992.0 /* 2^53: beyond it cJSON's numbers skip integers */
#define NOTIFY_MAX (64u << 10)       /* bytes: the largest notification with every letter escaped */

/* ---- out --------------------------------------------------------------------------- */

static void now_text(char *out, size_t size)
{
    struct timeval tv;
    struct tm tm;
    char day[32];

    gettimeofday(&tv, NULL);
    localtime_r(&tv.tv_sec, &tm);
    strftime(day, sizeof(day), "%Y-%m-%d %H:%M:%S", &tm);
    snprintf(out, size, "%s.%06ld", day, (long)tv.tv_usec);
}

int mcd_mooncake_describe(const struct mcd_mooncake_self *self, const struct mcd_snapshot *buffers,
                          size_t limit, char **out, size_t *size, uint32_t *left_out)
{
    uint32_t n = buffers == NULL ? 0 : buffers->count, done = 0;
    /* addresses have no letters that JSON would want escaped */
    size_t each = strlen(self->name) + 96, room = 1024 + each * n, used;
    char *text, when[64];

    if (room > limit)
        room = limit;
    text = malloc(room + 1);
    if (text == NULL)
        return -ENOMEM;
    now_text(when, sizeof(when));
    used = (size_t)snprintf(text, room,
                            "{\"name\":\"%s\",\"protocol\":\"tcp\",\"tcp_data_host\":\"%s\","
                            "\"tcp_data_port\":%u,\"tcp_proto_version\":2,\"timestamp\":\"%s\","
                            "\"buffers\":[",
                            self->name, self->host, self->port, when);
    for (; done < n && used + each + 2 <= room; done++)
        used += (size_t)snprintf(text + used, room - used,
                                 "%s{\"name\":\"%s\",\"addr\":%" PRIu64 ",\"length\":%" PRIu64 "}",
                                 done == 0 ? "" : ",", self->name, buffers->buffers[done].address,
                                 buffers->buffers[done].length);
    memcpy(text + used, "]}", 3);
    *out = text;
    *size = used + 2;
    *left_out = n - done;
    return 0;
}

void mcd_mooncake_rpc_meta(const char *host, uint16_t port, char *out, size_t size)
{
    int n = snprintf(out, size, "{\"ip_or_host_name\":\"%s\",\"rpc_port\":%u}", host, port);

    if (n < 0 || (size_t)n >= size)
        out[0] = '\0';
}

/* ---- in ---------------------------------------------------------------------------- */

static cJSON *parse(const char *json, size_t size)
{
    const char *end = NULL;
    cJSON *root = cJSON_ParseWithLengthOpts(json, size, &end, false);

    for (; root != NULL && end < json + size; end++)
        if (strchr(" \t\r\n", *end) == NULL || *end == '\0') {
            cJSON_Delete(root);
            root = NULL;
        }
    if (root != NULL && !cJSON_IsObject(root)) {
        cJSON_Delete(root);
        root = NULL;
    }
    return root;
}

/* A member that is an unsigned integer of at most max. */
static bool get_number(const cJSON *o, const char *key, double max, uint64_t *out)
{
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(o, key);

    if (!cJSON_IsNumber(v) || !(v->valuedouble >= 0 && v->valuedouble <= max))
        return false;
    *out = (uint64_t)v->valuedouble;
    return (double)*out == v->valuedouble;
}

/* A printable text without quotes, such as addresses are: it is put into messages and into JSON again. */
static bool get_text(const cJSON *o, const char *key, char *out, size_t size)
{
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(o, key);
    const char *s = cJSON_GetStringValue(v);

    if (s == NULL || strlen(s) >= size)
        return false;
    for (const char *c = s; *c != '\0'; c++)
        if (*c <= ' ' || *c == '"' || *c == '\\' || *c == 0x7f)
            return false;
    snprintf(out, size, "%s", s);
    return true;
}

static int by_address(const void *a, const void *b)
{
    const struct mcd_buffer *x = a, *y = b;

    return x->address < y->address ? -1 : x->address > y->address;
}

/* Engines want them in order and apart. A peer decides itself about ranges across two of its buffers. */
static void put_in_order(struct mcd_snapshot *s)
{
    uint32_t kept = 0;

    qsort(s->buffers, s->count, sizeof(s->buffers[0]), by_address);
    for (uint32_t i = 0; i < s->count; i++) {
        struct mcd_buffer *last = kept != 0 ? &s->buffers[kept - 1] : NULL;
        uint64_t end = s->buffers[i].address + s->buffers[i].length;

        if (last == NULL || last->address + last->length <= s->buffers[i].address)
            s->buffers[kept++] = s->buffers[i];
        else if (end > last->address + last->length)
            last->length = end - last->address;
    }
    s->count = kept;
}

static int get_buffers(const cJSON *root, struct mcd_snapshot **out, char *error, size_t error_size)
{
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(root, "buffers"), *b;
    struct mcd_snapshot *s;
    int n;

    if (list != NULL && !cJSON_IsArray(list) && !cJSON_IsNull(list)) {
        snprintf(error, error_size, "\"buffers\" is no list");
        return -EBADMSG;
    }
    n = cJSON_GetArraySize(list);
    if (n > (int)MCD_MOONCAKE_BUFFERS_MAX) {
        snprintf(error, error_size, "%d buffers, more than %u", n, MCD_MOONCAKE_BUFFERS_MAX);
        return -EBADMSG;
    }
    s = calloc(1, sizeof(*s) + (size_t)n * sizeof(s->buffers[0]));
    if (s == NULL)
        return -ENOMEM;
    cJSON_ArrayForEach(b, list)
    {
        struct mcd_buffer *x = &s->buffers[s->count];

        if (!get_number(b, "addr", EXACT_MAX, &x->address) ||
            !get_number(b, "length", EXACT_MAX, &x->length) || x->address == 0 || x->length == 0) {
            snprintf(error, error_size, "buffer %u has no good \"addr\" and \"length\"", s->count);
            free(s);
            return -EBADMSG;
        }
        x->access = MCS_ACCESS_READ | MCS_ACCESS_WRITE;
        x->count = 1;
        s->count++;
    }
    put_in_order(s);
    *out = s;
    return 0;
}

int mcd_mooncake_parse(const char *json, size_t size, struct mcd_mooncake_descriptor *out,
                       char *error, size_t error_size)
{
    cJSON *root = parse(json, size);
    const cJSON *version, *protocol, *host;
    uint64_t number;
    int res = -EBADMSG;

    memset(out, 0, sizeof(*out));
    protocol = cJSON_GetObjectItemCaseSensitive(root, "protocol");
    host = cJSON_GetObjectItemCaseSensitive(root, "tcp_data_host"); /* newer than 2026-08 */
    version = cJSON_GetObjectItemCaseSensitive(root, "tcp_proto_version");
    if (root == NULL) {
        snprintf(error, error_size, "it is not a JSON object");
    } else if (!get_text(root, "name", out->name, sizeof(out->name)) || out->name[0] == '\0') {
        snprintf(error, error_size, "it has no good \"name\"");
    } else if (!cJSON_IsString(protocol) || strcmp(protocol->valuestring, "tcp") != 0) {
        snprintf(error, error_size,
                 "its \"protocol\" is not tcp: start that process with MC_FORCE_TCP=1");
    } else if (!get_number(root, "tcp_data_port", 65535, &number) || number == 0) {
        snprintf(error, error_size, "it names no \"tcp_data_port\"");
    } else if (host != NULL && !cJSON_IsNull(host) &&
               !get_text(root, "tcp_data_host", out->host, sizeof(out->host))) {
        snprintf(error, error_size, "it has no good \"tcp_data_host\"");
    } else {
        out->port = (uint16_t)number;
        if (version == NULL) {
            res = 0;
        } else if (get_number(root, "tcp_proto_version", 1000000, &number)) {
            out->v2 = number >= 2;
            res = 0;
        } else {
            snprintf(error, error_size, "its \"tcp_proto_version\" is no number");
        }
        if (res == 0)
            res = get_buffers(root, &out->buffers, error, error_size);
        if (res == -ENOMEM)
            snprintf(error, error_size, "out of memory");
    }
    cJSON_Delete(root);
    return res;
}

int mcd_mooncake_parse_rpc_meta(const char *json, size_t size, char *host, size_t host_size)
{
    cJSON *root = parse(json, size);
    int res = root != NULL && get_text(root, "ip_or_host_name", host, host_size) && host[0] != '\0'
                  ? 0
                  : -EBADMSG;

    cJSON_Delete(root);
    return res;
}

int mcd_mooncake_parse_notify(const char *json, size_t size, char **name, char **message)
{
    cJSON *root = size > NOTIFY_MAX ? NULL : parse(json, size);
    const char *n = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(root, "name"));
    const char *m = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(root, "notify_msg"));
    int res = -EBADMSG;

    if (n != NULL && m != NULL) {
        *name = strdup(n);
        *message = strdup(m);
        res = *name != NULL && *message != NULL ? 0 : -ENOMEM;
        if (res != 0) {
            free(*name);
            free(*message);
        }
    }
    cJSON_Delete(root);
    return res;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "record.h"

#include "json.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* The length of the UTF-8 sequence at p, 0: there is none. Overlong forms, surrogates and what
 * lies beyond U+10FFFF are none. */
static size_t utf8(const unsigned char *p)
{
    size_t n = *p < 0x80 ? 1 : *p >= 0xc2 && *p < 0xe0 ? 2 : *p >= 0xe0 && *p < 0xf0 ? 3 : 4;

    if (*p < 0x80)
        return 1;
    if (*p < 0xc2 || *p > 0xf4)
        return 0;
    for (size_t i = 1; i < n; i++)
        if ((p[i] & 0xc0) != 0x80)
            return 0;
    if ((*p == 0xe0 && p[1] < 0xa0) || (*p == 0xed && p[1] > 0x9f) || (*p == 0xf0 && p[1] < 0x90) ||
        (*p == 0xf4 && p[1] > 0x8f))
        return 0;
    return n;
}

bool mcm_good_name(const char *name)
{
    const unsigned char *p = (const unsigned char *)name;
    size_t n, length = 0;
    bool ink = false;

    while (*p) {
        n = utf8(p);
        length += n;
        /* also U+0080 .. U+009F are control characters */
        if (!n || length >= MCM_NAME_MAX || *p < 0x20 || *p == 0x7f || (*p == 0xc2 && p[1] < 0xa0))
            return false;
        if (*p != ' ' && !(*p == 0xc2 && p[1] == 0xa0))
            ink = true;
        p += n;
    }
    return ink;
}

bool mcm_explicit_name(const char *text, char *agent, char *name)
{
    const char *slash = strchr(text, '/'), *colon;
    size_t size;
    long port = 0;

    if (!slash || slash == text)
        return false;
    size = (size_t)(slash - text);
    colon = memrchr(text, ':', size);
    if (size >= MCM_ADDRESS_MAX || strlen(slash + 1) >= MCM_NAME_MAX || !colon || colon == text ||
        colon + 1 == slash || slash - colon > 6)
        return false;
    for (const char *p = colon + 1; p < slash; p++) {
        if (*p < '0' || *p > '9')
            return false;
        port = port * 10 + (*p - '0');
    }
    /* an IPv6 address stands in brackets; a bare colon makes it a plain name */
    if (*text == '[' ? colon[-1] != ']' : memchr(text, ':', (size_t)(colon - text)) != NULL)
        return false;
    if (port < 1 || port > 65535 || !mcm_good_name(slash + 1))
        return false;
    for (const char *p = text; p < colon; p++)
        if ((unsigned char)*p <= ' ' || (unsigned char)*p >= 0x7f)
            return false;
    memcpy(agent, text, size);
    agent[size] = '\0';
    strcpy(name, slash + 1);
    return true;
}

static bool good_address(const char *agent)
{
    size_t length = strlen(agent);

    for (size_t i = 0; i < length; i++)
        if ((unsigned char)agent[i] <= ' ' || (unsigned char)agent[i] >= 0x7f)
            return false;
    return length > 0 && length < MCM_ADDRESS_MAX;
}

void mcm_record_encode(const struct mcm_record *r, const struct mcm_times *t, struct mcm_text *out)
{
    mcm_text_add(out, "{\"version\":%u,\"name\":", MCM_VERSION);
    mcm_text_quoted(out, r->name);
    mcm_text_add(out, ",\"incarnation\":\"%" PRIu64 "\",\"agent\":", r->incarnation);
    mcm_text_quoted(out, r->agent);
    mcm_text_add(out,
                 ",\"agent_incarnation\":\"%" PRIu64 "\",\"tenant\":\"%" PRIu64 "\",\"flags\":%u",
                 r->agent_incarnation, r->tenant, r->flags);
    mcm_text_add(out, ",\"since\":%" PRIu64, t->since);
    if (t->ttl_s)
        mcm_text_add(out, ",\"renewed\":%" PRIu64 ",\"ttl_s\":%" PRIu64, t->renewed, t->ttl_s);
    mcm_text_add(out, "}");
}

int mcm_record_decode(const char *text, size_t size, const char *name, struct mcm_record *out,
                      struct mcm_times *times)
{
    uint64_t version, flags;
    const char *got, *agent;
    bool bad = false;
    cJSON *o;
    int err = mcm_json_parse(text, size, &o);

    if (err)
        return err;
    memset(out, 0, sizeof(*out));
    version = mcm_json_u64(o, "version", &bad);
    got = mcm_json_string(o, "name", &bad);
    agent = mcm_json_string(o, "agent", &bad);
    out->incarnation = mcm_json_u64(o, "incarnation", &bad);
    out->agent_incarnation = mcm_json_u64(o, "agent_incarnation", &bad);
    out->tenant = mcm_json_u64(o, "tenant", &bad);
    flags = mcm_json_u64(o, "flags", &bad);
    times->since = mcm_json_u64(o, "since", &bad);
    times->renewed = mcm_json_u64(o, "renewed", &bad);
    times->ttl_s = mcm_json_u64(o, "ttl_s", &bad);
    /* incarnation 0 means "gone" and "unknown" in this interface, so a record has another */
    if (bad || !version || version > UINT32_MAX || flags > UINT32_MAX || !out->incarnation ||
        !got || strcmp(got, name) != 0 || strlen(got) >= sizeof(out->name) || !agent ||
        !good_address(agent)) {
        err = -EBADMSG;
    } else {
        strcpy(out->name, got);
        strcpy(out->agent, agent);
        out->version = (uint32_t)version;
        out->flags = (uint32_t)flags;
    }
    cJSON_Delete(o);
    return err;
}

void mcm_record_held(const struct mcm_record *r, const struct mcm_times *t, char *text, size_t size)
{
    time_t since = (time_t)t->since;
    char when[32] = "an unknown time";
    struct tm tm;

    if (t->since && t->since < UINT32_MAX && gmtime_r(&since, &tm))
        strftime(when, sizeof(when), "%Y-%m-%dT%H:%M:%SZ", &tm);
    snprintf(text, size,
             "the name is held by agent %.100s since %s; choose another, or wait until that agent "
             "gives it up or its lease ends",
             r->agent, when);
}

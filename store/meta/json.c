/* SPDX-License-Identifier: Apache-2.0 */
#include "json.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static bool blank(char c)
{
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

long mcm_json_scan(struct mcm_json_scan *scan, const char *text, size_t size, bool *closed)
{
    *closed = false;
    for (size_t i = 0; i < size; i++) {
        char c = text[i];

        if (scan->in_string) {
            if (scan->escaped)
                scan->escaped = false;
            else if (c == '\\')
                scan->escaped = true;
            else if (c == '"')
                scan->in_string = false;
            continue;
        }
        if (!scan->depth && c != '{') {
            if (!blank(c))
                return -EBADMSG;
            continue;
        }
        switch (c) {
        case '"':
            scan->in_string = true;
            break;
        case '{':
        case '[':
            if (++scan->depth > MCM_JSON_DEPTH || ++scan->values > MCM_JSON_VALUES)
                return -EBADMSG;
            break;
        case ',':
            if (++scan->values > MCM_JSON_VALUES)
                return -EBADMSG;
            break;
        case '}':
        case ']':
            if (!--scan->depth) {
                *scan = (struct mcm_json_scan){0};
                *closed = true;
                return (long)(i + 1);
            }
            break;
        default:
            break;
        }
    }
    return (long)size;
}

int mcm_json_parse(const char *text, size_t size, cJSON **out)
{
    struct mcm_json_scan scan = {0};
    bool closed;
    long used = mcm_json_scan(&scan, text, size, &closed);

    *out = NULL;
    if (used < 0 || !closed)
        return -EBADMSG;
    for (size_t i = (size_t)used; i < size; i++)
        if (!blank(text[i]))
            return -EBADMSG;
    *out = cJSON_ParseWithLength(text, (size_t)used);
    return *out ? 0 : -EBADMSG;
}

static const cJSON *member(const cJSON *o, const char *name)
{
    const cJSON *v = o ? cJSON_GetObjectItemCaseSensitive(o, name) : NULL;

    return v && !cJSON_IsNull(v) ? v : NULL;
}

const cJSON *mcm_json_object(const cJSON *o, const char *name, bool *bad)
{
    const cJSON *v = member(o, name);

    if (v && !cJSON_IsObject(v)) {
        *bad = true;
        return NULL;
    }
    return v;
}

const cJSON *mcm_json_array(const cJSON *o, const char *name, bool *bad)
{
    const cJSON *v = member(o, name);

    if (v && !cJSON_IsArray(v)) {
        *bad = true;
        return NULL;
    }
    return v;
}

const char *mcm_json_string(const cJSON *o, const char *name, bool *bad)
{
    const cJSON *v = member(o, name);

    if (v && !cJSON_IsString(v)) {
        *bad = true;
        return NULL;
    }
    return v ? v->valuestring : NULL;
}

int64_t mcm_json_i64(const cJSON *o, const char *name, bool *bad)
{
    const cJSON *v = member(o, name);
    char *end;
    long long n;

    if (!v)
        return 0;
    if (cJSON_IsNumber(v)) {
        /* beyond 2^53 a double is no exact number any more */
        if (v->valuedouble >= -9007199254740992.0 && v->valuedouble <= 9007199254740992.0)
            return (int64_t)v->valuedouble;
    } else if (cJSON_IsString(v) && *v->valuestring && !blank(*v->valuestring)) {
        errno = 0;
        n = strtoll(v->valuestring, &end, 10);
        if (!errno && !*end)
            return n;
    }
    *bad = true;
    return 0;
}

uint64_t mcm_json_u64(const cJSON *o, const char *name, bool *bad)
{
    const cJSON *v = member(o, name);
    char *end;
    unsigned long long n;
    int64_t i;

    if (v && cJSON_IsString(v)) {
        if (*v->valuestring >= '0' && *v->valuestring <= '9') {
            errno = 0;
            n = strtoull(v->valuestring, &end, 10);
            if (!errno && !*end)
                return n;
        }
        *bad = true;
        return 0;
    }
    i = mcm_json_i64(o, name, bad);
    if (i < 0) {
        *bad = true;
        return 0;
    }
    return (uint64_t)i;
}

bool mcm_json_bool(const cJSON *o, const char *name, bool *bad)
{
    const cJSON *v = member(o, name);

    if (v && !cJSON_IsBool(v)) {
        *bad = true;
        return false;
    }
    return v && cJSON_IsTrue(v);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "kv_trace.h"

#include "kv_model.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define WHOLE_MAX 9007199254740992.0 /* 2^53: beyond it a JSON number is not exact */
#define IDS_MAX 65536

#define TALKS 24u        /* conversations under way at a time */
#define SYSTEM_BLOCKS 3u /* shared by all of them */
#define TURN_BLOCKS 8u   /* at most, new in one turn */
#define TALK_BLOCKS 48u  /* a conversation that long is over */

static int whole(const cJSON *value, uint64_t *out)
{
    if (!cJSON_IsNumber(value) || value->valuedouble < 0 || value->valuedouble > WHOLE_MAX ||
        value->valuedouble != (double)(uint64_t)value->valuedouble)
        return -EINVAL;
    *out = (uint64_t)value->valuedouble;
    return 0;
}

static int field(const cJSON *object, const char *name, uint64_t *out, char *error, size_t size)
{
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(object, name);

    if (whole(value, out) == 0)
        return 0;
    snprintf(error, size, "%s is %s", name, value == NULL ? "missing" : "not a whole number");
    return -EINVAL;
}

int kv_trace_line(const char *line, struct kv_request *out, char *error, size_t error_size)
{
    const cJSON *ids, *id;
    cJSON *object;
    int rc = -EINVAL, count;

    memset(out, 0, sizeof(*out));
    object = cJSON_ParseWithOpts(line, NULL, true);
    if (!cJSON_IsObject(object)) {
        snprintf(error, error_size, "not a JSON object");
        goto out;
    }
    rc = field(object, "timestamp", &out->timestamp, error, error_size);
    if (rc == 0)
        rc = field(object, "input_length", &out->input_length, error, error_size);
    if (rc == 0)
        rc = field(object, "output_length", &out->output_length, error, error_size);
    if (rc != 0)
        goto out;
    ids = cJSON_GetObjectItemCaseSensitive(object, "hash_ids");
    count = cJSON_IsArray(ids) ? cJSON_GetArraySize(ids) : -1;
    if (count < 0 || count > IDS_MAX) {
        snprintf(error, error_size, "hash_ids is %s",
                 ids == NULL ? "missing" : "not an array of at most 65536 numbers");
        rc = -EINVAL;
        goto out;
    }
    out->hash_ids = malloc(((size_t)count + 1) * sizeof(out->hash_ids[0]));
    if (out->hash_ids == NULL) {
        rc = -ENOMEM;
        goto out;
    }
    cJSON_ArrayForEach(id, ids)
    {
        if (whole(id, &out->hash_ids[out->count]) != 0) {
            snprintf(error, error_size, "hash_ids[%u] is not a whole number", out->count);
            free(out->hash_ids);
            out->hash_ids = NULL;
            rc = -EINVAL;
            goto out;
        }
        out->count++;
    }
out:
    cJSON_Delete(object);
    return rc;
}

static int append(struct kv_trace *t, const struct kv_request *r)
{
    if ((t->count & (t->count - 1)) == 0) { /* grows at every power of two */
        size_t room = t->count == 0 ? 1 : 2 * t->count;
        struct kv_request *more = realloc(t->requests, room * sizeof(*more));

        if (more == NULL)
            return -ENOMEM;
        t->requests = more;
    }
    t->requests[t->count++] = *r;
    t->blocks += r->count;
    if (r->count > t->longest)
        t->longest = r->count;
    return 0;
}

int kv_trace_load(FILE *file, size_t max, struct kv_trace *out, char *error, size_t error_size)
{
    char what[128] = "out of memory";
    struct kv_request r;
    char *line = NULL;
    size_t room = 0;
    uint64_t number = 0;
    int rc = 0;

    memset(out, 0, sizeof(*out));
    while (out->count < max && getline(&line, &room, file) >= 0) {
        number++;
        if (line[strspn(line, " \t\r\n")] == '\0')
            continue;
        rc = kv_trace_line(line, &r, what, sizeof(what));
        if (rc == 0) {
            rc = append(out, &r);
            if (rc != 0)
                free(r.hash_ids);
        }
        if (rc != 0) {
            snprintf(error, error_size, "line %" PRIu64 ": %s", number, what);
            goto out;
        }
    }
    if (ferror(file)) {
        rc = -EIO;
        snprintf(error, error_size, "cannot be read beyond line %" PRIu64, number);
    } else if (out->count == 0) {
        rc = -EINVAL;
        snprintf(error, error_size, "no request in it");
    }
out:
    free(line);
    if (rc != 0)
        kv_trace_free(out);
    return rc;
}

static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

int kv_trace_generate(size_t count, struct kv_trace *out)
{
    struct {
        uint64_t ids[TALK_BLOCKS + TURN_BLOCKS];
        uint32_t count;
    } talks[TALKS];
    uint64_t state = UINT64_C(0x6d6373686d6b7631), fresh = SYSTEM_BLOCKS;
    int rc = 0;

    memset(out, 0, sizeof(*out));
    memset(talks, 0, sizeof(talks));
    for (size_t i = 0; rc == 0 && i < count; i++) {
        unsigned t = (unsigned)(next_random(&state) % TALKS);
        uint32_t more = 1 + (uint32_t)(next_random(&state) % TURN_BLOCKS);
        struct kv_request r = {.timestamp = 100 * i, .output_length = 200};

        if (talks[t].count >= TALK_BLOCKS)
            talks[t].count = 0; /* a new conversation takes its place */
        if (talks[t].count == 0)
            for (uint32_t k = 0; k < SYSTEM_BLOCKS; k++)
                talks[t].ids[talks[t].count++] = k;
        for (uint32_t k = 0; k < more; k++)
            talks[t].ids[talks[t].count++] = fresh++;
        r.count = talks[t].count;
        r.input_length = (uint64_t)r.count * KV_BLOCK_TOKENS;
        r.hash_ids = malloc(r.count * sizeof(r.hash_ids[0]));
        if (r.hash_ids == NULL) {
            rc = -ENOMEM;
            break;
        }
        memcpy(r.hash_ids, talks[t].ids, r.count * sizeof(r.hash_ids[0]));
        rc = append(out, &r);
        if (rc != 0)
            free(r.hash_ids);
    }
    if (rc != 0)
        kv_trace_free(out);
    return rc;
}

void kv_trace_free(struct kv_trace *t)
{
    for (size_t i = 0; i < t->count; i++)
        free(t->requests[i].hash_ids);
    free(t->requests);
    memset(t, 0, sizeof(*t));
}

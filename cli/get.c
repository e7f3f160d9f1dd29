/* SPDX-License-Identifier: Apache-2.0 */
/* `mcshm get`: an object in ranges through a memfd of ours, or read where the agent has it. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "object.h"

#define CHUNK (UINT64_C(64) << 20) /* bytes of an object in one request */

struct sink {
    const char *name;
    int fd; /* -1: not opened yet */
    bool standard;
};

/* When the object is known to be there: what is not found overwrites nothing. */
static int open_sink(const char *file, struct sink *out)
{
    out->standard = strcmp(file, "-") == 0;
    out->name = out->standard ? "standard output" : file;
    out->fd =
        out->standard ? STDOUT_FILENO : open(file, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (out->fd >= 0)
        return CLI_OK;
    fprintf(stderr, "mcshm: %s: %s\n", file, strerror(errno));
    return CLI_FAILED;
}

static int close_sink(struct sink *s, int res)
{
    if (!s->standard && close(s->fd) != 0 && res == CLI_OK) {
        fprintf(stderr, "mcshm: %s: %s\n", s->name, strerror(errno));
        res = CLI_FAILED;
    }
    return res;
}

/* Of an object that was read in place. */
struct place {
    bool writable; /* by this process, as the kernel says */
    bool equal;    /* the checksum of the bytes there, and the agent's */
};

static void describe(const mcshm_object_result *r, const struct place *p, char *text, size_t size)
{
    if (r->size == 0)
        snprintf(text, size, ", empty");
    else
        snprintf(text, size, ", in place at %p, mapped %s, checksum of the bytes there %s",
                 r->address, p->writable ? "writable" : "read-only",
                 p->equal ? "equal" : "DIFFERENT");
}

static void add_place(cJSON *d, const mcshm_object_result *r, const struct place *p)
{
    cJSON *o = cJSON_AddObjectToObject(d, "in_place");
    char address[24];

    snprintf(address, sizeof(address), "0x%llx", (unsigned long long)(uintptr_t)r->address);
    cJSON_AddStringToObject(o, "address", address);
    cJSON_AddBoolToObject(o, "writable", p->writable);
    cJSON_AddBoolToObject(o, "checksum_equal", p->equal);
}

/* Beside the bytes: on standard output, unless they are there. place: NULL: it was copied. */
static void report(const struct cli *cli, const struct sink *s, const mcshm_key *key,
                   const mcshm_object_result *r, const struct place *place)
{
    char how[160] = "";
    static const char *const tiers[] = {"none", "memory", "disk", "remote"};
    const char *tier = (unsigned)r->tier < 4 ? tiers[r->tier] : "?";
    FILE *out = s->standard ? stderr : stdout;
    char *text;

    if (s->standard && place == NULL)
        return;
    if (cli->json) {
        cJSON *d = cJSON_CreateObject();

        cli_add_key(d, key);
        cJSON_AddNumberToObject(d, "size", (double)r->size);
        cli_add_version(d, r->version);
        cli_add_crc(d, r->crc);
        cJSON_AddStringToObject(d, "tier", tier);
        cJSON_AddStringToObject(d, "path", mcshm_path_name(r->path));
        if (place != NULL)
            add_place(d, r, place);
        text = cJSON_PrintUnformatted(d);
        fprintf(out, "%s\n", text != NULL ? text : "{}");
        cJSON_free(text);
        cJSON_Delete(d);
        return;
    }
    text = cli_key_text(key);
    if (place != NULL)
        describe(r, place, how, sizeof(how));
    fprintf(out, "%s: %llu bytes, version %llu, CRC32C 0x%08x, from %s, path %s%s\n",
            text != NULL ? text : "?", (unsigned long long)r->size, (unsigned long long)r->version,
            r->crc, tier, mcshm_path_name(r->path), how);
    free(text);
}

/* ---- copied ------------------------------------------------------------------------- */

/* One range, of `first`'s version, into memory. */
static int get_range(struct cli_objects *o, const mcshm_key *key, uint32_t flags, void *at,
                     uint64_t offset, uint64_t size, const mcshm_object_result *first,
                     mcshm_object_result *result)
{
    mcshm_span span = {.address = at, .size = size, .offset = offset};
    mcshm_object_request r = {.op = MCSHM_GET,
                              .flags = flags | MCSHM_OBJECT_RANGES,
                              .priority = MCSHM_CLASS_NORMAL,
                              .keys = key,
                              .count = 1,
                              .spans = &span};
    mcshm_status status = mcshm_objects(o->q, &r, result, NULL, -1);

    if (status != MCSHM_OK)
        return cli_error("the get failed", status, o->c);
    if (result->status != MCSHM_OK)
        return cli_key_error(key, result->status);
    if (result->version != first->version) {
        fprintf(stderr, "mcshm: the object was replaced meanwhile: try again\n");
        return CLI_FAILED;
    }
    return CLI_OK;
}

/* How large is it? A get into no buffer at all says so. */
static int ask_size(struct cli_objects *o, const mcshm_key *key, mcshm_object_result *result)
{
    uint32_t spans = 0;
    mcshm_object_request r = {.op = MCSHM_GET,
                              .priority = MCSHM_CLASS_NORMAL,
                              .keys = key,
                              .count = 1,
                              .span_counts = &spans};
    mcshm_status status = mcshm_objects(o->q, &r, result, NULL, -1);

    if (status != MCSHM_OK)
        return cli_error("the get failed", status, o->c);
    if (result->status != MCSHM_OK && result->status != MCSHM_TOO_SMALL)
        return cli_key_error(key, result->status);
    return CLI_OK;
}

static int get_copied(const struct cli *cli, struct cli_objects *o, const mcshm_key *key,
                      const char *file)
{
    uint32_t flags = cli->verify ? MCSHM_OBJECT_VERIFY : 0;
    mcshm_object_result first, result;
    struct cli_memory memory = {.fd = -1};
    struct sink sink = {.fd = -1};
    int res = ask_size(o, key, &first);

    if (res == CLI_OK && first.size != 0)
        res = cli_memory_make(o, first.size < CHUNK ? first.size : CHUNK, &memory);
    if (res != CLI_OK)
        return res;
    result = first;
    /* the first bytes before the file is touched */
    for (uint64_t at = 0, n; res == CLI_OK && at < first.size; at += n) {
        n = first.size - at < memory.size ? first.size - at : memory.size;
        res = get_range(o, key, flags, memory.at, at, n, &first, &result);
        flags = 0; /* one look at all of it is enough */
        if (at == 0) {
            if (res == CLI_OK)
                res = open_sink(file, &sink);
            if (res != CLI_OK)
                goto out;
        }
        if (res == CLI_OK)
            res = cli_write_all(sink.fd, sink.name, memory.at, n);
    }
    if (first.size == 0)
        res = open_sink(file, &sink);
    if (res == CLI_OK)
        report(cli, &sink, key, &result, NULL);
    if (sink.fd >= 0)
        res = close_sink(&sink, res);
out:
    if (memory.fd >= 0)
        cli_memory_close(&memory);
    return res;
}

/* ---- in place ------------------------------------------------------------------------ */

/* CRC32C (Castagnoli), bit by bit: what the agent says of its bytes is not taken from the agent. */
static uint32_t crc32c(const uint8_t *bytes, uint64_t size)
{
    uint32_t table[256], crc = UINT32_MAX;

    for (uint32_t i = 0; i < 256; i++) {
        table[i] = i;
        for (int bit = 0; bit < 8; bit++)
            table[i] = table[i] >> 1 ^ (table[i] & 1 ? 0x82f63b78u : 0);
    }
    for (uint64_t i = 0; i < size; i++)
        crc = crc >> 8 ^ table[(crc ^ bytes[i]) & 0xff];
    return ~crc;
}

/* Is the page mapped writable, as the kernel says? */
static bool is_writable(const void *at)
{
    bool writable = false, found = false;
    FILE *maps = fopen("/proc/self/maps", "re");
    char line[512];

    while (maps != NULL && !found && fgets(line, sizeof(line), maps) != NULL) {
        uintptr_t from, to;
        char rights[8];

        found = sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %7s", &from, &to, rights) == 3 &&
                (uintptr_t)at >= from && (uintptr_t)at < to;
        writable = found && rights[1] == 'w';
    }
    if (maps != NULL)
        fclose(maps);
    return writable;
}

static int get_in_place(const struct cli *cli, struct cli_objects *o, const mcshm_key *key,
                        const char *file)
{
    mcshm_object_request r = {.op = MCSHM_HOLD,
                              .flags = cli->verify ? MCSHM_OBJECT_VERIFY : 0,
                              .priority = MCSHM_CLASS_NORMAL,
                              .keys = key,
                              .count = 1};
    mcshm_object_result result;
    struct sink sink = {.fd = -1};
    struct place place;
    mcshm_status status = mcshm_objects(o->q, &r, &result, NULL, -1);
    int res;

    if (status != MCSHM_OK)
        return cli_error("the object cannot be read in place", status, o->c);
    if (result.status != MCSHM_OK)
        return cli_key_error(key, result.status);
    place.equal = crc32c(result.address, result.size) == result.crc;
    place.writable = result.size != 0 && is_writable(result.address);
    res = open_sink(file, &sink);
    if (res == CLI_OK)
        res = cli_write_all(sink.fd, sink.name, result.address, result.size);
    if (res == CLI_OK)
        report(cli, &sink, key, &result, &place);
    if (sink.fd >= 0)
        res = close_sink(&sink, res);
    (void)mcshm_object_release(o->q, &result.hold, 1, NULL);
    return place.equal ? res : CLI_FAILED;
}

int cli_get(const struct cli *cli, const char *word, const char *file)
{
    struct cli_objects o;
    mcshm_key key;
    int res = cli_key(cli, word, &key);

    if (res != CLI_OK)
        return res;
    res = cli_objects_open(cli, 0, &o);
    if (res == CLI_OK) {
        res = cli->in_place ? get_in_place(cli, &o, &key, file) : get_copied(cli, &o, &key, file);
        cli_objects_close(&o);
    }
    free((void *)(uintptr_t)key.bytes);
    return res;
}

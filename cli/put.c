/* SPDX-License-Identifier: Apache-2.0 */
/* `mcshm put`: the value goes through a memfd that is registered, whatever its size. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "object.h"

#define CHUNK (1u << 20)

/* All that can be read from fd, into the memfd. */
static int copy(int from, const char *name, int to, uint64_t *size)
{
    uint8_t *buffer = malloc(CHUNK);
    int res = buffer != NULL ? CLI_OK : CLI_FAILED;
    ssize_t n = 1;

    *size = 0;
    while (res == CLI_OK && n != 0) {
        n = read(from, buffer, CHUNK);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            fprintf(stderr, "mcshm: %s: %s\n", name, strerror(errno));
            res = CLI_FAILED;
        } else {
            res = cli_write_all(to, "memory for the value", buffer, (uint64_t)n);
            *size += (uint64_t)n;
        }
    }
    free(buffer);
    return res;
}

/* The value, in a memfd. */
static int read_value(const char *file, int *memfd, uint64_t *size)
{
    bool standard = strcmp(file, "-") == 0;
    const char *name = standard ? "standard input" : file;
    int fd = standard ? STDIN_FILENO : open(file, O_RDONLY | O_CLOEXEC);
    int res = CLI_FAILED;

    *memfd = memfd_create("mcshm", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0 || *memfd < 0)
        fprintf(stderr, "mcshm: %s: %s\n", fd < 0 ? name : "memfd", strerror(errno));
    else
        res = copy(fd, name, *memfd, size);
    if (!standard && fd >= 0)
        close(fd);
    if (res != CLI_OK && *memfd >= 0)
        close(*memfd);
    return res;
}

static void report(const struct cli *cli, const mcshm_key *key, const mcshm_object_result *r,
                   bool stored)
{
    char *text = cli_key_text(key);

    if (cli->json) {
        cJSON *d = cJSON_CreateObject();
        char *line;

        cli_add_key(d, key);
        cJSON_AddBoolToObject(d, "stored", stored);
        cJSON_AddNumberToObject(d, "size", (double)r->size);
        cli_add_version(d, r->version);
        cli_add_crc(d, r->crc);
        cJSON_AddNumberToObject(d, "copies", r->copies);
        line = cJSON_PrintUnformatted(d);
        puts(line != NULL ? line : "{}");
        cJSON_free(line);
        cJSON_Delete(d);
    } else if (stored) {
        printf("%s: %llu bytes, version %llu, CRC32C 0x%08x, %u %s\n", text != NULL ? text : "?",
               (unsigned long long)r->size, (unsigned long long)r->version, r->crc, r->copies,
               r->copies == 1 ? "copy" : "copies");
    } else {
        printf("%s is there already, version %llu; --upsert replaces it\n",
               text != NULL ? text : "?", (unsigned long long)r->version);
    }
    free(text);
}

static int put(const struct cli *cli, struct cli_objects *o, const mcshm_key *key, int memfd,
               uint64_t size)
{
    mcshm_span span = {.size = size};
    uint32_t spans = size != 0;
    mcshm_object_request r = {
        .op = MCSHM_PUT,
        /* NEW in any case, to learn whether it was there */
        .flags = (cli->upsert ? MCSHM_OBJECT_UPSERT : MCSHM_OBJECT_NEW) |
                 (cli->hard_pin ? MCSHM_OBJECT_HARD_PIN : 0),
        .priority = MCSHM_CLASS_NORMAL,
        .keys = key,
        .count = 1,
        .spans = &span,
        .span_counts = &spans,
        .replicas = (uint32_t)cli->replicas,
        .soft_pin_ms = (uint32_t)cli->soft_pin_ms,
        .host = cli->host,
    };
    mcshm_object_result result;
    mcshm_task_status task;
    mcshm_status status;

    if (size != 0) {
        struct cli_memory memory;
        int res = cli_memory_register(o, memfd, size, &memory);

        if (res != CLI_OK)
            return res;
        span.address = memory.at;
        cli_memory_close(&memory);
    } else {
        close(memfd);
    }
    status = mcshm_objects(o->q, &r, &result, &task, -1);
    if (status != MCSHM_OK)
        return cli_error("the put failed", status, o->c);
    if (result.status != MCSHM_OK && (result.status != MCSHM_EXISTS || cli->only_new))
        return cli_key_error(key, result.status);
    report(cli, key, &result, result.status == MCSHM_OK);
    return CLI_OK;
}

/* HOST:PORT */
static bool is_address(const char *text)
{
    const char *colon = strrchr(text, ':');
    size_t digits = colon != NULL ? strspn(colon + 1, "0123456789") : 0;

    return digits != 0 && digits < 6 && colon[1 + digits] == '\0' && colon != text &&
           atoi(colon + 1) > 0 && atoi(colon + 1) < 65536;
}

int cli_put(const struct cli *cli, const char *word, const char *file)
{
    struct cli_objects o;
    mcshm_key key;
    uint64_t size;
    int memfd, res;

    if (cli->host != NULL && !is_address(cli->host)) {
        fprintf(stderr,
                "mcshm: --host wants HOST:PORT, as mcshm ls-objects names hosts, not '%s'\n",
                cli->host);
        return CLI_USAGE;
    }
    if (cli->upsert && cli->only_new) {
        fprintf(stderr, "mcshm: --upsert and --new exclude each other\n");
        return CLI_USAGE;
    }
    res = cli_key(cli, word, &key);
    if (res != CLI_OK)
        return res;
    res = read_value(file, &memfd, &size);
    if (res == CLI_OK) {
        res = cli_objects_open(cli, 0, &o);
        if (res == CLI_OK) {
            res = put(cli, &o, &key, memfd, size);
            cli_objects_close(&o);
        } else {
            close(memfd);
        }
    }
    free((void *)(uintptr_t)key.bytes);
    return res;
}

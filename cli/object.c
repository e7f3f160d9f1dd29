/* SPDX-License-Identifier: Apache-2.0 */
#include "object.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "table.h"

int cli_objects_open(const struct cli *cli, uint64_t args_size, struct cli_objects *out)
{
    mcshm_queue_options options = {.size = sizeof(options), .args_size = args_size};
    mcshm_status status;
    int res = cli_connect(cli, &out->c);

    if (res != CLI_OK)
        return res;
    status = mcshm_queue_open(out->c, &options, &out->q);
    if (status == MCSHM_OK)
        return CLI_OK;
    res = cli_error("no queue", status, out->c);
    mcshm_close(out->c);
    return res;
}

void cli_objects_close(struct cli_objects *o)
{
    (void)mcshm_queue_close(o->q);
    mcshm_close(o->c);
}

/* ---- keys ------------------------------------------------------------------------- */

static int digit(char c)
{
    static const char digits[] = "0123456789abcdef";
    const char *at = c != '\0' ? strchr(digits, tolower((unsigned char)c)) : NULL;

    return at != NULL ? (int)(at - digits) : -1;
}

static int bad_key(const char *word, const char *why)
{
    fprintf(stderr, "mcshm: key '%s' %s\n", word, why);
    return CLI_USAGE;
}

static int hex_key(const char *word, uint8_t *bytes, size_t *size)
{
    const char *from = strncmp(word, "0x", 2) == 0 ? word + 2 : word;
    size_t n = strlen(from);

    if (n % 2 != 0)
        return bad_key(word, "has an odd number of hexadecimal digits");
    for (size_t i = 0; i < n; i += 2) {
        int high = digit(from[i]), low = digit(from[i + 1]);

        if (high < 0 || low < 0)
            return bad_key(word, "is not hexadecimal");
        bytes[i / 2] = (uint8_t)(high << 4 | low);
    }
    *size = n / 2;
    return CLI_OK;
}

int cli_key(const struct cli *cli, const char *word, mcshm_key *out)
{
    size_t size = strlen(word);
    uint8_t *bytes = malloc(size + 1);
    int res = CLI_OK;

    *out = (mcshm_key){0};
    if (bytes == NULL) {
        fprintf(stderr, "mcshm: out of memory\n");
        return CLI_FAILED;
    }
    if (cli->hex)
        res = hex_key(word, bytes, &size);
    else
        memcpy(bytes, word, size + 1);
    if (res == CLI_OK && (size == 0 || size > MCSHM_KEY_MAX)) {
        fprintf(stderr, "mcshm: a key of %zu bytes: 1 to %d\n", size, MCSHM_KEY_MAX);
        res = CLI_USAGE;
    }
    if (res != CLI_OK) {
        free(bytes);
        return res;
    }
    *out = (mcshm_key){.bytes = bytes, .size = size};
    return CLI_OK;
}

static bool is_plain(const mcshm_key *key)
{
    const uint8_t *bytes = key->bytes;

    for (size_t i = 0; i < key->size; i++) {
        if (bytes[i] < 0x20 || bytes[i] > 0x7e)
            return false;
    }
    return true;
}

static char *hex_text(const mcshm_key *key, const char *before)
{
    const uint8_t *bytes = key->bytes;
    size_t at = strlen(before);
    char *text = malloc(at + 2 * key->size + 1);

    if (text == NULL)
        return NULL;
    memcpy(text, before, at + 1);
    for (size_t i = 0; i < key->size; i++)
        at += (size_t)sprintf(text + at, "%02x", bytes[i]);
    return text;
}

char *cli_key_text(const mcshm_key *key)
{
    return is_plain(key) ? strndup(key->bytes, key->size) : hex_text(key, "0x");
}

void cli_add_key(cJSON *o, const mcshm_key *key)
{
    bool plain = is_plain(key);
    char *text = plain ? cli_key_text(key) : hex_text(key, "");

    cJSON_AddStringToObject(o, plain ? "key" : "key_hex", text != NULL ? text : "");
    free(text);
}

void cli_add_crc(cJSON *o, uint32_t crc)
{
    char text[9];

    snprintf(text, sizeof(text), "%08x", crc);
    cJSON_AddStringToObject(o, "crc32c", text);
}

void cli_add_version(cJSON *o, uint64_t version)
{
    char text[24];

    snprintf(text, sizeof(text), "%llu", (unsigned long long)version);
    cJSON_AddRawToObject(o, "version", text);
}

const char *cli_key_says(mcshm_status status)
{
    return status == MCSHM_EXISTS      ? "exists already"
           : status == MCSHM_NOT_FOUND ? "no such object"
                                       : mcshm_strerror(status);
}

int cli_key_error(const mcshm_key *key, mcshm_status status)
{
    char *text = cli_key_text(key);

    fprintf(stderr, "mcshm: %s: %s\n", text != NULL ? text : "?", cli_key_says(status));
    free(text);
    return CLI_FAILED;
}

/* ---- memory ----------------------------------------------------------------------- */

int cli_memory_register(struct cli_objects *o, int fd, uint64_t size, struct cli_memory *out)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    mcshm_status status;

    *out = (struct cli_memory){.fd = fd, .size = size};
    if (ftruncate(fd, (off_t)((size + page - 1) / page * page)) != 0 ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
        fprintf(stderr, "mcshm: a memfd of %llu bytes: %s\n", (unsigned long long)size,
                strerror(errno));
        cli_memory_close(out);
        return CLI_FAILED;
    }
    status = mcshm_register_memfd(o->c, fd, size, &out->at);
    if (status == MCSHM_OK)
        return CLI_OK;
    cli_memory_close(out);
    return cli_error("no memory to copy through", status, o->c);
}

int cli_memory_make(struct cli_objects *o, uint64_t size, struct cli_memory *out)
{
    int fd = memfd_create("mcshm", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    if (fd < 0 || ftruncate(fd, (off_t)size) != 0) {
        fprintf(stderr, "mcshm: a memfd of %llu bytes: %s\n", (unsigned long long)size,
                strerror(errno));
        if (fd >= 0)
            close(fd);
        return CLI_FAILED;
    }
    return cli_memory_register(o, fd, size, out);
}

void cli_memory_close(struct cli_memory *m)
{
    close(m->fd);
    m->fd = -1;
}

int cli_write_all(int fd, const char *name, const void *bytes, uint64_t size)
{
    for (uint64_t at = 0; at < size;) {
        ssize_t n = write(fd, (const uint8_t *)bytes + at, size - at);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            fprintf(stderr, "mcshm: %s: %s\n", name, strerror(errno));
            return CLI_FAILED;
        }
        at += (uint64_t)n;
    }
    return CLI_OK;
}

/* ---- documents -------------------------------------------------------------------- */

int cli_print_fields(const struct cli *cli, char *text, cJSON *d)
{
    const cJSON *field;

    if (cli->json) {
        puts(text);
    } else {
        cJSON_ArrayForEach(field, d)
        {
            char *nested = NULL, value[256];

            if (cJSON_IsObject(field) || cJSON_IsArray(field))
                nested = cJSON_PrintUnformatted(field);
            else if (cJSON_IsBool(field))
                snprintf(value, sizeof(value), "%s", cJSON_IsTrue(field) ? "yes" : "no");
            else
                table_cell(value, sizeof(value), field, CELL_TEXT);
            printf("%-16s %s\n", field->string, nested != NULL ? nested : value);
            cJSON_free(nested);
        }
    }
    cJSON_Delete(d);
    free(text);
    return CLI_OK;
}

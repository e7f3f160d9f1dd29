/* SPDX-License-Identifier: Apache-2.0 */
/* Pool memory, asked for, written, read back and given away again: what an application would see. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cli.h"
#include "table.h"

#define SIZE (UINT64_C(64) << 20)

static uint64_t now_ns(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/* A word for each place, another one with each seed: pages that are mixed up are found out. */
static inline uint64_t word(uint64_t i, uint64_t seed)
{
    uint64_t x = (i + seed) * UINT64_C(0x9e3779b97f4a7c15);

    return x ^ x >> 29;
}

static void fill(uint64_t *p, uint64_t words, uint64_t seed)
{
    for (uint64_t i = 0; i < words; i++)
        p[i] = word(i, seed);
}

/* The first word that differs, or `words`. */
static uint64_t verify(const uint64_t *p, uint64_t words, uint64_t seed)
{
    for (uint64_t i = 0; i < words; i++)
        if (p[i] != word(i, seed))
            return i;
    return words;
}

struct result {
    uint64_t size, page_size, address, published;
    uint64_t alloc_ns, fill_ns, verify_ns, free_ns;
    int zeroed;
};

static double per_gib(uint64_t ns, uint64_t size)
{
    return (double)ns / 1e6 * (double)(UINT64_C(1) << 30) / (double)size;
}

static void print_json(const struct cli *cli, const struct result *r)
{
    cJSON *d = cJSON_CreateObject();
    char text[24], *out;

    cJSON_AddNumberToObject(d, "size", (double)r->size);
    cJSON_AddNumberToObject(d, "page_size", (double)r->page_size);
    if (cli->node != NULL)
        cJSON_AddNumberToObject(d, "node", strtod(cli->node, NULL));
    else
        cJSON_AddNullToObject(d, "node");
    snprintf(text, sizeof(text), "0x%llx", (unsigned long long)r->address);
    cJSON_AddStringToObject(d, "address", text);
    snprintf(text, sizeof(text), "0x%llx", (unsigned long long)r->published);
    cJSON_AddStringToObject(d, "published", text);
    cJSON_AddBoolToObject(d, "same_address", r->address == r->published);
    cJSON_AddNumberToObject(d, "alloc_ms_per_gib", per_gib(r->alloc_ns, r->size));
    cJSON_AddNumberToObject(d, "write_ms_per_gib", per_gib(r->fill_ns, r->size));
    cJSON_AddNumberToObject(d, "read_ms_per_gib", per_gib(r->verify_ns, r->size));
    cJSON_AddNumberToObject(d, "free_ms_per_gib", per_gib(r->free_ns, r->size));
    cJSON_AddBoolToObject(d, "verified", true);
    out = cJSON_PrintUnformatted(d);
    puts(out != NULL ? out : "{}");
    cJSON_free(out);
    cJSON_Delete(d);
}

static void print(const struct cli *cli, const struct result *r)
{
    cJSON *size = cJSON_CreateNumber((double)r->size);
    cJSON *page = cJSON_CreateNumber((double)r->page_size);
    char size_text[32], page_text[32];

    table_cell(size_text, sizeof(size_text), size, CELL_BYTES);
    table_cell(page_text, sizeof(page_text), page, CELL_BYTES);
    cJSON_Delete(size);
    cJSON_Delete(page);
    printf("%s of pool memory on NUMA node %s, pages of %s: every word written and read back\n",
           size_text, cli->node != NULL ? cli->node : "any", page_text);
    printf("address      0x%llx here, 0x%llx published: %s\n", (unsigned long long)r->address,
           (unsigned long long)r->published,
           r->address == r->published ? "equal" : "different, which costs nothing but convenience");
    printf("allocate     %.1f ms per GiB (%.3f ms)\n", per_gib(r->alloc_ns, r->size),
           (double)r->alloc_ns / 1e6);
    printf("write        %.1f ms per GiB\n", per_gib(r->fill_ns, r->size));
    printf("read back    %.1f ms per GiB\n", per_gib(r->verify_ns, r->size));
    printf("free         %.1f ms per GiB (%.3f ms)\n", per_gib(r->free_ns, r->size),
           (double)r->free_ns / 1e6);
}

static int write_and_verify(mcshm *c, void *p, struct result *r)
{
    uint64_t words = r->size / sizeof(uint64_t);
    mcshm_status status;
    uint64_t bad, t;

    for (uint64_t seed = 1; seed <= 2; seed++) { /* twice: a bit that stays as it is differs once */
        t = now_ns();
        fill(p, words, seed << 32);
        r->fill_ns = now_ns() - t;
        t = now_ns();
        bad = verify(p, words, seed << 32);
        r->verify_ns = now_ns() - t;
        if (bad != words) {
            fprintf(stderr,
                    "mcshm: byte %llu of %llu reads back as 0x%llx, written was 0x%llx: the memory "
                    "is broken, or somebody else writes there\n",
                    (unsigned long long)(bad * 8), (unsigned long long)r->size,
                    (unsigned long long)((uint64_t *)p)[bad],
                    (unsigned long long)word(bad, seed << 32));
            return CLI_FAILED;
        }
    }
    status = mcshm_buffer_publish(c, p, r->size, MCSHM_ACCESS_READ, &r->published);
    if (status != MCSHM_OK)
        return cli_error("cannot publish it", status, c);
    r->address = (uint64_t)(uintptr_t)p;
    return CLI_OK;
}

int cli_alloc_test(const struct cli *cli)
{
    struct result r = {.size = cli->size != 0 ? cli->size : SIZE};
    mcshm_status status;
    char location[32];
    mcshm_info info;
    mcshm *c = NULL;
    void *p = NULL;
    uint64_t t;
    int res;

    r.size &= ~UINT64_C(7);
    snprintf(location, sizeof(location), cli->node != NULL ? "cpu:%s" : "cpu", cli->node);
    res = cli_connect(cli, &c);
    if (res != CLI_OK)
        return res;
    t = now_ns();
    status = mcshm_alloc(c, r.size, 0, location, &p);
    r.alloc_ns = now_ns() - t;
    if (status != MCSHM_OK) {
        res = cli_error("no memory", status, c);
        goto out;
    }
    status = mcshm_get_info(c, &info);
    r.page_size = status == MCSHM_OK ? info.page_size : 0;
    res = write_and_verify(c, p, &r);
    if (res == CLI_OK && r.page_size < cli->pages) {
        fprintf(stderr,
                "mcshm: the pages are of %llu bytes, wanted were %llu: `mcshm doctor memory` tells "
                "which hugepages are free\n",
                (unsigned long long)r.page_size, (unsigned long long)cli->pages);
        res = CLI_FAILED;
    }
    t = now_ns();
    status = mcshm_free(c, p);
    r.free_ns = now_ns() - t;
    if (res == CLI_OK && status != MCSHM_OK)
        res = cli_error("cannot give it back", status, c);
    if (res == CLI_OK) {
        if (cli->json)
            print_json(cli, &r);
        else
            print(cli, &r);
    }
out:
    mcshm_close(c);
    return res;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A fuzzer's target without a fuzzer, for ordinary builds: every entry of its corpus, and inputs made
 * of those by chance. The seed is printed; FUZZ_SEED=n runs the same inputs again, FUZZ_ROUNDS=n more
 * of them. A test includes this after the target's source.
 */
#ifndef FUZZ_ROUNDS_H
#define FUZZ_ROUNDS_H

#include <dirent.h>
#include <time.h>

#include "input.h"

#define FUZZ_ENTRIES 512u
#define FUZZ_SIZE 4096u

struct fuzz_entry {
    char name[256];
    uint8_t data[FUZZ_SIZE];
    size_t size;
};

static struct fuzz_entry *fuzz_entries;
static unsigned fuzz_nentries;

/* Reads tests/fuzz/corpus/NAME; tests run in the tree's root. */
static void fuzz_load(const char *name)
{
    char path[600];
    struct dirent *e;
    DIR *d;

    snprintf(path, sizeof(path), "tests/fuzz/corpus/%s", name);
    d = opendir(path);
    fz_must(d != NULL, "%s: run this in the root of the tree", path);
    fuzz_entries = calloc(FUZZ_ENTRIES, sizeof(*fuzz_entries));
    fz_must(fuzz_entries != NULL, "no memory");
    while ((e = readdir(d)) != NULL && fuzz_nentries < FUZZ_ENTRIES) {
        struct fuzz_entry *to = &fuzz_entries[fuzz_nentries];
        FILE *f;

        if (e->d_name[0] == '.')
            continue;
        snprintf(to->name, sizeof(to->name), "%s", e->d_name);
        snprintf(path, sizeof(path), "tests/fuzz/corpus/%s/%s", name, e->d_name);
        f = fopen(path, "re");
        fz_must(f != NULL, "%s cannot be read", path);
        to->size = fread(to->data, 1, sizeof(to->data), f);
        fclose(f);
        fuzz_nentries++;
    }
    closedir(d);
    fz_must(fuzz_nentries != 0, "an empty corpus");
}

static uint64_t fuzz_state;

static uint32_t fuzz_roll(uint32_t below)
{
    fuzz_state ^= fuzz_state << 13;
    fuzz_state ^= fuzz_state >> 7;
    fuzz_state ^= fuzz_state << 17;
    return (uint32_t)(fuzz_state >> 32) % below;
}

/* Some changes, as fuzzers make them. */
static size_t fuzz_change(uint8_t *data, size_t size)
{
    for (unsigned n = 1 + fuzz_roll(8); n > 0; n--) {
        const struct fuzz_entry *other = &fuzz_entries[fuzz_roll(fuzz_nentries)];
        size_t at = fuzz_roll((uint32_t)size + 1), part = 1 + fuzz_roll(16);

        switch (fuzz_roll(6)) {
        case 0:
            if (at < size)
                data[at] = (uint8_t)fuzz_roll(256);
            break;
        case 1:
            if (at < size)
                data[at] ^= (uint8_t)(1u << fuzz_roll(8));
            break;
        case 2: /* leave some out */
            part = part < size - at ? part : size - at;
            memmove(data + at, data + at + part, size - at - part);
            size -= part;
            break;
        case 3: /* put some in */
            part = part < FUZZ_SIZE - size ? part : FUZZ_SIZE - size;
            memmove(data + at + part, data + at, size - at);
            for (size_t i = 0; i < part; i++)
                data[at + i] = (uint8_t)fuzz_roll(256);
            size += part;
            break;
        case 4: /* go on as another entry does */
            if (other->size == 0)
                break;
            part = fuzz_roll((uint32_t)other->size);
            size = at + (other->size - part < FUZZ_SIZE - at ? other->size - part : FUZZ_SIZE - at);
            memcpy(data + at, other->data + part, size - at);
            break;
        default:
            if (at + 4 <= size)
                memset(data + at, fuzz_roll(2) != 0 ? 0xff : 0, 1 + fuzz_roll(4));
            break;
        }
    }
    return size;
}

static void fuzz_corpus(const char *name)
{
    fuzz_load(name);
    for (unsigned i = 0; i < fuzz_nentries; i++)
        (void)LLVMFuzzerTestOneInput(fuzz_entries[i].data, fuzz_entries[i].size);
    fprintf(stderr, "%s: %u entries\n", name, fuzz_nentries);
    free(fuzz_entries);
    fuzz_nentries = 0;
}

static uint64_t fuzz_seed(void)
{
    const char *text = getenv("FUZZ_SEED");
    struct timespec ts;

    if (text != NULL)
        return strtoull(text, NULL, 0);
    clock_gettime(CLOCK_REALTIME, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static void fuzz_rounds(const char *name, unsigned rounds)
{
    static uint8_t data[FUZZ_SIZE];
    const char *text = getenv("FUZZ_ROUNDS");
    uint64_t seed = fuzz_seed();

    if (text != NULL)
        rounds = (unsigned)strtoul(text, NULL, 0);
    fprintf(stderr, "%s: %u rounds, FUZZ_SEED=%llu\n", name, rounds, (unsigned long long)seed);
    fuzz_load(name);
    fuzz_state = seed * UINT64_C(0x9e3779b97f4a7c15) | 1;
    for (unsigned i = 0; i < rounds; i++) {
        const struct fuzz_entry *e = &fuzz_entries[fuzz_roll(fuzz_nentries)];

        memcpy(data, e->data, e->size);
        (void)LLVMFuzzerTestOneInput(data, fuzz_change(data, e->size));
    }
    free(fuzz_entries);
    fuzz_nentries = 0;
}

#endif

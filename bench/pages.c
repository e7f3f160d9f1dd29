/* SPDX-License-Identifier: Apache-2.0 */
#include "pages.h"

#include "cleanup.h"

#include <stdio.h>

#define HUGE_SIZE (2u << 20)
#define HUGE_FOLDER "/sys/kernel/mm/hugepages/hugepages-2048kB/"

static int read_count(const char *path, unsigned long *out)
{
    FILE *f = fopen(path, "re");
    int n;

    if (f == NULL)
        return -1;
    n = fscanf(f, "%lu", out);
    fclose(f);
    return n == 1 ? 0 : -1;
}

static int write_count(const char *path, unsigned long value)
{
    FILE *f = fopen(path, "we");
    int ok;

    if (f == NULL)
        return -1;
    ok = fprintf(f, "%lu", value) > 0;
    return fclose(f) == 0 && ok ? 0 : -1;
}

void pages_prepare(uint64_t bytes, char *note, unsigned note_size)
{
    static const char all_path[] = HUGE_FOLDER "nr_hugepages";
    unsigned long need = (unsigned long)((bytes + HUGE_SIZE - 1) / HUGE_SIZE);
    unsigned long have = 0, all = 0, now = 0;

    if (read_count(HUGE_FOLDER "free_hugepages", &have) != 0 || read_count(all_path, &all) != 0) {
        snprintf(note, note_size, "this kernel has no 2 MiB hugepages");
        return;
    }
    if (have >= need) {
        snprintf(note, note_size, "hugepages that were free already");
        return;
    }
    if (write_count(all_path, all + need - have) != 0) {
        snprintf(note, note_size, "no right to reserve hugepages (run as root, or reserve %lu)",
                 need);
        return;
    }
    if (read_count(all_path, &now) == 0 && now > all)
        cleanup_add_count(all_path, now - all);
    if (now < all + need - have) {
        snprintf(note, note_size, "memory too scattered for %lu hugepages", need);
        return;
    }
    snprintf(note, note_size, "%lu hugepages reserved for this run", now - all);
}

void pages_name(uint64_t page_size, char *out, unsigned size)
{
    if (page_size >= (1u << 30))
        snprintf(out, size, "%u GiB hugepages", (unsigned)(page_size >> 30));
    else if (page_size >= (1u << 20))
        snprintf(out, size, "%u MiB hugepages", (unsigned)(page_size >> 20));
    else
        snprintf(out, size, "%u KiB pages", (unsigned)(page_size >> 10));
}

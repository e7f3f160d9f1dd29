/* SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "doctor.h"

#define DESCRIPTORS_A_SESSION 8u /* socket, pidfd, doorbell, region, a few queues and extents */
#define DESCRIPTORS_BESIDE 256u

struct pages {
    uint64_t reserved, free;
};

static bool read_pages(const struct doctor *d, const char *folder, uint64_t size, struct pages *out)
{
    unsigned long long kb = size >> 10;

    return doctor_read_number(d, &out->reserved, "%s/hugepages/hugepages-%llukB/nr_hugepages",
                              folder, kb) &&
           doctor_read_number(d, &out->free, "%s/hugepages/hugepages-%llukB/free_hugepages", folder,
                              kb);
}

/* " (node 0: 12 of 64 free, node 1: ...)", of nodes that have any. */
static void list_nodes(const struct doctor *d, uint64_t size, char *out, size_t room)
{
    size_t n = 0;

    out[0] = '\0';
    for (unsigned node = 0; node < 64 && n < room; node++) {
        char folder[64];
        struct pages p;

        snprintf(folder, sizeof(folder), "/sys/devices/system/node/node%u", node);
        if (!read_pages(d, folder, size, &p) || p.reserved == 0)
            continue;
        n += (size_t)snprintf(out + n, room - n, "%snode %u: %llu of %llu free",
                              n == 0 ? " (" : ", ", node, (unsigned long long)p.free,
                              (unsigned long long)p.reserved);
    }
    if (n != 0 && n < room - 1)
        snprintf(out + n, room - n, ")");
}

void doctor_check_hugepages(struct doctor *d)
{
    uint64_t size = doctor_setting_number(d, "pool.page_size", UINT64_C(2) << 20);
    uint64_t pool = doctor_setting_number(d, "pool.size", UINT64_C(1) << 30);
    const char *pages = doctor_setting(d, "pool.pages");
    bool require = strcmp(pages, "require") == 0;
    uint64_t want = (pool + size - 1) / size;
    uint64_t more = (doctor_setting_number(d, "store.size", UINT64_C(1) << 30) + size - 1) / size;
    uint64_t reserved;
    char nodes[200], text[32], remedy[256], other[32];
    struct pages p = {0};

    doctor_size(size, text, sizeof(text));
    if (!read_pages(d, "/sys/kernel/mm", size, &p)) {
        doctor_say(d, require ? DOCTOR_BAD : DOCTOR_WARN,
                   "set [pool] page_size to a size that the kernel has, or boot with hugepagesz=1G "
                   "hugepages=N for 1G pages",
                   "this kernel has no hugepages of %s", text);
        return;
    }
    list_nodes(d, size, nodes, sizeof(nodes));
    snprintf(remedy, sizeof(remedy),
             "scripts/hugepages/reserve.sh --size %s --count %llu (persist.sh for each boot)", text,
             (unsigned long long)want);
    if (strcmp(pages, "off") == 0)
        doctor_say(d, DOCTOR_NOTE, NULL,
                   "[pool] pages = off: the pool takes ordinary pages; %llu of %s"
                   " are reserved, %llu free%s",
                   (unsigned long long)p.reserved, text, (unsigned long long)p.free, nodes);
    else if (p.reserved < want)
        doctor_say(d, require ? DOCTOR_BAD : DOCTOR_WARN, remedy,
                   "%llu pages of %s are reserved, a whole pool takes %llu%s; %s",
                   (unsigned long long)p.reserved, text, (unsigned long long)want, nodes,
                   require ? "[pool] pages = require: the agent does not start"
                           : "the rest of it would be ordinary pages, which are slower");
    else if (p.free < want && d->agent_pid == 0)
        doctor_say(
            d, require ? DOCTOR_BAD : DOCTOR_WARN, remedy,
            "%llu of %llu pages of %s are free, a whole pool takes %llu%s: others have taken them",
            (unsigned long long)p.free, (unsigned long long)p.reserved, text,
            (unsigned long long)want, nodes);
    else
        doctor_say(d, DOCTOR_OK, NULL,
                   "%llu pages of %s reserved, %llu free, a whole pool takes %llu%s",
                   (unsigned long long)p.reserved, text, (unsigned long long)p.free,
                   (unsigned long long)want, nodes);
    reserved = p.reserved;
    size = size == UINT64_C(2) << 20 ? UINT64_C(1) << 30 : UINT64_C(2) << 20;
    if (read_pages(d, "/sys/kernel/mm", size, &p) && p.free != 0)
        doctor_say(d, DOCTOR_NOTE,
                   "release them with scripts/hugepages/release.sh, or set [pool] page_size",
                   "%llu pages of %s are reserved as well, and the agent takes none of them",
                   (unsigned long long)p.free, doctor_size(size, other, sizeof(other)));
    if (strcmp(pages, "off") != 0 && more != 0 && reserved < want + more)
        doctor_say(d, DOCTOR_NOTE, NULL, "a whole object store takes %llu more ([store] size); %s",
                   (unsigned long long)more,
                   require ? "what is missing, it has not, and evicts objects earlier"
                           : "what is missing would be ordinary pages");
}

uint64_t doctor_pool_and_store(const struct doctor *d)
{
    return doctor_setting_number(d, "pool.size", UINT64_C(1) << 30) +
           doctor_setting_number(d, "store.size", UINT64_C(1) << 30);
}

void doctor_check_memory(struct doctor *d)
{
    uint64_t pool = doctor_pool_and_store(d);
    char text[64], available_text[32], pool_text[32];
    uint64_t available;
    struct pages p = {0};
    uint64_t page = doctor_setting_number(d, "pool.page_size", UINT64_C(2) << 20);

    if (!doctor_read_field(d, "/proc/meminfo", "MemAvailable", text, sizeof(text))) {
        doctor_say(d, DOCTOR_NOTE, NULL, "/proc/meminfo cannot be read");
        return;
    }
    available = strtoull(text, NULL, 10) << 10;
    doctor_size(available, available_text, sizeof(available_text));
    if (strcmp(doctor_setting(d, "pool.pages"), "off") != 0 &&
        read_pages(d, "/sys/kernel/mm", page, &p))
        pool = pool > p.reserved * page ? pool - p.reserved * page : 0;
    doctor_size(pool, pool_text, sizeof(pool_text));
    if (d->agent_pid == 0 && pool > available)
        doctor_say(
            d, DOCTOR_WARN,
            "make [pool] size or [store] size smaller, or reserve hugepages at boot",
            "%s of ordinary memory are available, less than the %s that pool and object store may "
            "take of it",
            available_text, pool_text);
    else
        doctor_say(d, DOCTOR_OK, NULL,
                   "%s available beside hugepages, pool and object store may take %s of it",
                   available_text, pool_text);
}

void doctor_check_thp(struct doctor *d)
{
    char text[128], *mark;

    if (!doctor_read(d, text, sizeof(text), "/sys/kernel/mm/transparent_hugepage/shmem_enabled") ||
        (mark = strchr(text, '[')) == NULL) {
        doctor_say(d, DOCTOR_OK, NULL,
                   "this kernel has none; only the pool's ordinary pages would gain");
        return;
    }
    mark++;
    mark[strcspn(mark, "]")] = '\0';
    if (strcmp(mark, "never") == 0 || strcmp(mark, "deny") == 0)
        doctor_say(d, DOCTOR_NOTE,
                   "echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled, if the pool "
                   "has to do "
                   "without reserved hugepages",
                   "shmem_enabled is %s: a pool without reserved hugepages has pages of 4K", mark);
    else
        doctor_say(d, DOCTOR_OK, NULL, "shmem_enabled is %s", mark);
}

/* The hard or soft column of a line of /proc/PID/limits, of the agent where there is one. */
bool doctor_read_limit(const struct doctor *d, const char *name, bool hard, uint64_t *out,
                       const char **whose)
{
    char text[4096], soft_text[32], hard_text[32];
    const char *line, *value;
    bool found = false;

    *whose = "this shell's";
    if (d->agent_pid != 0) {
        found = doctor_read(d, text, sizeof(text), "/proc/%u/limits", d->agent_pid);
        if (found)
            *whose = "the agent's";
    }
    if (!found && !doctor_read(d, text, sizeof(text), "/proc/self/limits"))
        return false;
    line = strstr(text, name);
    if (line == NULL || sscanf(line + strlen(name), "%31s %31s", soft_text, hard_text) != 2)
        return false;
    value = hard ? hard_text : soft_text;
    *out = strcmp(value, "unlimited") == 0 ? UINT64_MAX : strtoull(value, NULL, 10);
    return true;
}

void doctor_check_memlock(struct doctor *d)
{
    const char *whose, *peer = doctor_setting(d, "peer.listen");
    bool alone = peer[0] == '\0' || strcmp(peer, "off") == 0;
    char text[32];
    uint64_t v;

    if (!doctor_read_limit(d, "Max locked memory", false, &v, &whose)) {
        doctor_say(d, DOCTOR_NOTE, NULL, "/proc/self/limits cannot be read");
        return;
    }
    doctor_size(v, text, sizeof(text));
    if (v == UINT64_MAX || alone)
        doctor_say(d, DOCTOR_OK, NULL, "%s limit is %s%s", whose, text,
                   v == UINT64_MAX ? "" : "; transfers of one host lock nothing");
    else
        doctor_say(
            d, v < UINT64_C(64) << 20 ? DOCTOR_WARN : DOCTOR_NOTE,
            "LimitMEMLOCK=infinity in the agent's unit, or ulimit -l unlimited before it",
            "%s limit is %s: sends without a copy between hosts pin what they send, and beyond it "
            "are copied",
            whose, text);
}

void doctor_check_nofile(struct doctor *d)
{
    uint64_t sessions = doctor_setting_number(d, "session.max", 1024);
    uint64_t want = sessions * DESCRIPTORS_A_SESSION + DESCRIPTORS_BESIDE, v;
    const char *whose;

    if (!doctor_read_limit(d, "Max open files", true, &v, &whose)) {
        doctor_say(d, DOCTOR_NOTE, NULL, "/proc/self/limits cannot be read");
        return;
    }
    if (v < want)
        doctor_say(d, DOCTOR_WARN,
                   "LimitNOFILE=1048576 in the agent's unit, or ulimit -Hn before it",
                   "%s hard limit is %llu; %llu sessions take about %llu", whose,
                   (unsigned long long)v, (unsigned long long)sessions, (unsigned long long)want);
    else
        doctor_say(d, DOCTOR_OK, NULL, "%s hard limit is %llu; %llu sessions take about %llu",
                   whose, (unsigned long long)v, (unsigned long long)sessions,
                   (unsigned long long)want);
}

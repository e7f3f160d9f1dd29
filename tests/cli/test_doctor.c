/* SPDX-License-Identifier: Apache-2.0 */
/* The doctor's checks on trees of made-up files. */
#include "cli/doctor_cgroup.c"
#include "cli/doctor_cpu.c"
#include "cli/doctor_memory.c"
#include "cli/doctor_read.c"

#include "doctor_tree.h"

TestSuite(doctor, .init = begin, .fini = end);

static void hugepages(const char *folder, const char *size, const char *nr, const char *unused)
{
    char path[256];

    snprintf(path, sizeof(path), "%s/hugepages/hugepages-%s/nr_hugepages", folder, size);
    put(path, nr);
    snprintf(path, sizeof(path), "%s/hugepages/hugepages-%s/free_hugepages", folder, size);
    put(path, unused);
}

Test(doctor, hugepages_against_the_pool)
{
    expect(doctor_check_hugepages, 0, DOCTOR_WARN, "no hugepages of 2M");
    hugepages("/sys/kernel/mm", "2048kB", "512\n", "512\n");
    hugepages("/sys/devices/system/node/node0", "2048kB", "512\n", "512\n");
    hugepages("/sys/devices/system/node/node1", "2048kB", "0\n", "0\n");
    expect(doctor_check_hugepages, 0, DOCTOR_OK, "(node 0: 512 of 512 free)");
    expect(doctor_check_hugepages, 1, DOCTOR_NOTE, "object store takes 512 more");
    hugepages("/sys/kernel/mm", "2048kB", "512\n", "100\n");
    expect(doctor_check_hugepages, 0, DOCTOR_WARN, "100 of 512 pages of 2M are free");
    d.agent_pid = 7; /* who has them */
    expect(doctor_check_hugepages, 0, DOCTOR_OK, "100 free");
    d.agent_pid = 0;
    hugepages("/sys/kernel/mm", "2048kB", "511\n", "511\n");
    expect(doctor_check_hugepages, 0, DOCTOR_WARN,
           "511 pages of 2M are reserved, a whole pool takes 512");
    set("pool.pages", "require");
    expect(doctor_check_hugepages, 0, DOCTOR_BAD, "does not start");
    cr_assert_not_null(strstr(d.findings[0].remedy, "--size 2M --count 512"), "%s",
                       d.findings[0].remedy);
    set("pool.page_size", "1073741824");
    expect(doctor_check_hugepages, 0, DOCTOR_BAD, "no hugepages of 1G");
    hugepages("/sys/kernel/mm", "1048576kB", "1\n", "1\n");
    expect(doctor_check_hugepages, 0, DOCTOR_OK, "1 pages of 1G");
    expect(doctor_check_hugepages, 1, DOCTOR_NOTE, "511 pages of 2M are reserved as well");
}

Test(doctor, hugepages_are_not_missed_where_none_are_wanted)
{
    set("pool.pages", "off");
    hugepages("/sys/kernel/mm", "2048kB", "0", "0");
    expect(doctor_check_hugepages, 0, DOCTOR_NOTE, "pages = off");
}

Test(doctor, ordinary_memory)
{
    put("/proc/meminfo", "MemTotal:       8000000 kB\nMemAvailable:    900000 kB\n");
    expect(doctor_check_memory, 0, DOCTOR_WARN, "878.9M of ordinary memory");
    hugepages("/sys/kernel/mm", "2048kB", "512", "512"); /* then the pool takes none of it */
    expect(doctor_check_memory, 0, DOCTOR_WARN, "less than the 1G that pool and object store");
    set("store.size", "104857600");
    expect(doctor_check_memory, 0, DOCTOR_OK, "878.9M");
}

static const char limits[] =
    "Limit                     Soft Limit           Hard Limit           Units     \n"
    "Max open files            1024                 4096                 files     \n"
    "Max locked memory         8388608              unlimited            bytes     \n";

Test(doctor, limits_of_the_agent_or_of_the_shell)
{
    put("/proc/self/limits", limits);
    expect(doctor_check_nofile, 0, DOCTOR_WARN, "this shell's hard limit is 4096");
    set("session.max", "64");
    expect(doctor_check_nofile, 0, DOCTOR_OK, "4096; 64 sessions");
    expect(doctor_check_memlock, 0, DOCTOR_OK, "8M; transfers of one host lock nothing");
    set("peer.listen", "0.0.0.0:9420");
    expect(doctor_check_memlock, 0, DOCTOR_WARN, "limit is 8M");
    put("/proc/77/limits",
        "Max locked memory         unlimited            unlimited            bytes\n");
    d.agent_pid = 77;
    expect(doctor_check_memlock, 0, DOCTOR_OK, "the agent's limit is unlimited");
}

Test(doctor, cgroup_v2_the_narrowest_counts)
{
    expect(doctor_check_cgroup_memory, 0, DOCTOR_OK, "no limit"); /* no cgroups at all */
    put("/proc/self/cgroup", "0::/kubepods/pod1/ctr\n");
    put("/sys/fs/cgroup/kubepods/pod1/ctr/memory.max", "max\n");
    put("/sys/fs/cgroup/kubepods/pod1/memory.max", "536870912\n");
    put("/sys/fs/cgroup/kubepods/memory.max", "4294967296\n");
    expect(doctor_check_cgroup_memory, 0, DOCTOR_WARN, "/kubepods/pod1/memory.max is 512M");
    put("/sys/fs/cgroup/kubepods/pod1/memory.max", "8589934592\n");
    expect(doctor_check_cgroup_memory, 0, DOCTOR_OK, "/kubepods/memory.max is 4G");
    put("/sys/fs/cgroup/kubepods/memory.max", "67108864\n");
    expect(doctor_check_cgroup_memory, 0, DOCTOR_BAD, "is 64M");
    put("/sys/fs/cgroup/kubepods/pod1/ctr/hugetlb.2MB.max", "0\n");
    expect(doctor_check_cgroup_hugetlb, 0, DOCTOR_WARN, "hugetlb.2MB.max is 0B");
    set("pool.pages", "require");
    expect(doctor_check_cgroup_hugetlb, 0, DOCTOR_BAD, "however many pages are free");
    put("/sys/fs/cgroup/kubepods/pod1/ctr/hugetlb.2MB.max", "max\n");
    expect(doctor_check_cgroup_hugetlb, 0, DOCTOR_OK, "no limit");
    expect(doctor_check_cgroup_cpu, 0, DOCTOR_OK, "no limit");
    put("/sys/fs/cgroup/kubepods/pod1/ctr/cpu.max", "max 100000\n");
    put("/sys/fs/cgroup/kubepods/cpu.max", "250000 100000\n");
    expect(doctor_check_cgroup_cpu, 0, DOCTOR_WARN, "the time of 2.50 cores");
}

Test(doctor, cgroup_v2_inside_a_container)
{
    put("/proc/self/cgroup", "0::/\n"); /* its own namespace */
    put("/sys/fs/cgroup/memory.max", "268435456\n");
    expect(doctor_check_cgroup_memory, 0, DOCTOR_WARN, "/sys/fs/cgroup/memory.max is 256M");
    put("/proc/self/cgroup", "0::/system.slice/docker-1.scope\n"); /* the host's, and not mounted */
    expect(doctor_check_cgroup_memory, 0, DOCTOR_WARN, "/sys/fs/cgroup/memory.max is 256M");
}

Test(doctor, cgroup_v1)
{
    put("/proc/self/cgroup", "5:hugetlb:/x\n4:cpu,cpuacct:/x\n3:memory:/x/y\n1:name=systemd:/z\n");
    put("/sys/fs/cgroup/memory/x/y/memory.limit_in_bytes", "9223372036854771712\n");
    expect(doctor_check_cgroup_memory, 0, DOCTOR_OK, "no limit");
    put("/sys/fs/cgroup/memory/x/memory.limit_in_bytes", "1073741824\n");
    expect(doctor_check_cgroup_memory, 0, DOCTOR_WARN, "/memory/x/memory.limit_in_bytes is 1G");
    put("/sys/fs/cgroup/hugetlb/x/hugetlb.2MB.limit_in_bytes", "2097152\n");
    expect(doctor_check_cgroup_hugetlb, 0, DOCTOR_WARN, "is 2M, less than the pool's 1G");
    put("/sys/fs/cgroup/cpu/x/cpu.cfs_quota_us", "-1\n");
    put("/sys/fs/cgroup/cpu/x/cpu.cfs_period_us", "100000\n");
    expect(doctor_check_cgroup_cpu, 0, DOCTOR_OK, "no limit");
    put("/sys/fs/cgroup/cpu/x/cpu.cfs_quota_us", "50000\n");
    expect(doctor_check_cgroup_cpu, 0, DOCTOR_WARN, "0.50 cores");
}

Test(doctor, cores_allowed_isolated_and_their_governor)
{
    expect(doctor_check_cores, 0, DOCTOR_NOTE, "does not tell");
    put("/proc/self/status", "Name:\tx\nCpus_allowed:\tff\nCpus_allowed_list:\t0-3,8\n");
    expect(doctor_check_cores, 0, DOCTOR_OK, "1 of the 5 cores");
    set("engine.cores", "2,8");
    set("engine.idle", "busy");
    expect(doctor_check_cores, 0, DOCTOR_OK, "2 of the 5 cores");
    expect(doctor_check_isolation, 0, DOCTOR_WARN, "2 of 2 engine cores");
    put("/sys/devices/system/cpu/isolated", "2\n");
    expect(doctor_check_isolation, 0, DOCTOR_WARN, "1 of 2 engine cores");
    put("/sys/devices/system/cpu/nohz_full", "8\n");
    expect(doctor_check_isolation, 0, DOCTOR_OK, "isolated");
    expect(doctor_check_governor, 0, DOCTOR_OK, "does not set");
    put("/sys/devices/system/cpu/cpu2/cpufreq/scaling_governor", "performance\n");
    put("/sys/devices/system/cpu/cpu8/cpufreq/scaling_governor", "powersave\n");
    expect(doctor_check_governor, 0, DOCTOR_WARN, "core 8 has the governor powersave");
    put("/sys/devices/system/cpu/cpu8/cpufreq/scaling_governor", "performance\n");
    expect(doctor_check_governor, 0, DOCTOR_OK, "performance");
    put("/proc/self/status", "Cpus_allowed_list:\t0-2\n");
    expect(doctor_check_cores, 0, DOCTOR_BAD, "core 8, which is not in the set");
    put("/proc/self/status", "Cpus_allowed_list:\t2,8\n");
    expect(doctor_check_cores, 0, DOCTOR_WARN, "2 cores are allowed, 2 are engines'");
}

Test(doctor, nodes_and_clock)
{
    expect(doctor_check_numa, 0, DOCTOR_OK, "knows no nodes");
    put("/sys/devices/system/node/online", "0-1\n");
    expect(doctor_check_numa, 0, DOCTOR_OK, "2 nodes");
    expect(doctor_check_clock, 0, DOCTOR_NOTE, "does not tell");
    put("/sys/devices/system/clocksource/clocksource0/current_clocksource", "tsc\n");
    put("/proc/cpuinfo", "processor\t: 0\nflags\t\t: fpu tsc constant_tsc nonstop_tsc\n");
    expect(doctor_check_clock, 0, DOCTOR_OK, "tsc");
    put("/proc/cpuinfo", "processor\t: 0\nflags\t\t: fpu tsc\n");
    expect(doctor_check_clock, 0, DOCTOR_WARN, "constant rate");
    put("/proc/cpuinfo", "processor\t: 0\nFeatures\t: fp asimd\n"); /* not an x86 */
    put("/sys/devices/system/clocksource/clocksource0/current_clocksource", "hpet\n");
    expect(doctor_check_clock, 0, DOCTOR_WARN, "hpet");
}

Test(doctor, lists_of_cores)
{
    static const char *const bad[] = {"a",    "1-",      "-1",  "3-1", "1,,2",
                                      "1024", "0-99999", "1;2", " 1"};
    struct cpu_set_bits s;

    cr_assert(doctor_parse_list("0-3,8,1023", &s));
    cr_assert_eq(doctor_count_cpus(&s), 6u);
    cr_assert(doctor_has_cpu(&s, 1023) && !doctor_has_cpu(&s, 4) && !doctor_has_cpu(&s, 5000));
    cr_assert(doctor_parse_list("", &s));
    cr_assert_eq(doctor_count_cpus(&s), 0u);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        cr_assert_not(doctor_parse_list(bad[i], &s), "taken: %s", bad[i]);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `mcshm doctor`: checks of the host an agent runs on, or is to run on.  Each check is one function in
 * one table (doctor.c); it looks at files below `root`, at the agent's settings, or tries something out,
 * and says what it found, with a remedy where there is something to be done.
 */
#ifndef DOCTOR_H
#define DOCTOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cli.h"

enum severity { DOCTOR_OK, DOCTOR_NOTE, DOCTOR_WARN, DOCTOR_BAD };

struct finding {
    enum severity severity;
    const char *area, *check; /* static */
    char what[800];
    char remedy[400]; /* "": nothing is to be done */
};

/* One line of the agent's configuration. */
struct setting {
    char key[64]; /* "pool.size" */
    char value[256];
};

struct doctor {
    const struct cli *cli;
    const char *root; /* "" for the real files; tests have trees of their own */
    char socket[256];
    uint32_t agent_pid; /* of the one that serves the socket and is seen here; 0: none */
    struct setting *settings;
    size_t nsettings;
    bool default_settings;    /* they are the agent's defaults: there is no file */
    const char *area, *check; /* that runs */
    struct finding *findings;
    size_t nfindings;
};

/* One finding of the check that runs. remedy: a text, or NULL. */
void doctor_say(struct doctor *d, enum severity severity, const char *remedy, const char *format,
                ...) __attribute__((format(printf, 4, 5)));

/* ---- doctor_read.c ---------------------------------------------------------------- */

/* The first bytes of a file below root, without its last newline; false when it cannot be read. */
bool doctor_read(const struct doctor *d, char *out, size_t size, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* The same for a number; "max" and "unlimited" are UINT64_MAX. */
bool doctor_read_number(const struct doctor *d, uint64_t *out, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* The value of a "Name: value" line, such as those of /proc/self/status. */
bool doctor_read_field(const struct doctor *d, const char *path, const char *name, char *out,
                       size_t size);

#define DOCTOR_CPUS 1024u
struct cpu_set_bits {
    uint64_t bits[DOCTOR_CPUS / 64];
};
/* "0-3,8"; false when it is no such list. */
bool doctor_parse_list(const char *text, struct cpu_set_bits *out);
bool doctor_has_cpu(const struct cpu_set_bits *s, unsigned cpu);
unsigned doctor_count_cpus(const struct cpu_set_bits *s);

/* "64K", "2M", "1G" of bytes. */
const char *doctor_size(uint64_t bytes, char *out, size_t size);

/* ---- doctor_config.c --------------------------------------------------------------- */

/* The agent's settings: what mcshmd makes of the file, or of none. Says what is wrong with it. */
void doctor_load_settings(struct doctor *d);
/* "" when it is not known. */
const char *doctor_setting(const struct doctor *d, const char *key);
/* A size or number; `otherwise` when it is not known. */
uint64_t doctor_setting_number(const struct doctor *d, const char *key, uint64_t otherwise);

/* doctor_memory.c: bytes that pool and object store may take. */
uint64_t doctor_pool_and_store(const struct doctor *d);

/* doctor_memory.c: a line of the agent's limits, of this process's where there is none; hard: its third column.
 * *whose: "the agent's" or so. */
bool doctor_read_limit(const struct doctor *d, const char *name, bool hard, uint64_t *out,
                       const char **whose);

/* ---- doctor_user.c ----------------------------------------------------------------- */

struct doctor_user { /* who opens a device */
    unsigned uid, gid;
    char groups[1024]; /* numbers, each with a blank before and after */
    uint64_t capabilities;
    const char *whose; /* "the agent" or "this user" */
};

struct stat;

bool doctor_user_read(const struct doctor *d, struct doctor_user *out);
bool doctor_may_open(const struct doctor_user *u, const struct stat *st);
/* Has the agent a /dev of its own, without the file ("/dev/...")? Not known (false) to those who may not look into it. */
bool doctor_hidden_from_agent(const struct doctor *d, const char *file);

/* ---- checks ------------------------------------------------------------------------ */

void doctor_check_config(struct doctor *d);

/* doctor_read.c: asks the agent that serves the socket. The answer is the caller's; NULL: there is no agent, or it cannot be
 * asked for its `nouns`, which is said. */
cJSON *doctor_ask_agent(struct doctor *d, mcshm_query_what what, const char *nouns);

/* doctor_memory.c */
void doctor_check_hugepages(struct doctor *d);
void doctor_check_memory(struct doctor *d);
void doctor_check_thp(struct doctor *d);
void doctor_check_memlock(struct doctor *d);
void doctor_check_nofile(struct doctor *d);
/* doctor_cgroup.c */
void doctor_check_cgroup_memory(struct doctor *d);
void doctor_check_cgroup_hugetlb(struct doctor *d);
void doctor_check_cgroup_cpu(struct doctor *d);
/* doctor_cpu.c */
void doctor_check_numa(struct doctor *d);
void doctor_check_cores(struct doctor *d);
void doctor_check_isolation(struct doctor *d);
void doctor_check_governor(struct doctor *d);
void doctor_check_clock(struct doctor *d);
/* doctor_kernel.c */
void doctor_check_memfd(struct doctor *d);
void doctor_check_hugetlb(struct doctor *d);
void doctor_check_populate(struct doctor *d);
void doctor_check_membarrier(struct doctor *d);
void doctor_check_uring(struct doctor *d);
void doctor_check_pidfd(struct doctor *d);
void doctor_check_rights(struct doctor *d);
/* doctor_host.c */
void doctor_check_container(struct doctor *d);
void doctor_check_seccomp(struct doctor *d);
/* doctor_rdma.c: is RDMA worth a look where nobody asks for it? Where it is required, or there are devices for it. */
bool doctor_wants_rdma(const struct doctor *d);
void doctor_check_rdma_use(struct doctor *d);
void doctor_check_rdma_kernel(struct doctor *d);
void doctor_check_rdma_devices(struct doctor *d);
void doctor_check_rdma_ports(struct doctor *d);
void doctor_check_rdma_numa(struct doctor *d);
void doctor_check_rdma_gpus(struct doctor *d);
void doctor_check_rdma_memlock(struct doctor *d);
void doctor_check_rdma_agent(struct doctor *d);
/* What there is to say of the agent's answer to MCSHM_QUERY_NICS. */
void doctor_check_rdma_nics(struct doctor *d, const cJSON *answer);
/* doctor_peer.c: bytes to a peer that serves and back. OK: they were right and went over RDMA; WARN: another way. Adds
 * what it found to `out`, and prints it unless JSON is wanted. */
enum severity doctor_peer(const struct doctor *d, const char *peer, cJSON *out);
/* The other side of it: until a signal; an enum cli_exit. */
int doctor_serve(const struct doctor *d);
/* doctor_gpu.c: is a GPU worth a look where nobody asks for it? Where one is required, or a driver's files are there. */
bool doctor_wants_gpu(const struct doctor *d);
void doctor_check_gpu_use(struct doctor *d);
void doctor_check_gpu_files(struct doctor *d);
void doctor_check_gpu_devices(struct doctor *d);
void doctor_check_gpu_visible(struct doctor *d);
void doctor_check_gpu_agent(struct doctor *d);
/* What there is to say of the agent's answer to MCSHM_QUERY_GPUS. */
void doctor_check_gpu_answer(struct doctor *d, const cJSON *answer);
/* doctor_agent.c */
void doctor_check_path(struct doctor *d);
void doctor_check_alive(struct doctor *d);
void doctor_check_others(struct doctor *d);
/* doctor_cluster.c */
void doctor_check_metadata(struct doctor *d);

#endif

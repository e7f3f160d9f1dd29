/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The agent's configuration: one ini file, every key described in one table (config.c)
 * from which parsing, --check-config, --dump-config and the sample file are made.
 */
#ifndef MCD_CONFIG_H
#define MCD_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum mcd_pages { MCD_PAGES_PREFER, MCD_PAGES_REQUIRE, MCD_PAGES_OFF };
enum mcd_idle { MCD_IDLE_SLEEP, MCD_IDLE_BUSY };
enum mcd_unmapped { MCD_UNMAPPED_REFUSE, MCD_UNMAPPED_SHARE };
enum mcd_admin_mode { MCD_ADMIN_BEST_EFFORT, MCD_ADMIN_REQUIRED, MCD_ADMIN_OFF };
enum mcd_gpu_enable { MCD_GPU_AUTO, MCD_GPU_OFF, MCD_GPU_REQUIRE };
enum mcd_rdma_enable { MCD_RDMA_AUTO, MCD_RDMA_OFF, MCD_RDMA_REQUIRE };

#define MCD_TEXT_MAX 256
#define MCD_STORE_EXTENTS_MAX 768u /* each takes descriptors, also of who keeps them */
#define MCD_TENANTS_MAX 64u        /* sections [tenant:NAME] */
#define MCD_TENANT_NAME_MAX 32u

/* [tenant:NAME]: who belongs to it and what it may have; rule.c. */
struct mcd_tenant_rule {
    char name[MCD_TENANT_NAME_MAX]; /* "": [tenant], each user that no rule names */
    char uids[MCD_TEXT_MAX], gids[MCD_TEXT_MAX];
    uint64_t weight;
    /* 0: no limit of its own */
    uint64_t memory, sessions, queues, tasks, batches, rate, store;
};

struct mcd_config {
    char socket[MCD_TEXT_MAX];
    uint64_t socket_mode, unmapped_users; /* octal; enum mcd_unmapped */
    uint64_t log_level;                   /* enum mcd_log_level */
    uint64_t barrier_ms, recovery_s;
    uint64_t pool_size; /* bytes */
    uint64_t pages;     /* enum mcd_pages */
    uint64_t page_size; /* bytes */
    uint64_t extent_size;
    uint64_t address_base;
    char cores[MCD_TEXT_MAX];
    uint64_t idle; /* enum mcd_idle */
    uint64_t spin_us;
    uint64_t slice; /* bytes */
    uint64_t queue_depth;
    uint64_t queue_slots;
    uint64_t queue_batches;
    uint64_t queue_args_size;
    uint64_t queues_per_session;
    uint64_t sessions;
    uint64_t max_allocs;
    uint64_t inbox_size;
    uint64_t caller_max;
    uint64_t stream_min;
    char peer_listen[MCD_TEXT_MAX], peer_advertise[MCD_TEXT_MAX];
    uint64_t peer_auth; /* enum mcd_wire_method */
    char psk_file[MCD_TEXT_MAX], tls_cert[MCD_TEXT_MAX], tls_key[MCD_TEXT_MAX];
    char tls_ca[MCD_TEXT_MAX];
    uint64_t allow_insecure, require_encryption; /* 0 no, 1 yes */
    uint64_t connect_ms, ping_ms, dead_ms, down_ms, open_ms, peers_max;
    uint64_t meta_backend; /* enum mcm_backend */
    char meta_endpoints[MCD_TEXT_MAX], meta_prefix[MCD_TEXT_MAX];
    uint64_t meta_ttl_s, meta_timeout_ms;
    char meta_user[MCD_TEXT_MAX], meta_password_file[MCD_TEXT_MAX];
    char meta_ca[MCD_TEXT_MAX], meta_cert[MCD_TEXT_MAX], meta_key[MCD_TEXT_MAX];
    char tcp_rails[MCD_TEXT_MAX];
    uint64_t tcp_connections, tcp_slice, tcp_window; /* bytes */
    uint64_t tcp_checksum;                           /* 0 on, 1 off */
    uint64_t zero_copy_min;                          /* bytes; 0 never */
    uint64_t rdma_enable;                            /* enum mcd_rdma_enable */
    char rdma_devices[MCD_TEXT_MAX], rdma_deny[MCD_TEXT_MAX];
    char rdma_gid_index[MCD_TEXT_MAX]; /* mcd_config_gid_index() */
    uint64_t rdma_queue_pairs, rdma_depth, rdma_cq_depth, rdma_inline, rdma_reads;
    uint64_t rdma_slice, rdma_window, rdma_chunk; /* bytes */
    uint64_t rdma_timeout, rdma_retries;
    uint64_t rdma_mtu; /* 0 auto, else 128 << it bytes */
    uint64_t rdma_traffic_class, rdma_service_level, rdma_silent_ms;
    uint64_t rdma_fallback;             /* 0 yes, 1 no */
    uint64_t gpu_enable;                /* enum mcd_gpu_enable */
    uint64_t gpu_size, gpu_extent_size; /* bytes */
    uint64_t gpu_staging;               /* bytes of an engine */
    uint64_t gpu_streams, gpu_call_s;
    char mooncake_listen[MCD_TEXT_MAX], mooncake_advertise[MCD_TEXT_MAX];
    char mooncake_metadata[MCD_TEXT_MAX], mooncake_cluster[MCD_TEXT_MAX];
    uint64_t mooncake_connections;
    uint64_t store_size, store_extent_size; /* bytes */
    uint64_t store_objects, store_keys;
    char store_policy[MCD_TEXT_MAX];
    uint64_t store_high, store_low; /* percent */
    uint64_t store_checksum;        /* 0 on, 1 off */
    uint64_t store_verify;          /* enum mcd_store_verify */
    uint64_t store_lease_ms, store_holds;
    char store_master[MCD_TEXT_MAX], store_domain[MCD_TEXT_MAX];
    uint64_t store_beat_ms, store_away_ms, store_gone_ms, store_rebuild_ms, store_put_ms;
    char store_disk[MCD_TEXT_MAX];
    uint64_t store_disk_size;
    uint64_t store_events; /* bytes */
    uint64_t deadline_ms;
    char listen[MCD_TEXT_MAX];
    uint64_t admin_mode;                                 /* enum mcd_admin_mode */
    uint64_t admin_events;                               /* 0 off, 1 on */
    struct mcd_tenant_rule tenants[1 + MCD_TENANTS_MAX]; /* [tenant], then the others in order */
    uint64_t ntenants;                                   /* of the others */
};

/* Defaults. */
void mcd_config_init(struct mcd_config *c);

/* Reads a file over what is there. On a failure writes one sentence to `error`: section,
 * key, value and range. -ENOENT, -EINVAL. */
int mcd_config_load(struct mcd_config *c, const char *path, char *error, size_t error_size);

/* One "section.key=value", as from --set. */
int mcd_config_set(struct mcd_config *c, const char *assignment, char *error, size_t error_size);

/* What holds between keys. */
int mcd_config_check(const struct mcd_config *c, char *error, size_t error_size);

/* [rdma] gid_index: -1 auto; -2: it is neither that nor a number of the table. */
int mcd_config_gid_index(const struct mcd_config *c);

/* Takes over what may change while the agent runs; returns how many keys did. `told` is called with
 * the name of each key that differs ("task.deadline_ms") and whether it was taken over. */
unsigned mcd_config_adopt(struct mcd_config *to, const struct mcd_config *from,
                          void (*told)(void *context, const char *key, bool changed),
                          void *context);

/* The configuration in force, as an ini file. */
void mcd_config_dump(const struct mcd_config *c, FILE *out);
/* Every key with help, unit, range and default: etc/mcshmd.ini. */
void mcd_config_sample(FILE *out);
/* The keys as sections of a manual page, in roff. */
void mcd_config_man(FILE *out);
/* Text as it stands, with what roff would read as its own escaped. */
void mcd_config_man_text(const char *text, FILE *out);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which entry of a port's GID table an agent uses: the address its queue pairs are reached at.  Pure:
 * what there is comes in (sysfs.h reads it), the choice and the reason for it go out.  Any thread.
 */
#ifndef MCT_GID_H
#define MCT_GID_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MCT_GID_NETDEV_MAX 32u
#define MCT_GID_WHY_MAX 320u
#define MCT_GID_TEXT_MAX 46u  /* INET6_ADDRSTRLEN */
#define MCT_GID_INDEX_MAX 255 /* a byte in verbs' address vectors: those beyond cannot be used */

enum mct_gid_type { MCT_GID_IB, MCT_GID_ROCE_V1, MCT_GID_ROCE_V2 };

struct mct_gid_entry {
    int index; /* in the port's table */
    uint8_t gid[16];
    enum mct_gid_type type;
    char netdev[MCT_GID_NETDEV_MAX]; /* "": none, or none that can be seen here */
};

/* One address of this host. */
struct mct_gid_address {
    char netdev[MCT_GID_NETDEV_MAX];
    uint8_t gid[16]; /* IPv4 as ::ffff:a.b.c.d */
    uint8_t prefix;  /* leading bits of gid[] that name its network: 96 + n with IPv4's /n */
    bool up;         /* the interface is up and has a carrier */
};

struct mct_gid_choice {
    int index; /* -1: none */
    uint8_t gid[16];
    enum mct_gid_type type;
    /* Leading bits of the GID that name its network; 0: they do not tell (link-local, or no address of this host). */
    uint8_t prefix;
    char netdev[MCT_GID_NETDEV_MAX];
    char why[MCT_GID_WHY_MAX]; /* one sentence, without a full stop */
};

/*
 * Chooses.  wanted >= 0: this index, whatever it is, if the table has it; -1: the best one.
 * infiniband: the port's link layer; there it is index 0.  With Ethernet: RoCE v2 before v1; an entry whose interface
 * is up and has the address before one that only another interface has, before one that is not this host's; then IPv4,
 * global IPv6, unique local IPv6, IPv4 link-local, IPv6 link-local; then the lowest index.
 * 0, or -ENOENT (nothing to choose from; no such index), with the sentence in out->why either way.
 */
int mct_gid_choose(const struct mct_gid_entry *entries, size_t n, bool infiniband,
                   const struct mct_gid_address *addresses, size_t naddresses, int wanted,
                   struct mct_gid_choice *out);

/* Is it an IPv4 address, as IPv6 has them (::ffff:a.b.c.d)? */
bool mct_gid_is_ipv4(const uint8_t gid[16]);
/* "10.0.0.1", "fe80::1" */
const char *mct_gid_text(const uint8_t gid[16], char out[MCT_GID_TEXT_MAX]);
/* "InfiniBand", "RoCE v1", "RoCE v2" */
const char *mct_gid_type_name(enum mct_gid_type type);

#endif

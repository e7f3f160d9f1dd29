/* SPDX-License-Identifier: Apache-2.0 */
#include "gid.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

/* By how far it is reached from, best first. */
enum kind { IPV4, GLOBAL, UNIQUE_LOCAL, IPV4_LINK_LOCAL, LINK_LOCAL, UNUSABLE };
static const char *const kinds[] = {
    "IPv4", "global IPv6", "unique local IPv6", "IPv4 link-local", "IPv6 link-local", "unusable"};

/* How sure it is that the address is this host's and works, best first. */
enum owner { HERE_UP, ELSEWHERE_UP, HERE_DOWN, FOREIGN };

static const uint8_t mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

static bool is_zero(const uint8_t gid[16])
{
    static const uint8_t zero[16];

    return memcmp(gid, zero, sizeof(zero)) == 0;
}

bool mct_gid_is_ipv4(const uint8_t gid[16])
{
    return memcmp(gid, mapped, sizeof(mapped)) == 0;
}

static enum kind kind_of(const uint8_t gid[16])
{
    if (mct_gid_is_ipv4(gid)) {
        if (gid[12] == 0 || gid[12] == 127 || gid[12] >= 224)
            return UNUSABLE;
        return gid[12] == 169 && gid[13] == 254 ? IPV4_LINK_LOCAL : IPV4;
    }
    if (gid[0] == 0xfe && (gid[1] & 0xc0) == 0x80)
        return LINK_LOCAL;
    if ((gid[0] & 0xfe) == 0xfc || (gid[0] == 0xfe && (gid[1] & 0xc0) == 0xc0)) /* and fec0::/10 */
        return UNIQUE_LOCAL;
    if (gid[0] == 0xff || gid[0] == 0) /* multicast; unspecified, loopback, IPv4-compatible */
        return UNUSABLE;
    return GLOBAL;
}

struct rating {
    enum kind kind;
    enum owner owner;
    const struct mct_gid_address *address; /* of this host; NULL: it is none */
};

static struct rating rate(const struct mct_gid_entry *e, const struct mct_gid_address *addresses,
                          size_t n)
{
    struct rating r = {kind_of(e->gid), FOREIGN, NULL};

    for (size_t i = 0; i < n; i++) {
        const struct mct_gid_address *a = &addresses[i];
        bool here = strcmp(a->netdev, e->netdev) == 0;
        enum owner owner = !a->up ? HERE_DOWN : here ? HERE_UP : ELSEWHERE_UP;

        if (memcmp(a->gid, e->gid, sizeof(e->gid)) == 0 && owner < r.owner) {
            r.owner = owner;
            r.address = a;
        }
    }
    return r;
}

static bool better(const struct mct_gid_entry *a, const struct rating *ra,
                   const struct mct_gid_entry *b, const struct rating *rb)
{
    if (a->type != b->type)
        return a->type > b->type;
    if (ra->owner != rb->owner)
        return ra->owner < rb->owner;
    if (ra->kind != rb->kind)
        return ra->kind < rb->kind;
    return a->index < b->index;
}

const char *mct_gid_text(const uint8_t gid[16], char out[MCT_GID_TEXT_MAX])
{
    bool v4 = mct_gid_is_ipv4(gid);

    return inet_ntop(v4 ? AF_INET : AF_INET6, v4 ? gid + sizeof(mapped) : gid, out,
                     MCT_GID_TEXT_MAX);
}

const char *mct_gid_type_name(enum mct_gid_type type)
{
    return type == MCT_GID_ROCE_V2 ? "RoCE v2" : type == MCT_GID_ROCE_V1 ? "RoCE v1" : "InfiniBand";
}

static int none(struct mct_gid_choice *out, size_t n, bool infiniband, int wanted)
{
    if (wanted >= 0 && n == 0)
        snprintf(out->why, sizeof(out->why),
                 "GID index %d is wanted, but the port's table is empty", wanted);
    else if (wanted >= 0)
        snprintf(
            out->why, sizeof(out->why),
            "GID index %d is wanted, but the port's table has no entry there (it has %zu): set "
            "[rdma] gid_index = auto, or one that `mcshm doctor rdma` lists",
            wanted, n);
    else if (infiniband)
        snprintf(out->why, sizeof(out->why),
                 "the port has no GID at index 0: no subnet manager has set the port up yet");
    else if (n == 0)
        snprintf(out->why, sizeof(out->why),
                 "the port has no GID: its network interface is down or has no address; give it "
                 "one (ip address add)");
    else
        snprintf(out->why, sizeof(out->why),
                 "none of the port's %zu GIDs is an address that a peer could reach; give its "
                 "network interface one (ip address add)",
                 n);
    return -ENOENT;
}

static void take(struct mct_gid_choice *out, const struct mct_gid_entry *e, const struct rating *r,
                 bool infiniband)
{
    out->index = e->index;
    memcpy(out->gid, e->gid, sizeof(out->gid));
    out->type = e->type;
    snprintf(out->netdev, sizeof(out->netdev), "%s", e->netdev);
    /* All link-local networks are called the same. InfiniBand: the subnet's prefix. */
    if (infiniband)
        out->prefix = 64;
    else if (r->address != NULL && r->kind != LINK_LOCAL && r->kind != IPV4_LINK_LOCAL)
        out->prefix = r->address->prefix;
}

/* What is to be said of its owner. */
static void describe(const struct mct_gid_entry *e, const struct rating *r, char *out, size_t size)
{
    switch (r->owner) {
    case HERE_UP:
        snprintf(out, size, "the address of %s, which is up", e->netdev);
        break;
    case ELSEWHERE_UP:
        snprintf(out, size, "an address of %s, which is up (the table names %s)",
                 r->address->netdev, e->netdev[0] != '\0' ? e->netdev : "no interface");
        break;
    case HERE_DOWN:
        snprintf(out, size, "the address of %s, which is down", r->address->netdev);
        break;
    case FOREIGN:
        snprintf(out, size, "no address of an interface that is seen here");
        break;
    }
}

int mct_gid_choose(const struct mct_gid_entry *entries, size_t n, bool infiniband,
                   const struct mct_gid_address *addresses, size_t naddresses, int wanted,
                   struct mct_gid_choice *out)
{
    const struct mct_gid_entry *best = NULL;
    struct rating best_rating = {UNUSABLE, FOREIGN, NULL};
    char text[MCT_GID_TEXT_MAX], owner[120];
    size_t usable = 0;

    *out = (struct mct_gid_choice){.index = -1};
    for (size_t i = 0; i < n; i++) {
        const struct mct_gid_entry *e = &entries[i];
        struct rating r = rate(e, addresses, naddresses);

        if (is_zero(e->gid) || e->index > MCT_GID_INDEX_MAX)
            continue;
        if (wanted >= 0 || infiniband) {
            if (e->index != (wanted >= 0 ? wanted : 0))
                continue;
        } else if (r.kind == UNUSABLE || e->type == MCT_GID_IB) {
            continue;
        }
        usable++;
        if (best == NULL || better(e, &r, best, &best_rating)) {
            best = e;
            best_rating = r;
        }
    }
    if (best == NULL)
        return none(out, n, infiniband, wanted);
    take(out, best, &best_rating, infiniband);
    mct_gid_text(best->gid, text);
    if (infiniband) {
        snprintf(out->why, sizeof(out->why), "GID %d (%s) as %s", best->index, text,
                 wanted >= 0 ? "[rdma] gid_index says" : "InfiniBand's own");
        return 0;
    }
    describe(best, &best_rating, owner, sizeof(owner));
    if (wanted >= 0)
        snprintf(out->why, sizeof(out->why), "GID %d (%s, %s) as [rdma] gid_index says: %s",
                 best->index, text, mct_gid_type_name(best->type), owner);
    else
        snprintf(out->why, sizeof(out->why), "GID %d (%s, %s) of %zu: %s, %s", best->index, text,
                 mct_gid_type_name(best->type), usable, kinds[best_rating.kind], owner);
    return 0;
}

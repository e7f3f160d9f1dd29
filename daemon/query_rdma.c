/* SPDX-License-Identifier: Apache-2.0 */
#include "query_rdma.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "transports/rdma/gid.h"
#include "transports/rdma/rdma.h"

static void add_nic(cJSON *list, const struct mct_rdma_nic *n)
{
    static const char *const states[] = {"closed", "down", "up"};
    static const uint8_t none[16]; /* a closed one, or one without a usable entry */
    bool has_gid = memcmp(n->gid, none, sizeof(none)) != 0;
    cJSON *o = cJSON_CreateObject();
    char text[MCT_GID_TEXT_MAX];

    cJSON_AddStringToObject(o, "name", n->name);
    cJSON_AddStringToObject(o, "state", states[n->state]);
    cJSON_AddStringToObject(o, "why", n->why);
    snprintf(text, sizeof(text), "0x%" PRIx64, n->id); /* does not fit into a double */
    cJSON_AddStringToObject(o, "id", text);
    cJSON_AddStringToObject(o, "link", n->infiniband ? "InfiniBand" : "Ethernet");
    cJSON_AddStringToObject(o, "gid", has_gid ? mct_gid_text(n->gid, text) : "");
    cJSON_AddNumberToObject(o, "gid_index", has_gid ? n->gid_index : -1);
    cJSON_AddNumberToObject(o, "prefix", n->prefix);
    cJSON_AddNumberToObject(o, "lid", n->lid);
    cJSON_AddNumberToObject(o, "mtu", n->mtu);
    cJSON_AddNumberToObject(o, "rate", (double)n->rate);
    cJSON_AddNumberToObject(o, "node", n->node);
    cJSON_AddStringToObject(o, "pci", n->pci);
    cJSON_AddStringToObject(o, "netdev", n->netdev);
    cJSON_AddNumberToObject(o, "max_message", (double)n->max_message);
    cJSON_AddNumberToObject(o, "max_reads", n->max_reads);
    snprintf(text, sizeof(text), "%" PRIu64, n->max_region); /* often 2^64 - 1 */
    cJSON_AddStringToObject(o, "max_region", text);
    cJSON_AddNumberToObject(o, "max_pairs", n->max_pairs);
    cJSON_AddNumberToObject(o, "memory", (double)n->memory_bytes);
    cJSON_AddNumberToObject(o, "regions", (double)n->memory_regions);
    cJSON_AddNumberToObject(o, "registrations_failed", (double)n->registrations_failed);
    cJSON_AddNumberToObject(o, "pairs", (double)n->pairs);
    cJSON_AddNumberToObject(o, "events", (double)n->events);
    cJSON_AddNumberToObject(o, "faults", (double)n->faults);
    cJSON_AddItemToArray(list, o);
}

void mcd_query_nics(const struct mcd_agent *a, cJSON *root)
{
    static const char *const words[] = {"auto", "off", "require"};
    struct mct_rdma_nic n;
    cJSON *list;

    cJSON_AddStringToObject(root, "enable", words[a->config.rdma_enable]);
    cJSON_AddStringToObject(root, "devices", a->config.rdma_devices);
    cJSON_AddStringToObject(root, "deny", a->config.rdma_deny);
    cJSON_AddStringToObject(root, "gid_index", a->config.rdma_gid_index);
    cJSON_AddBoolToObject(root, "used", a->rdma != NULL);
    list = cJSON_AddArrayToObject(root, "nics");
    for (unsigned i = 0; a->rdma != NULL && i < mct_rdma_nics(a->rdma); i++) {
        mct_rdma_nic(a->rdma, i, &n);
        add_nic(list, &n);
    }
}

void mcd_query_peer_nics(const struct mcd_peer *p, cJSON *o)
{
    cJSON *list = cJSON_AddArrayToObject(o, "nics");

    for (unsigned i = 0; i < p->nnics; i++) {
        const struct mcd_peer_nic *n = &p->nics[i];
        char text[MCT_GID_TEXT_MAX];
        cJSON *nic;

        if (!n->there)
            continue;
        nic = cJSON_CreateObject();
        cJSON_AddStringToObject(nic, "name", n->name);
        cJSON_AddStringToObject(nic, "link", n->infiniband ? "InfiniBand" : "Ethernet");
        cJSON_AddStringToObject(nic, "gid", mct_gid_text(n->gid, text));
        cJSON_AddNumberToObject(nic, "prefix", n->prefix);
        cJSON_AddItemToArray(list, nic);
    }
}

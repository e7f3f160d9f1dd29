/* SPDX-License-Identifier: Apache-2.0 */
/* What the agent tells of its RDMA devices, of made-up ones. */
#define mct_rdma_nics fake_nics
#define mct_rdma_nic(r, i, out) fake_nic(r, i, out)
#include "transports/rdma/gid.h"
#include <stdbool.h>
struct mct_rdma;
struct mct_rdma_nic;
unsigned fake_nics(const struct mct_rdma *r);
void fake_nic(const struct mct_rdma *r, unsigned nic, struct mct_rdma_nic *out);
#include "daemon/query_rdma.c"

#include <criterion/criterion.h>
#include <stdlib.h>

static const struct mct_rdma_nic made_up[] = {
    {.name = "mlx5_0/1",
     .state = MCT_RDMA_UP,
     .why = "GID 3 (10.0.0.1, RoCE v2)",
     .id = UINT64_C(0xfedcba9876543210),
     .gid = {[10] = 0xff, [11] = 0xff, [12] = 10, [15] = 1},
     .gid_index = 3,
     .prefix = 120,
     .mtu = 4096,
     .max_region = UINT64_MAX,
     .max_pairs = 131072,
     .rate = UINT64_C(400000000000),
     .node = 1,
     .pci = "0000:3b:00.0",
     .netdev = "eth4",
     .memory_bytes = UINT64_C(1) << 40,
     .pairs = 12,
     .faults = 2},
    {.name = "mlx5_1/1",
     .state = MCT_RDMA_CLOSED,
     .why = "no permission",
     .infiniband = true,
     .node = -1},
};

unsigned fake_nics(const struct mct_rdma *r)
{
    (void)r;
    return 2;
}

void fake_nic(const struct mct_rdma *r, unsigned nic, struct mct_rdma_nic *out)
{
    (void)r;
    *out = made_up[nic];
}

static struct mcd_agent agent;

static void expect(const cJSON *o, const char *key, const char *text)
{
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(o, key);

    cr_assert(cJSON_IsString(v), "%s", key);
    cr_assert_str_eq(v->valuestring, text, "%s", key);
}

static void expect_number(const cJSON *o, const char *key, double number)
{
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(o, key);

    cr_assert(cJSON_IsNumber(v), "%s", key);
    cr_assert_eq(v->valuedouble, number, "%s: %f", key, v->valuedouble);
}

Test(query_rdma, nics)
{
    cJSON *root = cJSON_CreateObject(), *list, *o;

    agent.rdma = (void *)&agent;
    agent.config.rdma_enable = MCD_RDMA_REQUIRE;
    snprintf(agent.config.rdma_devices, sizeof(agent.config.rdma_devices), "mlx5_*");
    snprintf(agent.config.rdma_deny, sizeof(agent.config.rdma_deny), "mlx5_9");
    snprintf(agent.config.rdma_gid_index, sizeof(agent.config.rdma_gid_index), "3");
    mcd_query_nics(&agent, root);
    expect(root, "enable", "require");
    expect(root, "devices", "mlx5_*");
    expect(root, "deny", "mlx5_9");
    expect(root, "gid_index", "3");
    cr_assert(cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(root, "used")));
    list = cJSON_GetObjectItemCaseSensitive(root, "nics");
    cr_assert_eq(cJSON_GetArraySize(list), 2);
    o = cJSON_GetArrayItem(list, 0);
    expect(o, "name", "mlx5_0/1");
    expect(o, "state", "up");
    expect(o, "why", "GID 3 (10.0.0.1, RoCE v2)");
    expect(o, "id", "0xfedcba9876543210");
    expect(o, "link", "Ethernet");
    expect(o, "gid", "10.0.0.1");
    expect(o, "pci", "0000:3b:00.0");
    expect(o, "netdev", "eth4");
    expect_number(o, "gid_index", 3);
    expect_number(o, "prefix", 120);
    expect_number(o, "mtu", 4096);
    expect(o, "max_region", "18446744073709551615");
    expect_number(o, "max_pairs", 131072);
    expect_number(o, "rate", 4e11);
    expect_number(o, "node", 1);
    expect_number(o, "memory", 1099511627776.0);
    expect_number(o, "pairs", 12);
    expect_number(o, "faults", 2);
    o = cJSON_GetArrayItem(list, 1);
    expect(o, "state", "closed");
    expect(o, "link", "InfiniBand");
    expect(o, "gid", "");
    expect_number(o, "gid_index", -1);
    expect_number(o, "node", -1);
    cJSON_Delete(root);
}

Test(query_rdma, none_are_used)
{
    cJSON *root = cJSON_CreateObject();

    agent.rdma = NULL;
    agent.config.rdma_enable = MCD_RDMA_AUTO;
    mcd_query_nics(&agent, root);
    expect(root, "enable", "auto");
    cr_assert(cJSON_IsFalse(cJSON_GetObjectItemCaseSensitive(root, "used")));
    cr_assert_eq(cJSON_GetArraySize(cJSON_GetObjectItemCaseSensitive(root, "nics")), 0);
    cJSON_Delete(root);
}

Test(query_rdma, of_a_peer)
{
    struct mcd_peer *p = calloc(1, sizeof(*p));
    cJSON *root = cJSON_CreateObject(), *list;

    p->nnics = 2; /* the first is not there any more */
    p->nics[1] = (struct mcd_peer_nic){
        .name = "mlx5_3/1", .there = true, .gid = {0xfd, [15] = 1}, .prefix = 64};
    mcd_query_peer_nics(p, root);
    list = cJSON_GetObjectItemCaseSensitive(root, "nics");
    cr_assert_eq(cJSON_GetArraySize(list), 1);
    expect(cJSON_GetArrayItem(list, 0), "name", "mlx5_3/1");
    expect(cJSON_GetArrayItem(list, 0), "gid", "fd00::1");
    expect_number(cJSON_GetArrayItem(list, 0), "prefix", 64);
    cJSON_Delete(root);
    free(p);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* long */
/* Devices that come after the start. They are looked for every ten seconds, which these tests wait for. */
#include "tests/fake-verbs/fake.h"
#include "rdma_nics.h"

TestSuite(rdma_finder, .timeout = 60);

Test(rdma_finder, a_device_that_comes_later_is_used_with_all_memory_that_is_there)
{
    struct mct_rdma_options o = options();
    struct mct_rdma_memory *local, *remote, *later;
    struct fake_device *renamed, *late;
    struct mct_rdma_pair *p, *q;
    uint64_t id, left;
    uint32_t lkey;

    fake_reset();
    renamed = fake_add("fake0");
    o.devices = "auto";
    o.deny = "never*";
    begin_with(&o);
    cr_assert_eq(mct_rdma_nics(rdma), 1);
    local = new_memory(0);
    remote = new_memory(MCT_RDMA_REMOTE_READ);
    /* as udev does it: no other device, and it stays open */
    snprintf(renamed->name, sizeof(renamed->name), "rocep1s0");
    fake_add("never0");
    late = fake_add("fake1");
    AWAIT(mct_rdma_nics(rdma) == 2);
    cr_assert_str_eq(nic(1).name, "fake1/1");
    AWAIT(nic(1).state == MCT_RDMA_UP);
    cr_assert_geq(changes[1], 1, "the agent is told");
    cr_assert_geq(key_changes, 1, "peers are to be told of the keys");
    cr_assert(mct_rdma_memory_keys(remote, 1, &id) != NULL, "registered before it is up");
    cr_assert_eq(id, nic(1).id);
    later = new_memory(MCT_RDMA_REMOTE_READ);
    cr_assert(mct_rdma_memory_keys(later, 0, &id) != NULL);
    cr_assert(mct_rdma_memory_keys(later, 1, &id) != NULL);
    cr_assert_eq(fake_count(FAKE_MR, late), 3 * BYTES / MCT_RDMA_CHUNK_MIN);
    p = new_pair(0);
    q = new_pair(1);
    cr_assert(mct_rdma_memory_lkey(local, p->port, bytes, &lkey, &left));
    cr_assert(mct_rdma_memory_lkey(local, q->port, bytes, &lkey, &left));
    connect_pairs(p, q);
    let_go(p);
    let_go(q);
    destroy_memory(local);
    destroy_memory(remote);
    destroy_memory(later);
    cr_assert_eq(fake_count(FAKE_MR, late), 1, "what queue pairs have alone");
    cr_assert_eq(mct_rdma_nics(rdma), 2);
    end();
}

Test(rdma_finder, one_too_many_is_left_out_and_said_so)
{
    struct mct_rdma_options o = options();

    fake_reset();
    fake_add("fake0");
    o.devices = "fake* a b c d e f g h i j k l m n o";
    begin_with(&o);
    cr_assert_eq(mct_rdma_nics(rdma), MCT_RDMA_NICS_MAX);
    cr_assert(strstr(logged, "left out") == NULL, "%s", logged);
    fake_add("fake1");
    AWAIT(strstr(logged, "fake1/1 is left out") != NULL);
    cr_assert_eq(mct_rdma_nics(rdma), MCT_RDMA_NICS_MAX);
    cr_assert_eq(nic(0).state, MCT_RDMA_UP);
    end();
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fuzzer's entry for control messages with an agent that has RDMA devices: whatever clients ask for, in
 * any order, hanging up at any point, while registrations fail now and then, nothing stays registered that is not
 * there any more.
 */
#include <criterion/criterion.h>
#include <stddef.h>
#include <stdint.h>

#include "tests/fake-verbs/fake.h"

static void rdma_made(void);
static void rdma_begin(const uint8_t *data, size_t size);
static void rdma_end(void);
#define FUZZ_CONTROL_MADE rdma_made
#define FUZZ_CONTROL_BEGIN rdma_begin
#define FUZZ_CONTROL_END rdma_end
#include "tests/fuzz/fuzz_control.c"
/* after the target */
#include "tests/fuzz/rounds.h"

#include "daemon/handlers.h"

#ifdef __SANITIZE_THREAD__
#define ROUNDS 40
#elif defined(__SANITIZE_ADDRESS__)
#define ROUNDS 100
#else
#define ROUNDS 1500
#endif

static struct mcd_watch rdma_watch;
static struct fake_device *first;

static void ready(struct mcd_watch *w, uint32_t events)
{
    (void)w;
    (void)events;
    mct_rdma_run(agent->rdma);
}

static void changed(void *context, unsigned nic)
{
    (void)context;
    (void)nic;
}

static void keys_changed(void *context)
{
    mcd_segments_keys_changed(context);
}

static void rdma_made(void)
{
    const struct mct_rdma_options o = {
        .devices = "auto",
        .deny = "",
        .gid_index = -1,
        .chunk = UINT64_C(1) << 20,
        .depth = 64,
        .cq_depth = 256,
        .max_inline = 64,
        .max_reads = 16,
        .timeout = 14,
        .retries = 7,
    };
    const struct mct_rdma_host h = {
        .context = agent, .changed = changed, .keys_changed = keys_changed};
    char error[512] = "";

    fake_reset();
    first = fake_add("fake0");
    (void)fake_add("fake1");
    fz_must(mct_rdma_create(&o, &h, &agent->rdma, error, sizeof(error)) == 0, "%s", error);
    rdma_watch = (struct mcd_watch){.ready = ready, .fd = -1};
    fz_must(mcd_watch_add(agent, &rdma_watch, mct_rdma_fd(agent->rdma), EPOLLIN) == 0, "watch");
}

/* Half of the inputs meet devices that do not take everything; for a quarter that is an error. */
static void rdma_begin(const uint8_t *data, size_t size)
{
    uint8_t how = size != 0 ? data[size / 2] : 0;

    mcd_registry_init(&agent->registry, agent->rdma, how % 4 == 3);
    for (unsigned i = 0; how % 2 != 0 && i < 8; i++)
        fake_fail(FAKE_REG_MR, NULL, 1 + how / 16 + 5 * i, 1, ENOMEM);
}

static void rdma_end(void)
{
    fz_must(agent->registry.pending == 0 && agent->registry.unregistered_bytes == 0,
            "the registry counts what is not there");
    fz_must(fake_count(FAKE_MR, NULL) == 0, "memory is still registered");
    fake_mend();
}

static void rdma_gone(void)
{
    if (agent != NULL) {
        mcd_watch_remove(agent, &rdma_watch);
        mct_rdma_destroy(agent->rdma);
    }
    fuzz_control_fini();
    cr_assert_eq(fake_leaks(), 0);
}

TestSuite(rdma_control_fuzz, .timeout = 200, .fini = rdma_gone);

Test(rdma_control_fuzz, corpus)
{
    struct fake_stats s;

    fuzz_corpus("control");
    fake_stats(first, &s);
    fprintf(stderr, "control: %llu registrations with the first device\n",
            (unsigned long long)s.calls[FAKE_REG_MR]);
    cr_assert_gt(s.calls[FAKE_REG_MR], 0);
}

Test(rdma_control_fuzz, changed_corpus)
{
    fuzz_rounds("control", ROUNDS);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "agents.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <time.h>

/* Greets, is accepted, and then has nothing to say: its place is free again after a while. */
Test(guest, one_without_a_hello_goes, .timeout = 60)
{
    struct ag a;
    struct ag_raw r;

    ag_init(&a);
    ag_raw_call(&r, &a, 77);
    ag_until(&a, NULL, (ag_raw_run(&r), r.ready != 0));
    cr_assert_eq(a.cluster->nguests, 1);
    ag_until(&a, NULL, (ag_raw_run(&r), r.broken != 0));
    cr_assert_eq(a.cluster->nguests, 0);
    cr_assert_eq(a.cluster->wire_stats.greeting_timeouts, 1);
    cr_assert_eq(a.cluster->npeers, 0);
    ag_raw_fini(&r);
    ag_fini(&a);
}

/* An address of this host that is not loopback; false: it has none. */
static bool other_address(char *out, socklen_t size)
{
    struct ifaddrs *all, *i;
    bool found = false;

    cr_assert_eq(getifaddrs(&all), 0);
    for (i = all; i != NULL && !found; i = i->ifa_next) {
        const struct sockaddr_in *s = (const struct sockaddr_in *)(const void *)i->ifa_addr;

        if (s == NULL || s->sin_family != AF_INET || (i->ifa_flags & IFF_LOOPBACK) != 0)
            continue;
        found = inet_ntop(AF_INET, &s->sin_addr, out, size) != NULL;
    }
    freeifaddrs(all);
    return found;
}

/* With auth = none whoever is not of this host is told so; then it costs nothing any more. */
Test(guest, one_that_is_refused_goes_and_keeps_nobody_awake, .timeout = 60)
{
    struct ag a;
    struct ag_raw r = {.ready = 0};
    char from[64];
    uint64_t end;
    unsigned rounds = 0;

    if (!other_address(from, sizeof(from)))
        return; /* a host without a network has no strangers */
    ag_init(&a);
    mcd_alarm_clear(a.agent, &a.cluster->tick); /* nothing but the guest wakes the loop */
    ag_raw_take(&r, ag_connect(&a, from), 77, true);
    ag_until(&a, NULL, (ag_raw_run(&r), r.broken != 0));
    cr_assert_eq(r.status, MCS_AUTH);
    end = mcd_now_ns() + 300000000;
    while (mcd_now_ns() < end && a.cluster->nguests != 0) {
        loop_once(a.agent, 1000);
        rounds++;
    }
    cr_assert_lt(rounds, 20, "%u rounds of the loop within 0.3 s for a guest that was refused",
                 rounds);
    ag_until(&a, NULL, a.cluster->nguests == 0);
    ag_raw_fini(&r);
    ag_fini(&a);
}

/* Keeps an engine busy until the word says so. */
static bool hold(struct mcd_engine *g, struct mcd_command *c)
{
    const uint32_t *go = c->context;

    (void)g;
    while (mcs_load_acquire(go) == 0) /* partner: the test's release */
        sched_yield();
    return true;
}

/* The agent stops while an engine takes a data connection over: nothing waits for that guest. */
Test(guest, a_stop_in_the_middle_of_a_data_connection, .timeout = 60)
{
    struct ag a;
    struct ag_raw r;
    struct mcd_wire_header h = {.type = MCD_WIRE_RAILS, .id = 1, .deadline_ms = 1000};
    Mcd__Rails m = MCD__RAILS__INIT;
    Mcd__Tokens *tokens;
    struct mcd_command held;
    uint32_t go = 0;
    struct mct_tcp_open open = {.magic = MCT_TCP_MAGIC,
                                .version = MCT_TCP_VERSION,
                                .size = sizeof(open),
                                .conn = 5,
                                .features = MCT_TCP_FEATURE_NOTIFY};
    int fd;

    ag_init(&a);
    ag_raw_call(&r, &a, 77);
    ag_until(&a, NULL, (ag_raw_run(&r), r.ready != 0));
    ag_raw_hello(&r, "127.0.0.1:1");
    ag_until(&a, NULL, (ag_raw_run(&r), r.hellos != 0));
    m.route = 9;
    m.count = 1;
    cr_assert_eq(mcd_wire_send(r.wire, &h, &m.base), 0);
    ag_until(&a, NULL, (ag_raw_run(&r), r.last.type == MCD_WIRE_RAILS));
    cr_assert_eq(r.last.status, MCS_OK);
    tokens = mcd__tokens__unpack(NULL, r.size, r.payload);
    cr_assert(tokens != NULL && tokens->n_token == 1 && tokens->token[0].len == MCT_TCP_TOKEN);
    memcpy(open.token, tokens->token[0].data, MCT_TCP_TOKEN);
    mcd__tokens__free_unpacked(tokens, NULL);
    fd = ag_connect(&a, NULL);
    cr_assert_eq(send(fd, &open, sizeof(open), 0), (ssize_t)sizeof(open));
    mcd_engine_call(a.agent->engines[0], &held, hold, &go);
    ag_until(&a, NULL, a.cluster->counters.data_accepted != 0);
    cr_assert_eq(a.cluster->peers->visitors->adopting, 1);
    mcs_store_release(&go, 1u); /* partner: hold() */
    mcd_guests_destroy(a.cluster);
    cr_assert_eq(a.cluster->peers->visitors->adopting, 0);
    mcd_peers_destroy(a.cluster);
    cr_assert_eq(a.cluster->npeers, 0);
    close(fd);
    ag_raw_fini(&r);
    ag_fini(&a);
}

Test(guest, data_connections_need_a_token_that_is_good_once, .timeout = 60)
{
    struct ag a;
    struct mct_tcp_open open = {
        .magic = MCT_TCP_MAGIC, .version = MCT_TCP_VERSION, .size = sizeof(open), .conn = 5};
    struct mct_tcp_opened opened;
    int fd;

    ag_init(&a);
    fd = ag_connect(&a, NULL);
    cr_assert_eq(send(fd, &open, sizeof(open), 0), (ssize_t)sizeof(open));
    ag_until(&a, NULL, a.cluster->counters.data_refused != 0);
    cr_assert_eq(recv(fd, &opened, sizeof(opened), MSG_WAITALL), (ssize_t)sizeof(opened));
    cr_assert_eq(opened.status, MCS_AUTH);
    cr_assert_eq(a.cluster->nguests, 0);
    close(fd);
    ag_fini(&a);
}

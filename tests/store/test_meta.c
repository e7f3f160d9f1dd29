/* SPDX-License-Identifier: Apache-2.0 */
/* The front and the http back end against a server of the test's own. */
#include "server.h"

#include "store/meta/record.h"
#include "store/meta/service.h"

enum { FINE, SILENT, CLOSES, BROKEN, HUGE };

/* Every segment exists; its incarnation is how often the server was asked. */
static int answer(struct server *s, const char *method, const char *path, const char *body,
                  struct mcm_text *out)
{
    struct mcm_record r = {.incarnation = s->asked, .version = MCM_VERSION};
    const char *name = strstr(path, "segments%2F");

    (void)body;
    if (s->mode == SILENT)
        return 0;
    if (s->mode == CLOSES)
        return -1;
    if (s->mode == BROKEN)
        return 503;
    if (s->mode == HUGE) {
        for (size_t i = 0; i <= MCM_REPLY_MAX / 1024; i++)
            mcm_text_add(out, "%1024s", "");
        return 200;
    }
    if (strcmp(method, "GET") != 0)
        return 200;
    if (!name || strstr(name, "none") || !name[11])
        return 404;
    snprintf(r.name, sizeof(r.name), "%s", name + 11);
    strcpy(r.agent, "10.0.0.1:1");
    mcm_record_encode(&r, &(struct mcm_times){0}, out);
    return 200;
}

static void begin(struct server *s, struct asker *a, uint64_t timeout_ms)
{
    server_start(s, answer);
    asker_start(a, MCM_HTTP, s->url, timeout_ms);
}

static void end(struct server *s, struct asker *a)
{
    asker_stop(a);
    server_stop(s);
}

Test(meta, callbacks_come_from_run_only_and_once)
{
    struct outcome o[4] = {0};
    struct asker a;

    asker_start(&a, MCM_MEMORY, "", 1000);
    mcm_lookup(a.m, "n", false, note, &o[0]);
    mcm_lookup(a.m, "", false, note, &o[1]);
    mcm_lookup(a.m, "h:1/n", false, note, &o[2]);
    mcm_get(a.m, "k", note, &o[3]);
    for (int i = 0; i < 4; i++)
        cr_assert_eq(o[i].calls, 0u);
    turn(&a);
    mcm_run(a.m);
    for (int i = 0; i < 4; i++)
        cr_assert_eq(o[i].calls, 1u);
    cr_assert_eq(o[0].res, -ENOENT);
    cr_assert_eq(o[1].res, -EINVAL);
    cr_assert_eq(o[2].res, 0);
    cr_assert_str_eq(o[2].record.agent, "h:1");
    cr_assert_eq(o[3].res, -ENOTSUP);
    asker_stop(&a);
}

Test(meta, many_who_ask_for_one_name_cost_one_request)
{
    struct outcome o[50] = {0};
    struct server s;
    struct asker a;

    begin(&s, &a, 60000);
    for (int i = 0; i < 50; i++)
        mcm_lookup(a.m, "n", false, note, &o[i]);
    for (int i = 0; i < 50; i++) {
        await_calls(&a, &o[i], 1);
        cr_assert_eq(o[i].res, 0);
        cr_assert_eq(o[i].record.incarnation, 1u);
    }
    cr_assert_eq(server_asked(&s), 1u);
    end(&s, &a);
}

Test(meta, a_fresh_answer_is_none_that_was_asked_for_before)
{
    struct outcome old = {0}, fresh[3] = {0};
    struct server s;
    struct asker a;

    begin(&s, &a, 60000);
    mcm_lookup(a.m, "n", false, note, &old);
    for (int i = 0; i < 3; i++)
        mcm_lookup(a.m, "n", true, note, &fresh[i]);
    await_calls(&a, &old, 1);
    for (int i = 0; i < 3; i++) {
        await_calls(&a, &fresh[i], 1);
        cr_assert_eq(fresh[i].record.incarnation, old.record.incarnation + 1);
    }
    cr_assert_eq(server_asked(&s), 2u);
    end(&s, &a);
}

Test(meta, a_silent_service_costs_the_time_limit_and_no_more)
{
    struct timespec before, after;
    struct outcome o;
    struct server s;
    struct asker a;

    begin(&s, &a, 300);
    server_set(&s, SILENT);
    clock_gettime(CLOCK_MONOTONIC, &before);
    o = lookup(&a, "n", false);
    clock_gettime(CLOCK_MONOTONIC, &after);
    cr_assert_eq(o.res, -ECOMM);
    cr_assert(strstr(o.text, s.url) != NULL, "%s", o.text);
    cr_assert_geq(
        (after.tv_sec - before.tv_sec) * 1000 + (after.tv_nsec - before.tv_nsec) / 1000000, 250);
    end(&s, &a);
}

Test(meta, what_is_known_outlives_the_service)
{
    struct mcm_state state;
    struct outcome o;
    struct server s;
    struct asker a;

    begin(&s, &a, 1000);
    cr_assert_eq(lookup(&a, "n", false).res, 0);
    server_set(&s, CLOSES);
    o = lookup(&a, "n", false);
    cr_assert_eq(o.res, 0);
    cr_assert_eq(o.record.incarnation, 1u);
    cr_assert_eq(lookup(&a, "m", false).res, -ECOMM);
    cr_assert_eq(lookup(&a, "n", true).res, -ECOMM, "nothing fresh can be had");
    mcm_get_state(a.m, &state);
    cr_assert_eq(state.health, MCM_DOWN);
    cr_assert_neq(state.error[0], '\0');
    cr_assert_eq(state.cached, 1u);
    server_set(&s, FINE);
    cr_assert_eq(lookup(&a, "m", false).res, 0, "the next call finds it");
    mcm_get_state(a.m, &state);
    cr_assert_eq(state.health, MCM_OK);
    end(&s, &a);
}

Test(meta, a_change_is_told_once_to_who_had_the_old_record)
{
    struct server s;
    struct asker a;

    begin(&s, &a, 60000);
    lookup(&a, "n", false);
    cr_assert_eq(a.changes, 0u);
    lookup(&a, "n", true);
    cr_assert_eq(a.changes, 1u);
    cr_assert_str_eq(a.changed, "n");
    cr_assert_eq(a.changed_to, 2u);
    end(&s, &a);
}

Test(meta, an_answer_too_large_is_not_read)
{
    struct mcm_state state;
    struct outcome o;
    struct server s;
    struct asker a;

    begin(&s, &a, 60000);
    server_set(&s, HUGE);
    o = lookup(&a, "n", false);
    cr_assert_eq(o.res, -EBADMSG);
    cr_assert(strstr(o.text, "larger than 8388608 bytes") != NULL, "%s", o.text);
    mcm_get_state(a.m, &state);
    cr_assert_eq(state.bad_replies, 1u);
    cr_assert_eq(server_asked(&s), 1u, "asked again for what it will not take");
    end(&s, &a);
}

Test(meta, errors_of_the_server_are_tried_once_more)
{
    struct outcome o;
    struct server s;
    struct asker a;

    begin(&s, &a, 60000);
    server_set(&s, BROKEN);
    o = lookup(&a, "n", false);
    cr_assert_eq(o.res, -ECOMM);
    cr_assert_geq(server_asked(&s), 2u);
    cr_assert(strstr(o.text, "503") != NULL, "%s", o.text);
    end(&s, &a);
}

Test(meta, destroy_answers_all_that_wait)
{
    enum { N = 200 };
    static struct outcome o[5 * N];
    struct mcm_record r = {.incarnation = 1, .agent_incarnation = 5, .version = 1};
    struct server s;
    struct asker a;
    char name[32];
    int n = 0;

    memset(o, 0, sizeof(o));
    begin(&s, &a, 500);
    server_set(&s, SILENT);
    strcpy(r.agent, "127.0.0.1:7000");
    for (int i = 0; i < N; i++) {
        snprintf(name, sizeof(name), "n%d", i);
        strcpy(r.name, name);
        mcm_lookup(a.m, name, i % 2, note, &o[n++]);
        mcm_lookup(a.m, name, true, note, &o[n++]);
        mcm_register(a.m, &r, note, &o[n++]);
        mcm_unregister(a.m, name, 1, note, &o[n++]);
        mcm_put(a.m, name, "v", 1, note, &o[n++]);
    }
    end(&s, &a);
    for (int i = 0; i < n; i++) {
        cr_assert_eq(o[i].calls, 1u, "number %d: %u calls", i, o[i].calls);
        cr_assert(o[i].res < 0 || i % 5 == 3, "number %d: %d", i, o[i].res);
    }
}

static struct asker *again_asker;
static struct outcome again_outcome;

static void ask_again(void *context, const struct mcm_result *r)
{
    (void)r;
    ++*(unsigned *)context;
    mcm_lookup(again_asker->m, "n", false, note, &again_outcome);
}

Test(meta, a_callback_may_ask_again_even_at_the_end)
{
    unsigned calls = 0;
    struct server s;
    struct asker a;

    memset(&again_outcome, 0, sizeof(again_outcome));
    begin(&s, &a, 60000);
    again_asker = &a;
    mcm_lookup(a.m, "n", false, ask_again, &calls);
    await_calls(&a, &again_outcome, 1);
    cr_assert_eq(again_outcome.res, 0);
    server_set(&s, SILENT);
    mcm_lookup(a.m, "n", false, ask_again, &calls);
    end(&s, &a);
    cr_assert_eq(calls, 2u);
    cr_assert_eq(again_outcome.calls, 2u);
    cr_assert_eq(again_outcome.res, -ECANCELED);
}

Test(meta, a_record_of_another_agent_is_not_registered)
{
    struct mcm_record r = {.incarnation = 1, .agent_incarnation = 5, .version = 1};
    struct outcome o[3] = {0};
    struct server s;
    struct asker a;

    begin(&s, &a, 60000);
    strcpy(r.name, "n");
    strcpy(r.agent, "10.0.0.9:7000");
    mcm_register(a.m, &r, note, &o[0]);
    strcpy(r.agent, "127.0.0.1:7000");
    r.agent_incarnation = 6;
    mcm_register(a.m, &r, note, &o[1]);
    r.agent_incarnation = 5;
    memset(r.name, 'n', sizeof(r.name));
    mcm_register(a.m, &r, note, &o[2]);
    for (int i = 0; i < 3; i++) {
        await_calls(&a, &o[i], 1);
        cr_assert_eq(o[i].res, -EINVAL);
    }
    cr_assert_eq(server_asked(&s), 0u);
    end(&s, &a);
}

/* Agents that all failed in the same instant: when do they come back? */
Test(meta, retries_of_many_agents_spread)
{
    enum { AGENTS = 500, TRIES = 8, BINS = 100 };
    unsigned bins[BINS] = {0}, last[BINS] = {0}, total = 0;

    for (unsigned i = 0; i < AGENTS; i++) {
        struct mcm_service s = {.random = 88172645463325252u + i * 0x9e3779b97f4a7c15u};
        uint64_t at = 0;

        for (unsigned k = 0; k < TRIES; k++) {
            at += mcm_backoff(&s, k);
            cr_assert_leq(at, (uint64_t)(k + 1) * 1000);
            bins[at / 100 < BINS ? at / 100 : BINS - 1]++;
            total++;
        }
        last[at / 100 < BINS ? at / 100 : BINS - 1]++;
    }
    for (unsigned b = 0; b < BINS; b++) {
        cr_expect_leq(bins[b] * 5, total, "%u of %u tries in bin %u", bins[b], total, b);
        cr_expect_leq(last[b] * 5, (unsigned)AGENTS, "%u of the last tries in bin %u", last[b], b);
    }
    for (unsigned i = 0; i < 1000; i++) {
        struct mcm_service s = {.random = i + 1};
        uint64_t ms = mcm_jitter(&s, 1000);

        cr_assert(ms >= 750 && ms <= 1250, "%u", (unsigned)ms);
    }
}

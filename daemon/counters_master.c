/* SPDX-License-Identifier: Apache-2.0 */
/* What /metrics tells of a master. */
#include <stddef.h>
#include <stdio.h>

#include "master_internal.h"

struct figure {
    const char *name, *type, *help;
    uint64_t value;
};

static void holders(FILE *out, const struct mco_directory_stats *s)
{
    fprintf(out,
            "# HELP mcshm_store_master_holders Agents with a store, as the directory sees them\n"
            "# TYPE mcshm_store_master_holders gauge\n"
            "mcshm_store_master_holders{state=\"reporting\"} %llu\n"
            "mcshm_store_master_holders{state=\"here\"} %llu\n"
            "mcshm_store_master_holders{state=\"away\"} %llu\n"
            "mcshm_store_master_holders{state=\"gone\"} %llu\n",
            (unsigned long long)s->reporting, (unsigned long long)s->here,
            (unsigned long long)s->away, (unsigned long long)s->gone);
}

void mcd_master_metrics(struct mcd_master *m, FILE *out)
{
    struct mco_directory_stats s = {0};
    bool leads = mcd_master_leads(m);

    if (m == NULL)
        return;
    if (leads)
        mco_directory_get_stats(m->d, mcd_now_ns(), &s);
    {
        const struct figure list[] = {
            {"leads", "gauge", "Does this master lead: 1, or 0", leads},
            {"token", "gauge", "Its fencing token while it leads", leads ? m->token : 0},
            {"terms_total", "counter", "How often it took the lead", m->stats.terms},
            {"requests_total", "counter", "Messages of agents to it", m->stats.requests},
            {"malformed_total", "counter", "Those that made no sense", m->stats.malformed},
            {"fenced_total", "counter", "Those that were of another leader's reign",
             m->stats.fenced},
            {"not_leading_total", "counter", "Those that came while it did not lead",
             m->stats.not_leading},
            {"orders_total", "counter", "Messages with orders to holders", m->stats.orders},
            {"orders_failed_total", "counter", "Those that came to nothing, and are given again",
             m->stats.orders_failed},
            {"waiting", "gauge", "Answers that wait for holders", m->stats.waiting},
            {"late_total", "counter", "Keys that did not get what they waited for in time",
             m->stats.late},
            {"lost_total", "counter", "Keys whose last holder is gone", m->stats.lost},
            {"rebuilding", "gauge", "Is the directory still waiting for reports: 1, or 0",
             s.rebuilding},
            {"keys", "gauge", "Keys in the directory", s.keys},
            {"memory_bytes", "gauge", "Memory of the directory", s.bytes_memory},
            {"puts_open", "gauge", "Puts that have begun and not ended", s.puts_open},
            {"copies_wanted", "gauge", "Copies that are to be made", s.copies_wanted},
            {"drops_pending", "gauge", "Drops that holders have not confirmed", s.drops_pending},
            {"finds_total", "counter", "Keys whose holders were asked for, in this reign", s.finds},
            {"exists_total", "counter", "Keys that were asked for, in this reign", s.exists},
            {"starts_total", "counter", "Puts that were to begin, in this reign", s.starts},
            {"ends_total", "counter", "Puts that ended, in this reign", s.ends},
            {"undone_total", "counter", "Puts that were undone, in this reign", s.undone},
            {"removes_total", "counter", "Keys that were to be removed, in this reign", s.removes},
            {"reported_total", "counter", "Objects that holders told of, in this reign", s.reports},
            {"refused_total", "counter", "What the directory could not do, in this reign",
             s.refused},
        };

        for (size_t i = 0; i < sizeof(list) / sizeof(list[0]); i++)
            fprintf(out,
                    "# HELP mcshm_store_master_%s %s\n# TYPE mcshm_store_master_%s %s\n"
                    "mcshm_store_master_%s %llu\n",
                    list[i].name, list[i].help, list[i].name, list[i].type, list[i].name,
                    (unsigned long long)list[i].value);
    }
    holders(out, &s);
}

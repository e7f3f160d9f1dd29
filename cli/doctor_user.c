/* SPDX-License-Identifier: Apache-2.0 */
/* Who opens the files of devices: the agent that runs, or this user; and may they? */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "doctor.h"

bool doctor_user_read(const struct doctor *d, struct doctor_user *u)
{
    char path[64], text[1024];

    snprintf(path, sizeof(path), d->agent_pid != 0 ? "/proc/%u/status" : "/proc/self/status",
             d->agent_pid);
    u->whose = d->agent_pid != 0 ? "the agent" : "this user";
    /* real, effective, ... */
    if (!doctor_read_field(d, path, "Uid", text, sizeof(text)) ||
        sscanf(text, "%*u %u", &u->uid) != 1 ||
        !doctor_read_field(d, path, "Gid", text, sizeof(text)) ||
        sscanf(text, "%*u %u", &u->gid) != 1)
        return false;
    doctor_read_field(d, path, "Groups", text, sizeof(text) - 2);
    snprintf(u->groups, sizeof(u->groups), " %.1000s ", text);
    u->capabilities =
        doctor_read_field(d, path, "CapEff", text, sizeof(text)) ? strtoull(text, NULL, 16) : 0;
    return true;
}

bool doctor_may_open(const struct doctor_user *u, const struct stat *st)
{
    char group[16];

    snprintf(group, sizeof(group), " %u ", st->st_gid);
    if (u->uid == 0)
        return true;
    if (u->uid == st->st_uid)
        return (st->st_mode & 0600) == 0600;
    if (u->gid == st->st_gid || strstr(u->groups, group) != NULL)
        return (st->st_mode & 0060) == 0060;
    return (st->st_mode & 0006) == 0006;
}

bool doctor_hidden_from_agent(const struct doctor *d, const char *file)
{
    char path[600];

    if (d->agent_pid == 0)
        return false;
    snprintf(path, sizeof(path), "%s/proc/%u/root/dev", d->root, d->agent_pid);
    if (access(path, X_OK) != 0)
        return false;
    snprintf(path, sizeof(path), "%s/proc/%u/root%s", d->root, d->agent_pid, file);
    return access(path, F_OK) != 0 && errno == ENOENT;
}

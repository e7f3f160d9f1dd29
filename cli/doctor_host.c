/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "doctor.h"

static bool exists(const struct doctor *d, const char *path)
{
    char full[512];

    snprintf(full, sizeof(full), "%s%s", d->root, path);
    return access(full, F_OK) == 0;
}

/* What kind of container this is, NULL: none that is known of. */
static const char *container(const struct doctor *d)
{
    char text[4096];

    if (exists(d, "/.dockerenv"))
        return "Docker";
    if (exists(d, "/run/.containerenv"))
        return "Podman";
    if (exists(d, "/var/run/secrets/kubernetes.io"))
        return "Kubernetes";
    if (doctor_read(d, text, sizeof(text), "/run/systemd/container") && text[0] != '\0')
        return "one of systemd's or LXC";
    if (doctor_read(d, text, sizeof(text), "/proc/1/cgroup") &&
        (strstr(text, "docker") != NULL || strstr(text, "kubepods") != NULL ||
         strstr(text, "lxc") != NULL))
        return "one by its control group";
    return NULL;
}

void doctor_check_container(struct doctor *d)
{
    const char *kind = container(d);
    char map[256];
    unsigned long inside, outside, count;

    if (kind == NULL)
        doctor_say(d, DOCTOR_OK, NULL, "none");
    else
        doctor_say(
            d, DOCTOR_NOTE, NULL,
            "this is a container (%s): clients in it need the socket's folder mounted and nothing "
            "else; the size of /dev/shm and the IPC namespace do not matter",
            kind);
    if (!doctor_read(d, map, sizeof(map), "/proc/self/uid_map") ||
        sscanf(map, "%lu %lu %lu", &inside, &outside, &count) != 3)
        return;
    if (inside != 0 || outside != 0 || count < 4294967295ul)
        doctor_say(d, DOCTOR_NOTE,
                   "let tenants be users that the agent's namespace has a number for",
                   "this is a user namespace (uid %lu here is %lu outside, %lu of them): the agent "
                   "sees users "
                   "that it has no number for as 65534, and %s",
                   inside, outside, count,
                   strcmp(doctor_setting(d, "agent.unmapped_users"), "share") == 0
                       ? "makes all of them one tenant"
                       : "refuses them");
}

void doctor_check_seccomp(struct doctor *d)
{
    char text[32];

    if (!doctor_read_field(d, "/proc/self/status", "Seccomp", text, sizeof(text)) || text[0] == '0')
        doctor_say(d, DOCTOR_OK, NULL, "no filter");
    else
        doctor_say(d, DOCTOR_NOTE, NULL,
                   "a filter is at work (mode %s); `mcshm doctor kernel` tries out what matters",
                   text);
}

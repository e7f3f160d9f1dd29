/* SPDX-License-Identifier: Apache-2.0 */
/* The agent's settings, as the agent itself reads them: mcshmd is asked for them. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "doctor.h"

#define DUMP_MAX 65536

const char *doctor_setting(const struct doctor *d, const char *key)
{
    for (size_t i = 0; i < d->nsettings; i++)
        if (strcmp(d->settings[i].key, key) == 0)
            return d->settings[i].value;
    return "";
}

uint64_t doctor_setting_number(const struct doctor *d, const char *key, uint64_t otherwise)
{
    static const char suffixes[] = "KMGT";
    const char *text = doctor_setting(d, key), *suffix;
    uint64_t v;
    char *end;

    if (text[0] < '0' || text[0] > '9')
        return otherwise;
    v = strtoull(text, &end, 10);
    suffix = *end != '\0' ? strchr(suffixes, *end) : NULL;
    return suffix != NULL ? v << 10 * (suffix - suffixes + 1) : v;
}

/* Beside this program, as in a build tree; in ../sbin, as it is installed; else wherever PATH says. */
static void find_agent(char *out, size_t size)
{
    char self[4096];
    ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
    char *slash;

    if (n > 0) {
        self[n] = '\0';
        slash = strrchr(self, '/');
        if (slash != NULL)
            *slash = '\0';
        snprintf(out, size, "%s/mcshmd", self);
        if (access(out, X_OK) == 0)
            return;
        snprintf(out, size, "%s/../sbin/mcshmd", self);
        if (access(out, X_OK) == 0)
            return;
    }
    snprintf(out, size, "mcshmd");
}

/* Runs mcshmd --dump-config; all that it writes, stdout and stderr, goes to out. Its exit status. */
static int dump(const char *config, char *out, size_t size)
{
    char agent[4200];
    int ends[2], status = 0;
    size_t n = 0;
    ssize_t k;
    pid_t pid;

    find_agent(agent, sizeof(agent));
    if (pipe(ends) != 0)
        return -1;
    pid = fork();
    if (pid == 0) {
        dup2(ends[1], STDOUT_FILENO);
        dup2(ends[1], STDERR_FILENO);
        close(ends[0]);
        close(ends[1]);
        if (config != NULL)
            execlp(agent, "mcshmd", "--dump-config", "--config", config, (char *)NULL);
        else
            execlp(agent, "mcshmd", "--dump-config", (char *)NULL);
        _exit(127);
    }
    close(ends[1]);
    while (pid > 0 && n < size - 1) {
        k = read(ends[0], out + n, size - 1 - n);
        if (k < 0 && errno == EINTR)
            continue;
        if (k <= 0)
            break;
        n += (size_t)k;
    }
    out[n] = '\0';
    close(ends[0]);
    if (pid < 0 || waitpid(pid, &status, 0) != pid || !WIFEXITED(status))
        return -1;
    return WEXITSTATUS(status);
}

static void parse(struct doctor *d, char *text)
{
    char section[32] = "", *line;

    while ((line = strsep(&text, "\n")) != NULL) {
        char *equals = strstr(line, " = ");
        struct setting *s;

        if (sscanf(line, "[%31[^]]]", section) == 1 || equals == NULL)
            continue;
        s = realloc(d->settings, (d->nsettings + 1) * sizeof(*s));
        if (s == NULL)
            return;
        d->settings = s;
        s = &s[d->nsettings++];
        snprintf(s->key, sizeof(s->key), "%s.%.*s", section, (int)(equals - line), line);
        snprintf(s->value, sizeof(s->value), "%s", equals + 3);
    }
}

void doctor_load_settings(struct doctor *d)
{
    static char text[DUMP_MAX];
    int status = dump(d->cli->config, text, sizeof(text));

    d->default_settings = d->cli->config == NULL && access("/etc/mcshm/mcshmd.ini", F_OK) != 0;
    if (status == 0) {
        parse(d, text);
        return;
    }
    text[strcspn(text, "\n")] = '\0';
    if (status == 127 || status < 0)
        doctor_say(d, DOCTOR_NOTE, "install mcshmd beside mcshm, or into PATH",
                   "there is no mcshmd to ask for the configuration: checks go by its defaults");
    else
        doctor_say(d, DOCTOR_BAD, "correct it; `mcshmd --check-config` looks at it alone",
                   "the agent would not start with it: %s", text);
}

void doctor_check_config(struct doctor *d)
{
    const char *path = d->cli->config != NULL ? d->cli->config : "/etc/mcshm/mcshmd.ini";

    if (d->nsettings == 0)
        return; /* doctor_load_settings() has said why */
    if (d->default_settings)
        doctor_say(d, DOCTOR_OK, NULL, "there is none at %s: all keys have their defaults", path);
    else
        doctor_say(d, DOCTOR_OK, NULL, "%s is well-formed", path);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "doctor.h"

static bool read_at(const struct doctor *d, char *out, size_t size, const char *format, va_list ap)
{
    char path[512];
    ssize_t n;
    int fd, k;

    out[0] = '\0';
    k = snprintf(path, sizeof(path), "%s", d->root);
    vsnprintf(path + k, sizeof(path) - (size_t)k, format, ap);
    fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return false;
    n = read(fd, out, size - 1);
    close(fd);
    if (n < 0)
        return false;
    while (n > 0 && out[n - 1] == '\n')
        n--;
    out[n] = '\0';
    return true;
}

bool doctor_read(const struct doctor *d, char *out, size_t size, const char *format, ...)
{
    va_list ap;
    bool found;

    va_start(ap, format);
    found = read_at(d, out, size, format, ap);
    va_end(ap);
    return found;
}

bool doctor_read_number(const struct doctor *d, uint64_t *out, const char *format, ...)
{
    char text[64], *end;
    va_list ap;
    bool found;

    va_start(ap, format);
    found = read_at(d, text, sizeof(text), format, ap);
    va_end(ap);
    if (!found)
        return false;
    if (strcmp(text, "max") == 0 || strcmp(text, "unlimited") == 0) {
        *out = UINT64_MAX;
        return true;
    }
    if (text[0] < '0' || text[0] > '9')
        return false;
    *out = strtoull(text, &end, 10);
    return *end == '\0' || *end == ' ' || *end == '\n';
}

bool doctor_read_field(const struct doctor *d, const char *path, const char *name, char *out,
                       size_t size)
{
    char text[16384], *line, *rest = text;
    size_t n = strlen(name);

    if (!doctor_read(d, text, sizeof(text), "%s", path))
        return false;
    while ((line = strsep(&rest, "\n")) != NULL) {
        char *value = line + n;

        if (strncmp(line, name, n) != 0)
            continue;
        value += strspn(value, " \t");
        if (*value != ':')
            continue;
        value++;
        snprintf(out, size, "%s", value + strspn(value, " \t"));
        return true;
    }
    return false;
}

bool doctor_parse_list(const char *text, struct cpu_set_bits *out)
{
    memset(out, 0, sizeof(*out));
    while (*text != '\0') {
        unsigned long first, last;
        char *end;

        if (*text < '0' || *text > '9')
            return false;
        first = last = strtoul(text, &end, 10);
        if (*end == '-') {
            text = end + 1;
            if (*text < '0' || *text > '9')
                return false;
            last = strtoul(text, &end, 10);
        }
        if (last < first || last >= DOCTOR_CPUS || (*end != '\0' && *end != ',' && *end != '\n'))
            return false;
        for (unsigned long i = first; i <= last; i++)
            out->bits[i / 64] |= UINT64_C(1) << (i % 64);
        text = *end != '\0' ? end + 1 : end;
    }
    return true;
}

bool doctor_has_cpu(const struct cpu_set_bits *s, unsigned cpu)
{
    return cpu < DOCTOR_CPUS && (s->bits[cpu / 64] >> (cpu % 64) & 1) != 0;
}

unsigned doctor_count_cpus(const struct cpu_set_bits *s)
{
    unsigned n = 0;

    for (size_t i = 0; i < sizeof(s->bits) / sizeof(s->bits[0]); i++)
        n += (unsigned)__builtin_popcountll(s->bits[i]);
    return n;
}

const char *doctor_size(uint64_t bytes, char *out, size_t size)
{
    static const char units[] = "BKMGTPE";
    double scaled = (double)bytes;
    unsigned unit = 0;

    if (bytes == UINT64_MAX) {
        snprintf(out, size, "unlimited");
        return out;
    }
    for (; scaled >= 1024 && unit < sizeof(units) - 2; unit++)
        scaled /= 1024;
    if (scaled == (double)(uint64_t)scaled)
        snprintf(out, size, "%.0f%c", scaled, units[unit]);
    else
        snprintf(out, size, "%.1f%c", scaled, units[unit]);
    return out;
}

cJSON *doctor_ask_agent(struct doctor *d, mcshm_query_what what, const char *nouns)
{
    mcshm_options o;
    mcshm *c = NULL;
    char *text = NULL;
    cJSON *answer = NULL;
    mcshm_status status;

    if (d->agent_pid == 0)
        return NULL;
    mcshm_options_init(&o);
    o.socket_path = d->socket;
    o.name = "mcshm";
    o.reconnect_ms = 0; /* nothing to come back for */
    status = mcshm_connect(&o, &c);
    if (status == MCSHM_OK)
        status = mcshm_query(c, what, &text);
    if (status == MCSHM_OK)
        answer = cJSON_Parse(text);
    else
        doctor_say(d, DOCTOR_NOTE, NULL, "the agent cannot be asked for its %s: %s", nouns,
                   mcshm_last_error(c));
    free(text);
    mcshm_close(c);
    return answer;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The doctor on a tree of made-up files, with settings of its own. Included after what it checks. */
#ifndef DOCTOR_TREE_H
#define DOCTOR_TREE_H

#include <criterion/criterion.h>
#include <ftw.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/doctor.h"

static struct doctor d;
static char root[64];

/* As in doctor.c, which brings all other checks with it. */
void doctor_say(struct doctor *to, enum severity severity, const char *remedy, const char *format,
                ...)
{
    struct finding *f;
    va_list ap;

    to->findings = realloc(to->findings, (to->nfindings + 1) * sizeof(*f));
    f = &to->findings[to->nfindings++];
    *f = (struct finding){.severity = severity};
    va_start(ap, format);
    vsnprintf(f->what, sizeof(f->what), format, ap);
    va_end(ap);
    snprintf(f->remedy, sizeof(f->remedy), "%s", remedy != NULL ? remedy : "");
}

const char *doctor_setting(const struct doctor *from, const char *key)
{
    for (size_t i = 0; i < from->nsettings; i++)
        if (strcmp(from->settings[i].key, key) == 0)
            return from->settings[i].value;
    return "";
}

uint64_t doctor_setting_number(const struct doctor *from, const char *key, uint64_t otherwise)
{
    const char *text = doctor_setting(from, key);

    return text[0] != '\0' ? strtoull(text, NULL, 10) : otherwise;
}

static void put(const char *path, const char *text)
{
    char full[512];
    FILE *f;

    snprintf(full, sizeof(full), "%s%s", root, path);
    for (char *p = full + strlen(root) + 1; (p = strchr(p, '/')) != NULL; p++) {
        *p = '\0';
        mkdir(full, 0755);
        *p = '/';
    }
    f = fopen(full, "w");
    cr_assert_not_null(f, "%s", full);
    fputs(text, f);
    fclose(f);
}

static void set(const char *key, const char *value)
{
    d.settings = realloc(d.settings, (d.nsettings + 1) * sizeof(*d.settings));
    snprintf(d.settings[d.nsettings].key, sizeof(d.settings->key), "%s", key);
    snprintf(d.settings[d.nsettings++].value, sizeof(d.settings->value), "%s", value);
}

static int drop(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
    (void)st;
    (void)flag;
    (void)ftw;
    return remove(path);
}

static void begin(void)
{
    snprintf(root, sizeof(root), "/tmp/mcshm-doctor-XXXXXX");
    cr_assert_not_null(mkdtemp(root));
    d = (struct doctor){.root = root};
}

static void end(void)
{
    free(d.findings);
    free(d.settings);
    nftw(root, drop, 16, FTW_DEPTH | FTW_PHYS);
}

/* Runs a check, which must say this as its `index`-th finding. */
static void expect(void (*check)(struct doctor *), size_t index, enum severity severity,
                   const char *words)
{
    d.nfindings = 0;
    check(&d);
    cr_assert_gt(d.nfindings, index, "no finding %zu with \"%s\"", index, words);
    cr_assert_eq(d.findings[index].severity, severity, "%d: %s", d.findings[index].severity,
                 d.findings[index].what);
    cr_assert_not_null(strstr(d.findings[index].what, words), "\"%s\" lacks \"%s\"",
                       d.findings[index].what, words);
    if (severity >= DOCTOR_WARN)
        cr_assert_neq(d.findings[index].remedy[0], '\0', "no remedy: %s", d.findings[index].what);
}

#endif

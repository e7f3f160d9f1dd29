/* SPDX-License-Identifier: Apache-2.0 */
#include "report.h"

#include "pages.h"
#include "say.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

void report_number(cJSON *object, const char *name, double value, int decimals)
{
    char text[64];

    if (!isfinite(value)) {
        cJSON_AddNullToObject(object, name);
        return;
    }
    snprintf(text, sizeof(text), "%.*f", decimals, value);
    cJSON_AddRawToObject(object, name, text);
}

void report_count(cJSON *object, const char *name, uint64_t value)
{
    char text[32];

    snprintf(text, sizeof(text), "%" PRIu64, value);
    cJSON_AddRawToObject(object, name, text);
}

void report_text(cJSON *object, const char *name, const char *value)
{
    if (value == NULL)
        cJSON_AddNullToObject(object, name);
    else
        cJSON_AddStringToObject(object, name, value);
}

void report_place(cJSON *document, const struct agent *a, const struct pin_cores *cores,
                  uint64_t page_size)
{
    char pages[64];

    report_text(document, "idle_mode", a->own ? "busy" : NULL);
    report_count(document, "client_core", (uint64_t)cores->client);
    report_count(document, "engine_core", (uint64_t)cores->engine);
    pages_name(page_size, pages, sizeof(pages));
    cJSON_AddStringToObject(document, "pages", pages);
    cJSON_AddStringToObject(document, "pages_note", a->pages_note);
    cJSON_AddStringToObject(document, "cpu", pin_cpu_model());
}

int report_print(const cJSON *document)
{
    char *text = cJSON_Print(document);
    int bad;

    if (text == NULL)
        return say_error(-ENOMEM, "out of memory for the result");
    bad = puts(text) < 0 || fflush(stdout) != 0;
    free(text);
    return bad ? say_error(-EIO, "cannot write the result to stdout") : 0;
}

const char *report_size(uint64_t bytes, char *out, unsigned size)
{
    if (bytes >= (1u << 20) && bytes % (1u << 20) == 0)
        snprintf(out, size, "%" PRIu64 " MiB", bytes >> 20);
    else if (bytes >= (1u << 10) && bytes % (1u << 10) == 0)
        snprintf(out, size, "%" PRIu64 " KiB", bytes >> 10);
    else
        snprintf(out, size, "%" PRIu64 " B", bytes);
    return out;
}

const char *report_cell(double value, int decimals, char *out, unsigned size)
{
    if (isfinite(value))
        snprintf(out, size, "%.*f", decimals, value);
    else
        snprintf(out, size, "-");
    return out;
}

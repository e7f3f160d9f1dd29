/* SPDX-License-Identifier: Apache-2.0 */
#include "table.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mcshm.h"

#define CELL_MAX 320
#define COLUMNS_MAX 16

uint64_t table_number(const cJSON *value)
{
    /* JSON numbers pass through a double, exact up to 2^53: larger ones come as text */
    if (cJSON_IsString(value))
        return strtoull(value->valuestring, NULL, 0);
    if (cJSON_IsNumber(value) && value->valuedouble > 0)
        return value->valuedouble < 18446744073709549568.0 ? (uint64_t)value->valuedouble
                                                           : UINT64_MAX;
    return 0;
}

static void bytes_text(char *out, size_t size, uint64_t n)
{
    static const char units[] = "BKMGTPE";
    unsigned unit = 0;
    double scaled = (double)n;

    while (scaled >= 1024 && unit < sizeof(units) - 2) {
        scaled /= 1024;
        unit++;
    }
    if (unit == 0)
        snprintf(out, size, "%" PRIu64, n);
    else if (scaled == (double)(uint64_t)scaled)
        snprintf(out, size, "%.0f%c", scaled, units[unit]);
    else
        snprintf(out, size, "%.1f%c", scaled, units[unit]);
}

static void bits_text(char *out, size_t size, uint64_t n)
{
    static const char *const units[] = {"", "k", "M", "G", "T"};
    unsigned unit = 0;
    double scaled = (double)n;

    for (; scaled >= 1000 && unit < sizeof(units) / sizeof(units[0]) - 1; unit++)
        scaled /= 1000;
    snprintf(out, size, scaled == (double)(uint64_t)scaled ? "%.0f%s" : "%.1f%s", scaled,
             units[unit]);
}

static void access_text(char *out, size_t size, const cJSON *value)
{
    uint64_t access;

    if (cJSON_IsString(value)) {
        snprintf(out, size, "%s", value->valuestring);
        return;
    }
    access = table_number(value);
    snprintf(out, size, "%c%c%c%c", (access & MCSHM_ACCESS_READ) != 0 ? 'r' : '-',
             (access & MCSHM_ACCESS_WRITE) != 0 ? 'w' : '-',
             (access & MCSHM_ACCESS_MAP_READ) != 0 ? 'R' : '-',
             (access & MCSHM_ACCESS_MAP_WRITE) != 0 ? 'W' : '-');
}

static void ago_text(char *out, size_t size, double us)
{
    if (us < 1000)
        snprintf(out, size, "%.1fus", us);
    else if (us < 1e6)
        snprintf(out, size, "%.1fms", us / 1e3);
    else if (us < 120e6)
        snprintf(out, size, "%.1fs", us / 1e6);
    else
        snprintf(out, size, "%.0fm", us / 60e6);
}

void table_cell(char *out, size_t size, const cJSON *value, enum cell_kind kind)
{
    if (value == NULL || cJSON_IsNull(value) || (cJSON_IsNumber(value) && value->valuedouble < 0))
        snprintf(out, size, "-");
    else if (kind == CELL_ACCESS)
        access_text(out, size, value);
    else if (kind == CELL_BYTES)
        bytes_text(out, size, table_number(value));
    else if (kind == CELL_BITS)
        bits_text(out, size, table_number(value));
    else if (kind == CELL_HEX)
        snprintf(out, size, "0x%" PRIx64, table_number(value));
    else if (kind == CELL_MICROS && cJSON_IsNumber(value))
        snprintf(out, size, "%.1f", value->valuedouble / 1000);
    else if (kind == CELL_AGO && cJSON_IsNumber(value))
        ago_text(out, size, value->valuedouble);
    else if (kind == CELL_PERCENT && cJSON_IsNumber(value))
        snprintf(out, size, "%.1f", value->valuedouble);
    else if (kind == CELL_YES_NO)
        snprintf(out, size, "%s", cJSON_IsTrue(value) || table_number(value) != 0 ? "yes" : "no");
    else if (cJSON_IsString(value))
        snprintf(out, size, "%s", value->valuestring);
    else
        snprintf(out, size, "%" PRIu64, table_number(value));
    /* names are what other processes chose: they must not steer the terminal */
    for (char *p = out; *p != '\0'; p++)
        if ((unsigned char)*p < ' ' || *p == 0x7f)
            *p = '?';
    if (out[0] == '\0')
        snprintf(out, size, "-");
}

static const cJSON *field(const cJSON *row, const struct column *column)
{
    return cJSON_GetObjectItemCaseSensitive(row, column->field);
}

static void print_line(char (*cells)[CELL_MAX], const struct column *columns, const int *widths,
                       size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (columns[i].kind >= CELL_COUNT && columns[i].kind <= CELL_PERCENT &&
            columns[i].kind != CELL_HEX)
            printf("%*s", widths[i], cells[i]);
        else if (i + 1 < n)
            printf("%-*s", widths[i], cells[i]);
        else
            printf("%s", cells[i]);
        fputs(i + 1 < n ? "  " : "\n", stdout);
    }
}

static unsigned limit;

void table_set_limit(unsigned rows)
{
    limit = rows;
}

void table_print(const struct column *columns, size_t n, const cJSON *rows)
{
    char cells[COLUMNS_MAX][CELL_MAX];
    int widths[COLUMNS_MAX];
    unsigned printed = 0;
    const cJSON *row;

    if (n > COLUMNS_MAX)
        n = COLUMNS_MAX;
    for (size_t i = 0; i < n; i++) {
        snprintf(cells[i], CELL_MAX, "%s", columns[i].title);
        widths[i] = (int)strlen(cells[i]);
    }
    cJSON_ArrayForEach(row, rows)
    {
        for (size_t i = 0; i < n; i++) {
            char cell[CELL_MAX];

            table_cell(cell, sizeof(cell), field(row, &columns[i]), columns[i].kind);
            if ((int)strlen(cell) > widths[i])
                widths[i] = (int)strlen(cell);
        }
    }
    print_line(cells, columns, widths, n);
    cJSON_ArrayForEach(row, rows)
    {
        if (limit != 0 && ++printed > limit)
            continue;
        for (size_t i = 0; i < n; i++)
            table_cell(cells[i], CELL_MAX, field(row, &columns[i]), columns[i].kind);
        print_line(cells, columns, widths, n);
    }
    if (limit != 0 && printed > limit)
        printf("... and %u more\n", printed - limit);
}

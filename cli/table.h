/* SPDX-License-Identifier: Apache-2.0 */
/* Columns of text, as wide as their longest cell; numbers to the right. */
#ifndef CLI_TABLE_H
#define CLI_TABLE_H

#include <stddef.h>
#include <stdint.h>

#include <cjson/cJSON.h>

enum cell_kind {
    CELL_TEXT,    /* a string, or a number as it is */
    CELL_COUNT,   /* a whole number */
    CELL_BYTES,   /* 64K, 1.5G */
    CELL_BITS,    /* a second, as 2.5G, 100G: powers of 1000 */
    CELL_HEX,     /* 0x... */
    CELL_MICROS,  /* a number of ns as us with one decimal */
    CELL_AGO,     /* a number of us as a time: 12.3us, 4.5ms, 1.2s, 3m */
    CELL_PERCENT, /* a number with one decimal */
    CELL_YES_NO,  /* a boolean */
    CELL_ACCESS   /* MCSHM_ACCESS_* as letters: r, w, R (map to read), W (map to write) */
};

struct column {
    const char *title;
    const char *field; /* of the row's object; what is missing or negative shows as "-" */
    enum cell_kind kind;
};

/* Prints a heading and a line for each object of `rows` (an array, or NULL for none). */
void table_print(const struct column *columns, size_t n, const cJSON *rows);

/* Writes one value as its kind demands. Control characters of strings become '?'. */
void table_cell(char *out, size_t size, const cJSON *value, enum cell_kind kind);

/* The most rows that table_print() prints, the others being counted in a last line; 0: all. */
void table_set_limit(unsigned rows);

/* The whole number a field holds, given as a number or as text; 0 when there is none. */
uint64_t table_number(const cJSON *value);

#endif

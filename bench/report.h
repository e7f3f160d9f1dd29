/* SPDX-License-Identifier: Apache-2.0 */
/* Results: one JSON document, or tables for people. */
#ifndef BENCH_REPORT_H
#define BENCH_REPORT_H

#include "agent.h"
#include "pin.h"

#include <cjson/cJSON.h>
#include <stdint.h>

/* Adds a number rounded to `decimals`; NAN becomes null. */
void report_number(cJSON *object, const char *name, double value, int decimals);
void report_count(cJSON *object, const char *name, uint64_t value);
void report_text(cJSON *object, const char *name, const char *value); /* NULL becomes null */

/* Where it was measured: agent, cores, pages, processor. */
void report_place(cJSON *document, const struct agent *a, const struct pin_cores *cores,
                  uint64_t page_size);

/* Prints the document on stdout. Returns 0 or a negative errno, said already. */
int report_print(const cJSON *document);

/* "4 KiB", "256 MiB", in out, which it returns. */
const char *report_size(uint64_t bytes, char *out, unsigned size);

/* A number for a table cell, or "-" for NAN. */
const char *report_cell(double value, int decimals, char *out, unsigned size);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gates of requests (struct mcs_gate): words in a session's memory that a task waits for before its first byte, and that say
 * when it has ended.  A task that waits stands in the engine's list of those, in no list of its queue: the ones behind it
 * go on.  Nothing rings when a GPU's stream writes a word, so an engine looks at them in every turn and, when it has
 * nothing else to do, takes naps that grow with how long it has been waiting already.  Engine's thread only.
 */
#ifndef MCD_GATE_H
#define MCD_GATE_H

#include "task.h"

/* Copies a request's gates from `at` of its argument block, which is checked and has `total` bytes, and checks them:
 * INVALID_HANDLE; INVALID_ARGUMENT: not 4-byte aligned; BAD_RANGE; NOT_SUPPORTED: GPU memory. *wait: the one of WAIT. */
enum mcs_status mcd_gates_check(const struct mcd_queue *q, const struct mcs_desc *d, uint32_t at,
                                uint64_t total, struct mcs_gate *wait);

/* Has the gate that the task waits for its value? OK and *open, or why it never will: its memory is gone. */
enum mcs_status mcd_gate_look(const struct mcd_queue *q, const struct mcd_task *t, bool *open);
/* Waits from now on; it is in none of the queue's lists. When the gate opens, mcd_task_open() has it. */
void mcd_gate_wait(struct mcd_engine *g, struct mcd_task *t);
/* Not any more. */
void mcd_gate_leave(struct mcd_engine *g, struct mcd_task *t);
/* Every turn, when any task waits; true: some have gone on. */
bool mcd_gates_turn(struct mcd_engine *g);
/* How long an idle engine may sleep, in ns: UINT64_MAX when nothing waits. */
uint64_t mcd_gates_nap(const struct mcd_engine *g);

/* The task of this descriptor, which has MCS_DESC_SIGNAL, has ended: sets the word, if it can be had. */
void mcd_gate_signal(struct mcd_engine *g, const struct mcd_queue *q, const struct mcs_desc *d);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The handlers of control requests, by what they are about, and what they share.  Each one
 * checks its input, changes the tables, and either replies or starts an operation whose last
 * stage replies.
 */
#ifndef MCD_HANDLERS_H
#define MCD_HANDLERS_H

#include "agent.h"

/* ---- handlers.c ------------------------------------------------------------------ */

/* The greeting's answer, with these descriptors. */
void mcd_reply_hello(struct mcd_session *s, const int *fds, unsigned nfds);
/* Enters a queue into the ledger. 0 or -ENOMEM. */
int mcd_queue_record(struct mcd_session *s, struct mcd_queue *q);
/* What the agent offers: MCS_FEATURE_*. */
uint64_t mcd_features(const struct mcd_agent *a);

/* A successful reply, without descriptors. */
void mcd_reply(struct mcd_session *s, struct mcs_msg *m, size_t body_size);
void mcd_reply_empty(struct mcd_session *s);
/* Its tenant may not have so much more. */
void mcd_session_refuse_limit(struct mcd_session *s, enum mcd_limit what, uint64_t have,
                              uint64_t more);

/* A name as it came over the wire: terminated, not empty, UTF-8 without control characters. */
bool mcd_good_name(const char *name);

/* Makes op.making in a worker's thread, then goes on with `then`. The session cannot go away
 * in between: its end waits for the operation. */
void mcd_make(struct mcd_session *s, void (*then)(struct mcd_session *s));

/*
 * Waits until nothing reaches what was just made unfindable: the grace period of the engines,
 * and the copies in callers' threads that have op.extent (NULL: any extent of s) mapped, engines' transfers, and
 * peers' RDMA devices.  Then calls `finish`, which ends with mcd_reply_taken().
 */
void mcd_take_away(struct mcd_session *s, void (*finish)(struct mcd_session *s));
/* Frees op.old and replies; with op.late, that a copy did not end. */
void mcd_reply_taken(struct mcd_session *s, size_t body_size, struct mcs_msg *m);

/* ---- handlers_registration.c: with RDMA devices ------------------------------------- */

/* Begins to register a part of an extent for peers, or a whole one for this host. NULL: nothing to do, or no
 * memory for it. access: MCS_ACCESS_*. */
struct mcd_registration *mcd_op_register(struct mcd_session *s, struct mcd_extent *e,
                                         uint64_t offset, uint64_t length, uint32_t access);
void mcd_op_register_extent(struct mcd_session *s, struct mcd_extent *e);
/* Done of a registration that no request waits for, the agent its context: peers are told of the keys. */
void mcd_registered_late(void *context, int res, const char *text);
/* Goes on with `then` once what was begun has come to an end; at once when that is so. What devices have not done within 5 s
 * goes on by itself. */
void mcd_op_registered(struct mcd_session *s, void (*then)(struct mcd_session *s));
/* True: something could not be registered that must be, and the request was refused for it. */
bool mcd_op_refused(struct mcd_session *s);
/*
 * [op.offset, op.offset + op.length) of op.extent is to be taken out of the segment's buffers: registers anew
 * what they keep, since their keys reach all of them, then goes on with `then`, which calls mcd_op_swap():
 * the buffers are cut. 0 or -ENOMEM.
 */
void mcd_op_cut(struct mcd_session *s, void (*then)(struct mcd_session *s));
int mcd_op_swap(struct mcd_session *s);
/* Stage of mcd_take_away(): deregisters the buffers that are not there any more, with op.last the extent, too; then
 * op.then. */
void mcd_op_deregister(struct mcd_session *s);
/* Memories have keys on other devices than before: peers describe all segments again. */
void mcd_segments_keys_changed(struct mcd_agent *a);

/* Replies with a text in a memfd. Takes the text, which may be NULL: no memory for it. */
void mcd_reply_text(struct mcd_session *s, struct mcs_msg *m, char *text);

/* ---- handlers_operate.c ---------------------------------------------------------- */

void mcd_on_reload(struct mcd_session *s, struct mcs_msg *m);
void mcd_on_trace(struct mcd_session *s, struct mcs_msg *m);

/* ---- handlers_memory.c ----------------------------------------------------------- */

/* Into the session's table, under the handle that it has. */
void mcd_session_enter_extent(struct mcd_session *s, struct mcd_extent *e);
/* Enters a fresh extent, whose memory is the session's already, into its table and the ledger. -ENOSPC, -ENOMEM. */
int mcd_session_add_extent(struct mcd_session *s, struct mcd_extent *e);
/* The extent does not become the session's, which holds its bytes already. */
void mcd_give_back(struct mcd_session *s, struct mcd_extent *e);
/* May the session's tenant have so many bytes more? Refuses when not; *room (may be NULL): how many it may. */
bool mcd_may_hold(struct mcd_session *s, uint64_t bytes, uint64_t *room);
/* One allocation more; a later agent is to take it back even if the limit is lower by then. */
void mcd_count_alloc(struct mcd_session *s);
/* An allocation at that offset, or the whole extent; its descriptor goes along when it is new to the client. */
void mcd_reply_extent(struct mcd_session *s, struct mcd_extent *e, uint64_t offset, bool is_new);
/* The end of an allocation in op.extent, fresh and registered: enters it and replies, or gives it back; `refuse` says why. */
void mcd_alloc_enter(struct mcd_session *s,
                     void (*refuse)(struct mcd_session *s, int res, uint64_t size));
void mcd_on_alloc(struct mcd_session *s, struct mcs_msg *m);
void mcd_on_free(struct mcd_session *s, struct mcs_msg *m);
/* Takes the descriptor by setting *nfds to 0. */
void mcd_on_register(struct mcd_session *s, struct mcs_msg *m, int *fds, unsigned *nfds);
void mcd_on_unregister(struct mcd_session *s, struct mcs_msg *m);
void mcd_on_map(struct mcd_session *s, struct mcs_msg *m);
void mcd_on_unmap(struct mcd_session *s, struct mcs_msg *m);

/* ---- handlers_gpu.c ----------------------------------------------------------------- */

void mcd_on_gpu_alloc(struct mcd_session *s, struct mcs_msg *m);
/* Takes the descriptor by setting *nfds to 0. */
void mcd_on_gpu_import(struct mcd_session *s, struct mcs_msg *m, int *fds, unsigned *nfds);
/* EXTENT_BACK of what the ledger has this record of. */
void mcd_on_gpu_back(struct mcd_session *s, struct mcs_msg *m, struct mcd_ledger_extent *r,
                     int *fds, unsigned *nfds);
/* The parts that have come, if there are some, will not be followed by others. */
void mcd_import_drop(struct mcd_session *s);

/* ---- handlers_segment.c ---------------------------------------------------------- */

void mcd_on_publish(struct mcd_session *s, struct mcs_msg *m);
void mcd_on_withdraw(struct mcd_session *s);
void mcd_on_buffer_add(struct mcd_session *s, struct mcs_msg *m);
void mcd_on_buffer_remove(struct mcd_session *s, struct mcs_msg *m, bool revoke);
void mcd_on_segment_open(struct mcd_session *s, struct mcs_msg *m);
void mcd_on_segment_close(struct mcd_session *s, struct mcs_msg *m);
void mcd_on_describe(struct mcd_session *s, struct mcs_msg *m);
void mcd_on_open_back(struct mcd_session *s, struct mcs_msg *m);

/* ---- handlers_restore.c: sessions of an earlier agent ------------------------------ */

/* May the message come while the session is coming back? */
bool mcd_is_for_restore(uint16_t type);
/* These take the descriptor by setting *nfds to 0. */
void mcd_on_restore(struct mcd_session *s, struct mcs_msg *m, int *fds, unsigned *nfds);
void mcd_on_extent_back(struct mcd_session *s, struct mcs_msg *m, int *fds, unsigned *nfds);
void mcd_on_allocs_back(struct mcd_session *s, struct mcs_msg *m);
void mcd_on_queue_back(struct mcd_session *s, struct mcs_msg *m, int *fds, unsigned *nfds);
void mcd_on_resume(struct mcd_session *s);

/* ---- handlers_peer.c ------------------------------------------------------------- */

void mcd_on_ping(struct mcd_session *s, struct mcs_msg *m);

/* The open segment of a handle; refuses and returns NULL when there is none. */
struct mcd_open *mcd_open_of(struct mcd_session *s, uint32_t handle);

#endif

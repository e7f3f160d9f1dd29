/* SPDX-License-Identifier: Apache-2.0 */
/* Headers and trailers of data frames: into bytes, out of bytes, and what is wrong with them. */
#ifndef MCT_TCP_FRAME_H
#define MCT_TCP_FRAME_H

#include "protocol.h"
#include "shm/abi.h"

/* Name and message of a notification together. */
#define MCT_TCP_NOTIFY_MAX ((uint64_t)MCS_NOTIFY_NAME_MAX + MCS_NOTIFY_MESSAGE_MAX)

/* Fills magic, reserved and check in. */
void mct_tcp_header_seal(struct mct_tcp_header *h);
/* A copy out of received bytes. NULL, or a static sentence that says what is wrong. */
const char *mct_tcp_header_open(struct mct_tcp_header *h, const void *bytes);
/* What a request, and an answer, must be like whatever it belongs to. NULL, or what is wrong. */
const char *mct_tcp_request_check(const struct mct_tcp_header *h);
const char *mct_tcp_answer_check(const struct mct_tcp_header *h);
/* The type that answers a request; 0: not a request. */
uint8_t mct_tcp_answer_type(uint8_t request);

void mct_tcp_trailer_make(struct mct_tcp_trailer *t, uint64_t id, uint16_t status, uint32_t crc);
const char *mct_tcp_trailer_open(struct mct_tcp_trailer *t, const void *bytes, uint64_t id);

#endif

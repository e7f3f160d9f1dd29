/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the wire share; nobody else includes this. */
#ifndef MCD_WIRE_INTERNAL_H
#define MCD_WIRE_INTERNAL_H

#include <openssl/evp.h>
#include <openssl/ssl.h>

#include "shm/status.h"
#include "wire.h"
#include "wire_protocol.h"

#define MCD_WIRE_PSK_MIN 16u
#define MCD_WIRE_PSK_MAX 4096u
#define MCD_WIRE_TEXT 512u /* a sentence */

struct mcd_wire_auth {
    enum mcd_wire_method method;
    uint8_t *psk;
    size_t psk_size;
    SSL_CTX *tls;
    char subject[256]; /* of our own certificate */
};

/* Bytes on their way: data[begin, end). Empty ones begin at 0. */
struct mcd_wire_buffer {
    uint8_t *data;
    size_t begin, end, capacity;
};
/* Room for at least n more bytes behind end. -ENOMEM. */
int mcd_wire_buffer_reserve(struct mcd_wire_buffer *b, size_t n);
int mcd_wire_buffer_add(struct mcd_wire_buffer *b, const void *data, size_t n);
/* Drops n bytes from the front; an emptied large buffer gives its memory back. */
void mcd_wire_buffer_drop(struct mcd_wire_buffer *b, size_t n);
void mcd_wire_buffer_free(struct mcd_wire_buffer *b);
static inline size_t mcd_wire_buffer_size(const struct mcd_wire_buffer *b)
{
    return b->end - b->begin;
}

/* psk: keys of one wire, made from the secret and both greetings. */
struct mcd_wire_psk;
int mcd_wire_psk_create(const struct mcd_wire_auth *auth, const struct mcd_wire_greeting *initiator,
                        const struct mcd_wire_greeting *acceptor, uint16_t version,
                        bool is_initiator, struct mcd_wire_psk **out);
void mcd_wire_psk_destroy(struct mcd_wire_psk *p);
/* Our own proof; the peer's, compared in constant time. */
int mcd_wire_psk_prove(struct mcd_wire_psk *p, uint8_t mac[32]);
bool mcd_wire_psk_verify(struct mcd_wire_psk *p, const uint8_t mac[32]);
/* MAC of frame number `sequence`, sent or received. */
int mcd_wire_psk_seal(struct mcd_wire_psk *p, uint64_t sequence, const void *frame, size_t size,
                      uint8_t mac[MCD_WIRE_MAC]);
bool mcd_wire_psk_check(struct mcd_wire_psk *p, uint64_t sequence, const void *frame, size_t size,
                        const uint8_t mac[MCD_WIRE_MAC]);

/* tls: one connection over memory; whoever calls moves the bytes. */
struct mcd_wire_tls;
int mcd_wire_tls_create(const struct mcd_wire_auth *auth, bool initiator,
                        struct mcd_wire_tls **out);
void mcd_wire_tls_destroy(struct mcd_wire_tls *t);
/* Bytes that came from the socket. */
int mcd_wire_tls_feed(struct mcd_wire_tls *t, const void *data, size_t size);
/* Takes the handshake as far as it goes: 1 done, 0 needs bytes, -EPERM with a sentence. */
int mcd_wire_tls_handshake(struct mcd_wire_tls *t, char *error, size_t error_size);
/* Bytes of plain text, 0: none now; -EPERM with a sentence, -EPIPE: the peer closed. */
int mcd_wire_tls_read(struct mcd_wire_tls *t, void *data, size_t size, char *error,
                      size_t error_size);
/* Has a record begun that is not all there? */
bool mcd_wire_tls_pending(const struct mcd_wire_tls *t);
int mcd_wire_tls_write(struct mcd_wire_tls *t, const void *data, size_t size);
/* Moves what has to go out to the socket behind `out`. */
int mcd_wire_tls_take(struct mcd_wire_tls *t, struct mcd_wire_buffer *out);
/* One certificate's subject, printable. */
void mcd_wire_tls_subject(X509 *certificate, char *text, size_t size);
/* The context for all wires; on failure one sentence. */
int mcd_wire_tls_context(const struct mcd_wire_auth_options *o, SSL_CTX **out, char *error,
                         size_t error_size);

/* greeting */
const char *mcd_wire_method_name(unsigned method);
/* Is it well formed, and may we talk? 0 with *version, or -EPROTO, -EPERM, -EPROTONOSUPPORT with a sentence. */
int mcd_wire_greeting_check(const struct mcd_wire_greeting *ours,
                            const struct mcd_wire_greeting *theirs, uint16_t *version, char *error,
                            size_t error_size);
void mcd_wire_refusal_make(struct mcd_wire_refusal *r, uint32_t status, const char *text);
/* The status to report; text gets the sentence, unprintable bytes replaced. */
uint32_t mcd_wire_refusal_read(const struct mcd_wire_refusal *r, char *text, size_t size);

/* frame */
void mcd_wire_frame_make(struct mcd_wire_frame *f, const struct mcd_wire_header *h, size_t size,
                         uint16_t version, uint64_t sequence);
/* 0 with *h, or -EPROTO with a sentence. */
int mcd_wire_frame_check(const struct mcd_wire_frame *f, uint16_t version, uint64_t sequence,
                         struct mcd_wire_header *h, char *error, size_t error_size);

#endif

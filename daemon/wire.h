/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A wire: the control connection between two agents.  Frames with protobuf-c messages over one
 * non-blocking TCP socket; who may connect is settled before anything else is parsed.
 *
 *   plain greeting   magic, versions, method, incarnation, nonce (fixed sizes)
 *   none             loopback, or [peer] allow_insecure: whoever accepts decides, see mcd_wire_refuse()
 *   psk              HMAC-SHA256 challenge and response, bound to both incarnations, nonces and roles; then every
 *                    frame carries a MAC under keys derived from all of it, with a running number
 *   tls              OpenSSL with mutual certificates; the greeting is repeated inside and must match
 *
 * docs/protocol.md draws every frame. Control thread only; no call ever waits.
 */
#ifndef MCD_WIRE_H
#define MCD_WIRE_H

#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MCD_WIRE_MAGIC UINT64_C(0x314c54434d434d01) /* first 8 bytes of a greeting, little endian */
#define MCD_WIRE_VERSION_MIN 1u
#define MCD_WIRE_VERSION 1u
#define MCD_WIRE_FRAME_MAX (1u << 20) /* bytes of one payload */
#define MCD_WIRE_QUEUE_MAX (8u << 20) /* unsent bytes before the peer counts as not reading */
#define MCD_WIRE_GREETING_NS UINT64_C(5000000000) /* from accept or connect to ready */

enum mcd_wire_method { MCD_WIRE_NONE, MCD_WIRE_PSK, MCD_WIRE_TLS }; /* as [peer] auth */

/* Keys and certificates, read once at the start; shared by all wires. */
struct mcd_wire_auth;
struct mcd_wire_auth_options {
    enum mcd_wire_method method;
    /* 16 .. 4096 bytes after trailing newlines are cut; mode must not let others read */
    const char *psk_file;
    const char *tls_cert, *tls_key, *tls_ca; /* PEM */
};
/* On failure one sentence in error. */
int mcd_wire_auth_create(const struct mcd_wire_auth_options *o, struct mcd_wire_auth **out,
                         char *error, size_t error_size);
void mcd_wire_auth_destroy(struct mcd_wire_auth *a);

struct mcd_wire_header {
    uint16_t type;        /* of peer.proto's messages, enum mcd_wire_type in peer.h; >= 1 */
    bool reply;           /* answers the request with this id */
    uint32_t id;          /* 0: expects no answer */
    uint32_t status;      /* enum mcs_status; replies */
    uint32_t deadline_ms; /* requests: from reception; 0: none */
};

struct mcd_wire_stats { /* since the agent began; one for all wires */
    uint64_t frames_in, frames_out, bytes_in, bytes_out;
    uint64_t auth_failures, version_refused, malformed, greeting_timeouts, overflows;
};

struct mcd_wire;
/* The callee may destroy the wire, from inside any of them. */
struct mcd_wire_events {
    void *context;
    /* Authenticated; the peer's incarnation and the version in force are known. */
    void (*ready)(void *context, struct mcd_wire *w);
    /* One frame; payload is good until the call returns. */
    void (*message)(void *context, struct mcd_wire *w, const struct mcd_wire_header *h,
                    const uint8_t *payload, size_t size);
    /* The wire is dead (once). status: enum mcs_status (AUTH, VERSION,
     * PROTOCOL, PEER_UNREACHABLE, TIMEOUT, LIMIT, ENCRYPTION, LOCAL_RESOURCE); text: one sentence. */
    void (*broken)(void *context, struct mcd_wire *w, uint32_t status, const char *text);
};

struct mcd_wire_options {
    const struct mcd_wire_auth *auth;
    struct mcd_wire_stats *stats;
    struct mcd_wire_events events;
    uint64_t incarnation; /* ours */
    bool initiator;
    /* 0: MCD_WIRE_VERSION_MIN and MCD_WIRE_VERSION; tests set others */
    uint16_t version_min, version_max;
};

/* fd: connected or connecting non-blocking socket, the wire's from now on, also on errors. received: bytes read from it
 * before (the first 8, by which an acceptor told it from a data connection), or NULL. */
int mcd_wire_create(const struct mcd_wire_options *o, int fd, const void *received,
                    size_t received_size, struct mcd_wire **out);
void mcd_wire_destroy(struct mcd_wire *w);
int mcd_wire_fd(const struct mcd_wire *w);
/* From now on these are called, also when one of the old ones is just running. */
void mcd_wire_set_events(struct mcd_wire *w, const struct mcd_wire_events *events);
/* EPOLLIN and EPOLLOUT as wanted now; look again after every call. */
uint32_t mcd_wire_wants(const struct mcd_wire *w);
/* When mcd_wire_run() has to be called even if the socket stays quiet: ns of CLOCK_MONOTONIC; 0: at once, UINT64_MAX: never. */
uint64_t mcd_wire_due(const struct mcd_wire *w);
/* The socket is ready, or time has passed: reads and writes what is possible without waiting, a bounded amount a call (other
 * connections have a right to their turn). May call the events. now: ns of CLOCK_MONOTONIC. */
void mcd_wire_run(struct mcd_wire *w, uint64_t now);
/* Queues one frame (message may be NULL: empty payload). -ENOTCONN: not ready or broken; -EINVAL: no type, or a reply to id 0; -EMSGSIZE; -ENOMEM; -ENOBUFS: the peer does not read
 * (the wire breaks in the next run()). */
int mcd_wire_send(struct mcd_wire *w, const struct mcd_wire_header *h,
                  const ProtobufCMessage *message);
/* Before the wire is ready: tells the peer why it is not wanted (AUTH, VERSION, LIMIT, TIMEOUT, ENCRYPTION) and ends the wire
 * without an event; the caller destroys it. On a ready wire it does nothing: send a BYE. */
void mcd_wire_refuse(struct mcd_wire *w, uint32_t status, const char *text);
bool mcd_wire_is_ready(const struct mcd_wire *w);
bool mcd_wire_initiated(const struct mcd_wire *w);
uint64_t mcd_wire_peer_incarnation(const struct mcd_wire *w);
uint16_t mcd_wire_version(const struct mcd_wire *w);
/* ns of CLOCK_MONOTONIC, as given to run(), of the newest byte. */
uint64_t mcd_wire_last_received(const struct mcd_wire *w);

#endif

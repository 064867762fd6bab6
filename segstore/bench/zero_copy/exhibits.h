/* Sends from a mapping without a copy, for `segstore bench zero-copy` alone: MSG_ZEROCOPY (zerocopy.c), io_uring (uring.c).
 * Built as segstore.bench.zero_copy._exhibits, in a clone only. */
#ifndef SEG_BENCH_EXHIBITS_H
#define SEG_BENCH_EXHIBITS_H

#include <stdint.h>

#include "contract/transfer.h"

/* --- zerocopy.c: MSG_ZEROCOPY ------------------------------------------------------------------ */
/* Set SO_ZEROCOPY of a socket: its value before, -errno. */
int64_t seg_zerocopy(int fd, int32_t on);
/* Whether a TCP socket may have SO_ZEROCOPY: 0, -errno. */
int64_t seg_zerocopy_probe(void);
/* send(2) from a window, as seg_write_window; never a SIGPIPE. The window stays until its notices have come. */
int64_t seg_send_zerocopy(int out, const seg_window *w, int64_t position, int64_t count);

typedef struct seg_noticed {
    int64_t sends;          /* sends whose pages the kernel needs no more */
    int64_t copied;         /* sends whose bytes the kernel has copied after all */
    int64_t calls;          /* of recvmsg */
} seg_noticed;

/* Read the notices that have come, without waiting: out->sends, -errno. */
int64_t seg_notices(int fd, seg_noticed *out);

/* --- uring.c: io_uring's send_zc ------------------------------------------------------------------ */
typedef struct seg_ring {
    int32_t open, fd;
    uint8_t *rings, *sqes;  /* mapped */
    int64_t rings_len, sqes_len;
    uint32_t sq_tail, sq_mask, sq_array, cq_head, cq_tail, cq_mask, cqes; /* offsets in rings */
    int32_t awaited;        /* 1: the request's result, 2: its notice */
    int32_t unsubmitted;
    int64_t result;
    int64_t enters;         /* calls of io_uring_enter */
    int64_t registers;      /* calls of io_uring_register */
    int64_t notices;        /* notices that the kernel needs a request's pages no more */
    int64_t copied;         /* sends whose bytes the kernel has copied after all */
} seg_ring;

/* Make a ring. 0, -errno; after an error no descriptor and no mapping is left. */
int64_t seg_ring_open(seg_ring *r);
/* Cancel the request that is under way, and close the ring, if it is open. */
int64_t seg_ring_close(seg_ring *r);
/* Whether there are rings that can send_zc: 0, -errno. */
int64_t seg_ring_probe(void);
/* Send from a window, and wait until the kernel needs the window no more: bytes sent, -errno. After -EINTR the same call
 * goes on with the request that is under way. */
int64_t seg_ring_send(seg_ring *r, int out, const seg_window *w, int64_t position, int64_t count);

#endif

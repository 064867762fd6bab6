/* Requests and answers of one connection that are like earlier ones (exchange.c). */
#ifndef SEG_CONTRACT_EXCHANGE_H
#define SEG_CONTRACT_EXCHANGE_H

#include <stdint.h>

#include "batch.h"
#include "log.h"
#include "rules.h"
#include "transfer.h"

enum { SEG_BOUNDS = 6, SEG_HOLES = 4 };

/* The requests of an API that were answered. One thread counts; any reads. */
typedef struct seg_counts {
    double bounds[SEG_BOUNDS];      /* seconds */
    int64_t times[SEG_BOUNDS + 1];  /* requests by their seconds: up to each bound, and above all */
    double seconds;                 /* the sum */
    int64_t received;               /* bytes of requests, with their sizes */
    int64_t sent;                   /* of answers */
} seg_counts;

/* A number in a message that differs from one message to the next. */
typedef struct seg_hole {
    int64_t at;             /* its first byte */
    int64_t width;          /* its bytes: 4 or 8 */
} seg_hole;

/* A message without its size, which has records between two parts that are known, or none. */
typedef struct seg_message {
    const uint8_t *front;   /* up to the length of the records */
    int64_t front_len;
    const uint8_t *end;     /* after the records */
    int64_t end_len;
    int32_t compact;        /* 1: the length of the records is a varint */
    int32_t n_holes;
    seg_hole holes[SEG_HOLES];  /* in `front`, by their place */
} seg_message;

typedef struct seg_exchange {
    uint8_t *room;          /* requests are received here, at the front; an answer is put behind its request */
    int64_t room_len;
    seg_message asked;     /* holes: correlation id; of fetch then the offset, between the two of seg_exchange_next
                             * the session's epoch */
    int64_t epoch;          /* the session's */
    seg_message answer;    /* holes: correlation id; of produce then base offset, append time, log start offset; of
                             * fetch high watermark, last stable offset, log start offset, if versions have it */
    int64_t most;           /* fetch: bytes of batches that are wanted, */
    int64_t least;          /* without which there is no answer yet, */
    int64_t longest;        /* and that are copied into the answer */
    int32_t committed;      /* 1: what a batch of a transaction is answered needs another look */
    int64_t received;       /* bytes that came, 0: no more will come; -errno */
    int64_t answered;       /* bytes of the answer; 0: there is none yet */
    int64_t sent;           /* of these, by now */
    double begun;           /* when the request came */
    seg_counts *counts;     /* where a produce or fetch is counted whose answer is sent in whole; NULL: nowhere */
} seg_exchange;

/* Receive once, and do a request that is like the earlier one, if nothing else has come; the socket is not waited
 * for. SEG_SLOW: nothing was done but that (the request may be another one, or not whole). */

/* seg_tail_take of the only batch, which has no codec. Its base offset; else as seg_tail_take. */
int64_t seg_exchange_produce(int sock, seg_exchange *x, seg_tail *t, const seg_rules *rules, int64_t now, seg_batch *h);
/* seg_find_stretch, and its bytes. Their number. */
int64_t seg_exchange_fetch(int sock, seg_exchange *x, int fd, const seg_sendable *s, int64_t start, int64_t stable);

/* A fetch in the epoch that is expected. Its offset. */
int64_t seg_exchange_next(int sock, seg_exchange *x);
/* Answer a fetch with whole batches, which lie at `position` to `stop`; `ends` are the numbers in the answer's holes, and `number` is
 * the correlation id. Their bytes; SEG_SLOW: nothing was sent. */
int64_t seg_exchange_give(int sock, seg_exchange *x, int fd, int64_t position, int64_t stop, const int64_t *ends,
                          int32_t number);

#endif

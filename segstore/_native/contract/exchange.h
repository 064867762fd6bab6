/* Requests and answers of one connection that are like earlier ones (exchange.c). */
#ifndef SEG_CONTRACT_EXCHANGE_H
#define SEG_CONTRACT_EXCHANGE_H

#include <stdint.h>

#include "batch.h"
#include "log.h"
#include "rules.h"
#include "transfer.h"

enum { SEG_BOUNDS = 6 };

/* The requests of an API that were answered. One thread counts; any reads. */
typedef struct seg_counts {
    double bounds[SEG_BOUNDS];      /* seconds */
    int64_t times[SEG_BOUNDS + 1];  /* requests by their seconds: up to each bound, and above all */
    double seconds;                 /* the sum */
    int64_t received;               /* bytes of requests, with their sizes */
    int64_t sent;                   /* of answers */
} seg_counts;

typedef struct seg_exchange {
    uint8_t *room;          /* requests are received here, at the front; an answer is put behind its request */
    int64_t room_len;
    const uint8_t *asked;   /* the earlier request without its size, of produce up to the length of its batch; 8 bytes
                             * at least. Others may have another correlation id, of fetch another offset. */
    int64_t asked_len;
    int64_t offset_at;      /* fetch: where the request has its offset */
    int64_t epoch_at;       /* seg_exchange_next: where it has its session's epoch, before that */
    int64_t epoch;          /* which is to be this one */
    const uint8_t *answer;  /* with its size; of fetch up to the length of the records */
    int64_t answer_len;
    int64_t told_at;        /* where it has `n_told` int64s; of produce base offset, append time, log start offset; of
                             * fetch high watermark, last stable offset, log start offset */
    int64_t n_told;         /* produce: 3 */
    const uint8_t *behind;  /* fetch: what comes behind the records */
    int64_t behind_len;
    int64_t most;           /* fetch: bytes of batches that are wanted, */
    int64_t least;          /* without which there is no answer yet, */
    int64_t longest;        /* and that are copied into the answer */
    int32_t compact;        /* 1: lengths are varints, and there are tagged fields */
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
/* Answer a fetch with whole batches, which lie at `position` to `stop`; `ends` are the n_told numbers, and `number` is
 * the correlation id. Their bytes; SEG_SLOW: nothing was sent. */
int64_t seg_exchange_give(int sock, seg_exchange *x, int fd, int64_t position, int64_t stop, const int64_t *ends,
                          const uint8_t *number);

#endif

/* Appends that wait for a log's lock: the lock's holder writes all of them by one call (combine.c). */
#ifndef SEG_CONTRACT_COMBINE_H
#define SEG_CONTRACT_COMBINE_H

#include <stdint.h>

#include "batch.h"

enum { SEG_WAITERS = 16 };  /* slots of a log for appends; without a free slot an append waits for the lock */
enum { SEG_SHARED_ROOM = 65536 }; /* bytes of the largest append that may wait in a slot */

/* An append of n encoded batches of one producer, `len` bytes in all, as seg_tail_write takes it. It lies in the stack
 * frame of its thread, which stays in the call until the append is answered or withdrawn. */
typedef struct seg_waiting {
    uint8_t *buf;
    int64_t len;
    seg_batch *batches;
    int64_t n;
    int64_t expected;        /* the offset to append at; -1: any */
    int64_t now;             /* the clock in ms, or SEG_NOW */
    int64_t timestamp;       /* of one record that C has encoded, to be checked against the clock; -1: batches that
                                were checked */
    int32_t opens;           /* 1: a transaction may begin with this append */
    int32_t alone;           /* 1: refused if a standby must have it before readers see it */
    int64_t clock;           /* its LogAppendTime in ms; else `now` */
    int64_t answer;          /* the result of seg_tail_write */
    int32_t answered;        /* 1: `answer` is set, and no other thread uses this struct any more */
} seg_waiting;

#endif

/* Appends that wait for a log's lock: its holder makes all of them by one write (combine.c). */
#ifndef SEG_CONTRACT_COMBINE_H
#define SEG_CONTRACT_COMBINE_H

#include <stdint.h>

#include "batch.h"

enum { SEG_WAITERS = 16 };  /* appends that a log's slots hold; another one waits for the lock itself */
enum { SEG_SHARED_ROOM = 65536 }; /* bytes of the largest append that is left in a slot */

/* An append of n encoded batches of one producer, `len` bytes in all, as seg_tail_write takes it. It lies in the frame
 * of its thread, which stays in the call until it is answered, or until it was withdrawn. */
typedef struct seg_waiting {
    uint8_t *buf;
    int64_t len;
    seg_batch *batches;
    int64_t n;
    int64_t expected;        /* the offset that it must get; -1: any */
    int64_t now;             /* the clock in ms, or SEG_NOW */
    int64_t timestamp;       /* of one record, which C has encoded, and has to be near the clock; -1: of checked batches */
    int32_t opens;           /* 1: a transaction may begin with it */
    int32_t alone;           /* 1: only if no other machine's log is to have it before readers see it */
    int64_t clock;           /* the time of LogAppendTime that it got; else `now` */
    int64_t answer;          /* what seg_tail_write returns */
    int32_t answered;        /* 1: `answer` says what became of it, and nobody looks at it any more */
} seg_waiting;

#endif

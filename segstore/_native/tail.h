/* What one write for several appends asks of a tail (tail.c), as combine.c sees it. The caller holds the tail's lock. */
#ifndef SEG_TAIL_H
#define SEG_TAIL_H

#include "contract/combine.h"
#include "contract/log.h"

#define SEG_HIDDEN __attribute__((visibility("hidden")))

/* Bytes, offsets and batches that lie ahead of an append in the same write. */
typedef struct seg_ahead {
    int64_t bytes;
    int64_t offsets;
    int64_t batches;
} seg_ahead;

/* Whether an append may be written behind those ahead. Its batches have their offsets and positions then, and *ahead
 * counts them. */
SEG_HIDDEN int seg_tail_admit(const seg_tail *t, seg_waiting *w, seg_ahead *ahead);
/* Make one append by a write of its own; returns as seg_tail_write. */
SEG_HIDDEN int64_t seg_tail_make(seg_tail *t, seg_waiting *w);
/* Index an append that was written at the log's end, take in its producer, and move the end behind it. Its first
 * offset; -errno: the tail is torn. */
SEG_HIDDEN int64_t seg_tail_take_in(seg_tail *t, const seg_waiting *w);
/* Let readers see the log up to its end. */
SEG_HIDDEN void seg_tail_reveal(seg_tail *t);
/* Note that a write has failed: bytes may lie behind the end. */
SEG_HIDDEN void seg_tail_tear(seg_tail *t, int64_t error);

#endif

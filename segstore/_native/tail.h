/* What the files of a log's tail have in common: tail.c, append.c, hand_on.c and combine.c. The caller holds the tail's
 * lock. */
#ifndef SEG_TAIL_H
#define SEG_TAIL_H

#include "contract/combine.h"
#include "contract/log.h"

#define SEG_HIDDEN __attribute__((visibility("hidden")))

/* --- tail.c --- */

/* Let readers see the log up to its end: 1; 0: the lock of a shared log was taken away, and nothing new is in the log. */
SEG_HIDDEN int seg_tail_reveal(seg_tail *t);
/* Wake those who wait for records, without the tail's lock. */
SEG_HIDDEN void seg_tail_wake(const seg_tail *t);
/* Move the end behind batches that were put out. */
SEG_HIDDEN void seg_tail_move_end(seg_tail *t, int64_t len, const seg_batch *batches, int64_t n);
/* Move the end behind batches that were put out, and let readers see them; returns as seg_tail_reveal. */
SEG_HIDDEN int seg_tail_show_batches(seg_tail *t, int64_t len, const seg_batch *batches, int64_t n);
/* Move the end behind batches that were put out, and leave them unseen, since a follower lacks them; pause the tail. */
SEG_HIDDEN void seg_tail_hide_batches(seg_tail *t, int64_t len, const seg_batch *batches, int64_t n);
/* Note that a write has failed, and pause the tail: bytes may lie behind the end. Of a shared log they are cut. */
SEG_HIDDEN void seg_tail_tear(seg_tail *t, int64_t error);

/* --- append.c --- */

/* Bytes, offsets and batches that lie ahead of an append in the same write. */
typedef struct seg_ahead {
    int64_t bytes;
    int64_t offsets;
    int64_t batches;
} seg_ahead;

/* Whether n batches with so many offsets, the first of this time, fit the active segment. */
SEG_HIDDEN int seg_tail_fits(const seg_tail *t, int64_t timestamp, int64_t size, int64_t offsets, int64_t n);
/* Whether an append may be written behind those ahead. Its batches have their offsets and positions then, and *ahead
 * counts them. */
SEG_HIDDEN int seg_tail_admit(const seg_tail *t, seg_waiting *w, seg_ahead *ahead);
/* Make one append by a write of its own; returns as seg_tail_write. */
SEG_HIDDEN int64_t seg_tail_make(seg_tail *t, seg_waiting *w);
/* Index an append that was written at the log's end, take in its producer, and move the end behind it. Its first
 * offset; -errno: the tail is torn. */
SEG_HIDDEN int64_t seg_tail_take_in(seg_tail *t, const seg_waiting *w);
/* Write batches that have their offsets and their positions in this log, and index them. The end stays: 0; -errno: the
 * tail is torn. */
SEG_HIDDEN int64_t seg_tail_put_out(seg_tail *t, const uint8_t *buf, int64_t len, const seg_batch *batches, int64_t n);
/* Take in that batches were written to this log, and indexed: their producers, and one more append. */
SEG_HIDDEN void seg_tail_note(seg_tail *t, const seg_batch *batches, int64_t n);

/* --- hand_on.c --- */

/* Hand on to all followers the batches that were put out, and show them at all these tails, or at none: 1 if all
 * followers have them. */
SEG_HIDDEN int seg_tail_hand_on(seg_tail *t, const uint8_t *buf, int64_t len, seg_batch *batches, int64_t n);
/* Take in the write that a follower's thread had begun, if it is over: whether none is under way any more. Its batches
 * stay, unseen. */
SEG_HIDDEN int seg_tail_settle(seg_tail *t);

#endif

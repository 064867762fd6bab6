/* Declarations for the files of a log's tail: tail.c, append.c, hand_on.c and combine.c. The caller holds the tail's
 * lock. */
#ifndef SEG_TAIL_H
#define SEG_TAIL_H

#include "contract/combine.h"
#include "contract/log.h"

#define SEG_HIDDEN __attribute__((visibility("hidden")))

/* --- tail.c --- */

/* Show readers the log up to its end: 1; 0: the lock of a shared log was taken away, and its log has no new records. */
SEG_HIDDEN int seg_tail_reveal(seg_tail *t);
/* Wake the readers that wait for records; the tail's lock is not held. */
SEG_HIDDEN void seg_tail_wake(const seg_tail *t);
/* Move the end after written batches. */
SEG_HIDDEN void seg_tail_move_end(seg_tail *t, int64_t len, const seg_batch *batches, int64_t n);
/* Move the end after batches that were written, and show them to readers; returns as seg_tail_reveal. */
SEG_HIDDEN int seg_tail_show_batches(seg_tail *t, int64_t len, const seg_batch *batches, int64_t n);
/* Move the end after batches that were written, and leave them hidden, because a follower lacks them; pause the
 * tail. */
SEG_HIDDEN void seg_tail_hide_batches(seg_tail *t, int64_t len, const seg_batch *batches, int64_t n);
/* Note a failed write, and pause the tail: bytes may lie beyond the end. In a shared log they are cut. */
SEG_HIDDEN void seg_tail_tear(seg_tail *t, int64_t error);

/* --- append.c --- */

/* Bytes, offsets and batches before an append in the same write. */
typedef struct seg_ahead {
    int64_t bytes;
    int64_t offsets;
    int64_t batches;
} seg_ahead;

/* Whether n batches with so many offsets, the first of this time, fit the active segment. */
SEG_HIDDEN int seg_tail_fits(const seg_tail *t, int64_t timestamp, int64_t size, int64_t offsets, int64_t n);
/* Whether an append may be written after those in *ahead. If so, its batches get their offsets and positions, and
 * *ahead counts them. */
SEG_HIDDEN int seg_tail_admit(const seg_tail *t, seg_waiting *w, seg_ahead *ahead);
/* Make one append by its own write; returns as seg_tail_write. */
SEG_HIDDEN int64_t seg_tail_make(seg_tail *t, seg_waiting *w);
/* Index an append that was written at the log's end, apply it to its producer, and move the end after it. Returns its
 * first offset; -errno: the tail is torn. */
SEG_HIDDEN int64_t seg_tail_take_in(seg_tail *t, const seg_waiting *w);
/* Write batches that have their offsets and their positions in this log, and index them. The end stays: 0; -errno: the
 * tail is torn. */
SEG_HIDDEN int64_t seg_tail_put_out(seg_tail *t, const uint8_t *buf, int64_t len, const seg_batch *batches, int64_t n);
/* Note batches that were written to this log and indexed: apply them to their producers, and count one more append. */
SEG_HIDDEN void seg_tail_note(seg_tail *t, const seg_batch *batches, int64_t n);

/* --- hand_on.c --- */

/* Hand on written batches to all followers, and show them at all these tails, or at none: 1 if all followers have
 * them. */
SEG_HIDDEN int seg_tail_hand_on(seg_tail *t, const uint8_t *buf, int64_t len, seg_batch *batches, int64_t n);
/* Note the result of the write that a follower's thread had begun, if it is over. Its batches stay hidden. Returns
 * whether no write is under way. */
SEG_HIDDEN int seg_tail_settle(seg_tail *t);

#endif

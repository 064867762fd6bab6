/* The end of a log that several processes append to: its records, and how a host closes, shows and opens it (share.c, share_fence.c,
 * share_host.c). */
#ifndef SEG_CONTRACT_SHARE_H
#define SEG_CONTRACT_SHARE_H

#include "log.h"
#include "shared.h"

/* What a host shows of a log that is closed. */
typedef struct seg_marks {
    int64_t base_offset;     /* of the active segment */
    int64_t position;
    int64_t next_offset;
    int64_t start_offset;
    int64_t stable_offset;   /* -1: next_offset */
    int64_t layout;
    int64_t leader_epoch;
} seg_marks;

/* By the host, of a log that is closed: show that it ends so: 1; 0: the log is open, and its appends say more. */
int64_t seg_share_show(seg_share *s, const seg_marks *marks);
/* By the host, of n logs that are closed, and more than one: show them at one moment, within one odd sequence of the
 * published ends. A host that comes ends that, too (seg_share_finish_together). */
void seg_share_show_together(seg_share *const *shares, const seg_marks *marks, int64_t n, uint8_t *ends);
/* By a host that comes: finish what a dead one has left of that: how many logs; and make the sequence even. */
int64_t seg_share_finish_together(seg_member *m, int64_t logs, uint8_t *ends);
/* By a host that comes: close a log that another one may have left open, and put right what dead owners left, but for
 * bytes behind the end: 1, and *out is its end; 0: it has none; -EINTR. */
int64_t seg_share_take_over(seg_share *s, seg_shared_end *out);
/* By a host that leaves while others live: let this tail append no more, and the log stay open. */
void seg_share_leave(seg_tail *t);
/* By the host: close a log for good, since its partition was deleted. */
int64_t seg_share_end(seg_share *s);
/* Let the tail of a host show what other processes have appended: 1 if that is more than before. */
int64_t seg_share_catch_up(seg_tail *t);
/* The number of a sealed end from number `from` on: of this tail's, if its lock was taken away; with `dead`, of an owner
 * that has died. -1: none; -EAGAIN: the host has not gone on yet. */
int64_t seg_share_sealed(const seg_share *s, int64_t from, int32_t dead, seg_sealed *out);
/* Take a sealed end off the list, whose segment is cut. */
void seg_share_let_go(seg_share *s, int64_t number);

#endif

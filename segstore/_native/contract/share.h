/* The end of a log that several processes append to: its records, and a host's calls that close, show and open it
 * (share.c, share_fence.c, share_host.c). */
#ifndef SEG_CONTRACT_SHARE_H
#define SEG_CONTRACT_SHARE_H

#include "log.h"
#include "shared.h"

/* The marks of a closed log, which a host shows. */
typedef struct seg_marks {
    int64_t base_offset;     /* of the active segment */
    int64_t position;
    int64_t next_offset;
    int64_t start_offset;
    int64_t stable_offset;   /* -1: next_offset */
    int64_t layout;
    int64_t leader_epoch;
} seg_marks;

/* By the host, for a closed log: publish its marks: 1; 0 if the log is open: its appends have moved the end. */
int64_t seg_share_show(seg_share *s, const seg_marks *marks);
/* By the host, for n closed logs, n > 1: publish their marks at one moment, within one odd sequence of the published
 * ends. The next host finishes this if the host dies (seg_share_finish_together). */
void seg_share_show_together(seg_share *const *shares, const seg_marks *marks, int64_t n, uint8_t *ends);
/* By a new host: finish a dead host's seg_share_show_together, and make the sequence even. Returns the number of
 * logs. */
int64_t seg_share_finish_together(seg_member *m, int64_t logs, uint8_t *ends);
/* By a new host: close a log that another host may have left open, and repair what dead owners left, except bytes
 * beyond the end: 1, and *out is its end; 0: it has none; -EINTR. */
int64_t seg_share_take_over(seg_share *s, seg_shared_end *out);
/* By a host that leaves while other members live: end this tail's appends, and leave the log open. */
void seg_share_leave(seg_tail *t);
/* By the host: close a log for ever, because its partition was deleted. */
int64_t seg_share_end(seg_share *s);
/* Let a host's tail show the appends of other processes: 1 if there are any. */
int64_t seg_share_catch_up(seg_tail *t);
/* The next sealed end from number `from` on: one of this tail's, whose lock was taken away; with `dead`, one of a dead
 * owner. Returns its number; -1: none; -EAGAIN: the host has no next segment yet. */
int64_t seg_share_sealed(const seg_share *s, int64_t from, int32_t dead, seg_sealed *out);
/* Remove a sealed end from the list, after its segment was cut. */
void seg_share_let_go(seg_share *s, int64_t number);

#endif

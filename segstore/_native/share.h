/* The share's functions for appends and the tail of a log (share.c). The caller holds the tail's lock. */
#ifndef SEG_SHARE_H
#define SEG_SHARE_H

#include "contract/log.h"

#define SEG_HIDDEN __attribute__((visibility("hidden")))

/* Take the log's lock, and load the log's end into the tail: 0; SEG_BUSY, with `brief`; SEG_SLOW: the tail can't append
 * now. After an answer other than 0 the lock is not held. */
SEG_HIDDEN int64_t seg_share_enter(seg_tail *t, int32_t brief);
/* Load the log's end into the tail, without the log's lock: 1; 0 if the end can't be read now. */
SEG_HIDDEN int seg_share_look(seg_tail *t);
/* Release the log's lock, if it is held. */
SEG_HIDDEN void seg_share_exit(seg_tail *t);
/* Publish the tail's end as the log's: 1; 0: the lock was taken away, and the log does not have the tail's new
 * records. */
SEG_HIDDEN int seg_share_publish(seg_tail *t, int64_t stable);
/* Cut the bytes that a failed write has left beyond the end. */
SEG_HIDDEN void seg_share_tear(seg_tail *t);
/* By the host: end other processes' appends, and load the log's end into the tail: 0; -EINTR. */
SEG_HIDDEN int64_t seg_share_close(seg_tail *t);
/* By the host: let all processes append. */
SEG_HIDDEN void seg_share_open(seg_tail *t, int64_t stable);

#endif

/* What appends and the tail of a log ask of its share (share.c). The caller holds the tail's lock. */
#ifndef SEG_SHARE_H
#define SEG_SHARE_H

#include "contract/log.h"

#define SEG_HIDDEN __attribute__((visibility("hidden")))

/* Take the log's lock, and let the tail's own end be the log's: 0; SEG_BUSY, with `brief`; SEG_SLOW: the tail can't append
 * now. Behind any other answer than 0 the lock is not held. */
SEG_HIDDEN int64_t seg_share_enter(seg_tail *t, int32_t brief);
/* Let the tail's own end be the log's, without the log's lock: 1; 0 where that can't be told now. */
SEG_HIDDEN int seg_share_look(seg_tail *t);
/* Let go of the log's lock, if it is held. */
SEG_HIDDEN void seg_share_exit(seg_tail *t);
/* Make the tail's own end the log's: 1; 0: the lock was taken away, and nothing behind the old end is in the log. */
SEG_HIDDEN int seg_share_publish(seg_tail *t, int64_t stable);
/* Cut what a failed write has left behind the end. */
SEG_HIDDEN void seg_share_tear(seg_tail *t);
/* By the host: let no other process append, and let the tail's own end be the log's: 0; -EINTR. */
SEG_HIDDEN int64_t seg_share_close(seg_tail *t);
/* By the host: let all append. */
SEG_HIDDEN void seg_share_open(seg_tail *t, int64_t stable);

#endif

/* Taking the lock of a shared log from a living process (share_fence.c), for share.c and share_host.c. */
#ifndef SEG_SHARE_FENCE_H
#define SEG_SHARE_FENCE_H

#include "contract/shared.h"

#ifndef SEG_HIDDEN
#define SEG_HIDDEN __attribute__((visibility("hidden")))
#endif

/* Wait for the lock for a while. SEG_BUSY: the caller runs the handlers of signals, and calls again; -ETIMEDOUT: one
 * owner has had the lock for `patience_ms` since the first of these calls. Else as seg_lock_take. */
SEG_HIDDEN int64_t seg_share_take(seg_share *s, int32_t who, int32_t brief, int64_t patience_ms, uint64_t *seen);
/* Take the log's lock for the host, also from a dead owner, or from a stopped one: 0; 1: it was a dead host's;
 * -EINTR. */
SEG_HIDDEN int64_t seg_fence_take(seg_share *s);
/* Finish a dead host's fences, with the lock. Unless the lock was that host's (`was_taken`), it had taken no lock
 * away. */
SEG_HIDDEN void seg_fence_finish(seg_share *s, int was_taken);

#endif

/* The lock of a shared log that a living process keeps (share_fence.c), as share.c and share_host.c see it. */
#ifndef SEG_SHARE_FENCE_H
#define SEG_SHARE_FENCE_H

#include "contract/shared.h"

#ifndef SEG_HIDDEN
#define SEG_HIDDEN __attribute__((visibility("hidden")))
#endif

/* Wait for the lock for a while: SEG_BUSY: the caller comes again, and has the handlers of signals run; -ETIMEDOUT: the same
 * owner has had it for `patience_ms`, since the first of these calls. Else as seg_lock_take. */
SEG_HIDDEN int64_t seg_share_take(seg_share *s, int32_t who, int32_t brief, int64_t patience_ms, uint64_t *seen);
/* Take the log's lock for the host, from an owner that has died or does not go on, too: 0; 1: it was a dead host's;
 * -EINTR. */
SEG_HIDDEN int64_t seg_fence_take(seg_share *s);
/* End what a host that died has begun of that, with the lock. Unless the lock was that host's (`was_taken`), it has taken
 * nothing from anybody. */
SEG_HIDDEN void seg_fence_finish(seg_share *s, int was_taken);

#endif

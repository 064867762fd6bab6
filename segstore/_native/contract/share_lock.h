/* The locks of a shared log (share_lock.c): words in the shared file, which only a dead owner loses. */
#ifndef SEG_CONTRACT_SHARE_LOCK_H
#define SEG_CONTRACT_SHARE_LOCK_H

#include "shared.h"

/* Take a lock: 0; 1: its owner has died, *seen was its word; SEG_BUSY, with `brief`: another owner has it; -ETIMEDOUT,
 * *seen is its word: a dead host's lock, which only the next host takes, or a lock that its living owner keeps for
 * longer than `patience_ms` (-1: for ever); -EINTR for a signal. */
int64_t seg_lock_take(const seg_member *m, uint64_t *lock, int32_t who, int32_t brief, int64_t patience_ms, uint64_t *seen);
/* Release a lock, if it is still ours: 1; 0: it was taken from us. */
int64_t seg_lock_leave(const seg_member *m, uint64_t *lock, int32_t who);
/* Whether a lock is ours. */
int64_t seg_lock_is_mine(const seg_member *m, const uint64_t *lock, int32_t who);
/* The word with which this process takes a lock. */
uint64_t seg_lock_word(const seg_member *m, int32_t who);
/* Whether the owner in a lock's word is dead; 0 for a free lock. */
int64_t seg_lock_is_dead(const seg_member *m, uint64_t word);

#endif

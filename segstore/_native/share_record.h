/* Records of a shared log and their seats, and the cut of bytes beyond the end (share_record.c), for share.c,
 * share_fence.c and share_host.c. */
#ifndef SEG_SHARE_RECORD_H
#define SEG_SHARE_RECORD_H

#include "contract/shared.h"

#ifndef SEG_HIDDEN
#define SEG_HIDDEN __attribute__((visibility("hidden")))
#endif

enum { SEG_RECORD_WORDS = sizeof(seg_shared_end) / 8 };

static inline seg_shared_end *record_of(seg_shared_log *log, uint64_t word)
{
    return &log->ends[((word >> 8) & (SEG_SEATS - 1)) * 2 + (word & 1)];
}

static inline uint64_t current_of(const seg_shared_log *log)
{
    return __atomic_load_n(&log->current, __ATOMIC_ACQUIRE);
}

/* The word after `current` that names a record of this tail's seat. */
static inline uint64_t own_word(const seg_share *s, uint64_t current)
{
    uint64_t seat = (uint64_t)s->seat, which = 0;
    if (current && ((current >> 8) & (SEG_SEATS - 1)) == seat)
        which = 1 - (current & 1);
    return ((current >> 16) + 1) << 16 | seat << 8 | which;
}

/* Fill a record that readers may be copying: each word is stored whole, after the words before it (shared_ends.c). */
static inline void fill(seg_shared_end *to, const seg_shared_end *from)
{
    for (int i = 0; i < SEG_RECORD_WORDS; i++)
        __atomic_store_n((int64_t *)to + i, ((const int64_t *)from)[i], __ATOMIC_RELEASE);
}

/* Copy a record. A process whose lock was taken away may copy a record that is being filled anew, and checks the lock
 * afterwards [E4]. */
static inline void copy(seg_shared_end *to, const seg_shared_end *from)
{
    for (int i = 0; i < SEG_RECORD_WORDS; i++)
        ((int64_t *)to)[i] = __atomic_load_n((const int64_t *)from + i, __ATOMIC_ACQUIRE);
}

static inline int swap(seg_shared_log *log, uint64_t current, uint64_t next)
{
    return __atomic_compare_exchange_n(&log->current, &current, next, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}

static inline uint32_t torn_of(const seg_shared_log *log)
{
    return __atomic_load_n(&log->torn, __ATOMIC_ACQUIRE);
}

/* Take a seat for this tail; another tail's seat only by invariant 1 of share.c: by a compare-and-swap, after which the
 * caller checks the lock's owner once more. -1: another process was faster. There are more seats than sealed ends. */
SEG_HIDDEN int32_t seg_record_seat(seg_share *s, uint64_t current);
/* The word after `current` that names a record of the host; no process takes the lock from it. */
SEG_HIDDEN uint64_t seg_record_next(seg_share *s, uint64_t current);
/* Note that bytes may lie beyond the end. */
SEG_HIDDEN void seg_record_tear(seg_shared_log *log);
/* Cut the bytes that a dead owner, or a failed write, has left beyond the end [L3]: 0, or -errno. */
SEG_HIDDEN int64_t seg_record_cut(int32_t fd, int64_t position);
/* Cut if the log is torn, as it was (`torn`) before the last check that the lock is ours: a later tear is another
 * process's. */
SEG_HIDDEN int64_t seg_record_mend(seg_shared_log *log, uint32_t torn, int32_t fd, int64_t position);

#endif

/* What an append hands over to the thread of a follower's directory (hand_over.c), as hand_on.c and tail.c see it. */
#ifndef SEG_HAND_OVER_H
#define SEG_HAND_OVER_H

#include "bytes.h"
#include "contract/batch.h"
#include "contract/log.h"
#include "contract/threads.h"

enum { SEG_FEW = 4 }; /* batches that a job has room for itself; their bytes are SEG_ONE_ROOM at most */

/* Memory for a job in bulk. A thread keeps one for the next such job, whosever that is. */
struct seg_large {
    seg_batch batches[SEG_HANDED];
    uint8_t buf[SEG_HANDED_ROOM];
};

/* Batches with their positions and their offsets, and the file that they are written to. One write at a time: who
 * posts it has the lock of the follower's tail. The bytes are a copy, so that a write that nobody waits for any more
 * reads no memory of others. */
struct seg_job {
    struct seg_disk_thread *thread;
    struct seg_job *next;       /* behind it in the thread's list */
    uint32_t state;             /* a futex */
    uint32_t waited;            /* 1: somebody may wait for another state */
    int32_t owners;
    int32_t fd;
    seg_writer write;
    int64_t position, len, result;
    uint8_t *buf;
    int64_t room;
    int64_t n;
    int32_t cpu;                /* on which it was posted */
    int32_t apart;              /* whether there is a processor for the thread beside that of who waits */
    int32_t spins;              /* whether who waits for it has a processor meanwhile that nobody needs */
    struct seg_large *large;    /* where the bytes and the batches are, if they have no room here; else NULL */
    seg_batch batches[SEG_FEW];
};

/* Post the bytes of these batches, `moved` bytes behind their positions: 0; -errno where that can't be done now. */
__attribute__((visibility("hidden"))) int64_t seg_job_post(struct seg_job *j, const seg_tail *f, const uint8_t *buf,
                                                           int64_t len, const seg_batch *batches, int64_t n,
                                                           int64_t moved, int32_t apart);

/* The batches of what was posted, until seg_job_done. */
static inline const seg_batch *seg_job_batches(const struct seg_job *j)
{
    return j->large ? j->large->batches : j->batches;
}

/* Give back the memory of what was posted, which is over. */
__attribute__((visibility("hidden"))) void seg_job_done(struct seg_job *j);

/* Wait until what was posted is written: 1, and *result is that of the write. At the deadline, of the monotonic clock
 * in ns, what was not begun is cancelled: 1, and -ECANCELED. 0: the write is still under way then. A deadline of 0 is
 * set first, and may be used for all that was posted with it. */
__attribute__((visibility("hidden"))) int seg_job_await(struct seg_job *j, int64_t *deadline, int64_t *result);

/* Whether the write is over; *result is as above. */
__attribute__((visibility("hidden"))) int seg_job_is_over(const struct seg_job *j, int64_t *result);

/* Wait until the write is over: 0; -EINTR for a signal. */
__attribute__((visibility("hidden"))) int64_t seg_job_await_end(struct seg_job *j);

#endif

/* Jobs: batches of an append for the thread of a follower's directory (hand_over.c), for hand_on.c and tail.c. */
#ifndef SEG_HAND_OVER_H
#define SEG_HAND_OVER_H

#include "bytes.h"
#include "contract/batch.h"
#include "contract/log.h"
#include "contract/threads.h"

enum { SEG_FEW = 4 }; /* batches that fit into a job itself, with SEG_ONE_ROOM bytes at most */

/* Memory for a large job. A thread keeps one for its next large job, of any tail. */
struct seg_large {
    seg_batch batches[SEG_HANDED];
    uint8_t buf[SEG_HANDED_ROOM];
};

/* Batches with their positions and offsets, and the file that they are written to. One write at a time: the thread
 * that posts it has the lock of the follower's tail. The bytes are a copy, so that an abandoned write reads no other
 * memory. */
struct seg_job {
    struct seg_disk_thread *thread;
    struct seg_job *next;       /* the next job in the thread's list */
    uint32_t state;             /* a futex */
    uint32_t waited;            /* 1: a thread may wait for another state */
    int32_t owners;
    int32_t fd;
    seg_writer write;
    int64_t position, len, result;
    uint8_t *buf;
    int64_t room;
    int64_t n;
    int32_t cpu;                /* the processor of the posting thread */
    int32_t two_cpus;           /* whether the thread has a processor besides that of the waiting thread */
    int32_t spins;              /* whether the waiting thread has a processor that no other thread needs */
    struct seg_large *large;    /* the bytes and batches of a large job; else NULL */
    seg_batch batches[SEG_FEW];
};

/* Post the bytes of these batches, to be written `moved` bytes after their positions: 0; -errno if that can't be done
 * now. */
__attribute__((visibility("hidden"))) int64_t seg_job_post(struct seg_job *j, const seg_tail *f, const uint8_t *buf,
                                                           int64_t len, const seg_batch *batches, int64_t n,
                                                           int64_t moved, int32_t two_cpus);

/* The batches of the posted write, until seg_job_done. */
static inline const seg_batch *seg_job_batches(const struct seg_job *j)
{
    return j->large ? j->large->batches : j->batches;
}

/* Release the memory of a write that is over. */
__attribute__((visibility("hidden"))) void seg_job_done(struct seg_job *j);

/* Wait until the posted write is over: 1, and *result is the write's. At the deadline (monotonic clock, ns) a write
 * that has not begun is cancelled: 1, and -ECANCELED; a write that is under way: 0. A deadline of 0 is set by this
 * call, and may be used for all jobs of one append. */
__attribute__((visibility("hidden"))) int seg_job_await(struct seg_job *j, int64_t *deadline, int64_t *result);

/* Whether the write is over; *result as in seg_job_await. */
__attribute__((visibility("hidden"))) int seg_job_is_over(const struct seg_job *j, int64_t *result);

/* Wait until the write is over: 0; -EINTR for a signal. */
__attribute__((visibility("hidden"))) int64_t seg_job_await_end(struct seg_job *j);

#endif

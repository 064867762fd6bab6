/* C's check of batches by a producer with an id: they must be the next batches of a known producer, outside of a
 * transaction, inside of an open one, or the first ones of a transaction that the coordinator has verified. Other
 * batches, and unknown producers, are judged by storage/producers/append_info.py. In a follower's log the producer must
 * only be known.
 *
 * Thread contract: the caller holds the tail's lock.
 */
#ifndef SEG_CLAIM_H
#define SEG_CLAIM_H

#include "bytes.h"
#include "contract/batch.h"
#include "contract/producers.h"

/* The entry of a producer; NULL if it is not known, or there is no table. */
__attribute__((visibility("hidden"))) seg_producer *seg_find_producer(const seg_producers *p, int64_t producer_id);

/* The sequence that a producer's next batch must have. */
static inline uint32_t next_sequence(const seg_producer *e)
{
    return e->kept ? ((uint32_t)e->batches[e->kept - 1].last_sequence + 1) & INT32_MAX : 0;
}

/* Whether these batches, all of one producer or of none, may be appended; with `opens` a transaction may begin with
 * them. */
static inline int are_claimed(const seg_producers *p, const seg_batch *batches, int64_t n, int opens)
{
    if (batches[0].producer_id < 0)
        return 1;
    const seg_producer *e = seg_find_producer(p, batches[0].producer_id);
    if (e == NULL)
        return 0;
    uint32_t next = next_sequence(e);
    int attributes = batches[0].attributes & TRANSACTIONAL, is_open = e->txn_first_offset >= 0;
    if (is_open ? !attributes : attributes && !opens)
        return 0;
    for (const seg_batch *b = batches; b < batches + n; b++) {
        if (b->producer_id != e->producer_id || b->producer_epoch != e->producer_epoch ||
            b->base_sequence != (int32_t)next || (b->attributes & (TRANSACTIONAL | CONTROL)) != attributes)
            return 0;
        next = (next + (uint32_t)(b->last_offset - b->base_offset) + 1) & INT32_MAX;
    }
    return 1;
}

/* Whether these batches, as a leader wrote them, can be applied: data batches that begin no transaction, of known
 * producers or of none. They are not judged further (R35). */
static inline int are_known(const seg_producers *p, const seg_batch *batches, int64_t n)
{
    for (const seg_batch *b = batches; b < batches + n; b++) {
        const seg_producer *e = b->producer_id < 0 ? NULL : seg_find_producer(p, b->producer_id);
        if (b->attributes & CONTROL || (b->producer_id >= 0 && e == NULL) ||
            (b->attributes & TRANSACTIONAL && (e == NULL || e->txn_first_offset < 0)))
            return 0;
    }
    return 1;
}

#endif

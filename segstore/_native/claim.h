/* What C judges of an append by a producer with an id: only whether its batches are the next ones of a claim
 * that Python has lent (storage/producers/append_info.py judges all others).
 *
 * Thread contract: the caller holds the tail's lock.
 */
#ifndef SEG_CLAIM_H
#define SEG_CLAIM_H

#include "bytes.h"
#include "contract/batch.h"
#include "contract/log.h"

/* Whether these batches, all of one producer, may be written; `claim` is set to the producer's, NULL where it
 * has no id. */
static inline int claim_of(seg_tail *t, const seg_batch *batches, int64_t n, seg_claim **claim)
{
    seg_claim *c = t->claims, *end = t->claims + t->claimed;
    *claim = NULL;
    if (batches[0].producer_id < 0)
        return 1;
    while (c < end && c->producer_id != batches[0].producer_id)
        c++;
    if (c == end)
        return 0;
    uint32_t next = (uint32_t)c->next_sequence;
    for (const seg_batch *b = batches; b < batches + n; b++) {
        if (b->producer_id != c->producer_id || b->producer_epoch != c->producer_epoch ||
            b->base_sequence != (int32_t)next || (b->attributes & (TRANSACTIONAL | CONTROL)) != c->attributes)
            return 0;
        next = (next + (uint32_t)(b->last_offset - b->base_offset) + 1) & INT32_MAX;
    }
    *claim = c;
    return 1;
}

/* Take in batches that were written. */
static inline void claim_take(seg_claim *c, const seg_batch *batches, int64_t n, int64_t now)
{
    for (const seg_batch *b = batches; b < batches + n; b++) {
        int32_t delta = (int32_t)(b->last_offset - b->base_offset);
        int32_t last = (int32_t)(((uint32_t)c->next_sequence + (uint32_t)delta) & INT32_MAX);
        c->last[c->taken++ % SEG_RETAINED] = (seg_retained){b->last_offset, b->max_timestamp, last, delta};
        c->next_sequence = (int32_t)(((uint32_t)last + 1) & INT32_MAX);
    }
    c->appended_ms = now;
}

#endif

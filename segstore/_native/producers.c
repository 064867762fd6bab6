/* The table of a partition's producers: their state by the log, batch by batch (Kafka: ProducerStateManager).
 *
 * No batch of the log is refused here. claim.h judges the batches that C appends, and storage/producers/append_info.py
 * the batches that Python appends. The same function applies appended and replayed batches, so both leave the same
 * state.
 *
 * Thread contract: the holder of the partition's append token, with the log's tail paused. While the tail is open, C
 * applies batches of known producers (claim.h), under the tail's lock: that never makes the table grow. A table that
 * is read from files belongs to one thread.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "bytes.h"
#include "claim.h"
#include "contract/batch.h"
#include "contract/producers.h"

enum { LEAST_ROOM = 4, NONE = -1 };

static int64_t max(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* --- slots ----------------------------------------------------------------------- */

/* The number of a producer's own slot. Clients choose ids, and do not know the seed: so they can't choose ids that
 * collide (the mixing is that of SplitMix64; Steele, Lea and Flood, OOPSLA 2014). */
static int64_t home_of(uint64_t seed, int64_t producer_id, int64_t room)
{
    uint64_t x = (uint64_t)producer_id ^ seed;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return (int64_t)((x ^ (x >> 31)) & (uint64_t)(room - 1));
}

/* The slot of a producer, or the free slot for it. */
static seg_producer *slot_of(uint64_t seed, seg_producer *slots, int64_t room, int64_t producer_id)
{
    int64_t at = home_of(seed, producer_id, room);
    while (slots[at].producer_id >= 0 && slots[at].producer_id != producer_id)
        at = (at + 1) & (room - 1);
    return slots + at;
}

seg_producer *seg_find_producer(const seg_producers *p, int64_t producer_id)
{
    if (p == NULL || !p->room)
        return NULL;
    seg_producer *e = slot_of(p->seed, p->slots, p->room, producer_id);
    return e->producer_id < 0 ? NULL : e;
}

static int64_t grow(seg_producers *p)
{
    int64_t room = max(2 * p->room, LEAST_ROOM);
    seg_producer *slots = malloc((size_t)room * sizeof *slots);
    seg_open_txn *txns = realloc(p->txns, (size_t)room / 2 * sizeof *txns);
    if (txns != NULL)
        p->txns = txns;
    if (slots == NULL || txns == NULL) {
        free(slots);
        return -ENOMEM;
    }
    for (int64_t i = 0; i < room; i++)
        slots[i].producer_id = NONE;
    for (int64_t i = 0; i < p->room; i++)
        if (p->slots[i].producer_id >= 0)
            *slot_of(p->seed, slots, room, p->slots[i].producer_id) = p->slots[i];
    free(p->slots);
    p->slots = slots;
    p->room = room;
    return 0;
}

/* The entry of a producer, a new one for an unknown producer; NULL without memory. */
static seg_producer *entry_of(seg_producers *p, int64_t producer_id)
{
    seg_producer *e = seg_find_producer(p, producer_id);
    if (e != NULL)
        return e;
    if (2 * (p->count + 1) > p->room && grow(p))
        return NULL;
    e = slot_of(p->seed, p->slots, p->room, producer_id);
    *e = (seg_producer){.producer_id = producer_id, .last_timestamp = NONE, .txn_first_offset = NONE,
                        .appended_ms = NONE, .coordinator_epoch = NONE, .producer_epoch = NONE};
    p->count++;
    p->max_producer_id = max(p->max_producer_id, producer_id);
    return e;
}

/* Free a slot: each later entry that can use it moves up, so no search ends too soon. */
static void free_slot(seg_producers *p, seg_producer *e)
{
    int64_t mask = p->room - 1, hole = e - p->slots;
    for (int64_t at = (hole + 1) & mask; p->slots[at].producer_id >= 0; at = (at + 1) & mask) {
        int64_t home = home_of(p->seed, p->slots[at].producer_id, p->room);
        if (((at - home) & mask) < ((at - hole) & mask))
            continue; /* it must not lie before its own slot */
        p->slots[hole] = p->slots[at];
        hole = at;
    }
    p->slots[hole].producer_id = NONE;
    p->count--;
}

void seg_producers_free(seg_producers *p)
{
    free(p->slots);
    free(p->txns);
    *p = (seg_producers){.max_producer_id = NONE, .seed = p->seed};
}

/* --- open transactions -------------------------------------------------------------- */

static void open_txn(seg_producers *p, seg_producer *e, int64_t first_offset)
{
    int64_t at = p->open++;
    for (; at > 0 && p->txns[at - 1].first_offset > first_offset; at--)
        p->txns[at] = p->txns[at - 1];
    p->txns[at] = (seg_open_txn){first_offset, e->producer_id};
    e->txn_first_offset = first_offset;
}

static void close_txn(seg_producers *p, seg_producer *e)
{
    int64_t at = 0;
    if (e->txn_first_offset < 0)
        return;
    while (p->txns[at].producer_id != e->producer_id)
        at++;
    p->open--;
    memmove(p->txns + at, p->txns + at + 1, (size_t)(p->open - at) * sizeof *p->txns);
    e->txn_first_offset = NONE;
}

/* --- batches ------------------------------------------------------------------------ */

static void begin_epoch(seg_producer *e, int16_t producer_epoch)
{
    if (e->producer_epoch != producer_epoch)
        e->kept = 0;
    e->producer_epoch = producer_epoch;
}

static void note_clock(seg_producer *e, int64_t now)
{
    if (now != SEG_NO_CLOCK)
        e->appended_ms = now;
}

static void take_data(seg_producers *p, seg_producer *e, const seg_batch *b)
{
    int32_t delta = (int32_t)(b->last_offset - b->base_offset);
    int32_t last = (int32_t)(((uint32_t)b->base_sequence + (uint32_t)delta) & INT32_MAX);
    begin_epoch(e, b->producer_epoch);
    if (e->kept == SEG_RETAINED)
        memmove(e->batches, e->batches + 1, (size_t)--e->kept * sizeof *e->batches);
    e->batches[e->kept++] = (seg_retained){b->last_offset, b->max_timestamp, b->base_sequence < 0 ? NONE : last, delta};
    e->last_timestamp = b->max_timestamp;
    if (b->attributes & TRANSACTIONAL && e->txn_first_offset < 0)
        open_txn(p, e, b->base_offset);
}

int64_t seg_producers_take(seg_producers *p, const seg_batch *batches, int64_t n, int64_t from, int64_t now)
{
    for (int64_t i = from; i < n; i++) {
        const seg_batch *b = batches + i;
        if (b->producer_id < 0 || b->base_offset < p->map_end_offset)
            continue;
        if (b->attributes & CONTROL)
            return i;
        seg_producer *e = entry_of(p, b->producer_id);
        if (e == NULL)
            return -ENOMEM;
        take_data(p, e, b);
        note_clock(e, now);
        p->map_end_offset = b->last_offset + 1;
    }
    if (n > 0)
        p->map_end_offset = max(p->map_end_offset, batches[n - 1].last_offset + 1);
    return n;
}

int64_t seg_producers_end(seg_producers *p, const seg_batch *marker, int32_t coordinator_epoch, int64_t now)
{
    seg_producer *e = entry_of(p, marker->producer_id);
    if (e == NULL)
        return -ENOMEM;
    int64_t first_offset = e->txn_first_offset;
    begin_epoch(e, marker->producer_epoch);
    e->coordinator_epoch = coordinator_epoch;
    e->last_timestamp = marker->max_timestamp; /* a marker is alone in its batch, which has the marker's timestamp */
    close_txn(p, e);
    note_clock(e, now);
    return first_offset;
}

/* --- entries ------------------------------------------------------------------------- */

int64_t seg_producers_find(const seg_producers *p, int64_t producer_id, seg_producer *out)
{
    const seg_producer *e = seg_find_producer(p, producer_id);
    if (e != NULL)
        *out = *e;
    return e != NULL;
}

static int by_id(const void *one, const void *other)
{
    int64_t a = ((const seg_producer *)one)->producer_id, b = ((const seg_producer *)other)->producer_id;
    return (a > b) - (a < b);
}

void seg_producers_copy(const seg_producers *p, seg_producer *out)
{
    int64_t n = 0;
    for (int64_t i = 0; i < p->room; i++)
        if (p->slots[i].producer_id >= 0)
            out[n++] = p->slots[i];
    qsort(out, (size_t)n, sizeof *out, by_id);
}

int64_t seg_producers_put(seg_producers *p, const seg_producer *e)
{
    seg_producer *known = entry_of(p, e->producer_id);
    if (known == NULL)
        return -ENOMEM;
    close_txn(p, known);
    *known = *e;
    if (e->txn_first_offset >= 0)
        open_txn(p, known, e->txn_first_offset);
    return 0;
}

void seg_producers_remove(seg_producers *p, int64_t producer_id)
{
    seg_producer *e = seg_find_producer(p, producer_id);
    if (e == NULL)
        return;
    close_txn(p, e);
    free_slot(p, e);
}

int64_t seg_producers_expire(seg_producers *p, int64_t before)
{
    int64_t count = p->count;
    for (int64_t i = 0; i < p->room;) {
        seg_producer *e = p->slots + i;
        if (e->producer_id >= 0 && e->txn_first_offset < 0 && max(e->last_timestamp, e->appended_ms) <= before)
            free_slot(p, e); /* another entry may have moved here */
        else
            i++;
    }
    return count - p->count;
}

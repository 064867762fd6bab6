/* Index entries: made, found and validated.
 *
 * offset index: relative offset int32, position int32 (org.apache.kafka.storage.internals.log.OffsetIndex)
 * time index:   timestamp int64, relative offset int32 (TimeIndex); all big-endian.
 *
 * Thread contract: no state. Look-ups read entries 0 .. n - 1 only, which a
 * writer no longer changes.
 */
#include <errno.h>
#include <stdint.h>

#include "bytes.h"
#include "contract/batch.h"
#include "contract/index.h"
#include "entry.h"


/* Both fields of an entry are int32 on disk. */
static int fits(int64_t value)
{
    return value >= 0 && value <= INT32_MAX;
}

int64_t seg_index_entries(const seg_batch *batches, int64_t n, int64_t base_offset, int64_t interval,
                          seg_index_state *state, uint8_t *offset_out, uint8_t *time_out,
                          int64_t *n_time)
{
    seg_index_state s = *state;
    int64_t made = 0, timed = 0;
    *n_time = 0;
    if (n < 0 || base_offset < 0)
        return -EINVAL;
    for (int64_t i = 0; i < n; i++) {
        const seg_batch *b = &batches[i];
        if (b->last_offset < base_offset || !fits(b->last_offset - base_offset) || !fits(b->position))
            return -EOVERFLOW;
        /* Compaction leaves empty batches, whose timestamp does not count. */
        if (b->count > 0 && b->max_timestamp > s.max_timestamp) {
            s.max_timestamp = b->max_timestamp;
            s.max_timestamp_offset = b->last_offset;
        }
        if (s.bytes_since > interval) {
            if (offset_out) {
                put32(offset_out + made * OFFSET_ENTRY, (int32_t)(b->last_offset - base_offset));
                put32(offset_out + made * OFFSET_ENTRY + 4, (int32_t)b->position);
            }
            made++;
            if (s.max_timestamp > s.last_time_entry) {
                if (s.max_timestamp_offset < base_offset || !fits(s.max_timestamp_offset - base_offset))
                    return -EOVERFLOW;
                if (offset_out) {
                    put64(time_out + timed * TIME_ENTRY, s.max_timestamp);
                    put32(time_out + timed * TIME_ENTRY + 8, (int32_t)(s.max_timestamp_offset - base_offset));
                }
                timed++;
                s.last_time_entry = s.max_timestamp;
            }
            s.bytes_since = 0;
        }
        s.bytes_since += b->size;
    }
    *state = s;
    *n_time = timed;
    return made;
}

int64_t seg_index_fitting(const seg_batch *batches, int64_t n, int64_t least, int64_t most)
{
    int64_t i = 0;
    while (i < n && batches[i].base_offset >= least && batches[i].last_offset <= most)
        i++;
    return i;
}

int64_t seg_offset_slot(const uint8_t *index, int64_t n, int64_t relative_offset)
{
    int64_t low = 0, high = n; /* entries below low are <= the key, entries from high on > the key */
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (get32(index + middle * OFFSET_ENTRY) <= relative_offset)
            low = middle + 1;
        else
            high = middle;
    }
    return low - 1;
}

int64_t seg_time_slot(const uint8_t *index, int64_t n, int64_t timestamp)
{
    int64_t low = 0, high = n;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (get64(index + middle * TIME_ENTRY) <= timestamp)
            low = middle + 1;
        else
            high = middle;
    }
    return low - 1;
}

/* The end of a preallocated file is zeros. No offset entry is zero, because position 0 is never indexed; the time entry
 * (0, 0) has no use for a look-up. */
int64_t seg_offset_valid(const uint8_t *index, int64_t n, int64_t end_relative, int64_t log_size)
{
    int64_t offset = -1, position = 0, i = 0;
    for (; i < n; i++) {
        int64_t o = get32(index + i * OFFSET_ENTRY), p = get32(index + i * OFFSET_ENTRY + 4);
        if (o <= offset || o >= end_relative || p <= position || p >= log_size)
            break;
        offset = o;
        position = p;
    }
    return i;
}

int64_t seg_time_valid(const uint8_t *index, int64_t n, int64_t end_relative)
{
    int64_t timestamp = -1, offset = 0, i = 0;
    for (; i < n; i++) {
        int64_t t = get64(index + i * TIME_ENTRY), o = get32(index + i * TIME_ENTRY + 8);
        if (t <= timestamp || o < offset || o >= end_relative || (t == 0 && o == 0))
            break;
        timestamp = t;
        offset = o;
    }
    return i;
}

/* Finds batches by the timestamps of their records: of each record only length and timestamp are read.
 *
 * Thread contract: no state. A batch with damaged records counts as found: seg_decode reports the damage.
 */
#include "contract/answers.h"
#include "contract/batch.h"
#include "contract/records.h"
#include "reader.h"

enum {
    QUICK_ROOM = 16         /* the quick loads of a length and a timestamp end within these bytes */
};

/* Read the timestamp delta of the record at *p, which moves to the next record: 1, or 0 if it is no record. */
INLINE int next_delta(const uint8_t **p, const uint8_t *end, int64_t *delta)
{
    const uint8_t *at = *p;
    int64_t len, n = 0;
    uint64_t v = 0;
    int quick = end - at >= QUICK_ROOM;
    if (!(quick && quick_int(&at, &len)) && (at = *p, careful_varint(&at, end, INT_MOST, &len) != 0))
        return 0;
    if (len < RECORD_MIN - 1 || len > end - at)
        return 0;
    *p = at + len;
    at++;
    if (quick)
        n = quick_varint(at, &v);
    *delta = unzigzag(v);
    return n > 0 ? n <= *p - at : careful_varint(&at, *p, LONG_MOST, delta) == 0;
}

static int may_hold(const uint8_t *p, const uint8_t *end, const seg_batch *b, int64_t least, int64_t most)
{
    if (b->attributes & APPEND_TIME)
        return b->max_timestamp >= least && b->max_timestamp <= most;
    for (int32_t k = 0; k < b->count; k++) {
        int64_t delta;
        if (UNLIKELY(!next_delta(&p, end, &delta)))
            return 1;
        int64_t stamp = (int64_t)((uint64_t)b->base_timestamp + (uint64_t)delta);
        if (stamp >= least && stamp <= most)
            return 1;
    }
    return p != end;
}

int64_t seg_stamped(const uint8_t *arena, int64_t arena_len, const seg_batch *batches, const int64_t *at,
                    const int64_t *lens, int64_t n, int64_t least, int64_t most, uint8_t *found)
{
    int64_t held = 0;
    for (int64_t i = 0; i < n; i++) {
        if (at[i] < 0 || lens[i] < 0 || at[i] > arena_len || lens[i] > arena_len - at[i])
            return SEG_E_COLUMN;
        const uint8_t *p = arena + at[i];
        held += found[i] = may_hold(p, p + lens[i], &batches[i], least, most);
    }
    return held;
}

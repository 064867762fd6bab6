/* Copies slices of an arena into the buffers of an Arrow binary array.
 *
 * Thread contract: no state.
 */
#include "bytes.h"
#include "contract/answers.h"
#include "contract/column.h"

enum {
    AHEAD = 512             /* bytes between a store and its prefetch, so that stores wait less */
};

int64_t seg_extent(const int64_t *lens, int64_t n, int64_t *nulls)
{
    int64_t sum = 0, absent = 0;
    for (int64_t i = 0; i < n; i++) { /* no branch, so that the loop is vectorised */
        sum += lens[i];
        absent += (int64_t)((uint64_t)lens[i] >> 63);
    }
    *nulls = absent;
    return sum + absent;
}

static void put_offset(void *offsets, int32_t wide, int64_t i, int64_t value)
{
    if (wide)
        ((int64_t *)offsets)[i] = value;
    else
        ((int32_t *)offsets)[i] = (int32_t)value;
}

int64_t seg_gather(const uint8_t *arena, int64_t arena_len, const int64_t *at, const int64_t *lens,
                   int64_t n, int32_t wide, uint8_t *out, int64_t capacity, void *offsets)
{
    int64_t used = 0;
    if (!wide && capacity > INT32_MAX)
        capacity = INT32_MAX;
    put_offset(offsets, wide, 0, 0);
    for (int64_t i = 0; i < n; i++) {
        int64_t len = lens[i];
        if (len > 0) {
            if (at[i] < 0 || at[i] > arena_len || len > arena_len - at[i])
                return SEG_E_COLUMN;
            if (len > capacity - used)
                return SEG_E_ROOM;
            __builtin_prefetch(out + used + AHEAD, 1);
            __builtin_prefetch(out + used + AHEAD + 64, 1);
            copy_bytes(out + used, capacity - used, arena + at[i], arena_len - at[i], len);
            used += len;
        } else if (len < -1) {
            return SEG_E_COLUMN;
        }
        put_offset(offsets, wide, i + 1, used);
    }
    return used;
}

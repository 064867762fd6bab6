/* Decodes the headers of records into flat columns.
 *
 * Thread contract: no state. Positions come from seg_decode, but are not trusted.
 */
#include "contract/answers.h"
#include "contract/records.h"
#include "reader.h"

/* Write one header into slot i of the wanted columns. */
static int64_t put_header(const uint8_t *arena, const uint8_t **p, const uint8_t *end, int64_t i,
                          int64_t *name_at, int64_t *name_len, int64_t *value_at, int64_t *value_len)
{
    const uint8_t *name, *value;
    int64_t name_bytes, value_bytes, r = careful_bytes(p, end, 0, &name, &name_bytes);
    if (r || (r = careful_bytes(p, end, 1, &value, &value_bytes)))
        return r;
    if (name_at)
        name_at[i] = name - arena;
    if (name_len)
        name_len[i] = name_bytes;
    if (value_at)
        value_at[i] = value - arena;
    if (value_len)
        value_len[i] = value_bytes;
    return 0;
}

int64_t seg_headers(const uint8_t *arena, int64_t arena_len, const int64_t *headers_at, int64_t n,
                    int64_t capacity, int64_t *counts, int64_t *name_at, int64_t *name_len,
                    int64_t *value_at, int64_t *value_len)
{
    int64_t total = 0;
    int wanted = name_at || name_len || value_at || value_len;
    const uint8_t *end = arena + arena_len;
    for (int64_t i = 0; i < n; i++) {
        int64_t count, r;
        if (headers_at[i] < 0 || headers_at[i] >= arena_len)
            return SEG_E_COLUMN;
        const uint8_t *p = arena + headers_at[i];
        if ((r = within(careful_varint(&p, end, INT_MOST, &count))))
            return r;
        /* A header takes two bytes at least. */
        if (count < 0 || count > (end - p) / 2)
            return SEG_E_RECORD;
        if (counts)
            counts[i] = count;
        if (wanted && count > capacity - total)
            return SEG_E_ROOM;
        for (int64_t k = 0; wanted && k < count; k++)
            if ((r = put_header(arena, &p, end, total + k, name_at, name_len, value_at, value_len)))
                return r;
        total += count;
    }
    return total;
}

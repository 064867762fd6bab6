/* Decodes the records of whole, plain batches into columns (org.apache.kafka.common.record.DefaultRecord).
 *
 * Thread contract: no state.
 */
#include "record.h"

typedef struct columns {
    int64_t *offsets, *timestamps, *key_at, *key_len, *value_at, *value_len, *headers_at;
} columns;

/* A column that is not wanted is NULL; `all`, known when compiled, says that none is. */
INLINE void put_row(const columns *c, int all, int64_t row, const uint8_t *arena, const seg_batch *b,
                    const fields *f)
{
    if (all || c->offsets)
        c->offsets[row] = b->base_offset + f->offset_delta;
    if (all || c->timestamps)
        c->timestamps[row] = (b->attributes & APPEND_TIME)
            ? b->max_timestamp
            : (int64_t)((uint64_t)b->base_timestamp + (uint64_t)f->timestamp_delta);
    if (all || c->key_at)
        c->key_at[row] = f->key - arena;
    if (all || c->key_len)
        c->key_len[row] = f->key_len;
    if (all || c->value_at)
        c->value_at[row] = f->value - arena;
    if (all || c->value_len)
        c->value_len[row] = f->value_len;
    if (all || c->headers_at)
        c->headers_at[row] = f->headers - arena;
}

/* The records of one batch; 0 or SEG_E_*. out->records counts the good ones. */
INLINE int64_t batch_records(const uint8_t *arena, const uint8_t *p, const uint8_t *end, seg_batch b,
                             columns c, int all, seg_decoded *out)
{
    int64_t row = out->records, null_keys = 0, null_values = 0, with_headers = 0, r = 0, k;
    int64_t most = b.last_offset - b.base_offset, previous = -1;
    for (k = 0; k < b.count; k++) {
        fields f;
        if (UNLIKELY(p == end))
            r = SEG_E_FEW;
        else
            r = read_record(p, end, &f);
        /* Offsets rise and stay within the batch, so that base + delta can't overflow. */
        if (UNLIKELY(r == 0 && (f.offset_delta <= previous || f.offset_delta > most)))
            r = SEG_E_RECORD;
        if (UNLIKELY(r != 0))
            break;
        put_row(&c, all, row++, arena, &b, &f);
        null_keys += f.key_len < 0;
        null_values += f.value_len < 0;
        with_headers += f.header_count > 0;
        previous = f.offset_delta;
        p = f.next;
    }
    if (r == 0 && p != end)
        r = SEG_E_TRAILING;
    out->records = row;
    out->null_keys += null_keys;
    out->null_values += null_values;
    out->with_headers += with_headers;
    if (r) {
        out->fault_record = k;
        out->fault_at = p - arena;
    }
    return r;
}

int64_t seg_decode(const uint8_t *arena, int64_t arena_len, const seg_batch *batches,
                   const int64_t *at, const int64_t *lens, int64_t n, int64_t capacity,
                   int64_t *offsets, int64_t *timestamps, int64_t *key_at, int64_t *key_len,
                   int64_t *value_at, int64_t *value_len, int64_t *headers_at,
                   seg_decoded *out)
{
    columns c = {offsets, timestamps, key_at, key_len, value_at, value_len, headers_at};
    int all = offsets && timestamps && key_at && key_len && value_at && value_len && headers_at;
    *out = (seg_decoded){.fault_batch = -1, .fault_record = -1, .fault_at = -1};
    for (int64_t i = 0; i < n; i++) {
        const seg_batch *b = &batches[i];
        int64_t r = 0;
        if (at[i] < 0 || lens[i] < 0 || at[i] > arena_len || lens[i] > arena_len - at[i])
            r = SEG_E_COLUMN;
        else if (b->count < 0 || b->base_offset < 0 || b->last_offset < b->base_offset)
            r = SEG_E_RECORD;
        else if (b->count > capacity - out->records)
            r = SEG_E_ROOM;
        if (r) {
            out->fault_record = 0;
            out->fault_at = at[i];
        } else {
            const uint8_t *p = arena + at[i], *end = p + lens[i];
            r = all ? batch_records(arena, p, end, *b, c, 1, out)
                    : batch_records(arena, p, end, *b, c, 0, out);
        }
        if (r) {
            out->fault_batch = i;
            return r;
        }
    }
    return out->records;
}

/* Encodes columns into record batches (org.apache.kafka.common.record.DefaultRecord, MemoryRecordsBuilder).
 *
 * Thread contract: no state; columns are only read. A record's size is known before its
 * first byte is written, so only whole records are written.
 */
#include "column.h"
#include "contract/answers.h"
#include "contract/batch.h"
#include "contract/column.h"
#include "contract/records.h"

typedef struct source {
    seg_column keys, values;
    const seg_header_columns *headers;
    const int64_t *timestamps, *offsets;
    int64_t timestamp;
} source;

typedef struct record {
    slice key, value;
    int64_t timestamp, timestamp_delta, offset_delta;
    int64_t body;           /* bytes after the length varint */
    int64_t size;           /* bytes of the record */
} record;

enum { AHEAD = 2048, LINE = 64 }; /* bytes */

typedef struct limits {
    int64_t batch;          /* bytes of a batch of several records */
    int64_t room;           /* bytes of the output */
} limits;

INLINE uint8_t *put_slice(uint8_t *w, const uint8_t *end, slice s)
{
    w = put_varint(w, s.len);
    if (s.len <= 0)
        return w;
    copy_bytes(w, end - w, s.p, s.room, s.len);
    return w + s.len;
}

/* The sizes were measured from the same columns before. */
static uint8_t *put_headers(uint8_t *w, const uint8_t *end, const seg_header_columns *h, int64_t i)
{
    int64_t from = h->offsets[i], to = h->ends ? h->ends[i] : h->offsets[i + 1];
    w = put_varint(w, to - from);
    for (int64_t k = from; k < to; k++) {
        slice name, value;
        header(h, k, &name, &value);
        w = put_slice(w, end, name);
        w = put_slice(w, end, value);
    }
    return w;
}

/* Read key, value and sizes of record i, whose deltas are set; 0 or SEG_E_*. */
INLINE int64_t measure(const source *s, int64_t i, record *r)
{
    int64_t headers = 1;
    if (UNLIKELY(element(&s->keys, i, &r->key) | element(&s->values, i, &r->value)))
        return SEG_E_COLUMN;
    if (s->headers && (headers = header_bytes(s->headers, i)) < 0)
        return headers;
    r->body = 1 + varint_size(r->timestamp_delta) + varint_size(r->offset_delta) + slice_bytes(r->key) +
        slice_bytes(r->value) + headers;
    r->size = varint_size(r->body) + r->body;
    return 0;
}

INLINE void put_record(const source *s, int64_t i, const record *r, uint8_t *w, const uint8_t *end)
{
    w = put_varint(w, r->body);
    *w++ = 0;
    w = put_varint(w, r->timestamp_delta);
    w = put_varint(w, r->offset_delta);
    w = put_slice(w, end, r->key);
    w = put_slice(w, end, r->value);
    if (s->headers)
        put_headers(w, end, s->headers, i);
    else
        *w = 0;
}

/* Prefetch the bytes AHEAD of a value in its column: the processor's own prefetch ends with each page, and a column is
 * mostly not in a cache. */
INLINE void look_ahead(const slice *value)
{
    if (value->room > AHEAD + LINE) {
        __builtin_prefetch(value->p + AHEAD);
        __builtin_prefetch(value->p + AHEAD + LINE);
    }
}

/* Write records from `first` on into one batch at out; fills b except its position and the header's constant fields.
 * Returns its bytes, SEG_E_ROOM if it is larger than the room. */
INLINE int64_t fill(source s, int64_t first, int64_t last, limits limit, uint8_t *out, seg_batch *b)
{
    int64_t used = HEADER, i = first, base = b->base_timestamp, max = INT64_MIN, delta = -1;
    for (; i < last; i++) {
        record r = {.timestamp = s.timestamps ? s.timestamps[i] : s.timestamp};
        r.timestamp_delta = (int64_t)((uint64_t)r.timestamp - (uint64_t)base);
        r.offset_delta = i - first;
        if (s.offsets) {
            int64_t least = i > first ? s.offsets[i - 1] + 1 : 0;
            if (s.offsets[i] < least || s.offsets[i] == INT64_MAX)
                return SEG_E_COLUMN;
            r.offset_delta = s.offsets[i] - s.offsets[first];
        }
        int64_t error = measure(&s, i, &r);
        if (UNLIKELY(error))
            return error;
        look_ahead(&r.value);
        if (i > first && (r.size > limit.batch - used || r.offset_delta > INT32_MAX))
            break;
        if (UNLIKELY(r.size > INT32_MAX - used))
            return SEG_E_TOO_LARGE;
        if (r.size > limit.room - used)
            return SEG_E_ROOM;
        put_record(&s, i, &r, out + used, out + limit.room);
        used += r.size;
        delta = r.offset_delta;
        max = r.timestamp > max ? r.timestamp : max;
    }
    b->count = (int32_t)(i - first);
    b->last_offset = b->base_offset + delta;
    b->max_timestamp = max;
    b->size = (int32_t)used;
    return used;
}

/* `fill`, compiled for records without headers and gaps in offsets, for a known kind of the keys, and a known kind of
 * the values without nulls; -1: unknown. */
#define FILL(name, known_keys, known_values)                                                            \
    static int64_t name(source s, int64_t first, int64_t last, limits limit, uint8_t *out, seg_batch *b) \
    {                                                                                                   \
        s.headers = NULL;                                                                               \
        s.offsets = NULL;                                                                               \
        if (known_keys >= 0)                                                                            \
            s.keys.kind = known_keys;                                                                   \
        if (known_values >= 0) {                                                                        \
            s.values.kind = known_values;                                                               \
            s.values.validity = NULL;                                                                   \
        }                                                                                               \
        return fill(s, first, last, limit, out, b);                                                     \
    }

FILL(fill_fixed, NULLS, FIXED)
FILL(fill_offsets_32, NULLS, OFFSETS_32)
FILL(fill_offsets_64, NULLS, OFFSETS_64)
FILL(fill_spans, NULLS, SPANS)
FILL(fill_keyed, -1, -1)

/* Call the compiled `fill` for these records; for usual kinds it takes two thirds of the time of the general one. */
static int64_t fill_best(const source *s, int64_t first, int64_t last, limits limit, uint8_t *out,
                         seg_batch *b)
{
    if (s->headers || s->offsets)
        return fill(*s, first, last, limit, out, b);
    if (s->keys.kind != NULLS || s->values.validity || s->values.kind == NULLS)
        return fill_keyed(*s, first, last, limit, out, b);
    if (s->values.kind == FIXED)
        return fill_fixed(*s, first, last, limit, out, b);
    if (s->values.kind == OFFSETS_64)
        return fill_offsets_64(*s, first, last, limit, out, b);
    if (s->values.kind == SPANS)
        return fill_spans(*s, first, last, limit, out, b);
    return fill_offsets_32(*s, first, last, limit, out, b);
}

/* Write one batch from record i on; `before` records of this call are in earlier batches. */
static int64_t put_batch(const source *s, const seg_template *t, int64_t i, int64_t last, int64_t before,
                         limits limit, uint8_t *out, seg_batch *b)
{
    int64_t first_timestamp = s->timestamps ? s->timestamps[i] : s->timestamp;
    *b = (seg_batch){
        .base_offset = s->offsets ? s->offsets[i] : t->base_offset + before,
        .base_timestamp = t->attributes & DELETE_HORIZON ? t->delete_horizon : first_timestamp,
        .producer_id = t->producer_id,
        .leader_epoch = t->leader_epoch,
        .base_sequence =
            t->base_sequence < 0 ? -1 : (int32_t)((t->base_sequence + before) & INT32_MAX),
        .attributes = t->attributes,
        .producer_epoch = t->producer_epoch,
        .magic = MAGIC,
    };
    int64_t size = fill_best(s, i, last, limit, out, b);
    if (size < 0)
        return size;
    seg_put_header(out, b);
    if (!(t->attributes & CODEC_MASK))
        seg_put_crc(out, b);
    return size;
}

static int64_t check(const source *s, const seg_template *t, int64_t first, int64_t last)
{
    if (check_column(&s->keys, first, last) || check_column(&s->values, first, last))
        return SEG_E_COLUMN;
    if (s->headers && (last > s->headers->n || !s->headers->offsets))
        return SEG_E_COLUMN;
    if (!s->offsets && (t->base_offset < 0 || t->base_offset > INT64_MAX - (last - first)))
        return SEG_E_COLUMN;
    return 0;
}

int64_t seg_encode_cut(const seg_column *keys, const seg_column *values,
                       const seg_header_columns *headers, const int64_t *timestamps, int64_t timestamp,
                       const int64_t *offsets, int64_t first, int64_t last, int64_t batch_bytes,
                       const int64_t *cuts, int64_t n_cuts, const seg_template *t, uint8_t *out,
                       int64_t capacity, seg_batch *batches, int64_t max_batches, int64_t *n_batches,
                       int64_t *taken)
{
    source s = {*keys, *values, headers, timestamps, offsets, timestamp};
    int64_t used = 0, n = 0, i = first, cut = 0;
    *n_batches = *taken = 0;
    int64_t error = check(&s, t, first, last);
    if (error)
        return error;
    limits limit = {.batch = batch_bytes < INT32_MAX ? batch_bytes : INT32_MAX};
    while (i < last) {
        while (cut < n_cuts && cuts[cut] <= i)
            cut++;
        int64_t stop = cut < n_cuts && cuts[cut] < last ? cuts[cut] : last;
        limit.room = capacity - used;
        int64_t size = SEG_E_ROOM;
        if (n < max_batches)
            size = put_batch(&s, t, i, stop, i - first, limit, out + used, &batches[n]);
        if (size == SEG_E_ROOM && n > 0)
            break;
        if (size < 0)
            return size;
        batches[n].position = used;
        i += batches[n].count;
        used += size;
        n++;
    }
    *n_batches = n;
    *taken = i - first;
    return used;
}

int64_t seg_encode(const seg_column *keys, const seg_column *values,
                   const seg_header_columns *headers, const int64_t *timestamps, int64_t timestamp,
                   const int64_t *offsets, int64_t first, int64_t last, int64_t batch_bytes,
                   const seg_template *t, uint8_t *out, int64_t capacity, seg_batch *batches,
                   int64_t max_batches, int64_t *n_batches, int64_t *taken)
{
    return seg_encode_cut(keys, values, headers, timestamps, timestamp, offsets, first, last, batch_bytes,
                          NULL, 0, t, out, capacity, batches, max_batches, n_batches, taken);
}

int64_t seg_largest(const seg_column *keys, const seg_column *values,
                    const seg_header_columns *headers, int64_t first, int64_t last, int64_t *index)
{
    static const seg_template any = {0};
    source s = {.keys = *keys, .values = *values, .headers = headers};
    int64_t largest = 0, error = check(&s, &any, first, last);
    *index = first;
    for (int64_t i = first; !error && i < last; i++) {
        /* The longest varints: ten bytes and five. */
        record r = {.timestamp_delta = INT64_MIN, .offset_delta = INT32_MAX};
        error = measure(&s, i, &r);
        if (!error && r.size > largest) {
            largest = r.size;
            *index = i;
        }
    }
    return error ? error : largest;
}

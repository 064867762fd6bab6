/* Fills the columns of a table from the records of whole, plain batches, in one pass over their bytes.
 *
 * Thread contract: no state; a seg_table belongs to one caller at a time.
 */
#include "contract/answers.h"
#include "contract/batch.h"
#include "contract/table.h"
#include "shape.h"

enum {
    AHEAD = 512,            /* bytes between a store and its prefetch, so that stores wait less */
    TAIL = 3                /* the least bytes after a record's offset: the lengths of key and value, and a count */
};

/* The fields of a batch that its records share, and the range of wanted records. */
typedef struct source {
    const uint8_t *arena, *arena_end;
    int64_t base_offset, most, from, end; /* most, from, end: offset deltas, the last one exclusive */
    uint64_t base_timestamp;
    int64_t append_time;    /* 1: each record has base_timestamp */
} source;

/* As careful_record, but only up to the offset. */
RARE int64_t careful_front(const uint8_t *p, const uint8_t *end, fields *f)
{
    int64_t len, r = careful_varint(&p, end, INT_MOST, &len);
    if (r)
        return r == CUT ? SEG_E_VARINT : r;
    if (len < RECORD_MIN - 1 || len > end - p)
        return SEG_E_RECORD;
    f->next = p + len;
    p++;
    if ((r = careful_varint(&p, f->next, LONG_MOST, &f->timestamp_delta)) ||
        (r = careful_varint(&p, f->next, INT_MOST, &f->offset_delta)))
        return within(r);
    return f->next - p < TAIL ? SEG_E_RECORD : 0;
}

/* The first bytes of a record, for a guess at the next: records mostly have the length of the record before. */
typedef struct front {
    uint64_t word, mask;    /* the varint of its length */
    int64_t width, len;
} front;

/* Read offset and timestamp of a record, and the position of the next: 0 or SEG_E_*. All loads lie below end. */
INLINE int64_t read_front(const uint8_t *p, const uint8_t *end, front *before, fields *f)
{
    const uint8_t *at = p;
    int64_t n;
    uint64_t v = 0;
    if (UNLIKELY(end - p < QUICK_ROOM))
        return careful_front(p, end, f);
    /* A branch, not a load, finds the next record's position: the CPU predicts it. */
    if (LIKELY(((load64le(p) ^ before->word) & before->mask) == 0)) {
        at += before->width;
    } else {
        if (UNLIKELY(!quick_int(&at, &before->len) || before->len < RECORD_MIN - 1))
            return careful_front(p, end, f); /* refuses the record, which ends the batch */
        before->width = at - p;
        before->mask = low_bytes(before->width);
        before->word = load64le(p);
    }
    if (UNLIKELY(before->len > end - at))
        return careful_front(p, end, f);
    f->next = at + before->len;
    at++;
    if (UNLIKELY((n = quick_varint(at, &v)) == 0))
        return careful_front(p, end, f);
    f->timestamp_delta = unzigzag(v);
    at += n;
    if (UNLIKELY(!quick_int(&at, &f->offset_delta) || f->next - at < TAIL))
        return careful_front(p, end, f);
    return 0;
}

INLINE int64_t put_string(seg_strings *s, int64_t row, const uint8_t *from, int64_t len, const uint8_t *arena_end)
{
    if (LIKELY(len > 0)) {
        if (UNLIKELY(len > s->room - s->used))
            return SEG_E_ROOM;
        __builtin_prefetch(s->data + s->used + AHEAD, 1);
        __builtin_prefetch(s->data + s->used + AHEAD + 64, 1);
        copy_bytes(s->data + s->used, s->room - s->used, from, arena_end - from, len);
        s->used += len;
    } else if (len < 0) {
        s->nulls++;
        s->validity[row >> 3] &= (uint8_t)~(1 << (row & 7));
    }
    s->offsets[row + 1] = (int32_t)s->used;
    return 0;
}

/* Add a row. `full`, known when compiled: more columns than offset and timestamp are wanted. */
INLINE int64_t put_row(seg_table *t, int full, const source *s, const fields *f)
{
    int64_t row = t->rows, r;
    if (UNLIKELY(f->offset_delta < s->from || f->offset_delta >= s->end))
        return 0;
    if (UNLIKELY(row >= t->room))
        return SEG_E_ROOM;
    if (t->offsets)
        t->offsets[row] = s->base_offset + f->offset_delta;
    if (t->timestamps)
        t->timestamps[row] = (int64_t)(s->base_timestamp + (s->append_time ? 0 : (uint64_t)f->timestamp_delta));
    if (t->timestamp_types)
        t->timestamp_types[row] = (int8_t)s->append_time;
    if (full) {
        if (t->headers_at)
            t->headers_at[row] = f->headers - s->arena;
        if (t->keys.offsets && UNLIKELY((r = put_string(&t->keys, row, f->key, f->key_len, s->arena_end)) != 0))
            return r;
        if (t->values.offsets &&
            UNLIKELY((r = put_string(&t->values, row, f->value, f->value_len, s->arena_end)) != 0))
            return r;
    }
    t->rows++;
    return 0;
}

/* Add at most `most` records after the record at p, as long as they have its shape. Returns their number; *f is the
 * last one then. SEG_E_ROOM without room for one. */
INLINE int64_t put_alike(seg_table *t, const source *s, const uint8_t *p, const uint8_t *end, int64_t most, fields *f)
{
    shape like;
    int64_t k = 0, r;
    if (!shape_of(p, end, f, &like))
        return 0;
    for (p = f->next; k < most && end - p >= like.room && has_shape(p, &like); k++, p = f->next) {
        uint64_t v = join_sevens(load64le(p + like.deltas_at) & like.deltas_mask);
        int64_t offset_delta = unzigzag(v >> like.timestamp_bits);
        if (UNLIKELY(offset_delta <= f->offset_delta || offset_delta > s->most))
            break; /* read_record's caller finds the error */
        f->offset_delta = offset_delta;
        f->timestamp_delta = unzigzag(v & (((uint64_t)1 << like.timestamp_bits) - 1));
        f->key = p + like.key_at;
        f->value = p + like.value_at;
        f->next = p + like.size;
        f->headers = f->next - 1;
        if (UNLIKELY((r = put_row(t, 1, s, f)) != 0))
            return r;
    }
    return k;
}

/* Add the `count` records of one batch, which end at `end`: 0 or SEG_E_*. */
INLINE int64_t put_records(seg_table *t, int full, const source *s, const uint8_t *p, const uint8_t *end, int64_t count)
{
    int64_t previous = -1, size = 0, k = 0, r = 0;
    front before = {.mask = ~(uint64_t)0}; /* no record has this word: the first byte is 0, the others too */
    while (k < count) {
        fields f;
        if (UNLIKELY(p == end))
            r = SEG_E_FEW;
        else
            r = full ? read_record(p, end, &f) : read_front(p, end, &before, &f);
        /* Offsets rise and stay within the batch, so that base + delta can't overflow. */
        if (UNLIKELY(r == 0 && (f.offset_delta <= previous || f.offset_delta > s->most)))
            r = SEG_E_RECORD;
        if (UNLIKELY(r != 0 || (r = put_row(t, full, s, &f)) != 0))
            break;
        k++;
        if (full) {
            t->with_headers += f.header_count > 0;
            int alike = f.next - p == size;
            size = f.next - p;
            int64_t more = alike ? put_alike(t, s, p, end, count - k, &f) : 0;
            if (UNLIKELY(more < 0)) {
                r = more;
                break;
            }
            k += more;
        }
        previous = f.offset_delta;
        p = f.next;
    }
    t->fault_record = k;
    return r == 0 && p != end ? SEG_E_TRAILING : r;
}

/* Find the wanted range of a batch whose records are at `at` in the arena; 0, or SEG_E_* if it can't lie there. */
static int64_t source_of(const uint8_t *arena, int64_t arena_len, const seg_batch *b, int64_t at, int64_t len,
                         int64_t from_offset, int64_t end_offset, source *s)
{
    if (at < 0 || len < 0 || at > arena_len || len > arena_len - at)
        return SEG_E_COLUMN;
    if (b->count < 0 || b->base_offset < 0 || b->last_offset < b->base_offset)
        return SEG_E_RECORD;
    int64_t most = b->last_offset - b->base_offset;
    int append_time = (b->attributes & APPEND_TIME) != 0;
    *s = (source){
        .arena = arena, .arena_end = arena + arena_len, .base_offset = b->base_offset, .most = most,
        .from = from_offset <= b->base_offset ? 0 : from_offset > b->last_offset ? most + 1
                                                                                  : from_offset - b->base_offset,
        .end = end_offset > b->last_offset ? most + 1 : end_offset <= b->base_offset ? 0 : end_offset - b->base_offset,
        .base_timestamp = (uint64_t)(append_time ? b->max_timestamp : b->base_timestamp),
        .append_time = append_time,
    };
    return 0;
}

/* Remove the rows of a damaged batch; the last one may be incomplete. */
static void take_back(seg_table *made, const seg_table *before)
{
    seg_strings *both[2] = {&made->keys, &made->values};
    for (int i = 0; i < 2; i++)
        for (int64_t row = before->rows; both[i]->offsets && row <= made->rows && row < made->room; row++)
            both[i]->validity[row >> 3] |= (uint8_t)(1 << (row & 7));
    int64_t record = made->fault_record;
    *made = *before;
    made->fault_record = record;
}

int64_t seg_fill_table(const uint8_t *arena, int64_t arena_len, const seg_batch *batches, const int64_t *at,
                       const int64_t *lens, int64_t n, int64_t from_offset, int64_t end_offset, seg_table *table)
{
    int64_t r = 0;
    seg_table made = *table; /* a local copy: stores through its columns can't change it */
    int full = made.headers_at || made.keys.offsets || made.values.offsets;
    if (made.keys.room > INT32_MAX || made.values.room > INT32_MAX)
        return SEG_E_ROOM;
    made.fault_batch = made.fault_record = -1;
    for (int64_t i = 0; i < n && r == 0; i++) {
        source s;
        seg_table before = made;
        r = source_of(arena, arena_len, &batches[i], at[i], lens[i], from_offset, end_offset, &s);
        if (r == 0) {
            const uint8_t *p = arena + at[i], *end = p + lens[i];
            r = full ? put_records(&made, 1, &s, p, end, batches[i].count)
                     : put_records(&made, 0, &s, p, end, batches[i].count);
        }
        if (r) {
            take_back(&made, &before);
            made.fault_batch = i;
        }
    }
    int64_t added = made.rows - table->rows;
    *table = made;
    return r ? r : added;
}

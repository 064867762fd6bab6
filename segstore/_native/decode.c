/* Decodes the records of whole, plain batches into columns (org.apache.kafka.common.record.DefaultRecord).
 *
 * Thread contract: no state.
 */
#include "contract/answers.h"
#include "contract/batch.h"
#include "contract/records.h"
#include "shape.h"

typedef struct columns {
    int64_t *offsets, *timestamps, *key_at, *key_len, *value_at, *value_len, *headers_at;
} columns;

/* A column that is not wanted is NULL; `all`, known when compiled, says that no column is NULL. */
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

enum { PIECE = 64 };        /* records of a run whose words are gathered before they are decoded */

typedef int64_t four __attribute__((vector_size(32), aligned(8), may_alias));

/* first, first + step, ... */
INLINE void fill(int64_t *column, int64_t first, int64_t step, int64_t n)
{
    four next = {first, first + step, first + 2 * step, first + 3 * step};
    int64_t i = 0;
    for (; i + 4 <= n; i += 4, next += 4 * step)
        *(four *)(column + i) = next;
    for (; i < n; i++)
        column[i] = first + i * step;
}

/* Write the positions of keys, values and headers of `n` records from p on that have the shape. */
INLINE void put_places(const columns *c, int64_t row, const uint8_t *arena, const uint8_t *p, const shape *s, int64_t n)
{
    int64_t at = p - arena;
    if (c->key_at)
        fill(c->key_at + row, at + s->key_at, s->size, n);
    if (c->key_len)
        fill(c->key_len + row, s->key_len, 0, n);
    if (c->value_at)
        fill(c->value_at + row, at + s->value_at, s->size, n);
    if (c->value_len)
        fill(c->value_len + row, s->value_len, 0, n);
    if (c->headers_at)
        fill(c->headers_at + row, at + s->size - 1, s->size, n);
}

/* Gather the words with the deltas of at most `n` records from p on that have the shape; returns their number. */
INLINE int64_t gather_deltas(const uint8_t *p, shape s, int64_t n, uint64_t *words)
{
    int64_t i = 0;
    for (; i < n && has_shape(p, &s); i++, p += s.size)
        words[i] = load64le(p + s.deltas_at);
    return i;
}

/* Write offsets and timestamps of n records, by the words with their deltas: 1, or 0 if offsets don't rise from
 * *offset_delta on, or leave the batch. */
INLINE int put_deltas(const columns *c, int64_t row, const seg_batch *b, const shape *s, const uint64_t *words,
                      int64_t n, int64_t *offset_delta)
{
    int64_t offsets[PIECE + 1], timestamps[PIECE], timestamp_bits = s->timestamp_bits, wrong = 0;
    uint64_t mask = s->deltas_mask, timestamp_mask = ((uint64_t)1 << timestamp_bits) - 1;
    offsets[0] = *offset_delta;
    for (int64_t i = 0; i < n; i++) {
        uint64_t v = join_sevens(words[i] & mask);
        timestamps[i] = unzigzag(v & timestamp_mask);
        offsets[i + 1] = unzigzag(v >> timestamp_bits);
    }
    for (int64_t i = 0; i < n; i++)
        wrong |= offsets[i + 1] - offsets[i] - 1;
    if (wrong < 0 || offsets[n] > b->last_offset - b->base_offset)
        return 0;
    *offset_delta = offsets[n];
    for (int64_t i = 0; c->offsets && i < n; i++)
        c->offsets[row + i] = b->base_offset + offsets[i + 1];
    if (c->timestamps && b->attributes & APPEND_TIME)
        fill(c->timestamps + row, b->max_timestamp, 0, n);
    else
        for (int64_t i = 0; c->timestamps && i < n; i++)
            c->timestamps[row + i] = (int64_t)((uint64_t)b->base_timestamp + (uint64_t)timestamps[i]);
    return 1;
}

/* Write at most `most` records after `last`, which began at p, if they have its shape. Returns their number. */
INLINE int64_t run(const columns *c, int64_t row, const uint8_t *arena, const uint8_t *p, const uint8_t *end,
                   const seg_batch *b, int64_t most, fields *last)
{
    shape s;
    uint64_t words[PIECE];
    int64_t done = 0, n = PIECE;
    if (!shape_of(p, end, last, &s))
        return 0;
    for (p = last->next; n == PIECE && end - p >= s.room; p += n * s.size) {
        int64_t fit = (end - p - s.room) / s.size + 1;
        fit = fit < most - done ? fit : most - done;
        n = gather_deltas(p, s, fit < PIECE ? fit : PIECE, words);
        if (!put_deltas(c, row + done, b, &s, words, n, &last->offset_delta))
            break;
        put_places(c, row + done, arena, p, &s, n);
        done += n;
    }
    return done;
}

typedef int64_t (*run_function)(const columns *c, int64_t row, const uint8_t *arena, const uint8_t *p,
                                const uint8_t *end, const seg_batch *b, int64_t most, fields *last);

static int64_t portable_run(const columns *c, int64_t row, const uint8_t *arena, const uint8_t *p, const uint8_t *end,
                            const seg_batch *b, int64_t most, fields *last)
{
    return run(c, row, arena, p, end, b, most, last);
}

#ifdef __x86_64__
__attribute__((target("avx2")))
static int64_t wide_run(const columns *c, int64_t row, const uint8_t *arena, const uint8_t *p, const uint8_t *end,
                        const seg_batch *b, int64_t most, fields *last)
{
    return run(c, row, arena, p, end, b, most, last);
}
#endif

static run_function run_of = portable_run;

#ifdef __x86_64__
__attribute__((constructor)) static void choose(void)
{
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2"))
        run_of = wide_run;
}
#endif

/* Decode the records of one batch; 0 or SEG_E_*. out->records counts the good ones. */
INLINE int64_t batch_records(const uint8_t *arena, const uint8_t *p, const uint8_t *end, seg_batch b,
                             columns c, int all, seg_decoded *out)
{
    int64_t row = out->records, null_keys = 0, null_values = 0, with_headers = 0, r = 0, k;
    int64_t most = b.last_offset - b.base_offset, previous = -1, size = 0;
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
        int alike = f.next - p == size;
        size = f.next - p;
        if (alike) {
            fields last = f;
            columns copy = c;
            seg_batch of = b;
            int64_t n = run_of(&copy, row, arena, p, end, &of, b.count - k - 1, &last);
            null_keys += f.key_len < 0 ? n : 0;
            null_values += f.value_len < 0 ? n : 0;
            row += n;
            k += n;
            f.next += n * size;
            f.offset_delta = last.offset_delta;
        }
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

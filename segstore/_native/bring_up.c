/* Converts messages of magic 0 and 1 to record batches of magic 2, with the same offsets, keys, values and times
 * (org.apache.kafka.common.record.RecordsUtil converts in the other direction, AbstractLegacyRecordBatch reads them).
 *
 * Thread contract: no state. Headers come from seg_scan, but are not trusted. A record takes no more bytes than its
 * message took: 32 at most beside key and value, or 23 without a timestamp.
 */
#include "contract/answers.h"
#include "contract/batch.h"
#include "contract/records.h"
#include "message.h"

enum { MOST_SHORT = 0xffffff };  /* a length up to this has a first byte of 0 */

/* Batches that are made one after another; the last one is open for more records. */
typedef struct making {
    uint8_t *out;
    int64_t capacity, used;
    int64_t batch_bytes;
    seg_batch *batches;
    int64_t n;
    int64_t start;          /* the position of the open batch, -1 for none */
} making;

static void close_batch(making *m)
{
    if (m->start < 0)
        return;
    seg_batch *b = &m->batches[m->n++];
    uint8_t *p = m->out + m->start;
    b->size = (int32_t)(m->used - m->start);
    seg_put_header(p, b);
    seg_put_crc(p, b);
    m->start = -1;
}

/* Begin a batch with this record as its first one: 0, or SEG_E_ROOM. */
static int64_t open_batch(making *m, int64_t offset, int64_t timestamp, int16_t attributes, int magic)
{
    if (HEADER > m->capacity - m->used)
        return SEG_E_ROOM;
    m->start = m->used;
    m->used += HEADER;
    m->batches[m->n] = (seg_batch){
        .position = m->start,
        .base_offset = offset,
        .last_offset = offset,
        .base_timestamp = timestamp,
        .max_timestamp = timestamp,
        .producer_id = -1,
        .leader_epoch = -1,
        .base_sequence = -1,
        .attributes = attributes,
        .producer_epoch = -1,
        .magic = magic, /* while it is open, the magic of its messages */
    };
    return 0;
}

/* Bytes of a string with its length. */
INLINE int64_t payload(int64_t len)
{
    return varint_size(len) + (len > 0 ? len : 0);
}

INLINE uint8_t *put_bytes(uint8_t *w, const uint8_t *w_end, const uint8_t *p, int64_t len, const uint8_t *end)
{
    w = put_varint(w, len);
    if (len <= 0)
        return w;
    copy_bytes(w, w_end - w, p, end - p, len);
    return w + len;
}

/* A record's deltas, and its bytes after its length. */
typedef struct measured {
    int64_t timestamp_delta, offset_delta, body;
} measured;

INLINE measured measure(const seg_batch *b, const message *s, int64_t offset, int64_t timestamp)
{
    measured r = {(int64_t)((uint64_t)timestamp - (uint64_t)b->base_timestamp), offset - b->base_offset, 0};
    if (b->attributes & APPEND_TIME)
        r.timestamp_delta = 0;
    r.body = 1 + varint_size(r.timestamp_delta) + varint_size(r.offset_delta) + payload(s->key_len) +
        payload(s->value_len) + 1;
    return r;
}

/* Write the message as the next record of the open batch; the memory of the message ends at `end`. 0, or SEG_E_ROOM. */
INLINE int64_t put_record(making *m, const message *s, int64_t offset, int64_t timestamp, measured r,
                          const uint8_t *end)
{
    seg_batch *b = &m->batches[m->n];
    int64_t size = varint_size(r.body) + r.body;
    if (size > m->capacity - m->used)
        return SEG_E_ROOM;
    uint8_t *w = put_varint(m->out + m->used, r.body), *w_end = m->out + m->capacity;
    *w++ = 0;
    w = put_varint(w, r.timestamp_delta);
    w = put_varint(w, r.offset_delta);
    w = put_bytes(w, w_end, s->key, s->key_len, end);
    w = put_bytes(w, w_end, s->value, s->value_len, end);
    *w = 0;
    m->used += size;
    b->count++;
    b->last_offset = offset;
    b->max_timestamp = timestamp > b->max_timestamp ? timestamp : b->max_timestamp;
    return 0;
}

/* --- plain messages ---------------------------------------------------------- */

/* Whether the open batch takes a message. With LogAppendTime each message has its own timestamp, but all records of a
 * batch share one. */
INLINE int takes(const making *m, const message *s, int64_t offset, int16_t attributes)
{
    const seg_batch *b = &m->batches[m->n];
    if (m->start < 0 || b->magic != s->magic || b->attributes != attributes || offset - b->base_offset > INT32_MAX)
        return 0;
    int64_t size = payload(s->key_len) + payload(s->value_len) + RECORD_MIN;
    if (size > m->batch_bytes - (m->used - m->start))
        return 0;
    return !(attributes & APPEND_TIME) || b->max_timestamp == s->timestamp;
}

INLINE int64_t bring_up_one(making *m, const uint8_t *p, const seg_batch *h, const uint8_t *end)
{
    message s;
    if (p[AT_MAGIC] > 1 || p[AT_MAGIC] != h->magic || get64(p) != h->last_offset ||
        get32(p + AT_LENGTH) != h->size - LOG_OVERHEAD)
        return SEG_E_COLUMN;
    if (!read_message(p, h->size, &s))
        return SEG_E_RECORD;
    int16_t attributes = s.magic ? s.attributes & APPEND_TIME : 0;
    int64_t r = 0;
    if (UNLIKELY(!takes(m, &s, h->last_offset, attributes))) {
        close_batch(m);
        r = open_batch(m, h->last_offset, s.timestamp, attributes, s.magic);
    }
    if (UNLIKELY(r))
        return r;
    measured found = measure(&m->batches[m->n], &s, h->last_offset, s.timestamp);
    return put_record(m, &s, h->last_offset, s.timestamp, found, end);
}

int64_t seg_bring_up(const uint8_t *buf, int64_t len, int64_t position, const seg_batch *messages, int64_t n,
                     int64_t batch_bytes, uint8_t *out, int64_t capacity, seg_batch *out_batches,
                     int64_t *n_batches, int64_t *fault)
{
    making m = {out, capacity, 0, batch_bytes, out_batches, 0, -1};
    int64_t previous = -1, r = 0;
    for (int64_t i = 0; i < n && r == 0; i++) {
        const seg_batch *h = &messages[i];
        int64_t at = h->position - position;
        *fault = i;
        if (at < 0 || h->size < MESSAGE_LEAST || h->size > len || at > len - h->size || h->last_offset <= previous ||
            h->last_offset == INT64_MAX || h->attributes & CODEC_MASK)
            return SEG_E_COLUMN;
        r = bring_up_one(&m, buf + at, h, buf + len);
        previous = h->last_offset;
    }
    if (r)
        return r;
    close_batch(&m);
    *n_batches = m.n;
    return m.used;
}

/* --- columns of plain messages ------------------------------------------------- */

/* Whether a message is of the same kind as the messages of the run b. */
INLINE int goes_on(const seg_batch *b, const message *s, int64_t offset, int16_t attributes)
{
    return b->base_sequence == s->magic && b->attributes == attributes && offset - b->base_offset <= INT32_MAX &&
           (!(attributes & APPEND_TIME) || b->max_timestamp == s->timestamp);
}

static seg_batch run_of(const seg_batch *h, const message *s, int16_t attributes)
{
    return (seg_batch){
        .position = h->position,
        .base_offset = h->last_offset,
        .base_timestamp = s->timestamp,
        .max_timestamp = s->timestamp,
        .producer_id = -1,
        .leader_epoch = -1,
        .base_sequence = s->magic, /* while it is open; then -1 */
        .attributes = attributes,
        .producer_epoch = -1,
        .magic = MAGIC,
    };
}

int64_t seg_decode_messages(const uint8_t *buf, int64_t len, int64_t position, const seg_batch *messages, int64_t n,
                            int64_t *rows, seg_batch *runs, int64_t *n_runs)
{
    int64_t previous = -1, k = -1;
    for (int64_t i = 0; i < n; i++) {
        const seg_batch *h = &messages[i];
        int64_t at = h->position - position, offset = h->last_offset, *row = rows + i;
        message s;
        if (h->magic == MAGIC || h->attributes & CODEC_MASK || at < 0 || h->size < MESSAGE_LEAST || h->size > len ||
            at > len - h->size || offset <= previous || offset == INT64_MAX || buf[at + AT_MAGIC] > 1)
            return SEG_SLOW;
        if (!read_message(buf + at, h->size, &s) || s.value_len < 0 || s.value_len > MOST_SHORT)
            return SEG_SLOW;
        int16_t attributes = s.magic ? s.attributes & APPEND_TIME : 0;
        if (UNLIKELY(k < 0 || !goes_on(&runs[k], &s, offset, attributes)))
            runs[++k] = run_of(h, &s, attributes);
        runs[k].last_offset = offset;
        runs[k].max_timestamp = s.timestamp > runs[k].max_timestamp ? s.timestamp : runs[k].max_timestamp;
        runs[k].size += h->size;
        runs[k].count++;
        row[0] = previous = offset;
        row[n] = s.timestamp;
        row[2 * n] = s.key - buf;
        row[3 * n] = s.key_len;
        row[4 * n] = s.value - buf;
        row[5 * n] = s.value_len;
        row[6 * n] = s.value - buf - 4; /* the value length's first byte is 0, like a header count of 0 */
    }
    *n_runs = k + 1;
    for (int64_t i = 0; i <= k; i++)
        runs[i].base_sequence = -1;
    return n;
}

/* --- a wrapper --------------------------------------------------------------- */

/* The bytes of the whole entry at p; 0 if there is none, SEG_E_RECORD if there can't be one. */
static int64_t entry_size(const uint8_t *p, const uint8_t *end)
{
    if (end - p < LOG_OVERHEAD)
        return 0;
    int64_t size = (int64_t)get32(p + AT_LENGTH) + LOG_OVERHEAD;
    if (size < MESSAGE_LEAST)
        return SEG_E_RECORD;
    return size > end - p ? 0 : size;
}

/* The offset of a nested message with offset 0: in magic 1, offsets count from the first message of the set, or from
 * any other, and the wrapper has the last message's offset. SEG_E_*. */
static int64_t nested_base(const uint8_t *plain, const uint8_t *end, const seg_batch *wrapper, int64_t *fault)
{
    int64_t last = -1, size;
    *fault = 0;
    for (const uint8_t *p = plain; (size = entry_size(p, end)) != 0; p += size, ++*fault) {
        if (size < 0)
            return size;
        last = get64(p);
    }
    if (*fault == 0)
        return SEG_E_FEW;
    if (last < 0 || last > wrapper->last_offset)
        return SEG_E_OFFSETS;
    return wrapper->magic == 0 ? 0 : wrapper->last_offset - last;
}

/* Check a nested message by itself: 0, or SEG_E_*. */
static int64_t judge(const uint8_t *p, int64_t size, const seg_batch *wrapper, message *s)
{
    if (p[AT_MAGIC] != wrapper->magic)
        return SEG_E_NESTED;
    if (!message_crc_holds(p, size))
        return SEG_E_CRC;
    if (p[MESSAGE_AT_ATTRIBUTES] & CODEC_MASK)
        return SEG_E_NESTED;
    return read_message(p, size, s) ? 0 : SEG_E_RECORD;
}

int64_t seg_bring_up_nested(const uint8_t *plain, int64_t len, const seg_batch *wrapper, int64_t least,
                            uint8_t *out, int64_t capacity, seg_batch *out_batch, int64_t *fault)
{
    const uint8_t *end = plain + len;
    making m = {out, capacity, 0, INT32_MAX, out_batch, 0, -1};
    int16_t attributes = wrapper->magic ? wrapper->attributes & APPEND_TIME : 0;
    int64_t base = nested_base(plain, end, wrapper, fault), previous = least < 0 ? -1 : least - 1, size, r;
    if (base < 0)
        return base;
    *fault = 0;
    for (const uint8_t *p = plain; (size = entry_size(p, end)) != 0; p += size, ++*fault) {
        message s;
        if ((r = judge(p, size, wrapper, &s)) != 0)
            return r;
        int64_t offset = get64(p);
        if (offset < 0 || offset > wrapper->last_offset - base || base + offset <= previous)
            return SEG_E_OFFSETS;
        previous = offset += base;
        int64_t timestamp = attributes & APPEND_TIME ? wrapper->max_timestamp : s.timestamp;
        if (m.start < 0 && (r = open_batch(&m, offset, timestamp, attributes, s.magic)) != 0)
            return r;
        if (wrapper->last_offset - out_batch->base_offset > INT32_MAX)
            return SEG_E_OFFSETS;
        measured found = measure(out_batch, &s, offset, timestamp);
        if ((r = put_record(&m, &s, offset, timestamp, found, end)) != 0)
            return r;
    }
    out_batch->last_offset = wrapper->last_offset;
    close_batch(&m);
    return m.used;
}

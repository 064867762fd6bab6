/* Decodes the records of batches into flat columns; checks every length on the way. */
#include "wire.h"

typedef struct columns {
    int64_t *offsets, *timestamps, *key_at, *key_len, *value_at, *value_len, *headers_at;
} columns;

/* A byte string with its varint length (-1: null) in [p, end): the byte behind it, NULL where it can't be. */
static inline const uint8_t *get_bytes(const uint8_t *p, const uint8_t *end, const uint8_t *arena, int64_t *at,
                                       int64_t *len) {
    int64_t n;
    if (!(p = get_varint(p, end, 5, &n)) || n < -1) return 0;
    *len = n;
    *at = p - arena;
    if (n < 0) return p;
    return n > end - p ? 0 : p + n;
}

/* Skips the headers of a record: the byte behind them, NULL where they can't be; *n is their number. */
static const uint8_t *skip_headers(const uint8_t *p, const uint8_t *end, const uint8_t *arena, int64_t *n) {
    int64_t at, len;
    if (!(p = get_varint(p, end, 5, n)) || *n < 0 || *n > (end - p) / 2) return 0;
    for (int64_t i = 0; i < *n; i++) {
        if (!(p = get_bytes(p, end, arena, &at, &len)) || len < 0) return 0;
        if (!(p = get_bytes(p, end, arena, &at, &len))) return 0;
    }
    return p;
}

/* One record at p: the byte behind it, NULL with *error. */
static inline const uint8_t *decode_record(const uint8_t *p, const uint8_t *end, const uint8_t *arena,
                                           const seg_batch *b, const columns *c, int64_t i, seg_decoded *out,
                                           int64_t *error) {
    int64_t length, ts, offset, key_at, key_len, value_at, value_len, n;
    *error = SEG_E_VARINT;
    if (!(p = get_varint(p, end, 5, &length))) return 0;
    *error = SEG_E_RECORD;
    if (length < LEAST_RECORD - 1 || length > end - p) return 0;
    end = p + length;
    p++; /* attributes: unused */
    if (!(p = get_varint(p, end, 10, &ts)) || !(p = get_varint(p, end, 5, &offset))) return 0;
    if (offset < 0 || offset > b->last_offset - b->base_offset) return 0;
    if (!(p = get_bytes(p, end, arena, &key_at, &key_len))) return 0;
    if (!(p = get_bytes(p, end, arena, &value_at, &value_len))) return 0;
    int64_t headers_at = p - arena;
    if (p < end && *p == 0) { p++; n = 0; }
    else if (!(p = skip_headers(p, end, arena, &n))) return 0;
    if (p != end) return 0;
    if (c->offsets) c->offsets[i] = b->base_offset + offset;
    if (c->timestamps)
        c->timestamps[i] = b->attributes & APPEND_TIME ? b->max_timestamp
                         : (int64_t)((uint64_t)b->base_timestamp + (uint64_t)ts);
    if (c->key_at) c->key_at[i] = key_at;
    if (c->key_len) c->key_len[i] = key_len;
    if (c->value_at) c->value_at[i] = value_at;
    if (c->value_len) c->value_len[i] = value_len;
    if (c->headers_at) c->headers_at[i] = headers_at;
    out->null_keys += key_len < 0;
    out->null_values += value_len < 0;
    out->with_headers += n > 0;
    return p;
}

static int64_t fail(seg_decoded *out, int64_t batch, int64_t record, int64_t at, int64_t error) {
    out->fault_batch = batch;
    out->fault_record = record;
    out->fault_at = at;
    return error;
}

int64_t seg_decode(const uint8_t *arena, int64_t arena_len, const seg_batch *batches,
                   const int64_t *at, const int64_t *lens, int64_t n, int64_t capacity,
                   int64_t *offsets, int64_t *timestamps, int64_t *key_at, int64_t *key_len,
                   int64_t *value_at, int64_t *value_len, int64_t *headers_at, seg_decoded *out) {
    columns c = {offsets, timestamps, key_at, key_len, value_at, value_len, headers_at};
    int64_t total = 0, error = 0;
    memset(out, 0, sizeof *out);
    for (int64_t i = 0; i < n; i++) {
        const seg_batch *b = batches + i;
        if (at[i] < 0 || lens[i] < 0 || at[i] > arena_len || lens[i] > arena_len - at[i])
            return fail(out, i, 0, at[i], SEG_E_COLUMN);
        const uint8_t *p = arena + at[i], *end = p + lens[i];
        if (b->count < 0 || b->count > capacity - total) return fail(out, i, 0, at[i], SEG_E_ROOM);
        for (int64_t r = 0; r < b->count; r++) {
            const uint8_t *from = p;
            if (p == end) return fail(out, i, r, p - arena, SEG_E_FEW);
            if (!(p = decode_record(p, end, arena, b, &c, total, out, &error)))
                return fail(out, i, r, from - arena, error);
            total++;
        }
        if (p != end) return fail(out, i, b->count, p - arena, SEG_E_TRAILING);
    }
    out->records = total;
    return total;
}

int64_t seg_headers(const uint8_t *arena, int64_t arena_len, const int64_t *headers_at, int64_t n,
                    int64_t capacity, int64_t *counts, int64_t *name_at, int64_t *name_len,
                    int64_t *value_at, int64_t *value_len) {
    const uint8_t *end = arena + arena_len;
    int64_t total = 0, at[4];
    for (int64_t i = 0; i < n; i++) {
        if (headers_at[i] < 0 || headers_at[i] >= arena_len) return SEG_E_COLUMN;
        const uint8_t *p = get_varint(arena + headers_at[i], end, 5, counts + i);
        if (!p || counts[i] < 0 || counts[i] > (end - p) / 2) return SEG_E_VARINT;
        for (int64_t h = 0; h < counts[i]; h++, total++) {
            if (!(p = get_bytes(p, end, arena, at, at + 1)) || at[1] < 0) return SEG_E_RECORD;
            if (!(p = get_bytes(p, end, arena, at + 2, at + 3))) return SEG_E_RECORD;
            if (!name_at) continue;
            if (total >= capacity) return SEG_E_ROOM;
            name_at[total] = at[0];
            name_len[total] = at[1];
            value_at[total] = at[2];
            value_len[total] = at[3];
        }
    }
    return total;
}

int64_t seg_gather(const uint8_t *arena, int64_t arena_len, const int64_t *at, const int64_t *lens,
                   int64_t n, int32_t wide, uint8_t *out, int64_t capacity, void *offsets) {
    int64_t used = 0, *o64 = offsets;
    int32_t *o32 = offsets;
    for (int64_t i = 0; i < n; i++) {
        int64_t len = lens[i] < 0 ? 0 : lens[i];
        if (wide) o64[i] = used; else o32[i] = (int32_t)used;
        if (len == 0) continue;
        if (at[i] < 0 || at[i] > arena_len || len > arena_len - at[i]) return SEG_E_COLUMN;
        if (len > capacity - used || (!wide && used + len > INT32_MAX)) return SEG_E_ROOM;
        memcpy(out + used, arena + at[i], (size_t)len);
        used += len;
    }
    if (wide) o64[n] = used; else o32[n] = (int32_t)used;
    return used;
}

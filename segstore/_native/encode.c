/* Encodes columns into record batches, and gives batches their place in a log. */
#include "wire.h"

typedef struct slice { const uint8_t *p; int64_t len; } slice; /* len -1: null */

/* Element i of a column: 0, or SEG_E_COLUMN. */
static inline int64_t element(const seg_column *c, int64_t i, slice *out) {
    int64_t from, to;
    out->p = 0;
    out->len = -1;
    if (c->kind == 0) return 0;
    if (c->validity) {
        int64_t bit = c->validity_bit + i;
        if (!(c->validity[bit >> 3] >> (bit & 7) & 1)) return 0;
    }
    if (c->kind == 1) {
        from = ((const int32_t *)c->offsets)[i];
        to = ((const int32_t *)c->offsets)[i + 1];
    } else if (c->kind == 2) {
        from = ((const int64_t *)c->offsets)[i];
        to = ((const int64_t *)c->offsets)[i + 1];
    } else {
        if (c->width < 0 || (c->width && i > c->data_len / c->width)) return SEG_E_COLUMN;
        from = i * c->width;
        to = from + c->width;
    }
    if (from < 0 || to < from || to > c->data_len) return SEG_E_COLUMN;
    out->p = c->data + from;
    out->len = to - from;
    return out->len > INT32_MAX - 64 ? SEG_E_TOO_LARGE : 0;
}

static inline int64_t bytes_size(slice s) {
    return s.len < 0 ? 1 : varint_size(zigzag(s.len)) + s.len;
}

/* Bytes of record i's headers with their count; SEG_E_*. */
static int64_t headers_size(const seg_header_columns *h, int64_t i) {
    slice name, value;
    int64_t e, from = h->offsets[i], to = h->offsets[i + 1];
    if (from < 0 || to < from || to > h->names.n || to > h->values.n) return SEG_E_COLUMN;
    int64_t size = varint_size(zigzag(to - from));
    for (int64_t j = from; j < to; j++) {
        if ((e = element(&h->names, j, &name)) || (e = element(&h->values, j, &value))) return e;
        if (name.len < 0) return SEG_E_NULL;
        size += bytes_size(name) + bytes_size(value);
    }
    return size;
}

static inline uint8_t *copy(uint8_t *p, const uint8_t *room_end, slice s, const uint8_t *data_end) {
    /* Short strings go in two wide moves where both sides have room for it. */
    if (s.len <= 128 && room_end - p >= 128 && data_end - s.p >= 128) {
        memcpy(p, s.p, 32);
        if (s.len > 32) { memcpy(p + 32, s.p + 32, 32); memcpy(p + 64, s.p + 64, 64); }
    } else memcpy(p, s.p, (size_t)s.len);
    return p + s.len;
}

static inline uint8_t *put_bytes(uint8_t *p, const uint8_t *room_end, slice s, const seg_column *c) {
    if (s.len < 0) { *p++ = 1; return p; }
    p = put_varint(p, zigzag(s.len));
    return s.len ? copy(p, room_end, s, c->data + c->data_len) : p;
}

static uint8_t *put_headers(uint8_t *p, const uint8_t *room_end, const seg_header_columns *h, int64_t i) {
    slice s;
    p = put_varint(p, zigzag(h->offsets[i + 1] - h->offsets[i]));
    for (int64_t j = h->offsets[i]; j < h->offsets[i + 1]; j++) {
        element(&h->names, j, &s);
        p = put_bytes(p, room_end, s, &h->names);
        element(&h->values, j, &s);
        p = put_bytes(p, room_end, s, &h->values);
    }
    return p;
}

static void put_header(uint8_t *p, const seg_batch *b) {
    put64(p, (uint64_t)b->base_offset);
    put32(p + 8, (uint32_t)(b->size - OVERHEAD));
    put32(p + 12, (uint32_t)b->leader_epoch);
    p[16] = 2;
    put16(p + 21, (uint16_t)b->attributes);
    put32(p + 23, (uint32_t)(b->last_offset - b->base_offset));
    put64(p + 27, (uint64_t)b->base_timestamp);
    put64(p + 35, (uint64_t)b->max_timestamp);
    put64(p + 43, (uint64_t)b->producer_id);
    put16(p + 51, (uint16_t)b->producer_epoch);
    put32(p + 53, (uint32_t)b->base_sequence);
    put32(p + 57, (uint32_t)b->count);
    put32(p + 17, b->crc);
}

int64_t seg_seal(uint8_t *batch, int64_t len, seg_batch *h) {
    if (h->size < HEADER || h->size > len) return SEG_E_COLUMN;
    put_header(batch, h);
    h->crc = seg_crc32c(0, batch + 21, h->size - 21);
    put32(batch + 17, h->crc);
    return 0;
}

int64_t seg_largest(const seg_column *keys, const seg_column *values, const seg_header_columns *headers,
                    int64_t first, int64_t last, int64_t *index) {
    int64_t largest = 0, e;
    slice k, v;
    *index = first;
    if (first < 0 || last > values->n || (keys->kind && last > keys->n) || (headers && last > headers->n))
        return SEG_E_COLUMN;
    for (int64_t i = first; i < last; i++) {
        if ((e = element(keys, i, &k)) || (e = element(values, i, &v))) return e;
        int64_t size = bytes_size(k) + bytes_size(v) + 1;
        if (headers) {
            if ((e = headers_size(headers, i)) < 0) return e;
            size += e - 1;
        }
        size += 1 + 10 + 5 + 5;
        if (size > largest) { largest = size; *index = i; }
    }
    return largest;
}

typedef struct input {
    const seg_column *keys, *values;
    const seg_header_columns *headers;
    const int64_t *timestamps, *offsets;
    int64_t timestamp;
    const seg_template *t;
} input;

static inline int64_t stamp_of(const input *in, int64_t i) { return in->timestamps ? in->timestamps[i] : in->timestamp; }

/* Encode one batch from record `first` on, into room bytes at out. 0 with *b and *taken, or SEG_E_*. */
static int64_t encode_batch(const input *in, int64_t first, int64_t last, int64_t batch_bytes, uint8_t *out,
                            int64_t room, seg_batch *b, int64_t *taken) {
    uint8_t *p = out + HEADER;
    const uint8_t *room_end = out + room;
    int64_t base = in->offsets ? in->offsets[first] : b->base_offset, most = INT64_MIN, i = first, e;
    /* KIP-534: where the batch has a delete horizon, stamps count from it. */
    int64_t base_stamp = in->t->attributes & DELETE_HORIZON ? in->t->delete_horizon : stamp_of(in, first), delta = 0;
    if (room < HEADER) return SEG_E_ROOM;
    for (; i < last; i++) {
        slice k, v;
        if ((e = element(in->keys, i, &k)) || (e = element(in->values, i, &v))) return e;
        int64_t headers = 1, stamp = stamp_of(in, i), next = in->offsets ? in->offsets[i] - base : i - first;
        if (in->headers && (headers = headers_size(in->headers, i)) < 0) return headers;
        if (next > INT32_MAX) { if (i > first) break; return SEG_E_TOO_LARGE; }
        if (next < 0 || (i > first && next <= delta)) return SEG_E_COLUMN;
        uint64_t zs = zigzag((int64_t)((uint64_t)stamp - (uint64_t)base_stamp)), zo = zigzag(next);
        int64_t size = 1 + varint_size(zs) + varint_size(zo) + bytes_size(k) + bytes_size(v) + headers;
        int64_t whole = varint_size(zigzag(size)) + size;
        if (i > first && (p - out) + whole > batch_bytes) break;
        if ((p - out) + whole > INT32_MAX - OVERHEAD) { if (i > first) break; return SEG_E_TOO_LARGE; }
        if (whole > room_end - p) return SEG_E_ROOM;
        p = put_varint(p, zigzag(size));
        *p++ = 0;
        p = put_varint(put_varint(p, zs), zo);
        p = put_bytes(p, room_end, k, in->keys);
        p = put_bytes(p, room_end, v, in->values);
        if (in->headers) p = put_headers(p, room_end, in->headers, i);
        else *p++ = 0;
        if (stamp > most) most = stamp;
        delta = next;
    }
    b->base_offset = base;
    b->last_offset = base + delta;
    b->base_timestamp = base_stamp;
    b->max_timestamp = most;
    b->count = (int32_t)(i - first);
    b->size = (int32_t)(p - out);
    b->crc = 0;
    *taken = i - first;
    return 0;
}

int64_t seg_encode(const seg_column *keys, const seg_column *values, const seg_header_columns *headers,
                   const int64_t *timestamps, int64_t timestamp, const int64_t *offsets, int64_t first,
                   int64_t last, int64_t batch_bytes, const seg_template *t, uint8_t *out, int64_t capacity,
                   seg_batch *batches, int64_t max_batches, int64_t *n_batches, int64_t *taken) {
    input in = {keys, values, headers, timestamps, offsets, timestamp, t};
    int64_t at = 0, n = 0, i = first, sequence = t->base_sequence, one = 0, e;
    *n_batches = *taken = 0;
    if (first < 0 || last > values->n || (keys->kind && last > keys->n) || (headers && last > headers->n))
        return SEG_E_COLUMN;
    while (i < last && n < max_batches) {
        seg_batch *b = batches + n;
        memset(b, 0, sizeof *b);
        b->position = at;
        b->base_offset = t->base_offset + (i - first);
        if ((e = encode_batch(&in, i, last, batch_bytes, out + at, capacity - at, b, &one))) {
            if (e == SEG_E_ROOM && n) break;
            return e;
        }
        b->leader_epoch = t->leader_epoch;
        b->attributes = t->attributes;
        b->producer_id = t->producer_id;
        b->producer_epoch = t->producer_epoch;
        b->base_sequence = (int32_t)sequence;
        if (sequence >= 0) sequence = (sequence + one) & INT32_MAX;
        if (t->attributes & CODEC_BITS) put_header(out + at, b);
        else seg_seal(out + at, b->size, b);
        at += b->size;
        i += one;
        n++;
    }
    *n_batches = n;
    *taken = i - first;
    return at;
}

int64_t seg_assign(uint8_t *buf, int64_t len, seg_batch *batches, int64_t n, int64_t base_offset,
                   int32_t leader_epoch, int64_t append_time, int64_t position) {
    int64_t at = 0;
    for (int64_t i = 0; i < n; i++) {
        seg_batch *b = batches + i;
        if (b->size < HEADER || b->size > len - at || (int64_t)be32(buf + at + 8) + OVERHEAD != b->size)
            return SEG_E_COLUMN;
        b->last_offset = base_offset + (b->last_offset - b->base_offset);
        b->base_offset = base_offset;
        b->leader_epoch = leader_epoch;
        b->position = position + at;
        put64(buf + at, (uint64_t)base_offset);
        put32(buf + at + 12, (uint32_t)leader_epoch);
        if (append_time >= 0) {
            b->attributes |= APPEND_TIME;
            b->max_timestamp = append_time;
            put16(buf + at + 21, (uint16_t)b->attributes);
            put64(buf + at + 35, (uint64_t)append_time);
            b->crc = seg_crc32c(0, buf + at + 21, b->size - 21);
            put32(buf + at + 17, b->crc);
        }
        base_offset = b->last_offset + 1;
        at += b->size;
    }
    return base_offset;
}

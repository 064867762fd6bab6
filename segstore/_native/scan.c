/* Walks, checks and finds record batches by their headers. */
#include "wire.h"

enum { LEAST_LENGTH = HEADER - OVERHEAD };

/* The header of the batch at p, of which at least HEADER bytes are there: 0, or SEG_BAD_*. */
static int32_t read_header(const uint8_t *p, seg_batch *b) {
    int32_t length = (int32_t)be32(p + 8);
    if (p[16] != 2) return SEG_BAD_MAGIC;
    if (length < LEAST_LENGTH || length > INT32_MAX - OVERHEAD) return SEG_BAD_LENGTH;
    b->base_offset = (int64_t)be64(p);
    b->size = length + OVERHEAD;
    b->leader_epoch = (int32_t)be32(p + 12);
    b->crc = be32(p + 17);
    b->attributes = (int16_t)be16(p + 21);
    int32_t delta = (int32_t)be32(p + 23);
    b->base_timestamp = (int64_t)be64(p + 27);
    b->max_timestamp = (int64_t)be64(p + 35);
    b->producer_id = (int64_t)be64(p + 43);
    b->producer_epoch = (int16_t)be16(p + 51);
    b->base_sequence = (int32_t)be32(p + 53);
    b->count = (int32_t)be32(p + 57);
    if (delta < 0 || b->base_offset < 0 || b->base_offset > INT64_MAX - 1 - delta) return SEG_BAD_OFFSETS;
    b->last_offset = b->base_offset + delta;
    if (b->count < 0 || b->count - 1 > delta) return SEG_BAD_COUNT;
    if (!(b->attributes & CODEC_BITS) && (int64_t)b->count * LEAST_RECORD > b->size - HEADER) return SEG_BAD_COUNT;
    return 0;
}

int64_t seg_scan(const uint8_t *buf, int64_t len, int64_t position, int64_t from_offset,
                 int64_t end_offset, int64_t max_bytes, int32_t check_crcs,
                 seg_batch *out, int64_t capacity, seg_scan_end *end) {
    int64_t at = 0, n = 0, taken = 0, last = -1;
    int32_t status = SEG_END;
    seg_batch b;
    memset(&b, 0, sizeof b);
    end->need = 0;
    while (at < len) {
        if (len - at < HEADER) { status = SEG_SHORT; break; }
        if ((status = read_header(buf + at, &b))) break;
        if (b.base_offset <= last) { status = SEG_BAD_OFFSETS; break; }
        if (b.base_offset >= end_offset) { status = SEG_STOP; break; }
        if (b.last_offset >= from_offset) {
            if (n == capacity || (n && taken + b.size > max_bytes)) { status = SEG_FULL; break; }
            if (b.size > len - at) { status = SEG_SHORT; end->need = b.size; break; }
            if (check_crcs && seg_crc32c(0, buf + at + 21, b.size - 21) != b.crc) { status = SEG_BAD_CRC; break; }
            b.position = position + at;
            out[n++] = b;
            taken += b.size;
        } else if (b.size > len - at) { status = SEG_SHORT; end->need = b.size; break; }
        last = b.last_offset;
        at += b.size;
    }
    end->position = position + at;
    end->last_offset = last;
    end->status = status;
    end->reserved = 0;
    return n;
}

int64_t seg_resync(const uint8_t *buf, int64_t len, int64_t from, int64_t least_offset, int64_t most_offset) {
    seg_batch b;
    for (int64_t at = from < 0 ? 0 : from; at <= len - HEADER; at++) {
        if (buf[at + 16] != 2 || read_header(buf + at, &b)) continue;
        if (b.size > len - at || b.base_offset < least_offset || b.base_offset > most_offset) continue;
        if (seg_crc32c(0, buf + at + 21, b.size - 21) == b.crc) return at;
    }
    return -1;
}

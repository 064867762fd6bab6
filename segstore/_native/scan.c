/* Walks the headers of record batches and checks their CRCs; finds the next whole batch behind damage.
 *
 * Thread contract: no state. What a header says is compared with the bytes that are
 * there before it is used.
 */
#include "bytes.h"

enum { NEXT = -1 };         /* a verdict besides SEG_*: the batch is good */

/* SEG_BAD_* for the first `there` bytes of a header, as far as they tell; NEXT where nothing is wrong. */
static int32_t verdict(const uint8_t *h, int64_t there, int64_t previous)
{
    if (there < AT_LENGTH + 4)
        return NEXT;
    int32_t length = get32(h + AT_LENGTH);
    if (length < HEADER - LOG_OVERHEAD || length > INT32_MAX - LOG_OVERHEAD)
        return SEG_BAD_LENGTH;
    if (there <= AT_MAGIC)
        return NEXT;
    if (h[AT_MAGIC] != MAGIC)
        return SEG_BAD_MAGIC;
    int64_t base = get64(h);
    if (base < 0 || base <= previous)
        return SEG_BAD_OFFSETS;
    if (there < HEADER)
        return NEXT;
    int32_t delta = get32(h + AT_LAST_DELTA), count = get32(h + AT_COUNT);
    /* The offset after the last one is an int64 too. */
    if (delta < 0 || base >= INT64_MAX - delta)
        return SEG_BAD_OFFSETS;
    if (count < 0 || count > (int64_t)delta + 1)
        return SEG_BAD_COUNT;
    int64_t payload = (int64_t)length + LOG_OVERHEAD - HEADER;
    if ((get16(h + AT_ATTRIBUTES) & CODEC_MASK) == 0 && (int64_t)count * RECORD_MIN > payload)
        return SEG_BAD_COUNT;
    return NEXT;
}

static void parse(const uint8_t *h, int64_t position, seg_batch *b)
{
    b->position = position;
    b->base_offset = get64(h);
    b->last_offset = b->base_offset + get32(h + AT_LAST_DELTA);
    b->base_timestamp = get64(h + AT_BASE_TIMESTAMP);
    b->max_timestamp = get64(h + AT_MAX_TIMESTAMP);
    b->producer_id = get64(h + AT_PRODUCER_ID);
    b->size = get32(h + AT_LENGTH) + LOG_OVERHEAD;
    b->leader_epoch = get32(h + AT_EPOCH);
    b->base_sequence = get32(h + AT_BASE_SEQUENCE);
    b->count = get32(h + AT_COUNT);
    b->crc = (uint32_t)get32(h + AT_CRC);
    b->attributes = get16(h + AT_ATTRIBUTES);
    b->producer_epoch = get16(h + AT_PRODUCER_EPOCH);
}

static int crc_holds(const uint8_t *batch, int64_t size)
{
    return seg_crc32c(0, batch + AT_ATTRIBUTES, size - AT_ATTRIBUTES) == (uint32_t)get32(batch + AT_CRC);
}

int32_t seg_sound(const uint8_t *batch, int64_t len, const seg_batch *h, int32_t check_crc)
{
    if (len < HEADER || len != h->size || verdict(batch, len, -1) != NEXT)
        return 0;
    seg_batch b;
    parse(batch, h->position, &b);
    return b.size == h->size && b.base_offset == h->base_offset && b.last_offset == h->last_offset &&
           b.crc == h->crc && (!check_crc || crc_holds(batch, len));
}

int64_t seg_scan(const uint8_t *buf, int64_t len, int64_t position, int64_t from_offset,
                 int64_t end_offset, int64_t max_bytes, int32_t check_crcs,
                 seg_batch *out, int64_t capacity, seg_scan_end *end)
{
    int64_t at = 0, taken = 0, n = 0;
    int32_t status = SEG_END;
    *end = (seg_scan_end){.last_offset = -1};
    while (at < len) {
        const uint8_t *h = buf + at;
        int64_t there = len - at;
        /* What lies behind the last wanted offset may be half written: it is not looked at. */
        status = SEG_STOP;
        if (end_offset <= 0 || end->last_offset >= end_offset - 1)
            break;
        status = SEG_FULL;
        if (n >= capacity)
            break;
        status = verdict(h, there, end->last_offset);
        if (status != NEXT)
            break;
        end->need = there < AT_LENGTH + 4 ? 0 : (int64_t)get32(h + AT_LENGTH) + LOG_OVERHEAD;
        status = SEG_STOP;
        if (there > AT_MAGIC && get64(h) >= end_offset)
            break;
        status = SEG_FULL;
        if (n > 0 && end->need > max_bytes - taken)
            break;
        status = SEG_SHORT;
        if (there < HEADER || there < end->need)
            break;
        seg_batch *b = &out[n];
        parse(h, position + at, b);
        if (b->last_offset >= from_offset) {
            status = SEG_BAD_CRC;
            if (check_crcs && !crc_holds(h, b->size))
                break;
            taken += b->size;
            n++;
        }
        at += b->size;
        end->last_offset = b->last_offset;
        status = SEG_END;
    }
    end->status = status;
    end->position = position + at;
    if (status != SEG_SHORT)
        end->need = 0;
    return n;
}

int64_t seg_resync(const uint8_t *buf, int64_t len, int64_t from, int64_t least_offset,
                   int64_t most_offset)
{
    if (from < 0)
        from = 0;
    while (len - from >= HEADER) {
        /* A batch begins AT_MAGIC bytes before a 2, and its header ends within the buffer. */
        const uint8_t *magic = memchr(buf + from + AT_MAGIC, MAGIC, (size_t)(len - from - HEADER + 1));
        if (!magic)
            return -1;
        const uint8_t *h = magic - AT_MAGIC;
        from = h - buf;
        if (verdict(h, len - from, -1) == NEXT) {
            int64_t base = get64(h), size = (int64_t)get32(h + AT_LENGTH) + LOG_OVERHEAD;
            if (base >= least_offset && base <= most_offset && size <= len - from && crc_holds(h, size))
                return from;
        }
        from++;
    }
    return -1;
}

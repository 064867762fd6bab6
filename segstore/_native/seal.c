/* Writes batch headers: when a payload is in place, and when a batch gets its offsets.
 *
 * Thread contract: no state; a batch belongs to its caller until it is written to the log.
 */
#include "bytes.h"
#include "contract/answers.h"
#include "contract/batch.h"
#include "contract/crc.h"

void seg_put_header(uint8_t *p, const seg_batch *b)
{
    put64(p, b->base_offset);
    put32(p + AT_LENGTH, b->size - LOG_OVERHEAD);
    put32(p + AT_EPOCH, b->leader_epoch);
    p[AT_MAGIC] = MAGIC;
    put32(p + AT_CRC, (int32_t)b->crc);
    put16(p + AT_ATTRIBUTES, b->attributes);
    put32(p + AT_LAST_DELTA, (int32_t)(b->last_offset - b->base_offset));
    put64(p + AT_BASE_TIMESTAMP, b->base_timestamp);
    put64(p + AT_MAX_TIMESTAMP, b->max_timestamp);
    put64(p + AT_PRODUCER_ID, b->producer_id);
    put16(p + AT_PRODUCER_EPOCH, b->producer_epoch);
    put32(p + AT_BASE_SEQUENCE, b->base_sequence);
    put32(p + AT_COUNT, b->count);
}

static int offsets_fit(const seg_batch *b)
{
    return b->base_offset >= 0 && b->last_offset >= b->base_offset &&
        b->last_offset - b->base_offset <= INT32_MAX;
}

void seg_put_crc(uint8_t *p, seg_batch *b)
{
    b->magic = MAGIC;
    b->crc = seg_crc32c(0, p + AT_ATTRIBUTES, b->size - AT_ATTRIBUTES);
    put32(p + AT_CRC, (int32_t)b->crc);
}

int64_t seg_seal(uint8_t *batch, int64_t len, seg_batch *h)
{
    if (h->size < HEADER || h->size > len)
        return SEG_E_ROOM;
    if (!offsets_fit(h) || h->count < 0 || h->count > h->last_offset - h->base_offset + 1)
        return SEG_E_COLUMN;
    seg_put_header(batch, h);
    seg_put_crc(batch, h);
    return h->size;
}

/* Whether the batch at p has the header b. */
static int matches(const uint8_t *p, int64_t there, const seg_batch *b)
{
    return b->size >= HEADER && b->size <= there && offsets_fit(b) && p[AT_MAGIC] == MAGIC &&
        get32(p + AT_LENGTH) == b->size - LOG_OVERHEAD && get32(p + AT_COUNT) == b->count &&
        get32(p + AT_LAST_DELTA) == b->last_offset - b->base_offset;
}

int64_t seg_assign(uint8_t *buf, int64_t len, seg_batch *batches, int64_t n, int64_t base_offset,
                   int32_t leader_epoch, int64_t append_time, int64_t position)
{
    int64_t at = 0, next = base_offset;
    if (base_offset < 0)
        return SEG_E_COLUMN;
    /* All batches are compared before the first is changed. */
    for (int64_t i = 0; i < n; i++) {
        if (!matches(buf + at, len - at, &batches[i]))
            return SEG_E_COLUMN;
        int64_t offsets = batches[i].last_offset - batches[i].base_offset + 1;
        if (next > INT64_MAX - offsets)
            return SEG_E_COLUMN;
        next += offsets;
        at += batches[i].size;
    }
    next = base_offset;
    at = 0;
    for (int64_t i = 0; i < n; i++) {
        seg_batch *b = &batches[i];
        b->last_offset += next - b->base_offset;
        b->base_offset = next;
        b->leader_epoch = leader_epoch;
        b->position = position + at;
        put64(buf + at, b->base_offset);
        put32(buf + at + AT_EPOCH, leader_epoch);
        if (append_time >= 0) {
            b->attributes |= APPEND_TIME;
            b->max_timestamp = append_time;
            put16(buf + at + AT_ATTRIBUTES, b->attributes);
            put64(buf + at + AT_MAX_TIMESTAMP, append_time);
            seg_put_crc(buf + at, b);
        }
        next = b->last_offset + 1;
        at += b->size;
    }
    return next;
}

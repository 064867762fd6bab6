/* The header of a batch: its fields, its checks, and the CRC of a batch. A message of magic 0 or 1 is a batch, too
 * (message.h).
 *
 * The fields of a header are compared with the available bytes before they are used.
 */
#ifndef SEG_BATCH_H
#define SEG_BATCH_H

#include "contract/batch.h"
#include "contract/crc.h"
#include "message.h"

enum { NEXT = -1 };         /* a verdict besides SEG_*: the batch is good */

/* SEG_BAD_* for the first `there` bytes of a header; NEXT if no fault is in them. */
static inline int32_t verdict(const uint8_t *h, int64_t there, int64_t previous)
{
    if (there < AT_LENGTH + 4)
        return NEXT;
    int32_t length = get32(h + AT_LENGTH);
    if (length < MESSAGE_LEAST - LOG_OVERHEAD || length > INT32_MAX - LOG_OVERHEAD)
        return SEG_BAD_LENGTH;
    if (there <= AT_MAGIC)
        return NEXT;
    if (UNLIKELY(h[AT_MAGIC] != MAGIC)) {
        int32_t bad = message_verdict(h, there, previous);
        return bad ? bad : NEXT;
    }
    if (length < HEADER - LOG_OVERHEAD)
        return SEG_BAD_LENGTH;
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

/* `before` is the last offset of the batch before, or UNKNOWN. */
static inline void parse(const uint8_t *h, int64_t position, int64_t before, seg_batch *b)
{
    if (UNLIKELY(h[AT_MAGIC] != MAGIC)) {
        parse_message(h, position, before, b);
        return;
    }
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
    b->magic = MAGIC;
}

static inline int crc_holds(const uint8_t *batch, int64_t size)
{
    if (UNLIKELY(batch[AT_MAGIC] != MAGIC))
        return message_crc_holds(batch, size);
    return seg_crc32c(0, batch + AT_ATTRIBUTES, size - AT_ATTRIBUTES) == (uint32_t)get32(batch + AT_CRC);
}

#endif

/* Checks a producer's batch before it is appended without decoding
 * (org.apache.kafka.storage.internals.log.LogValidator).
 *
 * Thread contract: no state; a batch belongs to its caller until it is written to the log. It is only read here.
 */
#include "batch.h"
#include "contract/batch.h"
#include "contract/rules.h"
#include "record.h"

enum { CODECS = 5 };

/* Check the first bytes, before the CRC is computed. */
static int64_t look_at_front(const uint8_t *h, int64_t len, const seg_rules *rules)
{
    if (len < HEADER)
        return SEG_CHECK_SHORT;
    if (h[AT_MAGIC] != MAGIC)
        return SEG_CHECK_MAGIC;
    int64_t size = (int64_t)get32(h + AT_LENGTH) + LOG_OVERHEAD;
    if (size < HEADER || size > len)
        return SEG_CHECK_SHORT;
    if (size < len)
        return SEG_CHECK_MORE;
    if (get64(h) != 0)
        return SEG_CHECK_BASE;
    return size > rules->largest_batch ? SEG_CHECK_LARGE : SEG_CHECKED;
}

static int64_t look_at_header(const seg_batch *b)
{
    if (b->last_offset < 0 || b->count != b->last_offset + 1)
        return SEG_CHECK_COUNT;
    if (b->attributes & CONTROL)
        return SEG_CHECK_CONTROL;
    if (b->attributes & DELETE_HORIZON)
        return SEG_CHECK_HORIZON;
    if ((b->attributes & CODEC_MASK) >= CODECS)
        return SEG_CHECK_CODEC;
    if (b->producer_id < 0)
        return b->attributes & TRANSACTIONAL ? SEG_CHECK_PRODUCER : SEG_CHECKED;
    return b->producer_epoch < 0 || b->base_sequence < 0 ? SEG_CHECK_PRODUCER : SEG_CHECKED;
}

static int is_far(const seg_rules *rules, int64_t timestamp, int64_t now)
{
    if (!rules->create_time || timestamp == -1)
        return 0;
    return timestamp < -1 || (timestamp > now ? timestamp - now > rules->after_ms : now - timestamp > rules->before_ms);
}

int64_t seg_check_records(const uint8_t *plain, int64_t len, const seg_rules *rules, int64_t now, const seg_batch *b,
                          seg_checked *out)
{
    const uint8_t *p = plain, *end = plain + len;
    int64_t status = b->attributes & APPEND_TIME ? SEG_CHECK_APPEND_TIME : SEG_CHECKED;
    *out = (seg_checked){.max_timestamp = -1};
    if (len < 0 || now < 0)
        return SEG_CHECK_RECORD;
    for (; out->record < b->count; out->record++) {
        fields f;
        if (p == end || read_record(p, end, &f) != 0)
            return SEG_CHECK_RECORD;
        if (f.offset_delta != out->record)
            return SEG_CHECK_OFFSETS;
        int64_t timestamp = (int64_t)((uint64_t)b->base_timestamp + (uint64_t)f.timestamp_delta);
        out->max_timestamp = timestamp > out->max_timestamp ? timestamp : out->max_timestamp;
        /* A fault of a single record is reported only if the bytes have none. */
        if (UNLIKELY(f.key_len < 0 && rules->needs_key))
            status = status ? status : SEG_CHECK_KEY;
        if (UNLIKELY(is_far(rules, timestamp, now)))
            status = status ? status : SEG_CHECK_TIME;
        p = f.next;
    }
    return p == end ? status : SEG_CHECK_RECORD;
}

int64_t seg_check_batch(const uint8_t *batch, int64_t len, const seg_rules *rules, int64_t now, seg_batch *h,
                        seg_checked *out)
{
    *out = (seg_checked){.max_timestamp = -1};
    int64_t status = look_at_front(batch, len, rules);
    if (status != SEG_CHECKED)
        return status;
    if (!crc_holds(batch, len))
        return SEG_CHECK_CRC;
    parse(batch, 0, UNKNOWN, h);
    if ((status = look_at_header(h)) != SEG_CHECKED)
        return status;
    if (h->attributes & CODEC_MASK)
        return SEG_CHECK_PACKED;
    return seg_check_records(batch + HEADER, len - HEADER, rules, now, h, out);
}

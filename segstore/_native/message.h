/* Messages of magic 0 and 1, as entries of a log (org.apache.kafka.common.record.LegacyRecord,
 * AbstractLegacyRecordBatch): offset int64, size int32, and the message: CRC-32 of all that follows it, magic int8,
 * attributes int8, timestamp int64 (magic 1 only), key length int32 (-1: null), key, value length int32, value.
 *
 * A wrapper has a codec and, as its value, compressed entries; its offset is the last entry's. A message without a
 * codec is plain. Plain messages and wrappers correspond to batches of magic 2.
 */
#ifndef SEG_MESSAGE_H
#define SEG_MESSAGE_H

#include "bytes.h"
#include "contract/batch.h"
#include "contract/crc.h"

enum {
    MESSAGE_AT_CRC = 12,
    MESSAGE_AT_ATTRIBUTES = 17,
    MESSAGE_AT_TIMESTAMP = 18,  /* magic 1 */
    MESSAGE_LEAST = 26,         /* bytes of the smallest entry; it holds all fields before the key of a larger one */
    UNKNOWN = -2                /* the last offset before an entry is not known */
};

/* The position of an entry's key length. */
INLINE int64_t message_key_at(int magic)
{
    return magic == 0 ? 18 : 26;
}

/* SEG_BAD_*, or 0, for the first `there` bytes of an entry of another magic than 2, at least up to its magic. If no CRC
 * is checked, the length of the key distinguishes a message from a record batch with a damaged magic. */
static inline int32_t message_verdict(const uint8_t *h, int64_t there, int64_t previous)
{
    if (h[AT_MAGIC] > 1)
        return SEG_BAD_MAGIC;
    int64_t key_at = message_key_at(h[AT_MAGIC]), most = get32(h + AT_LENGTH) + LOG_OVERHEAD - key_at - 8;
    if (most < 0)
        return SEG_BAD_LENGTH;
    int64_t offset = get64(h);
    if (offset < 0 || offset <= previous || offset == INT64_MAX)
        return SEG_BAD_OFFSETS;
    if (there < key_at + 4)
        return 0;
    int32_t key_len = get32(h + key_at);
    return key_len < -1 || key_len > most ? SEG_BAD_LENGTH : 0;
}

/* The least offset that an entry may hold. A wrapper's header has only its last offset: its first is after `before` at
 * the earliest; if `before` is UNKNOWN, the last offset is returned. */
static inline int64_t message_base(const uint8_t *h, int64_t before)
{
    int64_t offset = get64(h);
    return h[MESSAGE_AT_ATTRIBUTES] & CODEC_MASK && before > UNKNOWN && before < offset ? before + 1 : offset;
}

/* The fields of an entry with MESSAGE_LEAST bytes at least. Attribute bits unknown to magic 0 and 1 are cleared. A
 * wrapper counts as one record. */
static inline void parse_message(const uint8_t *h, int64_t position, int64_t before, seg_batch *b)
{
    int magic = h[AT_MAGIC];
    int64_t timestamp = magic == 0 ? -1 : get64(h + MESSAGE_AT_TIMESTAMP);
    *b = (seg_batch){
        .position = position,
        .base_offset = message_base(h, before),
        .last_offset = get64(h),
        .base_timestamp = timestamp,
        .max_timestamp = timestamp,
        .producer_id = -1,
        .size = get32(h + AT_LENGTH) + LOG_OVERHEAD,
        .leader_epoch = -1,
        .base_sequence = -1,
        .count = 1,
        .crc = (uint32_t)get32(h + MESSAGE_AT_CRC),
        .attributes = h[MESSAGE_AT_ATTRIBUTES] & (magic == 0 ? CODEC_MASK : CODEC_MASK | APPEND_TIME),
        .producer_epoch = -1,
        .magic = magic,
    };
}

static inline int message_crc_holds(const uint8_t *h, int64_t size)
{
    return seg_crc32(0, h + AT_MAGIC, size - AT_MAGIC) == (uint32_t)get32(h + MESSAGE_AT_CRC);
}

typedef struct message {
    const uint8_t *key, *value;
    int64_t key_len, value_len;     /* -1 for null */
    int64_t timestamp;              /* -1 in magic 0 */
    int magic, attributes;
} message;

/* Read the whole entry of `size` bytes at h: 1, or 0 if its lengths don't fill it. */
INLINE int read_message(const uint8_t *h, int64_t size, message *m)
{
    m->magic = h[AT_MAGIC];
    m->attributes = h[MESSAGE_AT_ATTRIBUTES];
    m->timestamp = m->magic == 0 ? -1 : get64(h + MESSAGE_AT_TIMESTAMP);
    int64_t at = message_key_at(m->magic), left = size - at - 8;
    if (left < 0)
        return 0;
    m->key_len = get32(h + at);
    m->key = h + at + 4;
    int64_t key_bytes = m->key_len > 0 ? m->key_len : 0;
    if (m->key_len < -1 || key_bytes > left)
        return 0;
    m->value_len = get32(m->key + key_bytes);
    m->value = m->key + key_bytes + 4;
    return m->value_len >= -1 && (m->value_len > 0 ? m->value_len : 0) == left - key_bytes;
}

#endif

/* Records of batches: decoded into columns, encoded from columns, converted from older messages (decode.c, times.c,
 * bring_up.c, headers.c, encode.c). */
#ifndef SEG_CONTRACT_RECORDS_H
#define SEG_CONTRACT_RECORDS_H

#include <stdint.h>

#include "batch.h"
#include "column.h"

typedef struct seg_decoded {
    int64_t records;
    int64_t null_keys;
    int64_t null_values;
    int64_t with_headers;   /* records that have at least one header */
    int64_t fault_batch;    /* the place of an error: batch, record within it, position in the arena */
    int64_t fault_record;
    int64_t fault_at;
} seg_decoded;

/* Decode the records of n batches. The uncompressed records of batch i lie at arena[at[i] : at[i] + lens[i]]. A column
 * that is not wanted is NULL. All columns are int64, one number per record; *_at are positions in the arena, *_len -1
 * for null, headers_at the position of the header-count varint. In LogAppendTime batches each record gets
 * max_timestamp. Returns records or SEG_E_*. */
int64_t seg_decode(const uint8_t *arena, int64_t arena_len, const seg_batch *batches,
                   const int64_t *at, const int64_t *lens, int64_t n, int64_t capacity,
                   int64_t *offsets, int64_t *timestamps, int64_t *key_at, int64_t *key_len,
                   int64_t *value_at, int64_t *value_len, int64_t *headers_at,
                   seg_decoded *out);

/* Set found[i] to 1 or 0 for each of n batches (as for seg_decode): whether it may hold a record with a timestamp from
 * `least` to `most`, both included. A damaged batch may. Returns the number of ones; SEG_E_COLUMN for a batch outside
 * the arena. */
int64_t seg_stamped(const uint8_t *arena, int64_t arena_len, const seg_batch *batches, const int64_t *at,
                    const int64_t *lens, int64_t n, int64_t least, int64_t most, uint8_t *found);

/* --- bring_up.c: messages of magic 0 and 1 as batches of magic 2 ---------------------- */
/* Convert n plain messages, which lie in buf (its first byte at `position`): neighbours of one kind share a batch of at
 * most batch_bytes. Headers go to out_batches, which has room for n; their positions count from out. `len` + 61 n bytes
 * are room enough. Returns the bytes written, and *n_batches; or SEG_E_COLUMN if headers and bytes don't agree,
 * SEG_E_RECORD for a message whose lengths don't fill it, SEG_E_ROOM; *fault is the message then. */
int64_t seg_bring_up(const uint8_t *buf, int64_t len, int64_t position, const seg_batch *messages, int64_t n,
                     int64_t batch_bytes, uint8_t *out, int64_t capacity, seg_batch *out_batches,
                     int64_t *n_batches, int64_t *fault);
/* Decode n plain messages in place in buf, without converting them, into the seven columns of seg_decode, each n
 * numbers after the one before. headers_at is the position of a 0 between key and value. runs, with room for n, gets a
 * header of magic 2 for each run of one kind. Returns n; SEG_SLOW if a message has a codec or no value, is damaged or
 * large: then seg_bring_up converts it, or gives the error. */
int64_t seg_decode_messages(const uint8_t *buf, int64_t len, int64_t position, const seg_batch *messages, int64_t n,
                            int64_t *rows, seg_batch *runs, int64_t *n_runs);
/* Convert the messages in a wrapper, whose value is decompressed at `plain`, to one plain batch with the wrapper's last
 * offset; their offsets are at least `least`. *out_batch has position 0. `len` + 61 bytes are room enough. Returns as
 * seg_bring_up; SEG_E_OFFSETS, SEG_E_NESTED, SEG_E_CRC, SEG_E_FEW if there is no message; *fault is the number of the
 * message. Bytes after the last whole message are ignored, as in Kafka. */
int64_t seg_bring_up_nested(const uint8_t *plain, int64_t len, const seg_batch *wrapper, int64_t least,
                            uint8_t *out, int64_t capacity, seg_batch *out_batch, int64_t *fault);

/* Decode the headers of n records (positions from seg_decode) into flat columns; counts[i] headers for record i. With
 * NULL columns the headers are only counted. Returns the number of all headers, or SEG_E_*. */
int64_t seg_headers(const uint8_t *arena, int64_t arena_len, const int64_t *headers_at, int64_t n,
                    int64_t capacity, int64_t *counts, int64_t *name_at, int64_t *name_len,
                    int64_t *value_at, int64_t *value_len);

typedef struct seg_template {
    int64_t base_offset;
    int64_t producer_id;
    int64_t delete_horizon;  /* used if attribute bit 6 is set */
    int32_t leader_epoch;
    int32_t base_sequence;   /* -1: none; else it goes on from batch to batch, and wraps at 2^31 */
    int16_t attributes;
    int16_t producer_epoch;
} seg_template;

/* The bytes of the largest record of the column range, with its length varint (offset delta taken as 5 bytes); *index
 * is its number. SEG_E_COLUMN, SEG_E_NULL. */
int64_t seg_largest(const seg_column *keys, const seg_column *values,
                    const seg_header_columns *headers, int64_t first, int64_t last, int64_t *index);

/* Encode records first .. last - 1 into batches of at most batch_bytes (at least one record each), as many whole
 * batches as fit out and max_batches, with header and CRC. timestamps may be NULL (then `timestamp` for all), offsets
 * NULL (contiguous from base_offset; else int64 absolute, rising: gaps stay). headers may be NULL. batches[i].position
 * counts from out. If attributes name a codec, the records are still written plain and the CRC is 0: the caller
 * compresses and seals. Returns bytes written, *taken records; SEG_E_*. */
int64_t seg_encode(const seg_column *keys, const seg_column *values,
                   const seg_header_columns *headers, const int64_t *timestamps, int64_t timestamp,
                   const int64_t *offsets, int64_t first, int64_t last, int64_t batch_bytes,
                   const seg_template *t, uint8_t *out, int64_t capacity, seg_batch *batches,
                   int64_t max_batches, int64_t *n_batches, int64_t *taken);

/* As seg_encode; a batch also ends before each record of `cuts` (rising). */
int64_t seg_encode_cut(const seg_column *keys, const seg_column *values,
                       const seg_header_columns *headers, const int64_t *timestamps, int64_t timestamp,
                       const int64_t *offsets, int64_t first, int64_t last, int64_t batch_bytes,
                       const int64_t *cuts, int64_t n_cuts, const seg_template *t, uint8_t *out,
                       int64_t capacity, seg_batch *batches, int64_t max_batches, int64_t *n_batches,
                       int64_t *taken);

#endif

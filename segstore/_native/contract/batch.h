/* Record batches: their headers, a walk over them in memory or in a file, offsets and CRC (scan.c, seal.c, io.c). */
#ifndef SEG_CONTRACT_BATCH_H
#define SEG_CONTRACT_BATCH_H

#include <stdint.h>

/* A record batch's header (org.apache.kafka.common.record.DefaultRecordBatch), or that of a message of magic 0 or 1
 * (AbstractLegacyRecordBatch), which is a batch of one record: without leader epoch, producer and sequence (-1), and in
 * magic 0 without timestamps (-1). A message with a codec is a wrapper of several records. Its base offset is the least
 * possible, after the batch before; or its last offset, if the batch before is not known. Only seg_bring_up finds the
 * true one. */
typedef struct seg_batch {
    int64_t position;       /* of the batch's first byte in its file */
    int64_t base_offset;
    int64_t last_offset;
    int64_t base_timestamp; /* ms; the delete horizon if attribute bit 6 is set */
    int64_t max_timestamp;  /* ms */
    int64_t producer_id;
    int32_t size;           /* bytes of the whole batch, header included */
    int32_t leader_epoch;
    int32_t base_sequence;
    int32_t count;          /* records */
    uint32_t crc;
    int16_t attributes;
    int16_t producer_epoch;
    int64_t magic;          /* 0, 1 or 2 */
} seg_batch;

/* Why a scan stopped. */
enum {
    SEG_END = 0,            /* exactly at the end of the buffer */
    SEG_SHORT = 1,          /* the next batch is not whole in the buffer */
    SEG_FULL = 2,           /* capacity or max_bytes is used up */
    SEG_STOP = 3,           /* the next batch begins at or after end_offset */
    SEG_BAD_LENGTH = 4,     /* the length field is impossible */
    SEG_BAD_MAGIC = 5,      /* above 2 */
    SEG_BAD_CRC = 6,
    SEG_BAD_OFFSETS = 7,    /* negative, or not above the batch before */
    SEG_BAD_COUNT = 8       /* the record count is impossible */
};

typedef struct seg_scan_end {
    int64_t position;       /* file position after the last batch taken or skipped */
    int64_t need;           /* SEG_SHORT: bytes of the next batch, 0 if they are not known */
    int64_t last_offset;    /* of the last batch taken or skipped; -1 for none */
    int32_t status;
    int32_t reserved;
} seg_scan_end;

/* Walk the batches in buf (its first byte lies at `position` in the file). Skip batches that end below from_offset
 * without checking their CRC, and take the next ones until end_offset, max_bytes (at least one batch is taken) or
 * capacity. The base offset of a wrapper that comes first is at least `least`; -1: not known. */
int64_t seg_scan(const uint8_t *buf, int64_t len, int64_t position, int64_t least, int64_t from_offset,
                 int64_t end_offset, int64_t max_bytes, int32_t check_crcs,
                 seg_batch *out, int64_t capacity, seg_scan_end *end);

/* Whether the bytes are the whole batch of magic 2 with header *h, and (check_crc) its CRC holds: 1 or 0. */
int32_t seg_sound(const uint8_t *batch, int64_t len, const seg_batch *h, int32_t check_crc);

/* The position within buf of the first whole batch with a valid CRC and a base offset in [least_offset, most_offset],
 * or -1; every byte from `from` on is tried. Finds the next batch after a damaged header. */
int64_t seg_resync(const uint8_t *buf, int64_t len, int64_t from, int64_t least_offset,
                   int64_t most_offset);

/* Write header h (size = h->size) at the front of a batch whose payload is in place, and then the CRC. */
int64_t seg_seal(uint8_t *batch, int64_t len, seg_batch *h);

/* Set the offsets of n batches that lie side by side in buf, from base_offset on, and their leader epoch; with
 * append_time >= 0 also LogAppendTime, the stamp and a new CRC. Updates batches[] too, position included (the first
 * lies at `position`). Returns the next offset, or SEG_E_COLUMN if the batches don't match the bytes. */
int64_t seg_assign(uint8_t *buf, int64_t len, seg_batch *batches, int64_t n, int64_t base_offset,
                   int32_t leader_epoch, int64_t append_time, int64_t position);

/* Walk batch headers of a file from `position` (below `end`) to the batch that holds `target` or the first after it;
 * its header goes to out. Returns 1 if it is found, 0 if there is none below end, or -errno. For a header at
 * out->position that can't be one: -(10100 + SEG_BAD_*); for a batch that is not whole below end (or in the file):
 * -(10100 + SEG_SHORT). */
int64_t seg_seek(int fd, int64_t position, int64_t end, int64_t target, seg_batch *out);
/* Read the headers of up to n batches that lie side by side from `position` on, whole within `end`, with offsets that
 * rise from `least` on, each header by a read of its own. Returns their number, which is smaller if bytes are no batch
 * or can't be read. */
int64_t seg_read_headers(int fd, int64_t position, int64_t end, int64_t least, seg_batch *out,
                         int64_t n);
/* The attributes of the batches that lie side by side from `position` to `end`, or-ed, and SEG_OLD if a batch has magic
 * 0 or 1; -errno, or the answer of seg_seek for bytes that can't be a batch. */
enum { SEG_OLD = 65536 };
int64_t seg_attributes(int fd, int64_t position, int64_t end);

#endif

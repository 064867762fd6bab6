/* Waits for records at the ends of logs, and reads a record that is alone in its batch, as most are.
 *
 * This is the fast path of storage/log/read.py, and raises no errors: Python reads all other batches.
 *
 * Thread contract: no state; the structs belong to one caller. Another process may write the file, and cut it:
 * only the copy that pread made is parsed, and it must agree with the published ends.
 */
#include "bytes.h"
#include "contract/batch.h"
#include "contract/ends.h"
#include "contract/file.h"
#include "contract/records.h"

static int is_last(const seg_tailed *f, int32_t committed)
{
    const int64_t *words = f->words;
    return f->fd >= 0 && f->offset >= 0 && f->offset < INT64_MAX && words[SEG_TAILED_START] <= f->offset &&
           words[SEG_TAILED_END] == f->offset + 1 &&
           (!committed || words[SEG_TAILED_STABLE] == f->offset + 1);
}

/* Whether the batch has one record, no codec, no transaction, and the published leader epoch: under one epoch an offset
 * never has two contents. */
static int is_only(const seg_batch *b, const seg_tailed *f)
{
    int32_t epoch = (int32_t)((uint64_t)f->words[SEG_TAILED_LAYOUT_AND_EPOCH] >> 32);
    return b->magic == MAGIC && b->base_offset == f->offset && b->last_offset == f->offset && b->count == 1 &&
           (b->attributes & ~APPEND_TIME) == 0 && b->leader_epoch == epoch;
}

/* Set at[1] to the end of `len` bytes that begin at at[0]. */
static void put_end(int64_t *at, int64_t len)
{
    at[1] = len < 0 ? (at[0] = -1) : at[0] + len;
}

/* Read the record, and expect the next one after it. */
static void read_last(seg_tailed *f, seg_last_record *out)
{
    seg_batch b;
    seg_scan_end end;
    const uint8_t *bytes = (const uint8_t *)out->bytes;
    int64_t at = HEADER, size, found, key_len, value_len, *numbers = out->numbers;
    int64_t got = seg_pread(f->fd, (uint8_t *)out->bytes, SEG_LAST_ROOM, f->position);
    if (got < HEADER ||
        seg_scan(bytes, got, 0, -1, f->offset, INT64_MAX, 0, out->check_crc, &b, 1, &end) != 1 || !is_only(&b, f))
        return;
    size = b.size - HEADER;
    seg_decoded decoded;
    if (seg_decode(bytes, got, &b, &at, &size, 1, 1, &found, numbers + SEG_LAST_TIMESTAMP,
                   numbers + SEG_LAST_KEY, &key_len, numbers + SEG_LAST_VALUE, &value_len, NULL,
                   &decoded) != 1 ||
        decoded.with_headers)
        return;
    numbers[SEG_LAST_OFFSET] = f->offset;
    numbers[SEG_LAST_TYPE] = (b.attributes & APPEND_TIME) != 0;
    numbers[SEG_LAST_EPOCH] = b.leader_epoch;
    numbers[SEG_LAST_START] = f->words[SEG_TAILED_START];
    put_end(numbers + SEG_LAST_KEY, key_len);
    put_end(numbers + SEG_LAST_VALUE, value_len);
    numbers[SEG_LAST_SIZE] = b.size;
    f->offset++;
    f->position += b.size;
}

int64_t seg_await_record(seg_tailer *f, uint32_t nudges, int64_t timeout_ns)
{
    seg_last_record *last = f->last;
    last->numbers[SEG_LAST_SIZE] = 0;
    int64_t i = seg_await_ends(f, nudges, timeout_ns);
    if (i >= 0 && i < f->n && is_last(f->tailed + i, last->committed))
        read_last(f->tailed + i, last);
    return i;
}

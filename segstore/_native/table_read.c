/* Fills the columns of a table from a file: reads, checks and takes whole batches, a window at a time.
 *
 * This is the fast path of storage/log/read.py and records/table.py, for plain batches of magic 2. It raises no errors:
 * it stops before another batch or damage, and Python reads on from there.
 *
 * Thread contract: no state; a seg_table, a window and a seg_table_read belong to one caller at a time.
 */
#include "batch.h"
#include "contract/file.h"
#include "contract/table.h"

enum { TAKE, PASS, STOP };

/* Judge a batch whose header and bytes are available. */
static int judged(const seg_batch *b, const uint8_t *bytes, const seg_table_read *r)
{
    if (b->magic != MAGIC || b->attributes & (CODEC_MASK | r->refused) || b->last_offset >= r->below)
        return STOP;
    if (b->last_offset < r->from_offset)
        return PASS;
    if (r->check_crcs && !crc_holds(bytes, b->size))
        return STOP;
    return b->attributes & CONTROL ? PASS : TAKE;
}

static int has_room(const seg_table *t, seg_table_read *r, const seg_batch *b)
{
    int64_t bytes = b->size - HEADER;
    if (b->count <= t->room - t->rows && (!t->keys.offsets || bytes <= t->keys.room - t->keys.used) &&
        (!t->values.offsets || bytes <= t->values.room - t->values.used))
        return 1;
    r->need_rows = b->count;
    r->need_bytes = bytes;
    return 0;
}

/* Take the whole batches of a window. Returns their bytes; *more is 0 if no later batch must be taken. */
static int64_t take(const uint8_t *window, int64_t len, seg_table *table, seg_table_read *r, int *more)
{
    int64_t done = 0;
    *more = 0;
    while (len - done >= HEADER && r->next_offset < r->end_offset) {
        const uint8_t *h = window + done;
        seg_batch b;
        if (verdict(h, len - done, r->next_offset - 1) != NEXT)
            return done;
        parse(h, r->position + done, UNKNOWN, &b);
        if (b.size > len - done) {
            *more = 1;
            return done;
        }
        if (b.magic == MAGIC && b.base_offset >= r->end_offset) { /* a wrapper has its last message's offset, so its
                                                                     batches may begin below */
            r->next_offset = r->end_offset; /* there is no record between */
            return done;
        }
        int what = judged(&b, h, r);
        if (what == STOP || (what == TAKE && !has_room(table, r, &b)))
            return done;
        int64_t at = HEADER, size = b.size - HEADER;
        if (what == TAKE && seg_fill_table(h, b.size, &b, &at, &size, 1, r->from_offset, r->end_offset, table) < 0)
            return done;
        r->plain += what == TAKE ? size : 0;
        r->next_offset = b.last_offset + 1;
        done += b.size;
    }
    *more = r->next_offset < r->end_offset;
    return done;
}

int64_t seg_read_table(int fd, int64_t end, uint8_t *window, int64_t room, seg_table *table, seg_table_read *r)
{
    int64_t done = 1, kept = 0; /* kept: bytes of the next batch that are in the window already */
    int more = 1;
    r->need_rows = r->need_bytes = 0;
    while (more && done > 0 && r->position < end) {
        int64_t left = end - r->position, want = left < room ? left : room;
        int64_t len = seg_pread(fd, window + kept, want - kept, r->position + kept);
        if (len < 0)
            return len;
        len += kept;
        done = take(window, len, table, r, &more);
        r->position += done;
        kept = len - done;
        memmove(window, window + done, (size_t)kept);
    }
    return 0;
}

/* Walks the headers of record batches and checks their CRCs; finds the next whole batch after damage.
 *
 * Thread contract: no state. The fields of a header are compared with the available
 * bytes before they are used.
 */
#include "batch.h"
#include "contract/batch.h"

int32_t seg_sound(const uint8_t *batch, int64_t len, const seg_batch *h, int32_t check_crc)
{
    if (len < HEADER || len != h->size || batch[AT_MAGIC] != MAGIC || verdict(batch, len, -1) != NEXT)
        return 0;
    seg_batch b;
    parse(batch, h->position, UNKNOWN, &b);
    return b.size == h->size && b.base_offset == h->base_offset && b.last_offset == h->last_offset &&
           b.crc == h->crc && (!check_crc || crc_holds(batch, len));
}

/* The least offset of the entry at h, whose bytes up to the attributes are available. */
static int64_t begins_at(const uint8_t *h, int64_t before)
{
    return h[AT_MAGIC] == MAGIC ? get64(h) : message_base(h, before);
}

int64_t seg_scan(const uint8_t *buf, int64_t len, int64_t position, int64_t least, int64_t from_offset,
                 int64_t end_offset, int64_t max_bytes, int32_t check_crcs,
                 seg_batch *out, int64_t capacity, seg_scan_end *end)
{
    int64_t before = least < 0 ? UNKNOWN : least - 1;
    int64_t at = 0, taken = 0, n = 0;
    int32_t status = SEG_END;
    *end = (seg_scan_end){.last_offset = -1};
    while (at < len) {
        const uint8_t *h = buf + at;
        int64_t there = len - at;
        /* Bytes after the last wanted offset may be half written: they are not read. */
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
        if (there > MESSAGE_AT_ATTRIBUTES && begins_at(h, before) >= end_offset)
            break;
        status = SEG_FULL;
        if (n > 0 && end->need > max_bytes - taken)
            break;
        status = SEG_SHORT;
        if (there < MESSAGE_LEAST || there < end->need)
            break;
        seg_batch *b = &out[n];
        parse(h, position + at, before, b);
        if (b->last_offset >= from_offset) {
            status = SEG_BAD_CRC;
            if (check_crcs && !crc_holds(h, b->size))
                break;
            taken += b->size;
            n++;
        }
        at += b->size;
        before = end->last_offset = b->last_offset;
        status = SEG_END;
    }
    end->status = status;
    end->position = position + at;
    if (status != SEG_SHORT)
        end->need = 0;
    return n;
}

/* Whether a whole entry begins at h. The lengths within a message are checked before its CRC is computed: many small
 * numbers look like the front of a message. */
static int is_whole(const uint8_t *h, int64_t there, int64_t least_offset, int64_t most_offset)
{
    message m;
    if (verdict(h, there, -1) != NEXT)
        return 0;
    int64_t base = get64(h), size = (int64_t)get32(h + AT_LENGTH) + LOG_OVERHEAD;
    return base >= least_offset && base <= most_offset && size <= there &&
           (h[AT_MAGIC] == MAGIC || read_message(h, size, &m)) && crc_holds(h, size);
}

int64_t seg_resync(const uint8_t *buf, int64_t len, int64_t from, int64_t least_offset,
                   int64_t most_offset)
{
    for (int64_t at = from < 0 ? 0 : from; len - at >= MESSAGE_LEAST; at++)
        if (buf[at + AT_MAGIC] <= MAGIC && is_whole(buf + at, len - at, least_offset, most_offset))
            return at;
    return -1;
}

/* Reads the entries of a segment's offset index, two int32 each: the last offset of a batch, less the segment's base
 * offset, and the position of that batch. */
#ifndef SEG_ENTRY_H
#define SEG_ENTRY_H

#include "bytes.h"
#include "contract/segment.h"

enum { OFFSET_ENTRY = 8, TIME_ENTRY = 12 }; /* bytes of an entry of the offset index, and of the time index */

static inline int64_t relative_of(const seg_segment *s, int64_t slot)
{
    return get32(s->index + slot * OFFSET_ENTRY);
}

/* The position of an entry's batch; the segment's end for the slot after the last entry. */
static inline int64_t position_of(const seg_segment *s, int64_t slot)
{
    return slot < s->entries ? get32(s->index + slot * OFFSET_ENTRY + 4) : s->end;
}

#endif
